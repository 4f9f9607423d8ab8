"""Sockets that cannot be had, and what a sink's report says of a batch."""

from typing import NamedTuple

import pytest
import zmq

from kvevents.errors import TransportError
from kvevents.events import AllBlocksCleared, BlockRemoved, KVEventBatch
from kvevents.index import PrefixIndex
from kvevents.transport.sink import judge
from kvevents.transport.sockets import open_socket
from kvevents.wire import encode_batch

CLEAR = encode_batch(KVEventBatch(0.0, [AllBlocksCleared()]))
WORD = encode_batch(KVEventBatch(0.0, [BlockRemoved([1], "AllBlocksCleared")]))


def test_too_many_open_sockets_are_an_error_of_the_transport() -> None:
    with zmq.Context[zmq.Socket[bytes]]() as context:
        context.set(zmq.MAX_SOCKETS, 1)
        with (
            open_socket(zmq.SUB, "tcp://127.0.0.1:5557", context),
            pytest.raises(TransportError, match=r"no socket for tcp://127\.0\.0\.1:5557: .*limit of open files"),
        ):
            open_socket(zmq.SUB, "tcp://127.0.0.1:5557", context)


class Report(NamedTuple):
    cleared: int


class TestClears:
    def test_a_report_says_whether_a_batch_emptied_its_source(self) -> None:
        index = PrefixIndex(4)
        assert judge(index.apply("w", CLEAR, seq=1), 1, CLEAR).cleared
        assert not judge(index.apply("w", CLEAR, seq=1), 1, CLEAR).cleared, "a duplicate, which was not applied"
        assert judge(Report(1), 1, b"not read").cleared

    def test_of_a_sink_that_does_not_say_the_batch_is_read(self) -> None:
        assert judge(None, 1, CLEAR).cleared
        assert not judge(None, 1, WORD).cleared
        assert not judge(None, 1, b"AllBlocksCleared").cleared, "no batch"
