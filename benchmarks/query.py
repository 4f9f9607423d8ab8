"""How long does a question for a prompt take, in process and over HTTP, against Dynamo?

    python -m benchmarks.query [--blocks 500000] [--rounds 5]

Eight workers have stored blocks of 16 tokens; prompts are asked for that some worker holds whole. In process:
`PrefixIndex.match` with a buffer of 32-bit ids, beside Dynamo's radix tree with a list, which is what it takes; both
hash the tokens. Over HTTP: `POST /query` of `kvevents serve`, which follows the events of the fleet, beside
`POST /query` of Dynamo's standalone indexer, which follows the same; one connection that is kept, requests made
beforehand, both services up at once. The contestants take turns; wall time, percentiles of all rounds. Processor time
is that of the service, all its threads.
"""

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import dynamo, loopback
from benchmarks.dynamo_indexer import DynamoIndexer
from benchmarks.end_to_end import EVERY_S, PATIENCE_S, Shape, last_prompt, messages
from benchmarks.fleet_publisher import FleetPublisher
from benchmarks.followers import wait_for
from benchmarks.http_client import HttpClient
from benchmarks.measure import latencies, percentile
from benchmarks.peers import Unavailable
from benchmarks.results import save
from benchmarks.router import OurRouter
from benchmarks.workload import Fleet, batches, generate
from kvevents.index import PrefixIndex

LENGTHS = (32, 256, 2048)
PROMPTS = 64
CALLS = {"in process": 2_000, "HTTP": 300}
"""Of each contestant in a round."""
SHAPE = Shape("coalesced", 96, 256, 1.0, {})

Ask = tuple[Callable[[Any], object], list[Any]]
"""What to call, and with what in turns."""


def take_turns(asks: dict[str, Ask], calls: int, rounds: int) -> dict[str, list[float]]:
    """Seconds that each contestant's calls took, sorted."""
    times: dict[str, list[float]] = {name: [] for name in asks}
    for _ in range(rounds):
        for name, (ask, prompts) in asks.items():
            ask(prompts[0])
            times[name] += latencies(ask, prompts, calls)
    return {name: sorted(of) for name, of in times.items()}


def row(way: str, blocks: int, times: dict[str, list[float]], **more: Any) -> dict[str, Any]:
    def microseconds(percent: float) -> dict[str, float]:
        return {name: round(percentile(of, percent) * 1e6, 1) for name, of in times.items()}

    p50 = microseconds(50)
    made: dict[str, Any] = {"way": way, "blocks": blocks, "p50_us": p50, "p99_us": microseconds(99), **more}
    if "dynamo" in p50:
        made["dynamo_over_ours"] = round(p50["dynamo"] / p50["ours"], 2)
    return made


def in_process(fleet: Fleet, rounds: int) -> Iterator[dict[str, Any]]:
    index = PrefixIndex(fleet.block_size)
    try:
        tree = dynamo.Tree(fleet.block_size)
    except Unavailable as reason:
        print(f"query: without Dynamo's tree: {reason}", file=sys.stderr)
        tree = None
    for worker, data in batches(fleet):
        index.apply(f"worker-{worker}", data)
        if tree is not None:
            tree.take(worker, tree.messages(data))
    for blocks in LENGTHS:
        prompts = fleet.longest(PROMPTS, blocks)
        asks: dict[str, Ask] = {"ours": (index.match, prompts)}
        assert all(index.match(prompt)[0].total == blocks for prompt in prompts)
        if tree is not None:
            asks["dynamo"] = (tree.depth, [prompt.tolist() for prompt in prompts])
            assert all(tree.depth(prompt) == blocks for prompt in asks["dynamo"][1])
        yield row("in process", blocks, take_turns(asks, CALLS["in process"], rounds))


def over_http(fleet: Fleet, rounds: int) -> Iterator[dict[str, Any]]:
    with contextlib.ExitStack() as stack:
        publisher = stack.enter_context(contextlib.closing(FleetPublisher(fleet.workers, messages(fleet, SHAPE))))
        services: dict[str, OurRouter | DynamoIndexer] = {"ours": OurRouter(fleet.block_size)}
        try:
            services["dynamo"] = DynamoIndexer(fleet.block_size)
        except Unavailable as reason:
            print(f"query: without Dynamo's indexer: {reason}", file=sys.stderr)
        endpoints = publisher.open()
        for service in services.values():
            stack.enter_context(contextlib.closing(service))
            service.follow(endpoints)
        publisher.send(subscribers=len(services))
        prompt = last_prompt(fleet.block_size)
        for service in services.values():
            wait_for(service, prompt, fleet.workers, every_s=EVERY_S, patience_s=PATIENCE_S)
        for blocks in LENGTHS:
            prompts = fleet.longest(PROMPTS, blocks)
            asks: dict[str, Ask] = {}
            for name, service in services.items():
                assert all(max(service.depths(prompt).values()) == blocks for prompt in prompts)
                client = stack.enter_context(contextlib.closing(HttpClient(service.port)))
                asks[name] = (client.send, [service.query(prompt) for prompt in prompts])
            before = {name: service.processor_seconds() for name, service in services.items()}
            times = take_turns(asks, CALLS["HTTP"], rounds)
            used = {
                name: round((service.processor_seconds() - before[name]) / len(times[name]) * 1e6)
                for name, service in services.items()
            }
            yield row("HTTP", blocks, times, processor_us=used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with contextlib.suppress(Unavailable):  # said where it is missing
        dynamo.install_indexer()
    loopback.enter()
    fleet = generate(options.blocks)
    rows = []
    for started in (over_http(fleet, options.rounds), in_process(fleet, options.rounds)):
        for one in started:
            rows.append(one)
            print(f"  {one['way']}, {one['blocks']} blocks, at {time.strftime('%X')}", file=sys.stderr)
    save("query", __doc__ or "", rows, dynamo=dynamo.VERSION)


if __name__ == "__main__":
    main()
