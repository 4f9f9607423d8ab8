"""What does a router in front of four engines add to a request, beside vLLM's and SGLang's?

    python -m benchmarks.proxy [--rounds 9] [--only ours,vllm-router]

Ours routes by `kv` and follows the events of four workers, 80 messages a second; theirs route by `cache_aware`, their
default. All stand in front of the same four engines, which answer at once (in Rust, one thread, no model); a router has
one processor, engines, publishers and the client (in Rust too) share the other. Routers are up at once and take turns
at every question; figures are medians of the rounds. Latency is what is added to asking an engine itself. Processor
time is that of the router's process, all its threads, from the scheduler's own count; for ours it has the events in it.
Engines do not offer `/v1/completions/render`: vLLM's router would send them every prompt for tokenizing.

A small request is a text of 40 words, answered whole. No router has the model's tokenizer: ours routes a text by its
bytes and by where it was sent before, as theirs do, and token ids by what the events say. 8k token ids: 8,192 ids,
all but the last block of which some worker holds. Paced: 64 streams of 100 chunks, 20 ms apart. Burst: 64 streams asked
for at the same moment. The client that never reads asks for 300,000 chunks as fast as they go, 60 MB, and is looked at
2 s later.
"""

import argparse
import contextlib
import json
import socket
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from benchmarks import loopback, proxy_load, proxy_routers
from benchmarks.http_client import HttpClient
from benchmarks.peers import Unavailable
from benchmarks.proxy_events import BLOCK_SIZE, HELD_BLOCKS, WORKERS, BusyFleet
from benchmarks.proxy_load import Load, StandIns
from benchmarks.proxy_routers import Router
from benchmarks.results import save
from benchmarks.workload import generate

COMPLETIONS = "/v1/completions"
MARK = 77_777
FAMILIES = 16
LONG_BLOCKS = 512
DIRECT = "direct"
UNREAD_S = 2.0
UNREAD_CHUNKS = 300_000
SETTLE_S = 0.2
"""Between two questions, for what the one before left behind."""


class Question(NamedTuple):
    """One thing that is asked of every router.

    Attributes:
        name: in a word or two.
        load: what is asked, and how.
    """

    name: str
    load: Load


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "model", **fields}


def text(family: int) -> str:
    """A prompt of 40 words that differs from every other."""
    words = [f"word{family}{place}" for place in range(39)]
    return " ".join([*words[:20], str(MARK), *words[20:]])


def questions() -> list[Question]:
    small = [body(prompt=text(family), max_tokens=1) for family in range(FAMILIES)]
    ids = [prompt.tolist() for prompt in generate(HELD_BLOCKS, BLOCK_SIZE, WORKERS).longest(FAMILIES, LONG_BLOCKS)]
    long = [body(prompt=[*prompt[:-1], MARK], max_tokens=1) for prompt in ids]
    few = [body(prompt=[*prompt[:127], MARK], max_tokens=1) for prompt in ids]
    streamed = [one | {"stream": True, "max_tokens": 100, "seed": 20_000} for one in small]
    burst = [one | {"stream": True, "max_tokens": 5, "seed": 20_000} for one in small]
    return [
        Question("small, 50 a second", Load(COMPLETIONS, small, 8, rate=50, seconds=3)),
        Question("small, saturated", Load(COMPLETIONS, small, 32, seconds=1.5)),
        Question("128 token ids, saturated", Load(COMPLETIONS, few, 32, seconds=1.5)),
        Question("8k token ids, saturated", Load(COMPLETIONS, long, 8, seconds=1.5)),
        Question("paced streams", Load(COMPLETIONS, streamed, 64, requests=64)),
        Question("burst of streams", Load(COMPLETIONS, burst, 64, requests=64)),
    ]


class Target(NamedTuple):
    """A router, or an engine itself."""

    name: str
    port: int
    router: Router | None

    def ask(self, load: Load) -> dict[str, Any]:
        """How it went, with the router's processor time for a request and a chunk."""
        before = self.router.processor_seconds() if self.router else 0.0
        figures = load.run(self.port)
        used = (self.router.processor_seconds() if self.router else 0.0) - before
        if figures["broken"] or figures["refused"]:
            return {"failed": figures["first_refusal"] or "connections were closed"}
        for what in ("answered", "chunks"):
            if figures[what]:
                figures[f"processor_us_{what}"] = used * 1e6 / figures[what]
        return figures


def in_turns(targets: Sequence[Target], asked: Sequence[Question], rounds: int) -> dict[str, dict[str, dict[str, Any]]]:
    """The medians of all figures, by question and target; a target that failed once says how."""
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {
        question.name: {target.name: [] for target in targets} for question in asked
    }
    for target in targets:
        for question in asked:
            question.load._replace(seconds=0.3, requests=64).run(target.port)
    for turn in range(rounds):
        for question in asked:
            for place in range(len(targets)):
                target = targets[(place + turn) % len(targets)]
                time.sleep(SETTLE_S)
                runs[question.name][target.name].append(target.ask(question.load))
        print(f"  round {turn + 1} of {rounds}, at {time.strftime('%X')}", file=sys.stderr)
    return {name: {target: medians(of) for target, of in by_target.items()} for name, by_target in runs.items()}


def medians(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    for run in runs:
        if "failed" in run:
            return run
    return {
        name: round(statistics.median(run[name] for run in runs), 1)
        for name, value in runs[0].items()
        if isinstance(value, float)
    }


def unread(target: Target, engines: StandIns) -> dict[str, Any]:
    """What a client that never reads costs a router in memory, and how far the engine got."""
    assert target.router is not None
    request = HttpClient.post(COMPLETIONS, body(prompt=text(0), stream=True, max_tokens=UNREAD_CHUNKS, seed=0))
    before, sent = target.router.resident_bytes(), engines.chunks()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        client.connect(("127.0.0.1", target.port))
        client.sendall(request)
        time.sleep(UNREAD_S)
        grown = target.router.resident_bytes() - before
        passed = engines.chunks() - sent
    return {"grown_mb": round(grown / 1e6, 1), "chunks_taken": passed}


def knows(router: Router, prompt: list[int]) -> bool:
    """Whether ours has learned from the events that a worker holds all of a prompt but its last block."""
    with contextlib.closing(HttpClient(router.port)) as http:
        matches = json.loads(http.send(HttpClient.post("/query", {"token_ids": prompt})))["matches"]
    return any(match["total"] >= LONG_BLOCKS - 1 for match in matches)


def rows_of(found: dict[str, dict[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """A row for each figure: what it is, and every target's value."""
    wanted = [
        ("small, 50 a second", "added_p50_us"),
        ("small, 50 a second", "added_p99_us"),
        ("small, saturated", "processor_us_answered"),
        ("128 token ids, saturated", "processor_us_answered"),
        ("8k token ids, saturated", "processor_us_answered"),
        ("paced streams", "processor_us_chunks"),
        ("paced streams", "chunk_p99_us"),
        ("burst of streams", "first_byte_p50_us"),
    ]
    rows = ((name, figure) for name, figure in wanted if name in found)
    return [{"question": name, "figure": figure, "of": values(found[name], figure)} for name, figure in rows]


def values(of: dict[str, dict[str, Any]], figure: str) -> dict[str, Any]:
    """A figure by router; the reason where there is none."""
    direct = 0.0
    if figure.startswith("added_"):
        figure = figure.removeprefix("added_")
        direct = of[DIRECT][figure]
    return {
        name: figures["failed"] if "failed" in figures else round(figures[figure] - direct, 1)
        for name, figures in of.items()
        if name != DIRECT
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="ours,vllm-router,sglang-router", help="routers to compare")
    parser.add_argument("--ask", default="", help="only questions with this in their name; nothing is written then")
    parser.add_argument("--dry", action="store_true", help="print the rows and write no result")
    options = parser.parse_args()
    only = options.only.split(",")
    with contextlib.suppress(Unavailable):  # said where it is missing
        if only != ["ours"]:
            proxy_routers.install_peers()
    proxy_load.build()
    loopback.enter()
    made: dict[str, Callable[[Sequence[str]], Router]] = {
        "ours": proxy_routers.ours,
        "vllm-router": proxy_routers.vllm,
        "sglang-router": proxy_routers.sglang,
    }
    with contextlib.ExitStack() as stack:
        fleet = stack.enter_context(contextlib.closing(BusyFleet()))
        engines = stack.enter_context(contextlib.closing(StandIns(fleet.kv_events)))
        targets = [Target(DIRECT, engines.ports[0], None)]
        for name in only:
            try:
                router = stack.enter_context(contextlib.closing(made[name](engines.urls)))
            except Unavailable as reason:
                print(f"proxy: without {name}: {reason}", file=sys.stderr)
                continue
            targets.append(Target(name, router.port, router))
            if name == "ours":
                assert knows(router, questions()[3].load.bodies[0]["prompt"]), "the events have not arrived"
        asked = [question for question in questions() if options.ask in question.name]
        found = in_turns(targets, asked, options.rounds)
        rows = rows_of(found)
        stuck = {target.name: unread(target, engines) for target in targets if target.router and not options.ask}
        for figure in ("grown_mb", "chunks_taken") if stuck else ():
            of = {name: figures[figure] for name, figures in stuck.items()}
            rows.append({"question": "a client that never reads", "figure": figure, "of": of})
    if options.dry or options.ask:
        print("\n".join(json.dumps(row) for row in rows))
        print(json.dumps(found, indent=1), file=sys.stderr)
    else:
        save("proxy", __doc__ or "", rows, **proxy_routers.VERSIONS)


if __name__ == "__main__":
    main()
