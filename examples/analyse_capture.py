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
from kvevents.transport.capture import CapturedBatch, CapturedReset, CaptureSource

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else "captures")
REPORT = Path(sys.argv[2] if len(sys.argv) > 2 else "report.html")
WINDOW_S = 0.1  # events so near to each other are merged, as a relay with such a window would

# %% [markdown]
# ## Read it once
#
# Engines name blocks each in their own way. A block's *content* is what it says and all that is above it: equal content
# is the same prefix, whichever engine holds it.

# %%
records = [record for record in CaptureReader(FOLDER) if isinstance(record, CapturedBatch | CapturedReset)]
began = min((record.time for record in records), default=0.0)

activity: dict[str, Counter[int]] = {"stored": Counter(), "removed": Counter()}  # blocks, by second
lifetimes: list[float] = []  # seconds from a block's store to its removal
depths: dict[int, int] = {}  # content -> blocks above it, itself included
holders: defaultdict[int, set[CaptureSource]] = defaultdict(set)  # content -> who ever held it
hit_potential: Counter[str] = Counter()  # stored blocks, by whether they had to be computed

held: defaultdict[CaptureSource, dict[object, tuple[int, float]]] = defaultdict(dict)  # block -> content, since when
now_at: Counter[int] = Counter()  # content -> holders at this moment


def leave(source: CaptureSource, block: object, time: float | None) -> None:
    """A source no longer holds a block; without a time nobody knows since when."""
    if (known := held[source].pop(block, None)) is not None:
        now_at[known[0]] -= 1
        if time is not None:
            lifetimes.append(time - known[1])


def arrive(source: CaptureSource, event: BlockStored, time: float) -> None:
    """A source holds the blocks of a store."""
    above = held[source].get(event.parent_block_hash, (None, 0.0))[0]
    size = len(event.token_ids) // len(event.block_hashes)
    for place, block in enumerate(event.block_hashes):
        tokens = tuple(map(str, event.token_ids[place * size : (place + 1) * size]))
        content = hash((above, tokens, event.cache_salt, event.lora_name))
        depths[content] = depths.get(above, 0) + 1 if above is not None else 1
        if block not in held[source]:
            elsewhere, before = now_at[content] > 0, content in holders
            hit_potential["another worker held it" if elsewhere else "it was evicted" if before else "new"] += 1
            now_at[content] += 1
            held[source][block] = (content, time)
        holders[content].add(source)
        above = content


for record in records:
    if isinstance(record, CapturedReset):
        for block in list(held[record.source]):
            leave(record.source, block, None)
        continue
    second = int(record.time - began)
    for event in decode_batch(record.payload, strict=False).events:
        if isinstance(event, AllBlocksCleared):
            for block in list(held[record.source]):
                leave(record.source, block, record.time)
        elif event.medium in {None, "GPU"} and isinstance(event, BlockRemoved):
            activity["removed"][second] += len(event.block_hashes)
            for block in event.block_hashes:
                leave(record.source, block, record.time)
        elif event.medium in {None, "GPU"} and isinstance(event, BlockStored) and event.block_hashes:
            activity["stored"][second] += len(event.block_hashes)
            arrive(record.source, event, record.time)

# %% [markdown]
# ## What merging would save
#
# The same batches through each level of coalescing, in windows of `WINDOW_S`.

# %%
saving: dict[str, tuple[int, int]] = {}  # level -> events, bytes
for level in ("off", "adjacent", "chain", "compact"):
    events = size_bytes = 0
    windows: dict[CaptureSource, tuple[float, Coalescer]] = {}
    for arrived in [*records, None]:  # None: send what still waits
        for source, (until, coalescer) in windows.items():
            if arrived is not None and arrived.time < until:
                continue
            if (merged := coalescer.take_batch()) is not None:
                events += len(decode_batch(merged, strict=False).events)
                size_bytes += len(merged)
            if arrived is not None:
                windows[source] = (arrived.time + WINDOW_S, coalescer)
        if isinstance(arrived, CapturedBatch):
            if arrived.source not in windows:
                windows[arrived.source] = (arrived.time + WINDOW_S, Coalescer(level, from_start=True))
            windows[arrived.source][1].add(arrived.payload)
    saving[level] = (events, size_bytes)

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
