"""A feed notices that the broker is silent, or keeps messages to itself."""

import asyncio
from typing import Any, cast

import pytest

pytest.importorskip("nats", reason="nats-py is not installed: the extra `nats`")

from kvevents.transport.jetstream.connection import Connection
from kvevents.transport.jetstream.feed import Delivery, Feed


class FakeConnection:
    """Answers how many messages wait, and notes why it was given up."""

    def __init__(self, *pending: int) -> None:
        self.server = "nats://fake"
        self.closed = asyncio.Event()
        self.failures: list[str] = []
        self._pending = list(pending)

    async def call(self, subject: str) -> dict[str, Any]:
        assert subject.startswith("CONSUMER.INFO.s.")
        return {"num_pending": self._pending.pop(0)}

    def fail(self, why: str) -> None:
        self.failures.append(why)


async def ignore(_delivery: Delivery) -> None:
    """Takes a delivery."""


async def checked(connection: FakeConnection, times: int, *, delivers: bool = False, silent: bool = False) -> list[str]:
    """What a feed finds when it is checked so often, one second after the other."""
    feed = Feed(cast("Connection", connection), "s", ignore, heartbeat_s=1.0)
    for _ in range(times):
        feed._next_probe = 0.0
        feed._heard -= 3.5 if silent else 0.0
        feed._delivered += delivers
        await feed.check()
    return connection.failures


def test_messages_that_are_not_delivered_end_the_connection_at_the_second_look() -> None:
    assert asyncio.run(checked(FakeConnection(1), 1)) == []
    [why] = asyncio.run(checked(FakeConnection(1, 2), 2))
    assert why == "nats://fake: 2 messages of s are not delivered"


def test_what_is_on_its_way_is_no_reason() -> None:
    assert asyncio.run(checked(FakeConnection(1, 0, 1, 0), 4)) == []
    assert asyncio.run(checked(FakeConnection(1, 1, 1, 1), 4, delivers=True)) == []


def test_silence_ends_the_connection() -> None:
    [why] = asyncio.run(checked(FakeConnection(), 1, silent=True))
    assert "the broker has said nothing for 3.5 s" in why
