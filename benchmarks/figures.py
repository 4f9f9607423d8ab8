"""What each benchmark's rows say: our figure beside the peer's and the floor's, and the goal that was set before."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

Row: TypeAlias = dict[str, Any]


class Figure(NamedTuple):
    """One line of a question's table, as text.

    Attributes:
        what: what was measured.
        ours: our value with its unit.
        peer: whose value is beside it, and that value.
        floor: what cannot be undercut, with its unit.
        ratio: the figure that the goal is about.
        goal: as it was set; empty where there is none.
        met: whether it is; None without a goal.
        loses: whether a peer does better.
    """

    what: str
    ours: str
    peer: str = ""
    floor: str = ""
    ratio: str = ""
    goal: str = ""
    met: bool | None = None
    loses: bool = False


class Question(NamedTuple):
    """How a benchmark's rows become figures.

    Attributes:
        title: the question in a few words.
        figures: of its rows.
    """

    title: str
    figures: Callable[[list[Row]], Iterator[Figure]]


def at_least(what: str, ours: str, ratio: float, goal: float | None, *, peer: str = "", floor: str = "") -> Figure:
    """A ratio that should be large: how many times better than a peer we are."""
    text, met = ("", None) if goal is None else (f"at least {goal:g}", ratio >= goal)
    return Figure(what, ours, peer, floor, f"{ratio:g} x", text, met, loses=ratio < 1)


def at_most(
    what: str, ours: str, value: float, goal: float | None, *, unit: str = "", peer: str = "", floor: str = ""
) -> Figure:
    """A value that should be small."""
    text, met = ("", None) if goal is None else (f"at most {goal:g}{unit}", value <= goal)
    return Figure(what, ours, peer, floor, f"{value:g}{unit}", text, met)


def skipped(what: str, ours: str, row: Row, peer: str) -> Figure:
    return Figure(what, ours, peer=str(row.get(peer, "not measured")))


def record(rows: list[Row]) -> Iterator[Figure]:
    goals = {1: 10, 16: 10, 64: 6}
    for row in rows:
        size, times = row["page_size"], row["ns_per_page"]
        what, ours = f"hash, record, encode; page {size}", f"{times['ours']:g} ns a page"
        floor = f"{times['floor']:g} ns"
        if "sglang_over_ours" in row:
            peer = f"SGLang {times['sglang']:g} ns"
            yield at_least(what, ours, row["sglang_over_ours"], goals[size], peer=peer, floor=floor)
        else:
            yield skipped(what, ours, row, "sglang")
        yield at_most(f"the same over SHA-256 alone; page {size}", ours, row["ours_over_floor"], 1.6, floor=floor)


def coalesce(rows: list[Row]) -> Iterator[Figure]:
    for row in rows:
        events = row["events"]
        what = f"events, `chain`; {row['in_flight']} requests in flight, a step every {row['step_ms']} ms"
        rest = {"peer": f"`adjacent` {events['adjacent']}", "floor": f"`compact` {events['compact']}"}
        yield at_least(what, f"{events['chain']} events", row["adjacent_over_chain"], 3, **rest)


def levels(rows: list[Row]) -> Iterator[Figure]:
    for row in rows:
        what = f"levels read by Dynamo's indexer; {row['stream']}"
        ours = (
            f"{row['prompts_compared']} answers over {row['windows']} windows, {row['blocks_at_the_end']} blocks left"
        )
        differences = row["differences"]
        yield Figure(what, ours, ratio=f"{differences} differences", goal="none", met=differences == 0)


def apply(rows: list[Row]) -> Iterator[Figure]:
    for row in rows:
        what = f"apply a block in process, {row['events']}; block {row['block_size']}"
        times, has_goal = row["ns_per_block"], row["events"] == "coalesced"
        ours, decode = f"{times['apply']:g} ns", f"msgspec, untyped decode alone {times['decode']:g} ns"
        yield at_most(what, ours, row["apply_over_decode"], 1.0 if has_goal else None, peer=decode)
        if row["dynamo_over_apply"] is not None:
            tree = f"Dynamo's tree in process {times['dynamo']:g} ns, hashing its tokens {times['dynamo_hashing']:g} ns"
            yield at_least(what, ours, row["dynamo_over_apply"], 3.0 if has_goal else None, peer=tree)
            alone = f"Dynamo's tree alone, tokens hashed beforehand, {times['dynamo']:g} ns"
            yield at_least(what, ours, row["dynamo_tree_alone_over_apply"], None, peer=alone)


def match(rows: list[Row]) -> Iterator[Figure]:
    goals = {32: 3, 256: 8, 2048: 40}
    for row in rows:
        blocks, ours = row["blocks"], f"p50 {row['p50_us']:g} us, p99 {row['p99_us']:g} us"
        if writes := row["writes_per_s"]:
            what = f"p99 over p50 for {blocks} blocks while {writes / 1e3:,.0f} k blocks/s are applied"
            yield at_most(what, ours, row["p99_over_p50"], None if blocks == 32 else 3)
        else:
            what = f"match {blocks} blocks of 16 from a buffer, hashing included"
            yield at_most(what, ours, row["p50_us"], goals[blocks], unit=" us")


def memory(rows: list[Row]) -> Iterator[Figure]:
    for row in rows:
        what = f"a stored block; {row['stored']:,} stored, {row['distinct']:,} distinct"
        accounted, resident = row["accounted_bytes_per_stored"], row["resident_bytes_per_stored"]
        yield at_most(what, f"{resident:g} bytes resident", accounted, 56, unit=" bytes")
        left = f"{row['resident_left_bytes_per_stored']:g} bytes a block stay resident"
        yield at_most("accounted after all is removed, over empty", left, row["accounted_left_over_empty"], 1.1)


def growth(rows: list[Row]) -> Iterator[Figure]:
    for row in rows:
        if "blocks" in row:
            small, large = row["blocks"]
            span = f"{large:,} blocks over {small:,}"
            low, high = row["apply_ns_per_block"]
            yield at_most(f"apply a block, {span}", f"{low:g} and {high:g} ns", row["apply_ratio"], 2)
        else:
            few, many = row["workers"]
            span = f"{many:,} workers over {few}"
        low, high = row["match_256_us"]
        yield at_most(f"match 256 blocks, {span}", f"{low:g} and {high:g} us", row["match_ratio"], 1.3)


def snapshot(rows: list[Row]) -> Iterator[Figure]:
    for row in rows:
        what = f"of {row['stored']:,} blocks"
        yield at_most(f"snapshot {what}", f"{row['snapshot_s']:g} s", row["snapshot_s"], 1, unit=" s")
        yield at_most(f"restore {what}", f"{row['restore_s']:g} s", row["restore_s"], 1, unit=" s")
        yield at_most("its size", f"{row['snapshot_mb']:g} MB", row["snapshot_mb"], 32, unit=" MB")
        peak = round(1 + row["resident_growth_mb"] / row["index_mb"], 2)
        yield at_most("peak memory over the index", f"{row['resident_growth_mb']:g} MB more", peak, 2)


def publish(rows: list[Row]) -> Iterator[Figure]:
    by_case = {row["case"]: row for row in rows}
    floor = f"a queue alone, p99 {by_case['floor']['p99_us']:g} us"
    for case, row in by_case.items():
        if case.startswith("stopped consumer"):
            ours = f"p50 {row['p50_us']:g} us, p99.9 {row['p999_us']:g} us"
            yield at_most(
                f"`publish` of {row['payload_bytes']:,} bytes; {case}; p99",
                ours,
                row["p99_us"],
                50,
                unit=" us",
                floor=floor,
            )
    memory = by_case["memory"]
    bound, grown = memory["bound_bytes"] / 2**20, memory["grown_bytes"] / 2**20
    what = f"memory after {memory['published_bytes'] / 2**20:,.0f} MiB that nobody took"
    yield at_most(what, f"{grown:,.0f} MiB more", round(grown, 1), round(bound, 1), unit=" MiB")


def end_to_end(rows: list[Row]) -> Iterator[Figure]:
    for row in rows:
        what = f"{row['shape']}; block {row['block_size']}"
        rates, walls = row["blocks_per_processor_second"], row["blocks_per_second"]
        floor = f"{rates['floor'] / 1e3:,.0f} k"
        ours = f"{rates['ours'] / 1e3:,.0f} k blocks a processor second, {walls['ours'] / 1e3:,.0f} k a second"
        if "ours_over_dynamo" in row:
            peer = f"Dynamo {rates['dynamo'] / 1e3:,.0f} k, {walls['dynamo'] / 1e3:,.0f} k"
            yield at_least(what, ours, row["ours_over_dynamo"], row["goal"], peer=peer, floor=floor)
        else:
            yield skipped(what, ours, row, "dynamo")._replace(floor=floor)


def query(rows: list[Row]) -> Iterator[Figure]:
    goals = {256: 1.0, 2048: 2.0}
    for row in rows:
        way, blocks = row["way"], row["blocks"]
        what = f"{way}, {blocks} blocks of 16"
        ours = f"p50 {row['p50_us']['ours']:g} us, p99 {row['p99_us']['ours']:g} us"
        if "dynamo_over_ours" in row:
            peer = f"Dynamo p50 {row['p50_us']['dynamo']:g} us, p99 {row['p99_us']['dynamo']:g} us"
            goal = goals.get(blocks) if row["way"] == "HTTP" else None
            yield at_least(what, ours, row["dynamo_over_ours"], goal, peer=peer)
        else:
            yield skipped(what, ours, row, "dynamo")


def cache(rows: list[Row]) -> Iterator[Figure]:
    for row in rows:
        if row["figure"] == "insert":
            times, size = row["us_per_page"], row["page_size"]
            what, ours = f"insert 64 new pages, take the events as bytes; page {size}", f"{times['radix']:g} us a page"
        elif row["figure"] == "match":
            times = row["ns_per_page"]
            what, ours = f"match {row['pages']} pages of {row['page_size']}", f"{times['radix']:g} ns a page"
            yield at_most(f"{what}: a page", ours, times["radix"], 20, unit=" ns")
        elif row["figure"] == "mixed":
            times = row["us"]
            what = f"requests in a full cache; {row['operations']:,} operations"
            ours = f"p50 {times['p50']:g} us, p99 {times['p99']:g} us, p99.9 {times['p99.9']:g} us"
            yield at_most(f"{what}: p99.99", ours, round(times["p99.99"] / 1e3, 2), 10, unit=" ms")
            resident = f"{row['resident_mb'][0]:g} and {row['resident_mb'][-1]:g} MB"
            growth = row["resident_end_over_start"]
            yield at_most("memory at the end, over that after half of them", resident, growth, 1.0, unit=" x")
            continue
        else:
            continue
        unit = "us" if row["figure"] == "insert" else "ns"
        goals = {"sglang radix": 4.0 if row["figure"] == "insert" else None, "sglang rust core": 1.0}
        for peer, name in (("sglang radix", "SGLang's Python cache"), ("sglang rust core", "SGLang's Rust tree core")):
            ratio = row.get(f"{peer}_over_ours", {}).get("radix")
            if ratio is not None:
                goal = goals[peer] if row["figure"] == "insert" else None
                yield at_least(what, ours, ratio, goal, peer=f"{name} {times[peer]:g} {unit}")


def tiers(rows: list[Row]) -> Iterator[Figure]:
    for row in rows:
        steps = ", ".join(f"{step} {time:g}" for step, time in row["us_per_page"].items())
        yield Figure(f"below the device: {row['below_the_device']}; page {row['page_size']}", f"{steps} us a page")


def plugin(rows: list[Row]) -> Iterator[Figure]:
    for row in rows:
        us = row["us_per_page"]
        yield at_least(
            f"in SGLang's Python tree, page {row['page_size']}, us a page",
            str(us["ours"]),
            row["sglang_over_ours"],
            None,
            peer=f"SGLang {us['sglang']}",
        )
        yield Figure(
            f"encoded and merged on the engine's thread, page {row['page_size']}, us for 64 pages",
            str(row["engine_thread_us_per_batch"]),
        )


def jetstream(rows: list[Row]) -> Iterator[Figure]:
    sustained, log, snapshot_row = rows
    yield Figure(
        f"blocks a second for {sustained['seconds']:g} s, the broker killed halfway",
        f"{sustained['blocks_per_s']:,}",
        ratio=f"{sustained['missing']} batches missing",
        goal="100,000 and nothing missing",
        met=sustained["blocks_per_s"] >= 99_000 and sustained["equal"] and not sustained["missing"],
    )
    for part in ("workers", "broker", "consumer"):
        share = sustained[f"{part}_cpu_s"] / sustained["seconds"]
        yield Figure(f"of a core for that: {part}", f"{share:.0%}")
    for row in (log, snapshot_row):
        what = row["figure"].replace("new consumer, ", "")
        yield Figure(f"a new consumer to live, {row['blocks_held']:,} distinct blocks, {what}", f"{row['to_live_s']} s")


def relay(rows: list[Row]) -> Iterator[Figure]:
    for row in rows:
        what, has_goals = row["stream"], "under one processor" in row
        counts = f"{row['messages in']} in, {row['messages out']} out"
        yield at_least(f"messages; {what}", counts, row["times fewer messages"], 10 if has_goals else None)
        sizes = f"{row['bytes in'] / 1e6:.1f} MB in, {row['bytes out'] / 1e6:.1f} MB out"
        yield at_least(f"bytes; {what}", sizes, row["times fewer bytes"], 2.5 if has_goals else None)
        half = f"p50 {row['added delay p50, ms']:g} ms at {row['blocks/s']} blocks/s"
        yield at_most(
            f"added delay, p99; {what}", half, row["added delay p99, ms"], 25 if has_goals else None, unit=" ms"
        )
        share = row["share of a processor"]
        yield at_most(f"processors; {what}", f"{share:g}", share, 1 if has_goals else None)


def capture(rows: list[Row]) -> Iterator[Figure]:
    for row in rows:
        rate = row["blocks_per_cpu_s"] / 1e6
        if row["what"] == "record":
            lost = row["batches_published"] - row["batches_in_file"]
            yield Figure(
                f"recorded over loopback: {row['how']}",
                f"{row['cpu_share']:.0%} of a core",
                ratio=f"{lost} of {row['batches_published']:,} batches lost",
                goal="200,000 blocks/s, none lost, under a core",
                met=row["blocks_per_s"] >= 195_000 and not lost and row["cpu_share"] < 1,
            )
        else:
            has_goal = row["what"] in {"read", "replay"}
            yield Figure(
                f"{row['what']}: {row['how']}",
                f"{1_000 / rate:.0f} ns a block",
                ratio=f"{rate:.1f} M blocks/s a core",
                goal="at least 1 M" if has_goal else "",
                met=rate >= 1 if has_goal else None,
            )


def proxy(rows: list[Row]) -> Iterator[Figure]:
    goals = {
        ("small, 50 a second", "added_p50_us"): 1.0,
        ("small, saturated", "processor_us_answered"): 1.0,
        ("8k token ids, saturated", "processor_us_answered"): 0.5,
        ("paced streams", "processor_us_chunks"): 1.2,
        ("burst of streams", "first_byte_p50_us"): 0.5,
    }
    names = {
        "added_p50_us": "added latency, p50",
        "added_p99_us": "added latency, p99",
        "processor_us_answered": "processor time a request",
        "processor_us_chunks": "processor time a chunk",
        "chunk_p99_us": "a chunk on its way, p99",
        "first_byte_p50_us": "first byte, p50",
    }
    for row in rows:
        question, figure, of = row["question"], row["figure"], row["of"]
        peers = {name: value for name, value in of.items() if name != "ours"}
        if figure == "grown_mb":
            told = ", ".join(f"{name} {value:g} MB" for name, value in peers.items())
            yield at_most(f"{question}: memory", f"{of['ours']:g} MB", of["ours"], 8, unit=" MB", peer=told)
        elif figure in names:
            told = ", ".join(
                f"{name} {value:g} us" if isinstance(value, float) else f"{name}: {value}"
                for name, value in peers.items()
            )
            what, best = f"{question}: {names[figure]}", [one for one in peers.values() if isinstance(one, float)]
            if isinstance(of["ours"], float) and best:
                ratio, goal = round(of["ours"] / min(best), 2), goals.get((question, figure))
                shown = at_most(what, f"{of['ours']:g} us", ratio, goal, unit=" x", peer=told)
                yield shown._replace(loses=ratio > 1 and goal is None)
            else:
                yield Figure(what, f"{of['ours']} us", peer=told)


def routing(rows: list[Row]) -> Iterator[Figure]:
    for row in rows:
        if row["what"] == "policies":
            yield from _policies(row)
        elif row["what"] == "delivery":
            lost = f", {row['loss']:.1%} of the batches lost" if row["loss"] else ""
            what = f"{row['trace']}, load {row['load']:.0%}: events after {row['delay_s'] * 1000:g} ms{lost}"
            yield Figure(what, _policy(row), ratio=f"expected {row['expected_share']:.1%}")
        elif row["policy"] in {"kv", "least_loaded"}:
            told = f"{row['idle_engines']} idle, a family cold on up to {row['cold_most']}"
            # With more families than that, or skewed ones, nobody knows how many engines the hottest should have.
            has_goal = row["policy"] == "kv" and row["load"].startswith("3 families")
            yield Figure(
                f"{row['load']} on 4 engines, `{row['policy']}`",
                f"{row['cached_share']:.1%} cached, p99 {row['first_token_p99_s']:.2f} s",
                ratio=told,
                goal="none idle, at most 2" if has_goal else "",
                met=row["idle_engines"] == 0 and row["cold_most"] <= 2 if has_goal else None,
            )


def _policies(row: Row) -> Iterator[Figure]:
    policies, where = row["policies"], f"{row['trace']}, load {row['load']:.0%}"
    kv, oracle = policies["kv"], policies["oracle"]
    has_goals = row["trace"].startswith("conversation")
    said = {name: _policy(figures) for name, figures in policies.items()}
    floor = f"oracle {said['oracle']}; endless {row['endless_share']:.1%}"
    ratio = round(kv["cached_share"] / oracle["cached_share"], 3)
    goal, met = ("at least 0.9", ratio >= 0.9) if has_goals else ("", None)
    yield Figure(f"{where}: found cached, over the oracle", said["kv"], "", floor, f"{ratio:g} x", goal, met)
    for name, most in (("round_robin", 0.8), ("least_loaded", None), ("approx", 1.0)):
        share = round(kv["first_token_p99_s"] / policies[name]["first_token_p99_s"], 3)
        goal = f"below {most:g}" if has_goals and most else ""
        met = share < most if goal and most else None
        what = f"{where}: p99 to the first token, over `{name}`"
        yield Figure(what, said["kv"], f"`{name}` {said[name]}", "", f"{share:g} x", goal, met, share > 1)


def _policy(figures: Row) -> str:
    return f"{figures['cached_share']:.1%}, p99 {figures['first_token_p99_s']:.2f} s"


QUESTIONS: dict[str, Question] = {
    "record": Question("What does it cost an engine to announce a page?", record),
    "plugin": Question("What does recording cost inside SGLang?", plugin),
    "coalesce": Question("How many events are left when neighbours in a chain are joined?", coalesce),
    "levels": Question("Do consumers that know only the reference rule read every level?", levels),
    "jetstream": Question("Does a fleet's log keep up, and lose nothing over the broker's death?", jetstream),
    "publish": Question("What does publishing cost the engine's thread while nobody takes anything?", publish),
    "relay": Question("What does a relay save, cost and delay?", relay),
    "capture": Question("What does it cost to record a stream, and to play it?", capture),
    "end_to_end": Question("What does it cost to follow a fleet, from socket to query?", end_to_end),
    "apply": Question("What does it cost to apply a batch?", apply),
    "match": Question("How long does a match take?", match),
    "query": Question("How long does a query take, beside Dynamo's?", query),
    "proxy": Question("What does a router add to a request, beside vLLM's and SGLang's?", proxy),
    "memory": Question("What does a stored block cost in memory?", memory),
    "growth": Question("Does an index grow dearer as it grows?", growth),
    "snapshot": Question("How long do a snapshot and its restoration take?", snapshot),
    "routing": Question("What does routing by cache events bring, and how much is there to be had?", routing),
    "cache": Question("What does a prefix cache cost an engine?", cache),
    "tiers": Question("What does a page cost on its way down to lower tiers and up again?", tiers),
}
"""In the order of the road that events take."""
