"""What is told of a document, and what a reader that is slow, gone or late gets."""

import asyncio
import copy
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from kvevents.server.dashboard import DashboardSettings
from kvevents.server.live import Live, differences

VALUES = st.recursive(
    st.none() | st.just(True) | st.integers(2, 5) | st.sampled_from(["", "a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)


def apply(document: Any, changes: Iterable[tuple[Sequence[str | int], Any]]) -> Any:
    for path, value in changes:
        if not path:
            document = copy.deepcopy(value)
            continue
        part = document
        for key in path[:-1]:
            part = part[key]
        part[path[-1]] = copy.deepcopy(value)
    return document


@given(VALUES, VALUES)
def test_the_differences_make_one_document_of_the_other(before: Any, after: Any) -> None:
    changed = apply(copy.deepcopy(before), list(differences(before, after)))
    assert json.dumps(changed, sort_keys=True) == json.dumps(after, sort_keys=True)
    assert list(differences(after, after)) == []


def test_only_what_differs_is_told() -> None:
    before = {"workers": [{"id": "a", "load": 1}, {"id": "b", "load": 2}], "now": 1}
    after = {"workers": [{"id": "a", "load": 1}, {"id": "b", "load": 3}], "now": 2}
    assert dict(differences(before, after)) == {("workers", 1, "load"): 3, ("now",): 2}


class Reader:
    """One connection whose reading the test lets go on and stops."""

    def __init__(self, live: Live, last_id: str = "") -> None:
        self.reads = asyncio.Event()
        self.reads.set()
        self.left = asyncio.Event()
        self.is_alive = asyncio.Event()
        self.body = b""
        scope = {"type": "http", "headers": [(b"last-event-id", last_id.encode())] if last_id else []}
        self.task = asyncio.create_task(live.serve(scope, self._receive, self._send, lambda: None))

    async def _receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        await self.reads.wait()
        self.body += message.get("body", b"")
        if b": alive" in self.body:
            self.is_alive.set()

    def events(self) -> list[tuple[str, Any]]:
        told = []
        for part in self.body.decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in part.split("\n") if ": " in line)
            if "event" in fields:
                told.append((fields["event"], json.loads(fields["data"])))
        return told

    async def leave(self) -> None:
        self.left.set()
        await self.task


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(10):
            await test()

    asyncio.run(limited())


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_slow_reader_is_told_everything_anew_instead_of_what_it_missed() -> None:
    async def test() -> None:
        live = Live(DashboardSettings(stream_frames=4), lambda document: {"stats": document})
        slow, quick = Reader(live), Reader(live)
        await settle()
        slow.reads.clear()
        for number in range(20):
            live.tell_document({"number": number})
            await settle()
        slow.reads.set()
        await settle()
        known: Any = {}
        for kind, data in slow.events():
            known = data["stats"] if kind == "snapshot" else apply(known, data["changes"])
        assert known == {"number": 19}
        assert [kind for kind, _ in slow.events()].count("snapshot") == 2
        assert [kind for kind, _ in quick.events()] == ["snapshot"] + ["change"] * 20
        assert live.counters.overflows > 0
        assert live.counters.dropped_messages >= 4 * live.counters.overflows
        await slow.leave()
        await quick.leave()
        assert live.counters.readers == 0

    run(test)


def test_a_reader_that_takes_nothing_any_more_is_let_go() -> None:
    async def test() -> None:
        live = Live(DashboardSettings(stream_stall_s=5), lambda document: {})
        reader = Reader(live)
        await settle()
        reader.reads.clear()
        live.tell("log", {})
        live.tell("log", {})
        await settle()
        now = asyncio.get_running_loop().time()
        live.let_go_of_stalled(now + 4)
        await settle()
        assert not reader.task.done()
        live.let_go_of_stalled(now + 6)
        await reader.task
        assert (live.counters.stalled, live.counters.readers) == (1, 0)

    run(test)


def test_silence_is_broken_and_the_end_is_said() -> None:
    async def test() -> None:
        live = Live(DashboardSettings(heartbeat_s=0.01), lambda document: {})
        reader = Reader(live)
        await reader.is_alive.wait()
        live.close()
        live.close()
        await reader.task
        assert reader.events()[-1] == ("bye", {})

    run(test)


def test_a_reader_has_to_come_back_from_time_to_time() -> None:
    async def test() -> None:
        live = Live(DashboardSettings(stream_longest_s=0.01, heartbeat_s=0.02), lambda document: {})
        reader = Reader(live)
        await reader.task
        assert [kind for kind, _ in reader.events()] == ["snapshot"]
        assert live.counters.readers == 0

    run(test)


def test_what_was_missed_is_told_only_while_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvevents.server.live.KEPT_BYTES", 400)

    async def test() -> None:
        live = Live(DashboardSettings(), lambda document: {})
        for number in range(30):
            live.tell("log", {"number": number})
        name = live._message("log", {}).split(b"\n")[0].decode().removeprefix("id: ").partition("-")[0]
        late, later = Reader(live, f"{name}-28"), Reader(live, f"{name}-2")
        await settle()
        assert late.events() == [("log", {"number": 28}), ("log", {"number": 29})]
        assert later.events() == [("snapshot", {})]
        await late.leave()
        await later.leave()

    run(test)
