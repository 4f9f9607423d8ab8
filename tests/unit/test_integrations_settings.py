"""What the environment says to the plugins, and how they say what is wrong."""

import json
import os
import re
from pathlib import Path

import pytest

from kvevents.errors import ConfigError
from kvevents.integrations import PluginSettings, plugin_states
from kvevents.integrations.report import failing_loudly, note
from kvevents.integrations.settings import misspelt


def test_without_a_word_batches_are_merged_and_go_to_zmq_alone() -> None:
    assert PluginSettings.from_environment({}) == PluginSettings()
    assert PluginSettings() == PluginSettings(
        coalesce="chain", recorder=False, snapshot=False, zmq=True, jetstream=False, stand_in=False
    )


def test_each_variable_is_heard() -> None:
    environment = {
        "KVEVENTS_COALESCE": "compact",
        "KVEVENTS_RECORDER": "yes",
        "KVEVENTS_SNAPSHOT": "1",
        "KVEVENTS_ZMQ": "on",
        "KVEVENTS_NATS_SERVERS": "nats://broker:4222",
        "KVEVENTS_VLLM": "true",
        "KVEVENTS_WORKER_ID": "w",
        "KVEVENTS_WORKER_URL": "http://w:8000",
        "KVEVENTS_STATE_DIR": "/run/kvevents",
    }
    assert PluginSettings.from_environment(environment) == PluginSettings(
        coalesce="compact",
        recorder=True,
        snapshot=True,
        zmq=True,
        jetstream=True,
        stand_in=True,
        worker_id="w",
        worker_url="http://w:8000",
        state_dir=Path("/run/kvevents"),
    )


@pytest.mark.parametrize(
    ("environment", "match"),
    [
        ({"KVEVENTS_COALESCE": "more"}, "KVEVENTS_COALESCE: expected one of off, adjacent, chain, compact, got 'more'"),
        ({"KVEVENTS_RECORDER": "maybe"}, "KVEVENTS_RECORDER: expected 1 or 0, got 'maybe'"),
        ({"KVEVENTS_ZMQ": "0"}, "there is nowhere to publish"),
        (
            {"KVEVENTS_ZMQ": "0", "KVEVENTS_NATS_SERVERS": "nats://b", "KVEVENTS_SNAPSHOT": "1"},
            "and KVEVENTS_ZMQ is off",
        ),
    ],
)
def test_what_cannot_work_is_refused(environment: dict[str, str], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        PluginSettings.from_environment(environment)


def test_a_variable_that_is_misspelt_is_told() -> None:
    environment = {"KVEVENTS_RECODER": "1", "KVEVENTS_NATS_PASSWORD": "x", "KVEVENTS_FLEET": "f", "HOME": "/"}
    assert misspelt(environment) == ["KVEVENTS_RECODER is no setting of kvevents; did you mean KVEVENTS_RECORDER?"]
    assert misspelt({"KVEVENTS_NATS_SERVER": "nats://broker:4222"}) == [
        "KVEVENTS_NATS_SERVER is no setting of kvevents; did you mean KVEVENTS_NATS_SERVERS?"
    ]


def test_every_variable_in_the_pages_is_known() -> None:
    pages = Path(__file__).parents[2] / "docs"
    text = "".join((pages / name).read_text() for name in ("engines.md", "jetstream.md", "security.md"))
    names = set(re.findall(r"KVEVENTS_[A-Z_]*[A-Z]", text)) - {"KVEVENTS_"}
    names = {name for name in names if f"`{name}" in text}
    assert "KVEVENTS_NATS_PASSWORD_FILE" in names
    assert misspelt(dict.fromkeys(names, "x")) == []
    assert misspelt({"KVEVENTS_CLIENT_TOKEN": "x"}) == []


@pytest.mark.parametrize(
    ("endpoint", "ends"), [("tcp://*:5557", ":5557"), ("ipc:///run/kv.sock", ":kv.sock"), ("tcp://[::]:1", ":1")]
)
def test_a_worker_is_named_by_host_and_endpoint_unless_it_has_a_name(endpoint: str, ends: str) -> None:
    assert PluginSettings(worker_id="w").worker_name(endpoint) == "w"
    assert PluginSettings().worker_name(endpoint).endswith(ends)


def test_a_failure_is_said_aloud_and_left_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), failing_loudly("sglang", tmp_path / "states"):
        _ = 1 / 0
    said = capsys.readouterr().err
    assert f"kvevents: sglang plugin failed in process {os.getpid()}: ZeroDivisionError: division by zero" in said
    assert "Traceback" in said
    assert plugin_states()["sglang"].status == "failed"
    left = json.loads((tmp_path / "states" / f"sglang-{os.getpid()}.json").read_text())
    assert (left["engine"], left["status"], left["pid"]) == ("sglang", "failed", os.getpid())


def test_a_folder_that_cannot_be_written_is_said_and_nothing_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    note("vllm", "loaded", "fine", folder=tmp_path / "file")
    assert "KVEVENTS_STATE_DIR cannot be written" in capsys.readouterr().err
    assert plugin_states()["vllm"].detail == "fine"
