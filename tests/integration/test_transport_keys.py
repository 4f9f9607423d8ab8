"""Keys over real sockets: who is listed reads everything, whoever is not reads nothing and says why."""

import contextlib
import logging
import resource
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq
from zmq.auth import load_certificate
from zmq.utils import z85

from kvevents.events import BlockStored, KVEventBatch
from kvevents.index import PrefixIndex
from kvevents.transport import (
    CaptureReader,
    CaptureWriter,
    ConsumerKeys,
    DeliverySettings,
    PublisherKeys,
    Reason,
    Relay,
    Replayer,
    Source,
    SourceState,
    State,
    Subscriber,
    ZmqPublisher,
    discover,
    make_keys,
)
from kvevents.transport.security import MadeKeys
from kvevents.transport.sockets import bind_socket, limit_requests
from kvevents.wire import encode_batch
from recording_sink import RecordingSink
from zmq_peers import PlainEngine, sockets, until

pytestmark = pytest.mark.integration
ANY = "tcp://127.0.0.1:*"
QUICK = DeliverySettings(replay_timeout_s=0.5, idle_probe_s=0.1, settle_s=0.02)


@pytest.fixture
def made(tmp_path: Path) -> MadeKeys:
    return make_keys(tmp_path / "keys")


@pytest.fixture
def strangers(tmp_path: Path) -> MadeKeys:
    return make_keys(tmp_path / "strangers")


def publisher_keys(made: MadeKeys) -> PublisherKeys:
    return PublisherKeys(made.publisher)


def consumer_keys(made: MadeKeys) -> ConsumerKeys:
    return ConsumerKeys(made.clients["consumer"])


def source(publisher: ZmqPublisher, keys: ConsumerKeys | None) -> Source:
    return Source("w", publisher.endpoint, replay_endpoint=publisher.replay_endpoint, keys=keys)


def batch(number: int) -> bytes:
    parent = number - 1 if number else None
    return encode_batch(KVEventBatch(1.0, [BlockStored([number], parent, [number] * 4, 4)], 0))


@contextlib.contextmanager
def following(wanted: Source, sink: RecordingSink) -> Iterator[Subscriber]:
    with Subscriber([wanted], sink, settings=QUICK) as subscriber:
        yield subscriber


def failed(subscriber: Subscriber) -> SourceState | None:
    state = subscriber.state("w")
    return state if state.code is Reason.HANDSHAKE_FAILED else None


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_with_the_right_key_live_and_replayed_batches_arrive(made: MadeKeys, tmp_path: Path, transport: str) -> None:
    live, repeats = (ANY, ANY) if transport == "tcp" else (f"ipc://{tmp_path}/l", f"ipc://{tmp_path}/r")
    sink = RecordingSink()
    with ZmqPublisher(live, replay_endpoint=repeats, keys=publisher_keys(made)) as publisher:
        publisher.publish(b"earlier")
        with following(source(publisher, consumer_keys(made)), sink) as subscriber:
            assert subscriber.wait_live(20)
            assert sink.payloads() == [b"earlier"]
            publisher.publish(b"live")
            until(lambda: sink.payloads() == [b"earlier", b"live"])
        assert publisher.stats().refused_consumers == 0


def test_with_the_right_key_a_late_joiner_gets_a_snapshot(made: MadeKeys) -> None:
    index = PrefixIndex(4)
    with ZmqPublisher(
        ANY, replay_endpoint=ANY, snapshot="mirror", buffer_steps=2, keys=publisher_keys(made)
    ) as publisher:
        for number in range(8):
            publisher.publish(batch(number))
        wanted = replace(source(publisher, consumer_keys(made)), snapshot=True, block_size=4)
        with Subscriber([wanted], index, settings=QUICK) as subscriber:
            assert subscriber.wait_live(20)
            assert subscriber.state("w").counters.snapshots == 1
        assert index.holdings("w")[0]["GPU"] == set(range(8))


def test_a_publisher_that_connects_is_known_by_its_key_too(made: MadeKeys, strangers: MadeKeys) -> None:
    sink = RecordingSink()
    with following(Source("w", ANY, bind=True, keys=consumer_keys(made)), sink) as subscriber:
        at = subscriber.endpoint("w")
        with (
            ZmqPublisher(at, bind=False) as plain,
            ZmqPublisher(at, bind=False, keys=publisher_keys(strangers)) as stranger,
            ZmqPublisher(at, bind=False, keys=publisher_keys(made)) as publisher,
        ):
            until(lambda: [plain.publish(b"p"), stranger.publish(b"s"), publisher.publish(b"x")] and sink.applied)
            assert set(sink.payloads()) == {b"x"}


def test_who_is_not_listed_gets_nothing_and_says_why(
    made: MadeKeys, strangers: MadeKeys, caplog: pytest.LogCaptureFixture
) -> None:
    own = strangers.clients["consumer"]
    keys = ConsumerKeys(own, consumer_keys(made).publisher_file)
    sink = RecordingSink()
    caplog.set_level(logging.DEBUG)
    with ZmqPublisher(ANY, replay_endpoint=ANY, keys=publisher_keys(made)) as publisher:
        publisher.publish(b"secret")
        with following(source(publisher, keys), sink) as subscriber:
            state = until(lambda: failed(subscriber))
            assert state.state is State.CONNECTING
            assert "folder clients" in state.reason
            assert str(own) in state.reason
            until(lambda: publisher.stats().refused_consumers)
            # Put on the list, it is let in, with nothing started anew.
            public = own.with_suffix(".key")
            (publisher_keys(made).clients_folder / "late.key").write_bytes(public.read_bytes())
            assert subscriber.wait_live(20)
            assert sink.payloads() == [b"secret"]
    assert sum("refused a consumer at 127.0.0.1" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("whose", ["another publisher's", "none"])
def test_with_the_wrong_key_or_none_nothing_arrives_and_the_state_says_why(
    made: MadeKeys, strangers: MadeKeys, whose: str
) -> None:
    sink = RecordingSink()
    with ZmqPublisher(ANY, replay_endpoint=ANY, keys=publisher_keys(made)) as publisher:
        publisher.publish(b"secret")
        keys = None if whose == "none" else consumer_keys(strangers)
        with following(source(publisher, keys), sink) as subscriber:
            state = until(lambda: failed(subscriber))
            assert state.state is State.CONNECTING
            assert ("wants keys" if keys is None else "another key than") in state.reason
            assert sink.applied == []


@pytest.mark.parametrize("wrong", [False, True])
def test_replays_and_snapshots_are_for_those_on_the_list_only(made: MadeKeys, strangers: MadeKeys, wrong: bool) -> None:
    with ZmqPublisher(ANY, replay_endpoint=ANY, snapshot="mirror", keys=publisher_keys(made)) as publisher:
        publisher.publish(batch(0))
        with sockets() as make:
            dealer = make(zmq.DEALER)
            if wrong:
                ConsumerKeys(strangers.clients["consumer"], consumer_keys(made).publisher_file).secure(dealer)
            monitor = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            dealer.connect(publisher.replay_endpoint or "")
            try:
                with contextlib.suppress(zmq.Again):  # refused by now
                    dealer.send_multipart([b"", bytes(8)], zmq.NOBLOCK)
                assert monitor.poll(20_000)
                assert not dealer.poll(50)
            finally:
                dealer.disable_monitor()
                monitor.close(0)
        assert publisher.stats().replay_requests == 0


def test_a_publisher_without_keys_is_not_believed_where_keys_are_wanted(made: MadeKeys) -> None:
    sink = RecordingSink()
    with PlainEngine() as engine:
        wanted = Source("w", engine.endpoint, replay_endpoint=engine.replay_endpoint, keys=consumer_keys(made))
        with following(wanted, sink) as subscriber:
            until(lambda: engine.publish(b"forged") >= 0 and failed(subscriber))
            assert subscriber.state("w").state is State.CONNECTING
            assert sink.applied == []


def test_a_replay_socket_with_other_keys_is_silent_and_costs_no_more(made: MadeKeys) -> None:
    with ZmqPublisher(ANY) as live, ZmqPublisher(ANY, replay_endpoint=ANY, keys=publisher_keys(made)) as other:
        sink = RecordingSink()
        with following(Source("w", live.endpoint, replay_endpoint=other.replay_endpoint), sink) as subscriber:
            until(lambda: subscriber.state("w").counters.timeouts > 1)
            assert subscriber.state("w").code is Reason.REPLAY_SILENT
            until(lambda: live.publish(b"x") >= 0 and sink.applied)


def test_a_publishers_new_key_is_found_without_a_restart_of_consumers(made: MadeKeys, strangers: MadeKeys) -> None:
    sink = RecordingSink()
    keys = consumer_keys(made)
    with ZmqPublisher(ANY, replay_endpoint=ANY, keys=publisher_keys(made)) as old:
        old.publish(b"old")
        live, repeats = old.endpoint, old.replay_endpoint
        with following(source(old, keys), sink) as subscriber:
            assert subscriber.wait_live(20)
            old.close()
            (Path(strangers.publisher).parent / "clients" / "ours.key").write_bytes(
                keys.own.with_suffix(".key").read_bytes()
            )
            with ZmqPublisher(live, replay_endpoint=repeats, bind=True, keys=publisher_keys(strangers)) as new:
                new.publish(b"new")
                until(lambda: subscriber.state("w").code is Reason.KEYS_CHANGED)
                assert subscriber.state("w").state is State.LOST
                keys.publisher_file.write_bytes(strangers.publisher.with_suffix(".key").read_bytes())
                until(lambda: sink.payloads() == [b"new"])
                assert subscriber.wait_live(20)


def test_a_relay_has_keys_on_both_sides(made: MadeKeys, tmp_path: Path) -> None:
    out = make_keys(tmp_path / "out")
    index = PrefixIndex(4)
    with (
        ZmqPublisher(ANY, replay_endpoint=ANY, keys=publisher_keys(made)) as publisher,
        Relay(
            [replace(source(publisher, consumer_keys(made)), block_size=4)],
            ANY,
            replay_listen=ANY,
            keys=publisher_keys(out),
        ) as relay,
    ):
        for number in range(4):
            publisher.publish(batch(number))
        with Subscriber(relay.sources("w", keys=consumer_keys(out)), index, settings=QUICK) as subscriber:
            assert subscriber.wait_live(20)
            until(lambda: index.holdings("w").get(0, {}).get("GPU") == set(range(4)))
        with following(relay.sources("w")[0], sink := RecordingSink()) as plain:
            until(lambda: failed(plain))
            assert sink.applied == []
        stranger = ConsumerKeys(made.clients["consumer"], consumer_keys(out).publisher_file)
        with following(relay.sources("w", keys=stranger)[0], sink := RecordingSink()) as refused:
            until(lambda: failed(refused))
            assert sink.applied == []
        assert relay.stats().refused_consumers > 0


def test_a_capture_is_recorded_and_played_with_keys(made: MadeKeys, tmp_path: Path) -> None:
    with CaptureWriter(tmp_path / "c") as writer:
        writer.write_batch(Source("w", "tcp://127.0.0.1:5557"), batch(0), sequence=0, topic=b"", arrived=1.0)
    with Replayer(CaptureReader(tmp_path / "c"), speed=None, keys=publisher_keys(made)) as player:
        [worker] = player.workers
        player.run()
        sink = RecordingSink()
        found = discover(worker.url, worker_id="w", keys=consumer_keys(made))
        with following(found[0], sink) as subscriber, following(replace(found[0], keys=None), none := RecordingSink()):
            until(lambda: player._turn(10, None) or sink.applied)  # type: ignore[func-returns-value]
            assert subscriber.state("w").code is not Reason.HANDSHAKE_FAILED
            assert none.applied == []


def test_no_key_is_in_anything_that_is_said(
    made: MadeKeys, strangers: MadeKeys, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(0)
    said: list[object] = []
    deadline = time.monotonic() + 20

    def note(*told: object) -> None:
        said.append(told)

    wrong = ConsumerKeys(strangers.clients["consumer"], consumer_keys(made).publisher_file)
    with ZmqPublisher(ANY, replay_endpoint=ANY, keys=publisher_keys(made)) as publisher:
        publisher.publish(b"x")
        for keys in (consumer_keys(made), wrong, consumer_keys(strangers)):
            wanted = source(publisher, keys)
            with Subscriber([wanted], RecordingSink(), on_state=note) as subscriber:
                while not (subscriber.wait_live(0.01) or failed(subscriber)):
                    assert time.monotonic() < deadline
                said += [subscriber.states(), wanted, keys, str(wanted), vars(subscriber)]
        said += [publisher.stats(), publisher_keys(made), vars(publisher)]
    output = capfd.readouterr()
    text = repr(said) + caplog.text + output.out + output.err
    assert "handshake-failed" in text
    assert "folder clients" in text
    for private in (made.publisher, *made.clients.values(), strangers.publisher, *strangers.clients.values()):
        for key in load_certificate(private):
            assert key is not None
            raw = z85.decode(key)
            for form in (key.decode(), raw.hex(), repr(raw)[2:-1]):
                assert form not in text


GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)


def null_ready(kind: bytes) -> bytes:
    body = b"\x05READY" + b"\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind
    return b"\x04" + bytes([len(body)]) + body


def shake_hands(peer: socket.socket, kind: bytes) -> None:
    peer.settimeout(20)
    peer.sendall(GREETING)
    until(lambda: len(peer.recv(64, socket.MSG_PEEK | socket.MSG_WAITALL)) == 64)
    peer.recv(64, socket.MSG_WAITALL)
    peer.sendall(null_ready(kind))
    assert peer.recv(2)[:1] == b"\x04"


def is_cut_off(peer: socket.socket) -> bool:
    """Sends the beginning of a message of 1 GiB, and nothing of what is in it."""
    peer.sendall(b"\x02" + (1 << 30).to_bytes(8, "big"))
    try:
        while peer.recv(4096):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("side", ["live", "replay"])
def test_too_long_a_message_to_a_publisher_is_refused_by_its_length_alone(side: str) -> None:
    with ZmqPublisher(ANY, replay_endpoint=ANY) as publisher:
        at = publisher.endpoint if side == "live" else publisher.replay_endpoint or ""
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with socket.create_connection(("127.0.0.1", int(at.rpartition(":")[2]))) as peer:
            shake_hands(peer, b"SUB" if side == "live" else b"DEALER")
            assert is_cut_off(peer)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 16  # KiB: no memory was taken


@pytest.mark.parametrize("side", ["live", "replay"])
def test_too_long_a_message_to_a_consumer_is_refused_by_its_length_alone(side: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, sockets() as make:
        server.settimeout(20)
        at = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        pub = make(zmq.PUB)
        limit_requests(pub)
        live = bind_socket(pub, ANY)
        wanted = Source("w", at) if side == "live" else Source("w", live, replay_endpoint=at)
        with following(wanted, RecordingSink()):
            peer, _ = server.accept()
            with peer:
                shake_hands(peer, b"PUB" if side == "live" else b"ROUTER")
                assert is_cut_off(peer)


def option(of: "zmq.Socket[bytes]", name: int) -> Any:
    return of.getsockopt(name)


def test_every_socket_that_reads_from_outside_has_a_limit(
    made: MadeKeys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[zmq.Socket[bytes]] = []
    real = zmq.Context.socket

    def noted(context: zmq.Context[zmq.Socket[bytes]], kind: int, **options: Any) -> zmq.Socket[bytes]:
        opened.append(real(context, kind, **options))
        return opened[-1]

    monkeypatch.setattr(zmq.Context, "socket", noted)
    with CaptureWriter(tmp_path / "c") as writer:
        writer.write_batch(Source("w", "tcp://127.0.0.1:5557"), batch(0), sequence=0, topic=b"", arrived=1.0)
    own = consumer_keys(made)
    with (
        ZmqPublisher(ANY, replay_endpoint=ANY, snapshot="mirror", keys=publisher_keys(made)) as publisher,
        Relay([source(publisher, own)], ANY, replay_listen=ANY, keys=publisher_keys(made)) as relay,
        Replayer(CaptureReader(tmp_path / "c"), keys=publisher_keys(made)),
        Subscriber(relay.sources("w", keys=own), PrefixIndex(4), settings=QUICK) as subscriber,
    ):
        publisher.publish(batch(0))
        assert subscriber.wait_live(20)
        names: dict[int, set[int]] = {}
        for each in opened:
            if each.closed:
                continue
            kind, limit, at = (option(each, name) for name in (zmq.TYPE, zmq.MAXMSGSIZE, zmq.LAST_ENDPOINT))
            # Not those that nobody reaches from outside: monitors, and what answers handshakes.
            if kind != zmq.PAIR and not at.startswith(b"inproc://zeromq.zap"):
                names.setdefault(kind, set()).add(limit)
    asked, answered = {4_096}, {QUICK.max_message_bytes}
    assert names == {
        zmq.PUB: asked,
        zmq.XPUB: asked,
        zmq.ROUTER: asked,
        zmq.SUB: answered,
        zmq.DEALER: answered,
    }
