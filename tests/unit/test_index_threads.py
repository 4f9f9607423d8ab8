"""Writers and readers at once: every event is seen whole, every answer is one that was true."""

import threading

from index_feed import batch, remove, store
from kvevents.index import PrefixIndex
from kvevents.wire import encode_batch
from threads import run

BLOCKS = 600
"""More than one slice of a batch, so that a torn event would show."""

TOKENS = list(range(2 * BLOCKS))
STORE = encode_batch(batch(store(*range(BLOCKS), tokens=TOKENS)))
REMOVE = encode_batch(batch(remove(*range(BLOCKS))))


def test_each_event_is_seen_whole() -> None:
    index = PrefixIndex(2)
    seen: set[int] = set()
    done = threading.Event()

    def write() -> None:
        for _ in range(150):
            index.apply("w", STORE)
            index.apply("w", REMOVE)
        done.set()

    def read() -> None:
        while not done.is_set():
            seen.update(match.total for match in index.match(TOKENS))

    run(write, read, read)
    assert seen <= {BLOCKS}
    assert not index.match(TOKENS)


def test_workers_come_and_go_while_others_write_and_read() -> None:
    index = PrefixIndex(2)

    def write(worker: str) -> None:
        for seq in range(60):
            index.apply(worker, STORE, seq=2 * seq)
            index.apply(worker, REMOVE, seq=2 * seq + 1)
        index.apply(worker, STORE, seq=1000)

    def come_and_go() -> None:
        for _ in range(60):
            handle = index.add_worker("guest")
            index.apply(handle, STORE)
            index.remove_worker("guest")
            assert index.apply(handle, STORE).ignored == "worker-removed"

    def look() -> None:
        copy = PrefixIndex(2)
        for _ in range(20):
            copy.restore(index.snapshot())
            copy.check_integrity()
            index.check_integrity()
            index.holdings("a")
            index.dump_events("b")
            assert index.stats().blocks in {0, BLOCKS}

    run(lambda: write("a"), lambda: write("b"), come_and_go, look)
    assert [(match.worker, match.total) for match in index.match(TOKENS)] == [("a", BLOCKS), ("b", BLOCKS)]
