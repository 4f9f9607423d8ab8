"""A publisher's batches between the engine and the broker."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("nats", reason="nats-py is not installed: the extra `nats`")

from kvevents.transport.jetstream.outbox import Outbox


def outbox(max_batches: int = 100, max_bytes: int = 10_000, keep: int = 10) -> Outbox:
    return Outbox(max_batches=max_batches, max_bytes=max_bytes, keep_batches=keep, keep_bytes=10_000)


def send_all(box: Outbox) -> list[int]:
    sent = []
    while (batch := box.take()) is not None:
        sent.append(batch.sequence)
    return sent


def test_numbers_are_used_up_by_what_is_dropped() -> None:
    box = outbox(max_batches=2)
    assert [box.put(b"x")[0] for _ in range(4)] == [0, 1, 2, 3]
    assert (box.dropped, box.waiting, box.last) == (2, 2, 3)
    assert send_all(box) == [0, 1]
    assert box.put(b"x")[0] == 4
    assert box.dropped == 3  # what is in flight takes room too
    assert (box.settled, box.is_settled) == (None, False)
    box.acknowledge(0)
    assert (box.settled, box.is_settled) == (0, False)
    box.acknowledge(1)
    assert (box.settled, box.is_settled) == (4, True)


def test_bytes_are_bounded_but_one_batch_fits() -> None:
    box = outbox(max_bytes=10)
    box.put(b"x" * 50)
    box.put(b"x")
    assert (box.waiting, box.dropped) == (1, 1)
    assert send_all(box) == [0]
    assert box.acknowledge(0) == 50
    box.put(b"x" * 9)
    assert box.dropped == 1


def test_the_sender_is_woken_by_the_first_only() -> None:
    box = outbox(max_batches=2)
    assert [box.put(b"x")[1] for _ in range(3)] == [True, False, False]


def test_what_the_broker_does_not_have_is_sent_again() -> None:
    box = outbox()
    for _ in range(6):
        box.put(b"x")
    for _ in range(5):
        box.take()
    for sequence in range(3):
        box.acknowledge(sequence)
    assert box.rewind(1) == 3  # it lost 2, which it had acknowledged
    assert send_all(box) == [2, 3, 4, 5]
    assert box.acknowledge(0) is None
    assert box.rewind(None) == 6
    assert send_all(box) == [0, 1, 2, 3, 4, 5]


def test_what_was_kept_is_bounded() -> None:
    box = outbox(keep=2)
    for _ in range(5):
        box.put(b"x")
    for sequence in send_all(box):
        box.acknowledge(sequence)
    assert box.rewind(None) == 2
    assert send_all(box) == [3, 4]


def test_a_batch_that_was_refused_is_not_sent_behind_later_ones() -> None:
    box = outbox()
    for _ in range(3):
        box.put(b"x")
    send_all(box)
    box.acknowledge(2)
    assert box.rewind(2, failed={1}) == 0
    assert (box.dropped, send_all(box), box.settled) == (1, [], 2)
    box.put(b"x")
    box.take()
    box.refuse(3)
    assert (box.dropped, box.is_settled) == (2, True)


@given(st.lists(st.sampled_from(["put", "take", "acknowledge", "rewind", "refuse"]), max_size=60), st.data())
def test_every_batch_is_waiting_in_flight_with_the_broker_or_dropped(steps: list[str], data: st.DataObject) -> None:
    """Against a broker that is a list: whatever is not there in the end was dropped, and order is kept."""
    box, broker, in_flight = outbox(max_batches=5, keep=100), list[int](), list[int]()
    for step in steps:
        if step == "put":
            box.put(b"x")
        elif step == "take" and (batch := box.take()) is not None:
            in_flight.append(batch.sequence)
        elif step == "acknowledge" and in_flight:
            broker.append(sequence := in_flight.pop(0))
            box.acknowledge(sequence)
        elif step == "refuse" and in_flight:
            box.refuse(in_flight.pop(0))
        elif step == "rewind":
            keeps = data.draw(st.integers(0, len(broker)))
            del broker[keeps:]
            in_flight.clear()
            box.rewind(broker[-1] if broker else None)
        assert (box.waiting + box.in_flight == 0) == box.is_settled
        assert box.in_flight == len(in_flight)
    broker += in_flight + send_all(box)
    assert broker == sorted(set(broker))
    assert len(broker) + box.dropped == (0 if box.last is None else box.last + 1)
