"""The engine's HTTP interface, called in process and in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import msgspec
import pytest

from kvevents.engine.app import create_app
from kvevents.engine.clock import VirtualClock
from kvevents.engine.config import EngineConfig
from kvevents.engine.engine import Engine
from kvevents.engine.timing import TimingModel

PAGE = 4
CONFIG = EngineConfig(
    model_name="sim",
    page_size=PAGE,
    max_total_tokens=400,
    timing=TimingModel(prefill_tokens_per_second=1000, decode_step_ms=10),
    max_body_bytes=4000,
)
Story = Callable[[Engine, httpx.AsyncClient], Awaitable[None]]


def with_engine(story: Story, **settings: Any) -> None:
    """Run a story against an engine that takes no real time."""

    async def whole() -> None:
        config = msgspec.structs.replace(CONFIG, **settings)
        async with Engine(config, clock=VirtualClock()) as engine:
            transport = httpx.ASGITransport(create_app(engine), raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
                await story(engine, client)

    asyncio.run(whole())


def events(response: httpx.Response) -> list[Any]:
    """The values of a stream; its last event must be [DONE]."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    *lines, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [msgspec.json.decode(line.removeprefix("data: ")) for line in lines]


def test_a_completion_and_what_was_cached_of_the_next() -> None:
    async def story(_engine: Engine, client: httpx.AsyncClient) -> None:
        prompt = list(range(10))
        body = {"model": "any", "prompt": prompt, "max_tokens": 6, "temperature": 0.5}
        first = (await client.post("/v1/completions", json=body)).json()
        assert first["id"].startswith("cmpl-")
        assert (first["object"], first["model"]) == ("text_completion", "any")
        (choice,) = first["choices"]
        assert (choice["index"], choice["finish_reason"], len(choice["text"])) == (0, "length", 6)
        assert first["usage"] == {
            "prompt_tokens": 10,
            "completion_tokens": 6,
            "total_tokens": 16,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        again = (await client.post("/v1/completions", json=body)).json()
        assert again["choices"] == first["choices"]
        assert again["usage"]["prompt_tokens_details"] == {"cached_tokens": 8}

    with_engine(story)


def test_a_streamed_completion_says_what_the_whole_one_says() -> None:
    async def story(_engine: Engine, client: httpx.AsyncClient) -> None:
        body: dict[str, Any] = {"prompt": "hello engine", "max_tokens": 8}
        whole = (await client.post("/v1/completions", json=body)).json()
        stream = body | {"stream": True, "stream_options": {"include_usage": True}}
        *chunks, last = events(await client.post("/v1/completions", json=stream))
        assert [len(chunk["choices"][0]["text"]) for chunk in chunks] == [1, 3, 3, 1]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["choices"][0]["text"]
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "length"]
        assert all("usage" not in chunk for chunk in chunks)
        assert last["choices"] == []
        assert last["usage"] == whole["usage"] | {"prompt_tokens_details": {"cached_tokens": 8}}
        assert {chunk["id"] for chunk in chunks} == {last["id"]}
        assert not any(
            "usage" in chunk for chunk in events(await client.post("/v1/completions", json=body | {"stream": True}))
        )

    with_engine(story, stream_interval=3)


def test_chat_whole_and_streamed() -> None:
    async def story(_engine: Engine, client: httpx.AsyncClient) -> None:
        messages = [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "hi "}, {"type": "text", "text": "there"}]},
        ]
        body: dict[str, Any] = {"messages": messages, "max_completion_tokens": 5, "max_tokens": 99}
        whole = (await client.post("/v1/chat/completions", json=body)).json()
        assert whole["object"] == "chat.completion"
        message = whole["choices"][0]["message"]
        assert (message["role"], len(message["content"])) == ("assistant", 5)
        text = "<|system|>\nbe brief\n<|user|>\nhi there\n<|assistant|>\n"
        assert whole["usage"]["prompt_tokens"] == len(text)
        chunks = events(await client.post("/v1/chat/completions", json=body | {"stream": True}))
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        assert [delta.get("role") for delta in deltas] == ["assistant"] + [None] * 4
        assert "".join(delta["content"] for delta in deltas) == message["content"]
        # The next turn finds the whole conversation so far in the cache, the answer included.
        messages += [{"role": "assistant", "content": message["content"]}, {"role": "user", "content": "more"}]
        after = (await client.post("/v1/chat/completions", json=body)).json()["usage"]
        assert after["prompt_tokens_details"]["cached_tokens"] == (len(text) + 5 - 1) // PAGE * PAGE

    with_engine(story)


def test_generate_in_sglangs_form() -> None:
    async def story(_engine: Engine, client: httpx.AsyncClient) -> None:
        body: dict[str, Any] = {"input_ids": list(range(9)), "sampling_params": {"max_new_tokens": 3}, "rid": "r1"}
        answer = (await client.post("/generate", json=body)).json()
        assert len(answer["text"]) == len(answer["output_ids"]) == 3
        meta = answer["meta_info"]
        assert meta.pop("e2e_latency") >= 0
        assert meta == {
            "id": "r1",
            "finish_reason": {"type": "length", "length": 3},
            "prompt_tokens": 9,
            "completion_tokens": 3,
            "cached_tokens": 0,
            "dp_rank": 0,
        }
        chunks = events(await client.post("/generate", json=body | {"stream": True}))
        assert [chunk["output_ids"] for chunk in chunks] == [answer["output_ids"][:count] for count in (1, 2, 3)]
        assert [chunk["meta_info"]["finish_reason"] for chunk in chunks[:-1]] == [None, None]
        assert chunks[-1]["meta_info"]["cached_tokens"] == 8
        text = (await client.post("/generate", json={"text": "abc", "sampling_params": {"max_new_tokens": 1}})).json()
        assert text["meta_info"]["prompt_tokens"] == 3

    with_engine(story)


def test_defaults_for_the_number_of_outputs() -> None:
    async def story(_engine: Engine, client: httpx.AsyncClient) -> None:
        completion = await client.post("/v1/completions", json={"prompt": [1]})
        assert completion.json()["usage"]["completion_tokens"] == 16
        chat = await client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": None}]})
        assert chat.json()["usage"]["completion_tokens"] == 128
        generate = await client.post("/generate", json={"text": "a"})
        assert generate.json()["meta_info"]["completion_tokens"] == 128
        none = (await client.post("/v1/completions", json={"prompt": [1], "max_tokens": 0})).json()
        assert (none["choices"][0]["text"], none["usage"]["completion_tokens"]) == ("", 0)

    with_engine(story)


def test_salts_and_extra_keys_separate() -> None:
    async def story(_engine: Engine, client: httpx.AsyncClient) -> None:
        async def cached(**fields: str) -> int:
            response = await client.post("/v1/completions", json={"prompt": list(range(9)), "max_tokens": 1, **fields})
            count: int = response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            return count

        assert [await cached(), await cached(cache_salt="x"), await cached(extra_key="x")] == [0, 0, 0]
        assert [await cached(cache_salt=""), await cached(cache_salt="x"), await cached(extra_key="x")] == [8, 8, 8]

    with_engine(story)


def test_ranks_take_turns_and_can_be_chosen() -> None:
    async def story(engine: Engine, client: httpx.AsyncClient) -> None:
        body = {"prompt": [1, 2, 3], "max_tokens": 1}
        turns = [(await client.post("/v1/completions", json=body)).headers["x-data-parallel-rank"] for _ in range(4)]
        assert turns == ["0", "1", "0", "1"]
        chosen = await client.post("/generate", json={"text": "a", "data_parallel_rank": 1})
        assert chosen.json()["meta_info"]["dp_rank"] == 1
        header = {"x-data-parallel-rank": "1"}
        by_header = await client.post("/v1/completions", json=body | {"stream": True}, headers=header)
        assert by_header.headers["x-data-parallel-rank"] == "1"
        assert [rank.finished_requests for rank in engine.ranks] == [2, 4]
        for wrong in ({"data_parallel_rank": 2}, {"data_parallel_rank": -1}):
            response = await client.post("/v1/completions", json=body | wrong)
            assert response.status_code == 400
            assert "data_parallel_rank: expected 0 to 1" in response.json()["error"]["message"]
        assert (await client.post("/generate", json=body, headers={"x-data-parallel-rank": "x"})).status_code == 400

    with_engine(story, dp_size=2)


def test_the_rank_with_the_least_to_do_is_taken() -> None:
    async def story(engine: Engine, _client: httpx.AsyncClient) -> None:
        tokens = engine.tokenizer.encode("some prompt")
        engine.pause()
        ranks = [engine.submit(tokens, max_tokens=count).dp_rank for count in (300, 10, 10, 10)]
        assert ranks == [0, 1, 1, 1]

    with_engine(story, dp_size=2)


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/v1/completions", b"{", "request body: "),
        ("/v1/completions", b'{"deep": ' + b"[" * 1_500 + b"]" * 1_500 + b"}", "request body: "),
        ("/v1/completions", b"\xff\xff", "request body: "),
        ("/v1/completions", {}, "missing required field `prompt`"),
        ("/v1/completions", {"prompt": [1, -2]}, "Expected `int` >= 0 - at `$.prompt[1]`"),
        ("/v1/completions", {"prompt": [1, "2"]}, "Expected `int`, got `str` - at `$.prompt[1]`"),
        ("/v1/completions", {"prompt": [1, 2.5]}, "Expected `int`, got `float`"),
        ("/v1/completions", {"prompt": [True]}, "Expected `int`, got `bool`"),
        ("/v1/completions", {"prompt": [2**63]}, "expected token ids below 2**63"),
        ("/v1/completions", {"prompt": [2**64]}, "expected token ids below 2**63"),
        ("/v1/completions", {"prompt": []}, "prompt: expected at least one token, got none"),
        ("/v1/completions", {"prompt": ""}, "prompt: expected at least one token, got none"),
        ("/v1/completions", {"prompt": [1], "max_tokens": -1}, "Expected `int` >= 0 - at `$.max_tokens`"),
        ("/v1/completions", {"prompt": [1], "n": 2}, "n: expected 1"),
        ("/v1/completions", {"prompt": [1], "echo": True}, "echo: the prompt is not repeated"),
        ("/v1/completions", {"prompt": [1], "logprobs": 2}, "logprobs: "),
        ("/v1/completions", {"prompt": [1], "max_tokens": 500}, "needs 500 tokens of KV cache, but a rank has 400"),
        ("/v1/completions", {"prompt": [1], "max_tokens": 10**15}, "KV cache, but a rank has 400"),
        ("/v1/chat/completions", {"messages": []}, "messages: expected at least one"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "expected content of type 'text', got 'image_url'",
        ),
        ("/generate", {}, "expected one of text and input_ids"),
        ("/generate", {"text": "a", "input_ids": [1]}, "expected one of text and input_ids"),
        ("/generate", {"input_ids": [1], "sampling_params": {"n": 3}}, "sampling_params.n: expected 1, got 3"),
    ],
)
def test_bad_requests_are_400_and_say_why(path: str, body: Any, says: str) -> None:
    async def story(engine: Engine, client: httpx.AsyncClient) -> None:
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        response = await client.post(path, content=content)
        error = response.json()["error"]
        assert response.status_code == 400
        assert says in error["message"]
        assert error["code"] == 400
        assert ("type" in error) == path.startswith("/v1/")
        assert all(rank.scheduler.is_idle for rank in engine.ranks)

    with_engine(story)


def test_a_full_queue_is_503() -> None:
    async def story(engine: Engine, client: httpx.AsyncClient) -> None:
        engine.pause()
        for _ in range(2):
            engine.submit(engine.tokenizer.encode("abc"), max_tokens=3)
        response = await client.post("/v1/completions", json={"prompt": [1]})
        assert response.status_code == 503
        assert "2 requests are waiting; try again later" in response.json()["error"]["message"]

    with_engine(story, max_queued_requests=2)


def test_other_errors_have_their_shape_too() -> None:
    async def story(_engine: Engine, client: httpx.AsyncClient) -> None:
        large = await client.post("/v1/completions", json={"prompt": [1] * 3000})
        assert large.status_code == 413
        assert "at most 4000 bytes" in large.json()["error"]["message"]
        missing = await client.get("/nowhere")
        assert (missing.status_code, missing.json()) == (404, {"error": {"code": 404, "message": "Not Found"}})
        wrong = await client.get("/v1/completions")
        assert wrong.status_code == 405
        assert wrong.json()["error"]["type"] == "invalid_request_error"

    with_engine(story)


def test_server_info_models_health() -> None:
    async def story(_engine: Engine, client: httpx.AsyncClient) -> None:
        info = (await client.get("/server_info")).json()
        assert info == (await client.get("/get_server_info")).json()
        assert info["kv_events"] is None
        assert (info["page_size"], info["dp_size"], info["max_total_num_tokens"]) == (PAGE, 1, 400)
        models = (await client.get("/v1/models")).json()
        assert [model["id"] for model in models["data"]] == ["sim"]
        assert (await client.get("/health")).json() == {"status": "ok"}

    with_engine(story)


def test_flush_holdings_and_metrics() -> None:
    async def story(_engine: Engine, client: httpx.AsyncClient) -> None:
        await client.post("/v1/completions", json={"prompt": list(range(16)), "max_tokens": 1})
        (rank,) = (await client.get("/holdings")).json()["ranks"]
        assert (rank["dp_rank"], rank["seq"], list(rank["tiers"])) == (0, None, ["GPU"])
        assert len(rank["tiers"]["GPU"]) == 4
        metrics = (await client.get("/metrics")).text
        assert 'kvevents_engine_prefilled_tokens_total{dp_rank="0"} 16.0' in metrics
        assert 'kvevents_engine_kv_used_tokens{dp_rank="0"} 16.0' in metrics
        assert (await client.post("/flush_cache")).json()["success"]
        assert (await client.get("/flush_cache")).status_code == 200
        assert (await client.get("/holdings")).json()["ranks"][0]["tiers"] == {"GPU": []}

    with_engine(story)


def test_a_flush_in_the_middle_of_a_request_is_refused() -> None:
    async def story(engine: Engine, client: httpx.AsyncClient) -> None:
        assert (await client.post("/pause_generation")).json() == {"status": "paused"}
        request = engine.submit(engine.tokenizer.encode("abc"), max_tokens=3)
        refused = await client.post("/flush_cache")
        assert refused.status_code == 400
        assert "waiting or running" in refused.json()["error"]["message"]
        assert (await client.post("/continue_generation")).json() == {"status": "running"}
        for _ in range(1000):
            if request.is_done:
                break
            await asyncio.sleep(0)
        assert (await client.post("/flush_cache")).status_code == 200

    with_engine(story)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_gives_the_memory_back(stream: bool) -> None:
    async def story(engine: Engine, _client: httpx.AsyncClient) -> None:
        body = msgspec.json.encode({"prompt": list(range(50)), "max_tokens": 300, "stream": stream})
        (rank,) = engine.ranks
        hung_up = asyncio.Event()
        parts = [{"type": "http.request", "body": body}]

        async def receive() -> dict[str, Any]:
            if parts:
                return parts.pop()
            await hung_up.wait()
            return {"type": "http.disconnect"}

        async def send(_message: Any) -> None:
            if rank.scheduler.running and rank.scheduler.running[0].produced > 5:
                hung_up.set()

        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "query_string": b""}
        answer = asyncio.ensure_future(create_app(engine)(scope, receive, send))
        for _ in range(1000):
            await asyncio.sleep(0)
            if rank.scheduler.running and rank.scheduler.running[0].produced > 5:
                hung_up.set()
        await answer
        assert rank.scheduler.is_idle
        assert rank.scheduler.used == len(rank.cache.holdings()) * PAGE
        assert rank.finished_requests == 0

    with_engine(story)


def test_a_failed_rank_shows_in_health_and_fails_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(engine: Engine, client: httpx.AsyncClient) -> None:
        def fail(**_: object) -> None:
            raise ZeroDivisionError("broken")

        monkeypatch.setattr(engine.ranks[0].scheduler, "plan", fail)
        response = await client.post("/v1/completions", json={"prompt": [1]})
        assert response.status_code == 503
        assert response.json()["error"]["type"] == "server_error"
        health = await client.get("/health")
        assert health.status_code == 503
        assert "broken" in health.json()["error"]["message"]
        later = await client.post("/v1/completions", json={"prompt": [1]})
        assert later.status_code == 503

    with_engine(story)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate"])
def test_a_client_that_leaves_while_it_sends_is_no_error(path: str) -> None:
    async def story(engine: Engine, _client: httpx.AsyncClient) -> None:
        left = iter(
            [{"type": "http.request", "body": b'{"prompt": [1, ', "more_body": True}, {"type": "http.disconnect"}]
        )
        sent: list[Any] = []

        async def receive() -> Any:
            return next(left)

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": []}
        await create_app(engine)(scope, receive, send)
        assert sent[0]["status"] == 499

    with_engine(story)


def test_an_open_session_finds_its_turns_again_and_a_closed_one_does_not() -> None:
    async def cached(client: httpx.AsyncClient, start: int, **more: Any) -> int:
        body = {"prompt": list(range(start, start + 100)), "max_tokens": 1, **more}
        usage = (await client.post("/v1/completions", json=body)).json()["usage"]
        found: int = usage["prompt_tokens_details"]["cached_tokens"]
        return found

    async def story(_engine: Engine, client: httpx.AsyncClient) -> None:
        assert await cached(client, 0, session_id="chat") == 0
        for other in range(1000, 6000, 1000):
            await cached(client, other)
        assert await cached(client, 0, session_id="chat") == 96
        closed = [(await client.post("/close_session", json={"session_id": "chat"})).json() for _ in range(2)]
        assert closed == [{"closed": True}, {"closed": False}]
        for other in range(1000, 6000, 1000):
            await cached(client, other)
        assert await cached(client, 0) == 0
        assert (await client.post("/close_session", json={})).status_code == 400

    with_engine(story, keep_sessions=True, dp_size=1)
