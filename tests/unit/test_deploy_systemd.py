"""The units for systemd, by systemd's own checks where it is there."""

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deployments import DEPLOY, TOKENS, accepted
from kvevents.server.configuration.load import SECRETS, load_settings

FOLDER = DEPLOY / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
INSTALLED = "/opt/kvevents/bin/kvevents"
MAX_EXPOSURE = 2.0
"""Of 10, as `systemd-analyze security` counts."""


class Unit(configparser.RawConfigParser):
    """A unit's sections; of keys that come twice all values count."""

    def __init__(self, path: Path) -> None:
        super().__init__(strict=False, delimiters="=", comment_prefixes="#", interpolation=None)
        self.read_string(path.read_text())
        self.text = path.read_text()

    def optionxform(self, optionstr: str) -> str:
        return optionstr

    def all(self, name: str) -> list[str]:
        return re.findall(rf"^{name}=(.*)$", self.text, re.MULTILINE)


def systemd_analyze() -> str:
    """Where it is; without it the test is skipped."""
    found = shutil.which("systemd-analyze")
    if found is None:
        pytest.skip("systemd-analyze is not installed: `apt-get install systemd`")
    return found


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_finds_nothing_wrong(path: Path, tmp_path: Path) -> None:
    command = Path(sys.executable).parent / "kvevents"
    assert INSTALLED in path.read_text()
    copy = tmp_path / path.name
    copy.write_text(path.read_text().replace(INSTALLED, str(command)))
    found = subprocess.run([systemd_analyze(), "verify", copy], capture_output=True, text=True, check=False)
    assert (found.stderr, found.returncode) == ("", 0)


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_service_can_do_little_but_its_work(path: Path) -> None:
    options = ["--offline=yes", f"--threshold={round(MAX_EXPOSURE * 10)}"]
    found = subprocess.run(
        [systemd_analyze(), "security", *options, path],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SYSTEMD_PAGER": "cat"},
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert "Overall exposure level" in found.stdout


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_its_command_is_one(path: Path) -> None:
    unit = Unit(path)
    program, *arguments = shlex.split(unit["Service"]["ExecStart"].replace("%i", "30000").replace("%S", "/var/lib"))
    assert program == INSTALLED
    options = re.findall(r"such as OPTIONS=(.*)$", unit.text, re.MULTILINE)
    arguments = [
        word for argument in arguments for word in (shlex.split(options[0]) if argument == "$OPTIONS" else [argument])
    ]
    told = accepted(arguments)
    if arguments[0] == "serve":
        assert told["config"] == Path("/etc/kvevents/serve.toml")
    else:
        state = unit["Service"]["StateDirectory"].replace("%i", "30000")
        assert told["log"] == Path("/var/lib") / state
        assert told["http"] == "0.0.0.0:5080"


def test_tokens_come_as_credentials_and_stand_nowhere() -> None:
    unit = Unit(FOLDER / "kvevents-serve.service")
    loaded = {word.partition(":")[0] for word in unit.all("LoadCredential")}
    files = dict(word.split("=", 1) for word in unit.all("Environment"))
    assert files == {
        f"{SECRETS['client_token']}_FILE": "%d/client-token",
        f"{SECRETS['admin_token']}_FILE": "%d/admin-token",
    }
    assert loaded == {"client-token", "admin-token"}


def test_its_file_is_one_and_answers_may_end_before_it_is_killed() -> None:
    settings = load_settings(FOLDER / "serve.toml", environment=TOKENS)
    settings.security.check_binding(settings.listen)
    unit = Unit(FOLDER / "kvevents-serve.service")
    assert float(unit["Service"]["TimeoutStopSec"]) > settings.listen.drain_s
    assert unit["Service"]["Restart"] == "always"
