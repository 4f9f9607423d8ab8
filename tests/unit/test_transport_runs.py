"""Messages taken in runs: `live_all` does what `live` does with each."""

import random
from collections.abc import Iterator
from itertools import pairwise

import msgspec
import pytest
import zmq

from kvevents.transport.picture import Verdict
from kvevents.transport.receive import receive
from kvevents.transport.state import Fault, Reason
from tracker_world import World, batch

FAULT = Fault(Reason.EVENT_SKIPPED, "an event was skipped", mendable=False)


def stream(draw: random.Random) -> list[tuple[int, str]]:
    """Mostly a stream that goes on; now and then a gap, something old, or another life of the engine."""
    sequence, life = 0, "a"
    sent = []
    for _ in range(60):
        sent.append((sequence, life))
        step = draw.random()
        if step < 0.03:
            sequence, life = 0, chr(ord(life) + 1)
        elif step < 0.10:
            sequence = max(0, sequence + draw.choice([-2, -1, 0, 2, 3]))
        else:
            sequence += 1
    return sent


def outcome(world: World) -> object:
    counters = msgspec.structs.asdict(world.count)
    counters.pop("transitions")  # a state between two messages of one run is not entered
    return world.applied, world.asked, world.clears, world.state, world.tracker.last_sequence, counters


@pytest.mark.parametrize("replay", [True, False])
def test_runs_are_the_messages_one_by_one(replay: bool) -> None:
    for seed in range(150):
        draw = random.Random(seed)
        sent = stream(draw)
        cuts = [0, *sorted(draw.sample(range(1, len(sent)), 6)), len(sent)]
        odd = [Verdict(FAULT), Verdict(cleared=True)]
        verdicts = {f"{life}{sequence}": draw.choice(odd) for sequence, life in sent[::9]}
        single, runs = World(replay=replay).started(), World(replay=replay).started()
        single.verdicts = runs.verdicts = verdicts
        for start, end in pairwise(cuts):
            for sequence, life in sent[start:end]:
                single.live(sequence, life=life)
            runs.tracker.live_all([(sequence, batch(sequence, life).payload) for sequence, life in sent[start:end]])
            if replay:
                single.tracker.end()
                runs.tracker.end()
            assert outcome(single) == outcome(runs), seed


@pytest.fixture
def wire() -> "Iterator[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]]":
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    sender, receiver = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    address = f"inproc://{id(sender)}"
    sender.bind(address)
    receiver.connect(address)
    yield sender, receiver
    sender.close(0)
    receiver.close(0)


def test_what_is_no_message_is_counted_and_what_follows_is_read(
    wire: "tuple[zmq.Socket[bytes], zmq.Socket[bytes]]",
) -> None:
    sender, receiver = wire
    number = [value.to_bytes(8, "big") for value in range(4)]
    sender.send_multipart([b"kv", number[0], b"first"])
    sender.send_multipart([b"kv", b"no sequence"])
    sender.send_multipart([b"kv", b"short", b"x", b"y"])
    sender.send_multipart([b"kv", number[1], b"x", b"one too many"])
    sender.send_multipart([b"kv", b"\xff" * 8, b""])
    sender.send_multipart([b"kv", number[2], b"second"])
    received = receive(receiver, 100)
    assert received.batches == [(0, b"first"), (2, b"second")]
    assert received.malformed == 4


def test_no_more_than_the_limit_is_taken(wire: "tuple[zmq.Socket[bytes], zmq.Socket[bytes]]") -> None:
    sender, receiver = wire
    for value in range(5):
        sender.send_multipart([b"", value.to_bytes(8, "big"), b"x"])
    assert [len(receive(receiver, 2).batches) for _ in range(4)] == [2, 2, 1, 0]
