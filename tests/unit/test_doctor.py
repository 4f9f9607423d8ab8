"""What `kvevents doctor` makes of a router's answers, and of what an engine publishes."""

from collections.abc import Iterator
from typing import Any

import pytest

from kvevents.doctor import Expectations, Hop, Verdict
from kvevents.doctor.announcement import probe
from kvevents.doctor.engine import EngineClient, Usage
from kvevents.doctor.listener import Listener
from kvevents.doctor.router import RouterAnswer, RouterClient, RouterMatch, RouterPrompt, RouterSource, RouterWorker
from kvevents.doctor.routing import check_router
from kvevents.doctor.visit import Visit
from kvevents.errors import WireError
from kvevents.events import BlockStored, KVCacheEvent, KVEventBatch
from kvevents.transport import Source
from kvevents.wire import encode_batch

ENGINE = "http://127.0.0.1:30000"
WORKER = "127.0.0.1:30000"
EVENTS = "tcp://127.0.0.1:5557"


class RouterThatKnows(RouterClient):
    """Finds the prompts of the adapters that it knows, and those of none."""

    def __init__(self, *adapters: str) -> None:
        super().__init__("http://127.0.0.1:8080", None)
        self.names = {None, "model", *adapters}

    def workers(self) -> list[RouterWorker]:
        return [RouterWorker(WORKER, ENGINE, True, "", "", [RouterSource(EVENTS, "live", "", "")])]

    def query(self, request: dict[str, Any]) -> RouterAnswer:
        tokens = len(request["token_ids"])
        usable = (tokens - 1) // 16 if request.get("model") in self.names else 0
        return RouterAnswer(16, tokens // 16, [RouterMatch(WORKER, usable)], RouterPrompt(tokens))


def test_a_router_that_has_another_name_for_an_adapter_is_the_cause() -> None:
    beliefs = Expectations(adapter="sql", patience_s=0)
    visit = Visit(ENGINE, beliefs, EngineClient(ENGINE, None), RouterThatKnows("sql-v2"))
    visit.sources, visit.model = [Source(WORKER, EVENTS)], "model"
    visit.probe = visit.adapter_probe = range(49)
    assert not check_router(visit)
    (found,) = visit.findings
    assert (found.hop, found.verdict) == (Hop.ROUTER, Verdict.CAUSE)
    assert "'sql'" in found.found
    assert "prompts.adapters" in found.fix


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener([Source(WORKER, "inproc://nobody")]) as one:
        yield one


def one_each(tokens: list[int], size: int, parent: int | None = None) -> Iterator[KVCacheEvent]:
    """A store for each block."""
    for at in range(0, len(tokens), size):
        yield BlockStored([1000 + tokens[at]], parent, tokens[at : at + size], size)
        parent = 1000 + tokens[at]


@pytest.mark.parametrize(
    ("events", "is_heard"),
    [
        pytest.param([BlockStored([1, 2], None, list(range(32)), 16)], True, id="whole"),
        pytest.param([BlockStored([1], None, list(range(16)), 16)], True, id="its-first-block"),
        pytest.param([BlockStored([2], 1, list(range(16, 32)), 16)], True, id="the-rest-of-it"),
        pytest.param(list(one_each(list(range(3, 32)), 1, 7)), True, id="the-rest-of-it-an-event-a-block"),
        pytest.param([BlockStored([31], 7, [31], 1)], False, id="one-token-may-be-anybodys"),
        pytest.param([BlockStored([1], None, [0], 1)], False, id="so-may-be-the-first"),
        pytest.param([BlockStored([2], 1, list(range(17, 33)), 16)], False, id="another-rest"),
        pytest.param([BlockStored([2], 1, list(range(16)), 16)], False, id="its-first-block-below-another"),
    ],
)
def test_a_prompt_is_heard_by_its_blocks(listener: Listener, events: list[KVCacheEvent], is_heard: bool) -> None:
    listener.apply(WORKER, encode_batch(KVEventBatch(0.0, events, None)), seq=0, dp_rank=None)
    assert (listener.wait_for_store(list(range(32)), 0) is not None) == is_heard


def test_what_cannot_be_read_is_told_from_silence(listener: Listener) -> None:
    class Engine(EngineClient):
        def send(self, path: str, request: dict[str, Any]) -> Usage:
            with pytest.raises(WireError):
                listener.apply(WORKER, b"\xc1", seq=0, dp_rank=None)
            return Usage(len(request["prompt"]))

    visit = Visit(ENGINE, Expectations(patience_s=0), Engine(ENGINE, None), None)
    assert not probe(visit, listener)
    assert "cannot be read" in visit.findings[0].found
