"""`docs/lint.md` from the table of codes: `python -m kvevents.lint.page > docs/lint.md`."""

import sys
from itertools import groupby

from kvevents.lint.codes import CODES, Code

_HEAD = """# What `kvevents lint` finds

    kvevents lint captures                                  # what `kvevents record` wrote
    kvevents lint http://127.0.0.1:30000 --duration 60      # a running engine
    kvevents lint captures --fail-on error --ignore KV501   # in a script: exit code 1 if there is any such finding

Each finding is of one stream (a worker, or one of its ranks) and has a code that keeps its meaning, how often it was
seen, where first (batch or sequence number, byte in the payload, a block), and what to do. An `error` gives every
consumer a wrong picture, a `warning` some of them, or it costs; `info` is worth knowing. `--json` prints the same for
programs: `{"findings": [...], "streams": [...]}`.

What is not known is not accused: where a stream was not seen from its beginning, or batches are missing, parents and
removals of unknown blocks are KV304 and KV307, not KV301 and KV305. A pseudonymous capture keeps everything but the way
from tokens to hashes: there KV6xx cannot be judged (KV604); `kvevents record --keep-hashes --tokens` keeps it.

In Python:

```python
from kvevents import BlockRemoved, BlockStored, KVEventBatch, encode_batch
from kvevents.lint import StreamLinter
from kvevents.transport.capture import CapturedBatch, CaptureSource

events = [BlockStored([71], None, [1, 2], 2, medium="GPU"), BlockRemoved([99], medium="GPU")]
linter = StreamLinter()
linter.feed(CapturedBatch(0.0, CaptureSource("worker-1"), 0, encode_batch(KVEventBatch(0.0, events, 0))))
print([finding.code for finding in linter.report().findings])  # ['KV305', 'KV601']
```

The codes, as this version has them:
"""

_PARTS = {
    "KV1": "Delivery",
    "KV2": "Bytes",
    "KV3": "Blocks",
    "KV4": "Sizes and groups",
    "KV5": "Cost",
    "KV6": "Hashes",
}


def page() -> str:
    """The page as Markdown."""
    parts = [_HEAD]
    for part, codes in groupby(CODES.values(), key=lambda code: code.code[:3]):
        parts += [f"## {_PARTS[part]}\n", *(_entry(code) for code in codes)]
    return "\n".join(parts)


def _entry(code: Code) -> str:
    return f"### {code.code}: {code.title}\n\n*{code.severity}.* {code.meaning}\n\nWhat to do: {code.remedy}\n"


if __name__ == "__main__":
    sys.stdout.write(page())
