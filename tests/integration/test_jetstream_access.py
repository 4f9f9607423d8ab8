"""Credentials and TLS of a broker: what lets us in, and what is said when it does not."""

import asyncio
import logging
import re
import shutil
from pathlib import Path

import pytest

from kvevents.errors import TransportError
from nats_server import NatsServer, running_nats, wait_until
from recording_sink import RecordingSink

pytest.importorskip("nats", reason="nats-py is not installed: the extra `nats`")

from jetstream_fleet import expect_live, settings_for, store
from kvevents.transport.jetstream import JetStreamPublisher, JetStreamSettings, JetStreamSubscriber, NatsAccess
from kvevents.transport.jetstream.connection import Connection
from nats_identities import USER, make_certificates, new_pair, operator_setup

pytestmark = pytest.mark.integration

USERS = """
authorization { users: [
  { user: "engine", password: "hunter2" },
  { user: "watcher", password: "hunter3", permissions: { publish: "nothing.>", subscribe: ">" } }
] }
"""


def carries(settings: JetStreamSettings) -> None:
    """A batch gets through."""
    sink = RecordingSink()
    with JetStreamSubscriber(settings, sink) as subscriber, JetStreamPublisher(settings, "w") as publisher:
        publisher.publish(store(1))
        publisher.wait_ready(20.0)
        wait_until(lambda: sink.sequences() == [0], subscriber.states)
        expect_live(subscriber)


def password(folder: Path, name: str, text: str) -> NatsAccess:
    file = folder / f"{name}.password"
    file.write_text(text)
    return NatsAccess(user=name, password_file=file)


def why_not(settings: JetStreamSettings, pattern: str) -> None:
    """Neither side gets in; both say why, though a connection that was let in for a moment may say otherwise."""
    with JetStreamSubscriber(settings, RecordingSink()) as subscriber:
        wait_until(lambda: re.search(pattern, subscriber.broker.reason), lambda: subscriber.broker)
        with pytest.raises(TransportError, match="is not ready within"):
            subscriber.wait_caught_up(0.05)
        assert not subscriber.wait_live(0.0)
    with JetStreamPublisher(settings, "w", linger_s=0.0) as publisher:
        publisher.publish(store(1))
        wait_until(lambda: re.search(pattern, publisher.stats().broker.reason), publisher.stats)
        with pytest.raises(TransportError, match="is not ready within"):
            publisher.wait_ready(0.05)


def test_a_user_with_the_right_password_gets_in_and_others_are_told_why_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with running_nats(tmp_path / "nats", USERS) as server:
        carries(settings_for(server, access=password(tmp_path, "engine", "hunter2")))
        wrong = password(tmp_path, "engine", "secret-but-wrong")
        why_not(settings_for(server, access=wrong), r"refuses user 'engine': Authorization Violation")
        assert caplog.text.count("refuses user 'engine'") == 2  # once a side, not once an attempt
        why_not(settings_for(server), r"refuses no credentials: Authorization Violation")
    assert "hunter2" not in caplog.text
    assert "secret-but-wrong" not in caplog.text


def test_a_user_without_permissions_is_told_what_it_may_not_do(tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats", USERS) as server:
        access = password(tmp_path, "watcher", "hunter3")
        settings = settings_for(server, access=access, connect_timeout_s=0.3)
        why_not(settings, r"(?i)permissions violation for publish")


def test_a_password_that_is_changed_in_its_file_is_used_at_the_next_attempt(tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats", USERS) as server:
        access = password(tmp_path, "engine", "old")
        sink = RecordingSink()
        with JetStreamSubscriber(settings_for(server, access=access), sink) as subscriber:
            wait_until(lambda: subscriber.broker.failures, "no failure")
            password(tmp_path, "engine", "hunter2")
            subscriber.wait_caught_up(20.0)


def test_an_nkey_gets_in(tmp_path: Path) -> None:
    _, seed, name = new_pair(USER)
    _, other_seed, _ = new_pair(USER)
    mine, other = tmp_path / "mine.nk", tmp_path / "other.nk"
    mine.write_text(seed)
    other.write_text(other_seed)
    with running_nats(tmp_path / "nats", f"authorization {{ users: [ {{ nkey: {name} }} ] }}") as server:
        carries(settings_for(server, access=NatsAccess(nkey=mine)))
        why_not(settings_for(server, access=NatsAccess(nkey=other)), r"refuses nkey file .*other\.nk: Authorization")


def test_a_credentials_file_gets_in(tmp_path: Path) -> None:
    configuration, creds = operator_setup(tmp_path)
    with running_nats(tmp_path / "nats", configuration) as server:
        carries(settings_for(server, access=NatsAccess(creds=creds)))
        _, other = operator_setup(tmp_path_of(tmp_path, "other"))
        why_not(settings_for(server, access=NatsAccess(creds=other)), r"refuses credentials file .*user\.creds")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed: no certificates can be made")
def test_tls_with_certificates_of_both_sides(tmp_path: Path) -> None:
    ca, certificate, key = make_certificates(tmp_path)
    stranger, *_ = make_certificates(tmp_path_of(tmp_path, "stranger"))
    tls = f'tls {{ cert_file: "{certificate}", key_file: "{key}", ca_file: "{ca}", verify: true }}'
    with running_nats(tmp_path / "nats", tls) as server:
        carries(settings_for(server, access=NatsAccess(ca=ca, certificate=certificate, key=key)))
        trusts_another = NatsAccess(ca=stranger, certificate=certificate, key=key)
        why_not(settings_for(server, access=trusts_another), r"cannot be reached: .*(?i:certificate verify failed)")


def test_a_port_without_a_broker_is_said(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats")
    why_not(settings_for(server), rf"127\.0\.0\.1:{server.port} cannot be reached: .*(?i:connect)")


def test_a_broker_without_jetstream_is_said(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats")
    (tmp_path / "nats" / "nats.conf").write_text(f'listen: "127.0.0.1:{server.port}"\n')
    with server:
        why_not(settings_for(server), r"JetStream is off")


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"subjects": ["other.>"]}, r"expected one of kvevents\.test\.>, found \['other\.>'\]"),
        ({"subjects": ["kvevents.test.*"]}, r"expected one of kvevents\.test\.>, found"),
        ({"subjects": ["kvevents.>"], "retention": "interest"}, "expected retention by limits, found 'interest'"),
    ],
    ids=["other subjects", "too few", "forgetful"],
)
def test_a_stream_that_is_for_something_else_is_said_once(
    tmp_path: Path, config: dict[str, object], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def make(server: NatsServer, settings: JetStreamSettings) -> None:
        connection = await Connection.open(server.url, settings, "test")
        name = settings.names.stream
        await connection.call(f"STREAM.CREATE.{name}", {"name": name, "storage": "memory"} | config)
        await connection.close()

    with running_nats(tmp_path / "nats") as server:
        settings = settings_for(server, fleet="test")
        asyncio.run(make(server, settings))
        why_not(settings, says)
        with JetStreamPublisher(settings, "w", linger_s=0.0) as publisher:
            caplog.clear()
            wait_until(lambda: publisher.stats().broker.failures > 3, publisher.stats)
        assert len(caplog.records) <= 1


def test_a_connection_is_made_once_and_ends_when_it_is_told(tmp_path: Path) -> None:
    async def connect(server: NatsServer) -> str:
        connection = await Connection.open(server.url, settings_for(server), "test")
        connection.fail("enough")
        await connection.closed.wait()
        await connection.close()
        return connection.why

    with running_nats(tmp_path / "nats") as server:
        assert asyncio.run(connect(server)) == "enough"


def tmp_path_of(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    return folder
