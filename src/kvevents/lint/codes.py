"""Every code with what it means and what to do: the one table, from which `docs/lint.md` is made too.

KV1xx delivery, KV2xx bytes, KV3xx blocks, KV4xx sizes and groups, KV5xx cost, KV6xx hashes. A code that was published
keeps its meaning; one that is given up is not used again.
"""

import enum
from collections.abc import Mapping

import msgspec


class Severity(enum.StrEnum):
    """How bad a finding is.

    `error`: a consumer of the stream has a wrong picture. `warning`: some consumers have, or the engine pays for it.
    `info`: worth knowing.
    """

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    @property
    def rank(self) -> int:
        """The worse, the higher."""
        return {Severity.ERROR: 2, Severity.WARNING: 1, Severity.INFO: 0}[self]


class Code(msgspec.Struct, frozen=True):
    """One kind of finding.

    Attributes:
        code: its stable name.
        severity: how bad it is.
        title: what was seen.
        meaning: what follows from it for a consumer.
        remedy: what to do.
        kind: the core's name for it, where the core finds it.
    """

    code: str
    severity: Severity
    title: str
    meaning: str
    remedy: str
    kind: str | None = None


_E, _W, _I = Severity.ERROR, Severity.WARNING, Severity.INFO

_TABLE = (
    Code(
        "KV101",
        _E,
        "batches are missing",
        "Sequence numbers were skipped, and nothing repeated what they stood for: blocks that were removed in them are"
        " believed to be there for ever.",
        "Give the engine a replay endpoint and a larger buffer (buffer_steps), the subscriber a larger high-water mark;"
        " or put `kvevents relay` beside the engine.",
    ),
    Code(
        "KV102",
        _W,
        "the numbers began anew",
        "The engine was restarted: what it held before is gone, though it announced no clear. A consumer that takes low"
        " numbers for old ones drops everything from here on.",
        "Nothing, if it was restarted on purpose. Consumers have to drop what they hold of it; kvevents does.",
    ),
    Code(
        "KV103",
        _W,
        "possibly a restart that no number tells",
        "Blocks that are held were stored again in a row, as by an engine that begins with an empty cache behind"
        " something that numbers batches itself. vLLM's full report mode looks the same.",
        "Look whether the engine was restarted at that time. For vLLM with kv_cache_report_mode=full, declare the"
        ' source residency="set".',
    ),
    Code(
        "KV104",
        _I,
        "batches came twice",
        "The same number came again with the same bytes. Consumers that count copies have to tell them apart.",
        "Nothing: replays overlap with the live stream. Many of them point to a relay or proxy that repeats.",
    ),
    Code(
        "KV105",
        _I,
        "the beginning is not there",
        "The first number is above 0 and nothing was cleared yet: what the engine held before is not known.",
        "Record from the engine's start, or with its replay endpoint; else findings about unknown blocks are left out.",
    ),
    Code(
        "KV106",
        _W,
        "ranks share one sequence",
        "Batches of several data-parallel ranks are numbered as one: a gap in it leaves every one of them in doubt, and"
        " a consumer that counts a sequence for each rank sees gaps all the time.",
        "Publish each rank on a socket of its own (port + rank), with numbers of its own.",
    ),
    Code(
        "KV107",
        _W,
        "clears in a storm",
        "The cache was emptied again and again in a short time: nothing stays long enough to be routed to.",
        "Look for whoever calls /flush_cache or /reset_prefix_cache: weight updates, tests, a health check.",
    ),
    Code(
        "KV108",
        _W,
        "the picture was not complete",
        "Whoever recorded or followed the stream could not complete its picture of the source, and said so.",
        "Its reason stands in the finding; docs/delivery.md explains each.",
    ),
    Code(
        "KV109",
        _E,
        "batches name another rank",
        "The rank in a batch counts: what this socket's rank holds is put on another's account, and two ranks that name"
        " the same one are taken for one.",
        "Tell each rank of the engine its number (attn_dp_rank, data_parallel_rank), or correct which socket is whose.",
    ),
    Code(
        "KV201",
        _E,
        "a batch that cannot be read",
        "Broken msgpack, or a frame that is no batch: all of its events are lost to every consumer.",
        "Report it to the engine's authors with the bytes (`kvevents record --raw`).",
    ),
    Code(
        "KV202",
        _E,
        "events that cannot be used",
        "Wrong types, missing fields or sizes over every limit: consumers skip them or refuse the batch.",
        "Report it to the engine's authors; the offset says where.",
        "unusable-event",
    ),
    Code(
        "KV203",
        _W,
        "events of an unknown type",
        "This version of kvevents passes over them; strict consumers lose the whole batch.",
        "Look for a newer kvevents; if it is the engine's own type, consumers have to know it.",
        "unknown-tag",
    ),
    Code(
        "KV204",
        _I,
        "unknown fields",
        "Fields of a later or altered engine. They are passed over.",
        "Look for a newer kvevents if they matter for the identity of blocks.",
        "unknown-field",
    ),
    Code(
        "KV205",
        _W,
        "events without blocks",
        "They say nothing and cost what a message costs.",
        "Report it to the engine's authors.",
        "no-blocks",
    ),
    Code(
        "KV206",
        _W,
        "a tier of an unknown name",
        "Nobody knows what a hit there is worth: kvevents never counts it as GPU, others may.",
        "Spell it GPU, CPU, DISK or EXTERNAL, as engines do.",
        "unknown-tier",
    ),
    Code(
        "KV301",
        _E,
        "a parent that was never announced",
        "The store cannot be placed: consumers drop it, or keep it waiting. All blocks below it are lost to them.",
        "An event before it was lost in the engine, or it is announced under another name. See whether it happens"
        " with every adapter or salt, or below a certain tier only.",
        "orphan-parent",
    ),
    Code(
        "KV302",
        _W,
        "a parent that is gone",
        "A block was stored below one that had been removed: no prompt reaches it.",
        "The engine evicts parents before children, or announces removals too early.",
        "parent-gone",
    ),
    Code(
        "KV303",
        _W,
        "a parent that comes later in the same batch",
        "Consumers that take events one by one drop the store.",
        "Announce parents first. kvevents joins them within the batch.",
        "parent-later",
    ),
    Code(
        "KV304",
        _I,
        "a parent from before the beginning",
        "It may have been announced in what is missing here.",
        "Record from the engine's start, or with its replay endpoint.",
        "unseen-parent",
    ),
    Code(
        "KV305",
        _W,
        "a removal of a block that was never stored",
        "Its store was lost in the engine, or it is removed under another name: then what was stored stays for ever.",
        "Compare the names: integers against digests, wrapped ids of adapters, another tier.",
        "removed-unknown",
    ),
    Code(
        "KV306",
        _W,
        "a removal of a block that is not there any more",
        "It was removed before, or cleared. Consumers that count copies may go below zero.",
        "Harmless for kvevents. Report it to the engine's authors if it is frequent.",
        "removed-again",
    ),
    Code(
        "KV307",
        _I,
        "a removal of a block from before the beginning",
        "It may have been announced in what is missing here.",
        "Record from the engine's start, or with its replay endpoint.",
        "removed-unseen",
    ),
    Code(
        "KV308",
        _I,
        "blocks stored again",
        "They are held there already. On the GPU an engine announces each copy; consumers that keep a set forget the"
        " block with the first copy's removal.",
        "Nothing for kvevents, which counts copies on the GPU.",
        "stored-again",
    ),
    Code(
        "KV309",
        _E,
        "more is held than the engine can hold",
        "Blocks that the engine must have evicted were never removed from the stream: matches on them are wrong.",
        "Removals are lost: in the engine, or between it and here. Look for KV101 and at the tiers of the removals.",
    ),
    Code(
        "KV310",
        _I,
        "nothing was ever removed",
        "The cache never filled, or no removal ever reached the stream.",
        "Give --capacity-blocks (GPU blocks of the engine) to tell the two apart.",
    ),
    Code(
        "KV401",
        _E,
        "tokens do not fit the blocks",
        "A store has to bring block size x blocks tokens. Consumers cut wrong blocks out of it, or drop it.",
        "Report it to the engine's authors; with hybrid models look whether the group's kind is announced.",
        "token-count",
    ),
    Code(
        "KV402",
        _E,
        "the block size is another",
        "It changed within the stream, or is not what the engine says of itself. An index made for the other finds"
        " nothing.",
        "Give router and engine the same: --page-size of SGLang, --block-size of vLLM.",
        "block-size",
    ),
    Code(
        "KV403",
        _E,
        "GPU blocks without tokens",
        "Nobody can tell what they hold: a consumer that matches prompts by tokens cannot use them.",
        "Switch the tokens in events on, or use a consumer that computes the engine's hashes.",
        "no-tokens",
    ),
    Code(
        "KV404",
        _I,
        "blocks of a lower tier without tokens",
        "They are joined by hash to what was stored on the GPU.",
        "Nothing for kvevents.",
        "no-tokens-below",
    ),
    Code(
        "KV405",
        _I,
        "partial last blocks",
        "The last block of a store has fewer tokens than a block takes.",
        "Nothing for kvevents, which matches whole blocks.",
        "partial-block",
    ),
    Code(
        "KV406",
        _I,
        "stores of a window",
        "A group that keeps some blocks of a range only: tokens tell the range, hashes the blocks kept.",
        "Nothing for kvevents. Consumers that cut tokens into blocks from the front give them the wrong content.",
        "masked-store",
    ),
    Code(
        "KV407",
        _W,
        "a group whose kind is not told",
        "Nobody knows what a prefix needs of it, so hits of hybrid models are guessed.",
        "vLLM tells it since 0.22.",
        "group-without-kind",
    ),
    Code(
        "KV501",
        _W,
        "events that could be merged",
        "One event a block costs the engine, the network and every consumer several times what merged ones cost.",
        "Load kvevents' plugin in the engine, or put `kvevents relay` beside it.",
    ),
    Code(
        "KV601",
        _W,
        "hashes do not follow from the tokens",
        "No scheme that is known gives these hashes with a seed that was tried: consumers that compute hashes from"
        " prompts find nothing. kvevents matches by tokens and is not concerned.",
        "Set the same PYTHONHASHSEED everywhere; name it with --seed to have it checked.",
    ),
    Code(
        "KV602",
        _W,
        "some hashes do not follow from the tokens",
        "Most do. A salt or key that is not on the wire enters the others, or something else made them.",
        "Name salts and adapters' paths to have them checked; else compare with the engine's prompts.",
    ),
    Code(
        "KV603",
        _I,
        "the hash seed is not known",
        "The scheme is recognised, its seed is random or was not tried: two such engines give one prompt different"
        " hashes.",
        "Set PYTHONHASHSEED to one value for the fleet if any consumer compares hashes.",
    ),
    Code(
        "KV604",
        _I,
        "hashes could not be checked",
        "The capture is pseudonymous, or no store tells tokens.",
        "Record with --keep-hashes --tokens where the files may hold prompts.",
    ),
)

CODES: Mapping[str, Code] = {code.code: code for code in _TABLE}
BY_KIND: Mapping[str, Code] = {code.kind: code for code in _TABLE if code.kind is not None}
"""Codes by the core's name for what they are about."""
