"""Names on the broker, and who we are to it."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvevents.errors import ConfigError, WireError

pytest.importorskip("nats", reason="nats-py is not installed: the extra `nats`")

from kvevents.transport.jetstream import JetStreamSettings, NatsAccess
from kvevents.transport.jetstream.feed import read_place
from kvevents.transport.jetstream.names import MessageId, Names, from_token, to_token


@given(st.text(min_size=1))
def test_every_worker_id_is_one_token_and_comes_back(worker: str) -> None:
    if any(0xD800 <= ord(character) < 0xE000 for character in worker):
        return  # lone surrogates are no text
    token = to_token(worker)
    assert not set(token) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=")
    assert from_token(token) == worker


def test_names_of_a_fleet() -> None:
    names = Names("prod-1")
    assert names.stream == "KVEVENTS_prod-1"
    assert names.subject("http://10.0.0.1:30000", 3) == "kvevents.prod-1.http=3A=2F=2F10=2E0=2E0=2E1=3A30000.3"
    assert names.source(names.subject("http://10.0.0.1:30000", 3)) == ("http://10.0.0.1:30000", 3)


@pytest.mark.parametrize("fleet", ["", "a b", "a.b", "a>", "x" * 65])
def test_a_fleet_that_is_no_name_is_refused(fleet: str) -> None:
    with pytest.raises(ConfigError, match="fleet: expected 1 to 64"):
        JetStreamSettings(fleet=fleet)


@pytest.mark.parametrize("subject", ["", "kvevents.f.w", "kvevents.f.w.x", "kvevents.f.=ZZ.0", "kvevents.f.=FF.0"])
def test_a_foreign_subject_is_told(subject: str) -> None:
    with pytest.raises(WireError):
        Names.source(subject)


def test_a_message_id_comes_back() -> None:
    message = MessageId("0123abcd", 7, 1, 3)
    assert str(message) == "0123abcd.7.1.3"
    assert MessageId.read(str(message)) == message


@pytest.mark.parametrize(
    "text", [None, "", "a", "a.1", "a.1.0", "a.-1.0.1", "a.1.1.1", ".1.0.1", "a.1.0.1.2", "a.x.0.1"]
)
def test_a_foreign_message_id_is_told(text: str | None) -> None:
    with pytest.raises(WireError):
        MessageId.read(text)


def test_settings_come_from_the_environment(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("hunter2\n")
    settings = JetStreamSettings.from_environment(
        {
            "KVEVENTS_NATS_SERVERS": "nats://a:4222, tls://b:4222",
            "KVEVENTS_FLEET": "prod",
            "KVEVENTS_NATS_MAX_AGE_S": "60",
            "KVEVENTS_NATS_USER": "engine",
            "KVEVENTS_NATS_PASSWORD_FILE": str(secret),
        }
    )
    assert settings.servers == ("nats://a:4222", "tls://b:4222")
    assert (settings.fleet, settings.max_age_s, settings.max_bytes) == ("prod", 60.0, JetStreamSettings().max_bytes)
    assert settings.access.options() == {"user": "engine", "password": "hunter2"}
    assert "hunter2" not in repr(settings)
    assert settings.access.kind == "user 'engine'"


def test_a_password_in_the_environment_is_not_shown() -> None:
    access = NatsAccess.from_environment({"KVEVENTS_NATS_USER": "u", "KVEVENTS_NATS_PASSWORD": "hunter2"})
    assert access.options()["password"] == "hunter2"
    assert "hunter2" not in repr(access) + str(access) + access.kind


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("KVEVENTS_"):
            monkeypatch.delenv(name)
    assert JetStreamSettings.from_environment() == JetStreamSettings()


@pytest.mark.parametrize(
    ("environment", "match"),
    [
        ({"KVEVENTS_NATS_CREDS": "a", "KVEVENTS_NATS_NKEY": "b"}, "one kind of credentials, got creds and nkey"),
        ({"KVEVENTS_NATS_USER": "u"}, "user 'u' has no password: set KVEVENTS_NATS_PASSWORD_FILE"),
        ({"KVEVENTS_NATS_CERT": "c"}, "a certificate and its key go together"),
        ({"KVEVENTS_NATS_MAX_BYTES": "4G"}, "KVEVENTS_NATS_MAX_BYTES: expected a number, got '4G'"),
        ({"KVEVENTS_NATS_LEASE_S": "0"}, "lease_s: expected a number above 0"),
        ({"KVEVENTS_NATS_SERVERS": "nats://u:secret@h:4222"}, "h: credentials do not belong into an address"),
        ({"KVEVENTS_NATS_SERVERS": "http://h:4222"}, "expected nats://host:port, got 'http://h:4222'"),
        ({"KVEVENTS_NATS_SERVERS": ","}, "expected at least one address"),
    ],
)
def test_settings_that_cannot_work_are_refused(environment: dict[str, str], match: str) -> None:
    with pytest.raises(ConfigError, match=match) as refused:
        JetStreamSettings.from_environment(environment)
    assert "secret" not in str(refused.value)


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    for access, match in (
        (NatsAccess(creds=tmp_path / "none"), "cannot read .*none: No such file"),
        (NatsAccess(nkey=empty), "empty is empty"),
        (NatsAccess(ca=empty), "TLS cannot be set up from .*empty"),
    ):
        with pytest.raises(ConfigError, match=match):
            access.options()


@pytest.mark.parametrize(
    ("reply", "place"),
    [
        ("$JS.ACK.KVEVENTS_f.x.1.70.3.1796019793259971861.19", (70, 3, 19)),
        ("$JS.ACK.hub.ACC.KVEVENTS_f.x.1.70.3.1796019793259971861.19", (70, 3, 19)),
        ("$JS.ACK._.ACC.KVEVENTS_f.x.1.70.3.1796019793259971861.19.abc", (70, 3, 19)),
        ("", None),
        ("_INBOX.abc.def", None),
        ("$JS.ACK.s.c.1.x.3.1.19", None),
    ],
)
def test_the_place_of_a_delivery_is_read_in_every_form(reply: str, place: tuple[int, int, int] | None) -> None:
    assert read_place(reply) == place
