"""Each code from a stream that has its fault, and not from the same stream without it."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvevents import cli
from kvevents.errors import ConfigError
from kvevents.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KVCacheEvent, KVEventBatch
from kvevents.hashing import HashChain, block_digests
from kvevents.lint import CODES, LintReport, Severity, StreamLinter
from kvevents.lint.codes import BY_KIND
from kvevents.lint.dialect import recognise
from kvevents.lint.page import page
from kvevents.transport import CaptureWriter
from kvevents.transport.capture import CapturedBatch, CapturedRefusal, CapturedReset, CapturedState, CaptureSource
from kvevents.wire import Dialect, encode_batch
from payloads import COMMON, pack

SOURCE = CaptureSource("w", 0, block_size=2)
DOCS = Path(__file__).parents[2] / "docs" / "lint.md"


def chain(blocks: int, start: int = 0, parent: BlockHash | None = None, **fields: Any) -> BlockStored:
    """A store whose hashes follow from its tokens, as SGLang makes them."""
    tokens = list(range(start, start + 2 * blocks))
    ids = list(HashChain.root(2).extend(tokens).ids)
    return BlockStored(ids, parent, tokens, 2, **({"medium": "GPU"} | fields))


def payload(*events: KVCacheEvent, ts: float = 0.0, rank: int | None = 0, dialect: Dialect = "sglang") -> bytes:
    return encode_batch(KVEventBatch(ts, list(events), rank), dialect=dialect)


def report(*payloads: bytes | None, numbers: Sequence[int] | None = None, **clues: Any) -> LintReport:
    """Of batches with rising numbers; None leaves a number out."""
    linter = StreamLinter(**clues)
    for number, data in zip(numbers or range(len(payloads)), payloads, strict=True):
        if data is not None:
            linter.feed(CapturedBatch(number + 0.5, SOURCE, number, data))
    return linter.report()


def codes(found: LintReport) -> list[str]:
    return [finding.code for finding in found.findings]


CHAIN = chain(4)
A, B, C, D = CHAIN.block_hashes
GONE = BlockRemoved([D, C, B, A], medium="GPU")
MANY = [chain(1, start) for start in range(0, 8200, 2)]


def gpu(*slots: Any, **more: Any) -> bytes:
    """A batch of one store as a map, with whatever is in it."""
    names = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium")
    values = [*slots, *COMMON[len(slots) :]]
    return pack([0.0, [{"type": "BlockStored"} | dict(zip(names, values, strict=True)) | more], 0])


FAULTS: dict[str, tuple[Callable[[], LintReport], Callable[[], LintReport]]] = {
    "KV101": (lambda: report(payload(CHAIN), None, payload(GONE)), lambda: report(payload(CHAIN), payload(GONE))),
    "KV102": (
        lambda: report(payload(CHAIN), payload(GONE), payload(CHAIN, ts=9), numbers=[0, 1, 0]),
        lambda: report(payload(CHAIN), payload(GONE), payload(CHAIN, ts=9)),
    ),
    "KV103": (
        lambda: report(payload(chain(40)), payload(chain(40), ts=1)),
        lambda: report(payload(chain(40)), payload(chain(41), ts=1)),
    ),
    "KV104": (
        lambda: report(payload(CHAIN), payload(GONE), payload(CHAIN), numbers=[0, 1, 0]),
        lambda: report(payload(CHAIN), payload(GONE)),
    ),
    "KV105": (lambda: report(payload(CHAIN), numbers=[57]), lambda: report(payload(CHAIN))),
    "KV106": (
        lambda: report(payload(CHAIN), payload(CHAIN, rank=1)),
        lambda: report(payload(CHAIN), payload(GONE)),
    ),
    "KV107": (
        lambda: report(*(payload(AllBlocksCleared(), ts=100 + second) for second in range(3))),
        lambda: report(*(payload(AllBlocksCleared(), ts=100 + 60 * minute) for minute in range(3))),
    ),
    "KV109": (lambda: report(payload(CHAIN, rank=1)), lambda: report(payload(CHAIN))),
    "KV201": (lambda: report(payload(CHAIN), b"\xc1"), lambda: report(payload(CHAIN))),
    "KV202": (lambda: report(gpu("no list")), lambda: report(payload(CHAIN))),
    "KV203": (
        lambda: report(pack([0.0, [{"type": "BlockFrozen", "block_hashes": [1]}], 0])),
        lambda: report(payload(CHAIN)),
    ),
    "KV204": (lambda: report(gpu(temperature=0.5)), lambda: report(gpu())),
    "KV205": (lambda: report(payload(BlockRemoved([], medium="GPU"))), lambda: report(payload(CHAIN))),
    "KV206": (lambda: report(payload(chain(1, medium="TAPE"))), lambda: report(payload(chain(1, medium="disk")))),
    "KV301": (lambda: report(payload(chain(1, 8, parent=D))), lambda: report(payload(CHAIN, chain(1, 8, parent=D)))),
    "KV302": (
        lambda: report(payload(CHAIN, GONE), payload(chain(1, 8, parent=D))),
        lambda: report(payload(CHAIN), payload(chain(1, 8, parent=D))),
    ),
    "KV303": (
        lambda: report(payload(chain(1, 8, parent=D), CHAIN)),
        lambda: report(payload(CHAIN, chain(1, 8, parent=D))),
    ),
    "KV304": (
        lambda: report(payload(chain(1, 8, parent=D)), numbers=[3]),
        lambda: report(payload(AllBlocksCleared(), chain(1, 8, parent=D)), numbers=[3]),
    ),
    "KV305": (lambda: report(payload(GONE)), lambda: report(payload(CHAIN), payload(GONE))),
    "KV306": (
        lambda: report(payload(CHAIN, GONE), payload(GONE)),
        lambda: report(payload(CHAIN, GONE), payload(CHAIN), payload(GONE)),
    ),
    "KV307": (lambda: report(payload(GONE), numbers=[3]), lambda: report(payload(CHAIN, GONE), numbers=[3])),
    "KV308": (lambda: report(payload(CHAIN, CHAIN)), lambda: report(payload(CHAIN, GONE, CHAIN))),
    "KV309": (
        lambda: report(payload(CHAIN), capacity_blocks=3),
        lambda: report(payload(CHAIN), capacity_blocks=4),
    ),
    "KV310": (lambda: report(payload(*MANY)), lambda: report(payload(*MANY, GONE))),
    "KV401": (lambda: report(gpu([7, 8], None, [1, 2])), lambda: report(gpu([7, 8], None, [1, 2, 3, 4]))),
    "KV402": (
        lambda: report(gpu([7], None, [1, 2, 3, 4], 4)),
        lambda: report(gpu([7], None, [1, 2], 2)),
    ),
    "KV403": (lambda: report(gpu([7], None, [])), lambda: report(gpu([7], None, [1, 2]))),
    "KV404": (lambda: report(gpu([7], None, [], 2, None, "CPU")), lambda: report(gpu([7], None, [1, 2]))),
    "KV405": (lambda: report(gpu([7, 8], None, [1, 2, 3])), lambda: report(gpu([7, 8], None, [1, 2, 3, 4]))),
    "KV406": (
        lambda: report(gpu([7], None, [1, 2, 3, 4], group_idx=1, kv_cache_spec_kind="sliding_window")),
        lambda: report(gpu([7], None, [1, 2], group_idx=1, kv_cache_spec_kind="sliding_window")),
    ),
    "KV407": (
        lambda: report(gpu([7], None, [1, 2], group_idx=1)),
        lambda: report(gpu([7], None, [1, 2], group_idx=1, kv_cache_spec_kind="mamba")),
    ),
    "KV501": (
        lambda: report(*(payload(one) for one in each_alone(chain(100))), payload(GONE)),
        lambda: report(payload(chain(100)), payload(GONE)),
    ),
    "KV601": (lambda: report(gpu()), lambda: report(payload(CHAIN))),
    "KV602": (lambda: report(payload(CHAIN), gpu()), lambda: report(payload(CHAIN))),
    "KV603": (lambda: report(vllm("nobody's seed")), lambda: report(vllm("nobody's seed"), seeds=("nobody's seed",))),
    "KV604": (lambda: report(payload(CHAIN), has_hashes=False), lambda: report(payload(CHAIN))),
}


def each_alone(store: BlockStored) -> Iterator[BlockStored]:
    """The same blocks, an event each."""
    parent = store.parent_block_hash
    for at, block in enumerate(store.block_hashes):
        yield BlockStored([block], parent, store.token_ids[2 * at : 2 * at + 2], 2, medium="GPU")
        parent = block


def vllm(seed: str) -> bytes:
    ids = block_digests(list(range(64)), 16, scheme="vllm-sha256-cbor", hash_seed=seed)
    first = BlockStored(ids[:2], None, list(range(32)), 16, medium="GPU")
    return payload(first, BlockStored(ids[2:], ids[1], list(range(32, 64)), 16, medium="GPU"), dialect="vllm")


@pytest.mark.parametrize("code", FAULTS)
def test_a_code_is_found_where_its_fault_is_and_nowhere_else(code: str) -> None:
    faulty, sound = FAULTS[code]
    (finding,) = [finding for finding in faulty().findings if finding.code == code]
    assert (finding.worker, finding.dp_rank, finding.severity) == ("w", 0, CODES[code].severity)
    assert finding.count >= 1
    assert code not in codes(sound())


def test_every_code_has_its_test() -> None:
    assert set(CODES) - set(FAULTS) == {"KV108"}  # from a state, below
    assert [code.code for code in BY_KIND.values()] == sorted(code.code for code in BY_KIND.values())


def test_a_stream_without_faults_has_no_findings_and_its_facts() -> None:
    found = report(payload(CHAIN, ts=10.0), payload(GONE, ts=14.5))
    assert not found.findings
    (facts,) = found.streams
    assert (facts.batches, facts.events, facts.stored_blocks, facts.removed_blocks) == (2, 2, 4, 4)
    assert (facts.held_blocks, facts.most_held_blocks, facts.seconds) == (0, 4, 4.5)
    assert (facts.dialect, facts.scheme, facts.forgotten_blocks) == ("sglang", "sglang", 0)


def test_a_finding_says_where_it_was_first() -> None:
    found = report(payload(CHAIN), payload(CHAIN, GONE, GONE, GONE))
    (finding,) = [finding for finding in found.findings if finding.code == "KV306"]
    assert (finding.count, finding.blocks) == (1, 4)  # the second copy went with the second removal
    assert (finding.first.batch, finding.first.sequence, finding.first.time) == (1, 1, 1.5)
    assert finding.first.block == f"{D % 2**64:016x}" if isinstance(D, int) else False
    assert finding.first.offset is not None


def test_after_a_gap_nobody_is_accused_of_what_may_have_been_in_it() -> None:
    found = codes(report(payload(CHAIN), None, payload(BlockRemoved([99], medium="GPU"))))
    assert "KV307" in found
    assert "KV305" not in found


def test_a_recorded_restart_a_refusal_and_a_state_count() -> None:
    linter = StreamLinter()
    linter.feed(CapturedBatch(0.0, SOURCE, 0, payload(CHAIN)))
    linter.feed(CapturedReset(1.0, SOURCE))
    linter.feed(CapturedBatch(1.0, SOURCE, 0, payload(CHAIN, ts=1)))
    assert not linter.report().findings  # a restart that is known, and what it stores again, is no fault
    linter.feed(CapturedRefusal(2.0, SOURCE, 1, 9, "expected a batch", 3))
    linter.feed(CapturedState(3.0, SOURCE, "degraded", "gap-unrepaired", "1 batch is missing", {}))
    found = {finding.code: finding.detail for finding in linter.report().findings}
    assert found == {"KV201": "at byte 3: expected a batch", "KV108": "1 batch is missing"}


def test_ranks_on_one_sequence_keep_their_blocks_apart() -> None:
    assert "KV308" not in codes(report(payload(CHAIN), payload(CHAIN, rank=1)))


def test_the_worst_comes_first() -> None:
    found = report(payload(CHAIN, CHAIN, GONE, GONE, GONE), gpu([7, 8], None, [1, 2]))
    assert [finding.severity for finding in found.findings] == sorted(
        (finding.severity for finding in found.findings), key=lambda severity: -severity.rank
    )
    assert found.at_least(Severity.ERROR) == [one for one in found.findings if one.severity is Severity.ERROR]


@pytest.mark.parametrize(
    ("event", "dialect", "engine"),
    [
        (["BlockStored", [5], None, [1], 1], "sglang-array", "SGLang before September 2026, or vLLM before 0.10.2"),
        (["BlockStored", [2**63], None, [1], 1, None, "GPU"], "vllm-array", "vLLM 0.10.2 to 0.13"),
        (["BlockStored", [b"x" * 32], None, [1], 1, None, "GPU", "a"], "vllm-array", "vLLM 0.14 to 0.16"),
        (["BlockStored", [5], None, [1], 1, None, "GPU", {"cache_salt": "s"}], "sglang-array", None),
        ({"type": "BlockStored", "block_hashes": [5], "lora_name": None}, "vllm", "vLLM 0.24 or later"),
        ({"type": "BlockStored", "block_hashes": [5], "locality": "LOCAL"}, "vllm", "vLLM 0.26 or later"),
        ({"type": "BlockStored", "block_hashes": [5], "lora_name": "a"}, "sglang", "SGLang since September 2026"),
    ],
)
def test_who_writes_so(event: Any, dialect: str, engine: str | None) -> None:
    for batch in ([0.0, [event], 0], {"ts": 0.0, "events": [event]}):
        found = recognise([msgspec.msgpack.encode(batch)])
        assert found is not None
        assert found.dialect == dialect
        assert engine is None or found.engine == engine


def test_a_capacity_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="capacity_blocks: expected at least 1, got 0"):
        StreamLinter(capacity_blocks=0)


def test_the_page_is_the_table() -> None:
    assert DOCS.read_text(encoding="utf-8") == page(), "python -m kvevents.lint.page > docs/lint.md"


@pytest.mark.parametrize(("raw", "code"), [(True, "KV305"), (False, "KV604")])
def test_the_command_answers_no_for_a_capture_with_faults(
    raw: bool, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with CaptureWriter(tmp_path, raw=raw) as writer:
        writer.write_batch(SOURCE, payload(CHAIN), sequence=0)
        writer.write_batch(SOURCE, payload(BlockRemoved([99], medium="GPU")), sequence=1)
    assert cli.main(["lint", str(tmp_path), "--json"]) == cli.ANSWER_IS_NO
    found = msgspec.json.decode(capsys.readouterr().out, type=LintReport)
    assert {"KV305", code} <= set(codes(found))
    assert cli.main(["lint", str(tmp_path), "--ignore", "KV305"]) == cli.DONE
    assert "batches" in capsys.readouterr().out
    assert cli.main(["lint", str(tmp_path), "--ignore", "KV999"]) == cli.USAGE


def test_a_capture_in_which_nothing_can_be_read_is_not_without_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = tmp_path / "damaged.kvcap"
    damaged.write_bytes(b"none at all")
    assert cli.main(["lint", str(damaged)]) == cli.USAGE
    said = capsys.readouterr()
    assert "no findings" not in said.out
    assert "found none" in said.err


def test_what_came_before_the_first_number_after_a_restart_is_not_accused() -> None:
    linter = StreamLinter()
    linter.feed(CapturedBatch(0.0, SOURCE, 0, payload(chain(4))))
    linter.feed(CapturedReset(1.0, SOURCE))
    below = BlockStored([78], 12_345, [1, 2], 2, medium="GPU")
    linter.feed(CapturedBatch(2.0, SOURCE, 5, payload(below, BlockRemoved([999], medium="GPU"))))
    assert {"KV304", "KV307"} <= set(codes(linter.report()))
    assert not {"KV301", "KV305"} & set(codes(linter.report()))


def test_one_clear_of_each_rank_is_no_storm() -> None:
    flushed = [payload(AllBlocksCleared(), ts=10.0, rank=rank) for rank in range(3)]
    assert codes(report(*flushed)) == ["KV106"]
    assert "KV107" in codes(report(*flushed, *flushed, *flushed))


def test_an_engine_like_sglang_that_announces_groups_is_not_taken_for_vllm() -> None:
    grouped = chain(32, group_idx=0, kv_cache_spec_kind="full_attention")
    (facts,) = report(payload(grouped, dialect="sglang")).streams
    assert facts.engine is not None
    assert facts.engine.startswith("SGLang")
