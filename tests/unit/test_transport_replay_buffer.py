"""The last batches of a publisher."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from kvevents.transport.replay_buffer import ReplayBuffer


@given(st.integers(0, 5), st.integers(0, 12), st.integers(-1, 13))
def test_it_has_the_last_ones_and_no_others(steps: int, published: int, start: int) -> None:
    buffer = ReplayBuffer(steps)
    assert [buffer.append(b"%d" % n) for n in range(published)] == list(range(published))
    kept = [(n, b"%d" % n) for n in range(max(0, published - steps), published)]
    assert list(buffer.since(start)) == [batch for batch in kept if batch[0] >= start]
    assert [buffer.get(n) for n in range(-1, published + 1)] == [dict(kept).get(n) for n in range(-1, published + 1)]
    assert buffer.next == published


def test_who_reads_while_it_is_written_gets_right_batches_in_order() -> None:
    buffer, stop = ReplayBuffer(16), threading.Event()

    def write() -> None:
        while not stop.is_set():
            buffer.append(b"%d" % buffer.next)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            read = list(buffer.since(0))
            numbers = [number for number, _ in read]
            assert numbers == sorted(set(numbers))
            assert all(payload == b"%d" % number for number, payload in read)
    finally:
        stop.set()
        writer.join()
