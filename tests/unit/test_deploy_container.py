"""The Containerfile; nothing is built here, since that needs a container engine and images from outside."""

import re
import tomllib
from pathlib import Path

import pytest
from cyclopts import CycloptsError

from deployments import DEPLOY, accepted

ROOT = DEPLOY.parent
TEXT = (DEPLOY / "Containerfile").read_text()
BUILD, FINAL = re.split(r"^FROM ", TEXT.replace("\\\n", " "), flags=re.MULTILINE)[1:]


def copied(stage: str) -> set[str]:
    found = re.findall(r"^COPY (?!--from)(.+) \S+$", stage, re.MULTILINE)
    return {name for names in found for name in names.split()}


def test_what_is_built_from_is_copied_and_there() -> None:
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]
    names = copied(BUILD)
    assert all((ROOT / name).exists() for name in names)
    for member in (
        *workspace["members"],
        "Cargo.lock",
        "pyproject.toml",
        "constraints.txt",
        "src",
        "README.md",
        "LICENSE",
    ):
        assert any(Path(member).is_relative_to(name) for name in names), member


def test_the_compiler_is_new_enough() -> None:
    wanted = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["rust-version"]
    (version,) = re.findall(r"^rust:([0-9.]+)-", BUILD)
    assert tuple(map(int, version.split("."))) >= tuple(map(int, wanted.split(".")))


def test_it_runs_as_nobody_with_extras_that_exist_and_exact_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (user,) = re.findall(r"^USER (\d+):\d+$", FINAL, re.MULTILINE)
    assert int(user) > 0
    (extras,) = re.findall(r"\)\[([a-z,]+)\]", FINAL)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert all("-c " in line for line in TEXT.splitlines() if "pip install" in line)


def test_a_command_that_is_none_would_be_found() -> None:
    with pytest.raises(CycloptsError):
        accepted(["serve", "--konfig", "/etc/kvevents/serve.toml"])


def test_its_command_is_one() -> None:
    (command,) = re.findall(r"^CMD \[(.*)\]$", FINAL, re.MULTILINE)
    told = accepted([word.strip().strip('"') for word in command.split(",")])
    assert told["config"] == Path("/etc/kvevents/serve.toml")
