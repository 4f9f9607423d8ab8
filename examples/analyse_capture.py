# %% [markdown]
# # A capture, looked at
#
# `kvevents record http://127.0.0.1:30000 -o captures`, then `python examples/analyse_capture.py captures report.html`,
# or open this file as a notebook (cells begin with `# %%`). It needs the extra: `pip install 'kvevents[dashboard]'`.
# Pseudonymous captures will do: pseudonyms keep which blocks are equal, and that is all that is asked here.

# %%
import sys
from collections import Counter, defaultdict
from pathlib import Path

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvevents import AllBlocksCleared, BlockRemoved, BlockStored, CaptureReader, Coalescer, decode_batch
from kvevents.transport.capture import CapturedBatch, CapturedReset

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else "captures")
REPORT = Path(sys.argv[2] if len(sys.argv) > 2 else "report.html")
WINDOW_S = 0.1  # events so near to each other are merged, as a relay with such a window would

# %% [markdown]
# ## Read it once
#
# Engines name blocks each in their own way. A block's *content* is what it says and all that is above it: equal content
# is the same prefix, whichever rank of whichever worker holds it.

# %%
Rank = tuple[str, int | None]

records = [record for record in CaptureReader(FOLDER) if isinstance(record, CapturedBatch | CapturedReset)]
began = min((record.time for record in records), default=0.0)

activity: dict[str, Counter[int]] = {"stored": Counter(), "removed": Counter()}  # blocks, by second
lifetimes: list[float] = []  # seconds from a block's store to its removal
depths: dict[int, int] = {}  # content -> blocks above it, itself included
holders: defaultdict[int, set[Rank]] = defaultdict(set)  # content -> who ever held it
hit_potential: Counter[str] = Counter()  # stored blocks, by whether they had to be computed

held: defaultdict[Rank, dict[object, tuple[int, float]]] = defaultdict(dict)  # block -> content, since when
now_at: Counter[int] = Counter()  # content -> holders at this moment


def leave(rank: Rank, block: object, time: float | None) -> None:
    """A rank no longer holds a block; without a time nobody knows since when."""
    if (known := held[rank].pop(block, None)) is not None:
        now_at[known[0]] -= 1
        if time is not None:
            lifetimes.append(time - known[1])


def arrive(rank: Rank, event: BlockStored, time: float) -> None:
    """A rank holds the blocks of a store."""
    above = held[rank].get(event.parent_block_hash, (None, 0.0))[0]
    size = event.block_size
    for place, block in enumerate(event.block_hashes):
        tokens = tuple(event.token_ids[place * size : (place + 1) * size])
        keys = str(event.extra_keys[place]) if event.extra_keys else ""
        content = hash((above, tokens, keys, event.cache_salt, event.lora_name))
        depths[content] = depths.get(above, 0) + 1 if above is not None else 1
        if block not in held[rank]:
            elsewhere, before = now_at[content] > 0, content in holders
            hit_potential["another worker held it" if elsewhere else "it was evicted" if before else "new"] += 1
            now_at[content] += 1
            held[rank][block] = (content, time)
        holders[content].add(rank)
        above = content


def rank_of(record: CapturedBatch) -> Rank:
    """Who sent a batch: the rank in it beats that of its source."""
    said = decode_batch(record.payload, strict=False).attn_dp_rank
    return record.source.worker_id, record.source.dp_rank if said is None else said


for record in records:
    if isinstance(record, CapturedReset):
        for rank in [rank for rank in held if rank[0] == record.source.worker_id]:
            if record.source.dp_rank in {None, rank[1]}:
                for block in list(held[rank]):
                    leave(rank, block, None)
        continue
    second, rank = int(record.time - began), rank_of(record)
    for event in decode_batch(record.payload, strict=False).events:
        if isinstance(event, AllBlocksCleared):
            for block in list(held[rank]):
                leave(rank, block, record.time)
        elif event.medium in {None, "GPU"} and isinstance(event, BlockRemoved):
            activity["removed"][second] += len(event.block_hashes)
            for block in event.block_hashes:
                leave(rank, block, record.time)
        elif event.medium in {None, "GPU"} and isinstance(event, BlockStored):
            if len(event.token_ids) < len(event.block_hashes) * event.block_size:
                continue  # part of a block, or no tokens: its content is not told
            activity["stored"][second] += len(event.block_hashes)
            arrive(rank, event, record.time)

# %% [markdown]
# ## What merging would save
#
# The same batches through each level of coalescing, in windows of `WINDOW_S`.


# %%
def count(merged: bytes | None) -> tuple[int, int]:
    """Events and bytes of a window."""
    return (0, 0) if merged is None else (len(decode_batch(merged, strict=False).events), len(merged))


saving: dict[str, tuple[int, int]] = {}  # level -> events, bytes
for level in ("off", "adjacent", "chain", "compact"):
    counts: list[tuple[int, int]] = []
    windows: dict[Rank, tuple[float, Coalescer]] = {}  # until when, what waits
    for record in records:
        if isinstance(record, CapturedBatch):
            rank = rank_of(record)
            until, coalescer = windows.get(rank, (0.0, None))
            coalescer = coalescer or Coalescer(level, from_start=True)
            if record.time >= until:
                counts.append(count(coalescer.take_batch()))
                windows[rank] = (record.time + WINDOW_S, coalescer)
            coalescer.add(record.payload)
    counts += [count(coalescer.take_batch()) for _, coalescer in windows.values()]
    saving[level] = (sum(events for events, _ in counts), sum(size_bytes for _, size_bytes in counts))

# %% [markdown]
# ## Draw it

# %%
titles = ("Blocks over time", "Block lifetimes", "Sharing by depth", "Hit potential", "Events by coalescing", "Bytes")
figure = make_subplots(rows=3, cols=2, subplot_titles=titles, vertical_spacing=0.1)
for name, by_second in activity.items():
    figure.add_trace(go.Scatter(x=sorted(by_second), y=[by_second[at] for at in sorted(by_second)], name=name), 1, 1)
figure.add_trace(go.Histogram(x=lifetimes, name="seconds on the GPU", showlegend=False), 1, 2)
by_depth: dict[str, Counter[int]] = {"one worker": Counter(), "several workers": Counter()}
for content, depth in depths.items():
    by_depth["several workers" if len(holders[content]) > 1 else "one worker"][depth] += 1
for name, blocks in by_depth.items():
    figure.add_trace(go.Bar(x=sorted(blocks), y=[blocks[at] for at in sorted(blocks)], name=f"held by {name}"), 2, 1)
figure.add_trace(go.Bar(x=list(hit_potential), y=list(hit_potential.values()), showlegend=False), 2, 2)
for column, unit in ((1, 0), (2, 1)):
    figure.add_trace(go.Bar(x=list(saving), y=[row[unit] for row in saving.values()], showlegend=False), 3, column)
figure.update_layout(barmode="stack", height=1000, title=f"{FOLDER}: {len(records):,} batches")
figure.update_xaxes(title_text="seconds", row=1)
figure.update_xaxes(title_text="blocks from the prompt's beginning", row=2, col=1)
figure.update_yaxes(title_text="blocks", row=1, col=1)
figure.write_html(REPORT, include_plotlyjs=True)

reusable, stored = hit_potential["another worker held it"], sum(hit_potential.values())
print(f"{len(records):,} batches, {stored:,} blocks stored, {len(lifetimes):,} removed again")
print(f"{reusable:,} of them were computed although another worker held them: {reusable / max(stored, 1):.1%}")
print(f"merged ({WINDOW_S:g} s, chain): {saving['off'][0]:,} events become {saving['chain'][0]:,}")
print(f"charts: {REPORT}")
