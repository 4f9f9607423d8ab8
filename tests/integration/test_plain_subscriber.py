"""An engine's events, read by a subscriber that knows nothing of kvevents: only pyzmq, msgspec and the wire format."""

import concurrent.futures
import struct
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
import zmq

from engine_process import EngineProcess, running_engine, wait_until

pytestmark = pytest.mark.integration

PAGE = 16
TOPIC = "kv@test"
END = struct.pack(">q", -1)


class BlockStored(msgspec.Struct, tag=True):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None = None


class BlockRemoved(msgspec.Struct, tag=True):
    block_hashes: list[int]
    medium: str | None = None


class AllBlocksCleared(msgspec.Struct, tag=True):
    pass


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    dp_rank: int | None = None


class PlainSubscriber:
    """SUB and DEALER sockets of one rank, and the blocks that the events say are held, with the tokens before each."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", kv_events: dict[str, Any], rank: int) -> None:
        host = kv_events["endpoint_host"]
        self.rank = rank
        self.sub = context.socket(zmq.SUB)
        self.sub.subscribe(kv_events["topic"])
        self.sub.connect(f"tcp://{host}:{kv_events['endpoint_port_base'] + rank}")
        self.dealer = context.socket(zmq.DEALER)
        self.dealer.connect(f"tcp://{host}:{kv_events['replay_endpoint_port_base'] + rank}")
        self.decoder = msgspec.msgpack.Decoder(Batch)
        self.payloads: dict[int, bytes] = {}
        self.events: list[BlockStored | BlockRemoved | AllBlocksCleared] = []
        self.held: dict[int, tuple[int, ...]] = {}
        self.sequence = -1

    def replay(self, start: int) -> list[tuple[int, bytes]]:
        """The batches that the engine still has, from a sequence number on."""
        self.dealer.send_multipart([b"", struct.pack(">q", start)])
        batches: list[tuple[int, bytes]] = []
        while True:
            assert self.dealer.poll(10_000), "no reply to a replay request"
            *head, sequence, payload = self.dealer.recv_multipart()
            if sequence == END:
                assert payload == b""
                return batches
            assert head == [b"", TOPIC.encode()]
            batches.append((struct.unpack(">q", sequence)[0], payload))

    def catch_up(self, sequence: int) -> None:
        """Apply live batches until one with this number was applied."""
        while self.sequence < sequence:
            assert self.sub.poll(10_000), f"batch {self.sequence + 1} never came"
            topic, number, payload = self.sub.recv_multipart()
            assert topic == TOPIC.encode()
            self.apply(struct.unpack(">q", number)[0], payload)

    def apply(self, sequence: int, payload: bytes) -> None:
        if sequence in self.payloads:  # replayed and live
            assert self.payloads[sequence] == payload
            return
        assert sequence == self.sequence + 1
        self.sequence = sequence
        self.payloads[sequence] = payload
        batch = self.decoder.decode(payload)
        assert batch.dp_rank == self.rank
        assert batch.ts > 1.7e9
        assert batch.events, "an empty batch was sent"
        for event in batch.events:
            self.events.append(event)
            self.apply_event(event)

    def apply_event(self, event: BlockStored | BlockRemoved | AllBlocksCleared) -> None:
        if isinstance(event, AllBlocksCleared):
            self.held.clear()
            return
        assert event.medium == "GPU"
        if isinstance(event, BlockRemoved):
            for block in event.block_hashes:
                del self.held[block]
            return
        assert event.lora_id is None
        assert event.block_size == PAGE
        assert len(event.token_ids) == PAGE * len(event.block_hashes)
        # A parent must be held, so that each block can be put behind its whole prefix.
        prefix = () if event.parent_block_hash is None else self.held[event.parent_block_hash]
        for number, block in enumerate(event.block_hashes):
            prefix += tuple(event.token_ids[number * PAGE : (number + 1) * PAGE])
            assert block not in self.held
            self.held[block] = prefix


@pytest.fixture
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    context = zmq.Context()
    yield context
    context.destroy(0)  # with the sockets that were made of it


@pytest.fixture(params=[1, 2], ids=["one rank", "two ranks"])
def engine(request: pytest.FixtureRequest) -> Iterator[EngineProcess]:
    config = {
        "publisher": "zmq",
        "endpoint": "tcp://127.0.0.1:0",
        "replay_endpoint": "tcp://127.0.0.1:*",
        "topic": TOPIC,
        "buffer_steps": 10_000,
    }
    options = {
        "--dp-size": request.param,
        "--page-size": PAGE,
        "--max-total-tokens": 640,
        "--speed": 200,
        "--kv-events-config": msgspec.json.encode(config).decode(),
    }
    with running_engine(*[word for option in options.items() for word in map(str, option)]) as engine:
        yield engine


@pytest.fixture
def subscribers(engine: EngineProcess, context: "zmq.Context[zmq.Socket[bytes]]") -> list[PlainSubscriber]:
    """One for each rank, each past the empty cache's announcement and with its live subscription up."""
    made = [PlainSubscriber(context, engine.kv_events, rank) for rank in range(engine.kv_events["dp_size"])]
    for subscriber in made:
        # A flush is announced at once even when idle; once it comes in live, nothing after it can be missed.
        for _ in wait_until():
            assert httpx.post(f"{engine.url}/flush_cache").status_code == 200
            if subscriber.sub.poll(50):
                break
        for sequence, payload in subscriber.replay(0):
            subscriber.apply(sequence, payload)
        assert isinstance(subscriber.events[0], AllBlocksCleared), "the first event of an engine's life"
        assert subscriber.sequence >= 1
    settle(engine, made)
    for subscriber in made:
        assert subscriber.held == {}
        subscriber.events.clear()
    return made


def complete(engine: EngineProcess, prompt: list[int], *, rank: int, outputs: int = 1, **fields: Any) -> dict[str, int]:
    """Send a prompt; its usage, with `cached_tokens` flattened."""
    body = {"prompt": prompt, "max_tokens": outputs, "data_parallel_rank": rank, **fields}
    response = httpx.post(f"{engine.url}/v1/completions", json=body)
    assert response.status_code == 200, response.text
    usage: dict[str, Any] = response.json()["usage"]
    flat: dict[str, int] = usage.pop("prompt_tokens_details") | usage
    return flat


def holdings(engine: EngineProcess) -> list[dict[str, Any]]:
    ranks: list[dict[str, Any]] = httpx.get(f"{engine.url}/holdings").json()["ranks"]
    return ranks


def settle(engine: EngineProcess, subscribers: list[PlainSubscriber]) -> None:
    """Catch up with the engine, and hold exactly what it says it holds."""
    for rank, subscriber in zip(holdings(engine), subscribers, strict=True):
        assert rank["dp_rank"] == subscriber.rank
        subscriber.catch_up(rank["seq"])
        assert rank["tiers"] == {"GPU": sorted(subscriber.held)}


def prompt(seed: int, count: int) -> list[int]:
    return [(seed * 7919 + number * 104_729) % 50_000 for number in range(count)]


def test_the_sockets_are_as_server_info_says(engine: EngineProcess, subscribers: list[PlainSubscriber]) -> None:
    info = httpx.get(f"{engine.url}/server_info").json()["kv_events"]
    assert info == engine.kv_events
    assert info == {
        "publisher": "zmq",
        "endpoint_host": "127.0.0.1",
        "endpoint_port_base": info["endpoint_port_base"],
        "topic": TOPIC,
        "block_size": PAGE,
        "dp_size": len(subscribers),
        "replay_endpoint_port_base": info["replay_endpoint_port_base"],
        "snapshot": True,
    }


def test_stores_chain_and_carry_their_tokens(engine: EngineProcess, subscribers: list[PlainSubscriber]) -> None:
    shared, one, two = prompt(1, 4 * PAGE), prompt(2, 2 * PAGE + 5), prompt(3, 3 * PAGE)
    for subscriber in subscribers:
        assert complete(engine, shared + one, rank=subscriber.rank)["cached_tokens"] == 0
        assert complete(engine, shared + two, rank=subscriber.rank)["cached_tokens"] == 4 * PAGE
        assert complete(engine, shared + one, rank=subscriber.rank)["cached_tokens"] == 6 * PAGE
    settle(engine, subscribers)
    for subscriber in subscribers:
        first, second = subscriber.events
        assert isinstance(first, BlockStored)
        assert isinstance(second, BlockStored)
        assert first.parent_block_hash is None
        assert first.token_ids == shared + one[: 2 * PAGE]
        assert len(first.block_hashes) == 6
        assert second.parent_block_hash == first.block_hashes[3]
        assert second.token_ids == two
        assert len(second.block_hashes) == 3
    assert len({tuple(sorted(subscriber.held)) for subscriber in subscribers}) == 1, "equal prompts, equal hashes"


def test_outputs_are_announced_as_far_as_their_kv_is_there(
    engine: EngineProcess, subscribers: list[PlainSubscriber]
) -> None:
    for subscriber in subscribers:
        body = {"input_ids": prompt(1, 2 * PAGE), "sampling_params": {"max_new_tokens": PAGE + 1}}
        url = f"{engine.url}/generate"
        outputs = httpx.post(url, json=body | {"data_parallel_rank": subscriber.rank}).json()["output_ids"]
        settle(engine, subscribers)
        stored, more = subscriber.events
        assert isinstance(stored, BlockStored)
        assert isinstance(more, BlockStored)
        assert stored.token_ids == prompt(1, 2 * PAGE)
        assert more.token_ids == outputs[:PAGE]
        assert more.parent_block_hash == stored.block_hashes[-1]


def test_eviction_is_announced_and_believed(engine: EngineProcess, subscribers: list[PlainSubscriber]) -> None:
    for subscriber in subscribers:
        for number in range(12):
            complete(engine, prompt(number, 10 * PAGE), rank=subscriber.rank)
    settle(engine, subscribers)
    for subscriber in subscribers:
        removed = [event for event in subscriber.events if isinstance(event, BlockRemoved)]
        assert sum(len(event.block_hashes) for event in removed) == 80
        assert len(subscriber.held) == 40
        # What the events say is held is what the engine finds; the oldest prompts are gone.
        believed = set(subscriber.held.values())
        for number in (11, 10, 9, 0):
            tokens = tuple(prompt(number, 10 * PAGE))
            pages = next((k for k in range(9, 0, -1) if tokens[: k * PAGE] in believed), 0)
            assert complete(engine, list(tokens), rank=subscriber.rank)["cached_tokens"] == pages * PAGE
            assert (pages > 0) == (number > 0)


def test_ranks_are_apart(engine: EngineProcess, subscribers: list[PlainSubscriber]) -> None:
    complete(engine, prompt(1, 5 * PAGE), rank=0)
    settle(engine, subscribers)
    assert [len(subscriber.held) for subscriber in subscribers] == [5, 0][: len(subscribers)]
    for subscriber in subscribers[1:]:
        assert subscriber.events == []
        assert complete(engine, prompt(1, 5 * PAGE), rank=1)["cached_tokens"] == 0


def test_a_clear_comes_at_once_from_an_idle_engine(engine: EngineProcess, subscribers: list[PlainSubscriber]) -> None:
    for subscriber in subscribers:
        complete(engine, prompt(1, 5 * PAGE), rank=subscriber.rank)
    settle(engine, subscribers)
    assert httpx.post(f"{engine.url}/flush_cache").status_code == 200
    for subscriber in subscribers:
        subscriber.catch_up(subscriber.sequence + 1)
        assert isinstance(subscriber.events[-1], AllBlocksCleared)
        assert subscriber.held == {}
    settle(engine, subscribers)


def test_replay_repeats_what_was_sent(engine: EngineProcess, subscribers: list[PlainSubscriber]) -> None:
    for subscriber in subscribers:
        for number in range(6):
            complete(engine, prompt(number, 10 * PAGE), rank=subscriber.rank)
    settle(engine, subscribers)
    for subscriber in subscribers:
        sent = sorted(subscriber.payloads.items())
        assert subscriber.replay(0) == sent
        assert subscriber.replay(3) == sent[3:]
        assert subscriber.replay(len(sent)) == []


def test_concurrent_requests_under_pressure_leave_the_books_balanced(
    engine: EngineProcess, subscribers: list[PlainSubscriber]
) -> None:
    bodies = [
        {
            "prompt": prompt(number % 5, 6 * PAGE) + prompt(100 + number, number * 3),
            "max_tokens": 5 + 4 * (number % 7),
            "stream": number % 3 == 0,
        }
        for number in range(40)
    ]
    with httpx.Client() as client, concurrent.futures.ThreadPoolExecutor(8) as pool:
        responses = list(pool.map(lambda body: client.post(f"{engine.url}/v1/completions", json=body), bodies))
    assert {response.status_code for response in responses} == {200}
    settle(engine, subscribers)
    assert any(isinstance(event, BlockRemoved) for event in subscribers[0].events)


def test_salted_prompts_are_apart_and_say_so(engine: EngineProcess, subscribers: list[PlainSubscriber]) -> None:
    for subscriber in subscribers:
        for salt in (None, "x"):
            assert complete(engine, prompt(1, 3 * PAGE), rank=subscriber.rank, cache_salt=salt)["cached_tokens"] == 0
        assert complete(engine, prompt(1, 3 * PAGE), rank=subscriber.rank, cache_salt="x")["cached_tokens"] == 2 * PAGE
    settle(engine, subscribers)
    assert all(len(subscriber.held) == 6 for subscriber in subscribers)
