"""Which scheme and seed gave the hashes of a stream."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from kvevents._core.hashing import solve_none_hash
from kvevents.events import BlockHash, KVCacheEvent
from kvevents.hashing.candidates import DIGEST_SIZES, UNKNOWN_PARENT, Candidate, Content, Place, Reading, Sglang, Vllm
from kvevents.hashing.names import HashForm, HashScheme, KeyForm
from kvevents.hashing.report import NamespaceReport, SchemeReport
from kvevents.hashing.samples import Sample, Samples, gather, short

DEFAULT_SEEDS: tuple[str, ...] = ("vllm-none-hash", *map(str, range(101)), "123", "1234", "12345", "1337")
"""Seeds that are tried: what vLLM takes where PYTHONHASHSEED is not set, and the numbers that people set."""

UNTOLD = "a lower tier or masked group does not tell its namespace"
UNCONFIRMED = "no scheme confirms a block"
PROBED_ROOTS = 8

_SIGNED: tuple[HashScheme, ...] = ("sglang", "vllm-builtin", "content")


class Tally:
    """What a candidate makes of the samples of a stream: the blocks it confirms and those it does not."""

    def __init__(self, candidate: Candidate, samples: Iterable[Sample]) -> None:
        self.candidate = candidate
        self.confirmed = 0
        self.contradicted = 0
        self.unchecked: Counter[str] = Counter()
        self._known: dict[int, Place] = {}
        self._seen: set[int] = set()
        self._namespaces: dict[tuple[str | None, bool, str | None], list[int]] = {}
        for sample in samples:
            self._follow(sample)

    @property
    def rank(self) -> tuple[int, int]:
        """Orders tallies, the best last."""
        return self.confirmed, -self.contradicted

    @property
    def is_evidence(self) -> bool:
        """Whether a block is confirmed that the candidate was not made to fit: `hash(None)` is solved from one."""
        candidate = self.candidate
        return self.confirmed > (isinstance(candidate, Vllm) and candidate.none_hash is not None)

    def namespaces(self) -> tuple[NamespaceReport, ...]:
        return tuple(NamespaceReport(*namespace, *counts) for namespace, counts in self._namespaces.items())

    def _follow(self, sample: Sample) -> None:
        above = None
        if sample.parent is not None:
            above = self._known.get(short(sample.parent)) or self.candidate.below(sample.parent)
            if above is None:
                return self._count(sample, 0, None, UNKNOWN_PARENT)
        first = None
        for reading in self.candidate.readings(sample, above):
            matching = agreeing(reading, sample.blocks)
            if matching:
                is_salted = reading.is_salted if above is None else above.is_salted
                for block, digest in zip(sample.blocks[:matching], reading.digests, strict=False):
                    self._known[short(block)] = Place(digest, reading.key, is_salted)
                return self._count(sample, matching, reading._replace(is_salted=is_salted), None)
            first = first or reading
        untold = self.candidate.untold(sample, above) or (None if sample.is_told else UNTOLD)
        return self._count(sample, 0, None if untold else first, untold)

    def _count(self, sample: Sample, matching: int, reading: Reading | None, untold: str | None) -> None:
        """The first `matching` blocks are confirmed, the others contradicted unless nothing is told about them."""
        salted = reading is not None and reading.is_salted
        namespace = sample.lora_name, salted, reading.key if reading and matching else None
        counts = self._namespaces.setdefault(namespace, [0, 0, 0])
        for index, block in enumerate(sample.blocks):
            if short(block) in self._seen:
                continue
            self._seen.add(short(block))
            if index < matching:
                self.confirmed += 1
                counts[0] += 1
            elif untold is None:
                self.contradicted += 1
                counts[1] += 1
            else:
                self.unchecked[untold] += 1
                counts[2] += 1


def agreeing(reading: Reading, blocks: Iterable[BlockHash]) -> int:
    """How many of the leading blocks have the hashes of a reading."""
    pairs = zip(blocks, reading.digests, reading.ids, strict=True)
    agree = (block == digest if isinstance(block, bytes) else block % 2**64 == id_ for block, digest, id_ in pairs)
    return sum(1 for _ in itertools.takewhile(bool, agree))


class Clues(NamedTuple):
    """What the caller knows."""

    seeds: tuple[str, ...]
    salts: tuple[str, ...]
    extra_keys: tuple[str, ...]
    adapter_paths: Mapping[str, str]


def texts(name: str, values: Iterable[str]) -> tuple[str, ...]:
    """An argument of several texts; TypeError if it is none. One text is several of one letter, which nobody means."""
    found = None if isinstance(values, str) or not isinstance(values, Iterable) else tuple(values)
    if found is None or not all(isinstance(value, str) for value in found):
        got = repr(values) if found is None else f"{next(v for v in found if not isinstance(v, str))!r} among them"
        raise TypeError(f"{name}: expected several strings, got {got}")
    return found


def identify_scheme(
    events: Iterable[KVCacheEvent],
    *,
    seeds: Iterable[str] = DEFAULT_SEEDS,
    salts: Iterable[str] = (),
    extra_keys: Iterable[str] = (),
    adapter_paths: Mapping[str, str] | None = None,
    max_blocks: int = 1024,
) -> SchemeReport:
    """Which scheme, with which seed and form, gave the hashes of a stream: they are computed again from the tokens.

    The first few stores from the start of a prompt are enough; a hash that agrees is no accident. Where events carry
    whole digests (or Python's `hash()`), stores in the middle of a prompt are enough for the scheme, not for the seed.

    Args:
        events: a stream from one engine, from its beginning if possible; read until `max_blocks` blocks were found.
        seeds: vLLM: values of PYTHONHASHSEED to be tried.
        salts: vLLM before 0.17: salts, which were not on the wire then.
        extra_keys: SGLang: keys of namespaces, which are on the wire only by the adapter's name, if at all.
        adapter_paths: vLLM since 0.31: paths by adapter name; they enter the hashes and are not on the wire.
        max_blocks: how many blocks with tokens are looked at.

    Returns:
        What was found; a scheme of None where no block could be confirmed.

    Raises:
        TypeError: `events` are no events, or a clue is no string.
        ValueError: `max_blocks` is below 1.
    """
    if not isinstance(max_blocks, int):
        raise TypeError(f"max_blocks: expected an integer, got {type(max_blocks)}")
    if max_blocks < 1:
        raise ValueError(f"max_blocks: expected at least 1, got {max_blocks}")
    if not isinstance(events, Iterable):
        raise TypeError(f"events: expected KV cache events, got {type(events)}")
    paths = {} if adapter_paths is None else adapter_paths
    if not isinstance(paths, Mapping):
        raise TypeError(f"adapter_paths: expected a mapping of names to paths, got {type(paths)}")
    texts("adapter_paths", [*paths, *paths.values()])
    clues = Clues(texts("seeds", seeds), texts("salts", salts), texts("extra_keys", extra_keys), dict(paths))
    found = gather(events, max_blocks)
    schemes = possible(found)
    tallies = [Tally(candidate, found.samples) for candidate in candidates(found, schemes, clues)]
    tallies = [tally for tally in tallies if tally.is_evidence]
    if not tallies:
        return unknown(found, schemes, clues)
    best = max(tallies, key=lambda tally: tally.rank)
    return known(found, schemes, clues, best, [tally for tally in tallies if tally.rank == best.rank])


def possible(found: Samples) -> tuple[HashScheme, ...]:
    """The schemes whose hashes have the form that was seen."""
    if found.form == "bytes":
        return tuple(scheme for scheme, size in DIGEST_SIZES.items() if size == found.digest_size)
    signed = () if found.form == "unsigned" else _SIGNED
    return (*signed, *(() if found.form == "signed" else DIGEST_SIZES))


def candidates(found: Samples, schemes: Iterable[HashScheme], clues: Clues) -> Iterator[Candidate]:
    """Those that agree with a first block, or need none."""
    forms: tuple[KeyForm, ...] = ("tagged", "bare")
    for scheme in schemes:
        if scheme == "sglang":
            yield Sglang("default", clues.extra_keys)
            yield Sglang("dynamo", clues.extra_keys)
        elif scheme == "content":
            yield Content()
        elif scheme == "vllm-builtin":
            for none_hash in none_hashes(found.samples):
                builtin = Vllm(scheme, "bare", none_hash=none_hash, salts=clues.salts)
                yield seeded(builtin, found.samples, [seed for seed in clues.seeds if seed.isdecimal()])
        else:
            for form in forms:
                plain = Vllm(scheme, form, salts=clues.salts, adapter_paths=clues.adapter_paths)
                yield seeded(plain, found.samples, clues.seeds)


def seeded(candidate: Vllm, samples: Iterable[Sample], seeds: Iterable[str]) -> Vllm:
    """The candidate with the first seed that agrees with the first block of a prompt, or as it is."""
    roots = [sample.first() for sample in samples if sample.parent is None and sample.is_told]
    for root, seed in itertools.product(roots[:PROBED_ROOTS], seeds):
        with_seed = replace(candidate, hash_seed=seed)
        if any(agreeing(reading, root.blocks) for reading in with_seed.readings(root, None)):
            return with_seed
    return candidate


def none_hashes(samples: Iterable[Sample]) -> Iterator[int | None]:
    """Values of `hash(None)` that may have been the process's: that of Python 3.12, and what a block tells."""
    yield None
    for sample in samples:
        if len(sample.blocks) > 1 and isinstance(sample.blocks[0], int) and isinstance(sample.blocks[1], int):
            tokens = sample.tokens[sample.block_size : 2 * sample.block_size]
            yield solve_none_hash(tokens, signed(sample.blocks[0]), signed(sample.blocks[1]))
            return


def signed(block: int) -> int:
    return (block + 2**63) % 2**64 - 2**63


def known(
    found: Samples, schemes: tuple[HashScheme, ...], clues: Clues, best: Tally, equals: list[Tally]
) -> SchemeReport:
    """The report of a scheme; what others that are as good say otherwise is not known."""
    candidate = best.candidate
    scheme = candidate.scheme
    vllm = candidate if isinstance(candidate, Vllm) else None
    form: HashForm = found.form or ("unsigned" if scheme in DIGEST_SIZES else "signed")
    key_forms = {tally.candidate.key_form for tally in equals if isinstance(tally.candidate, Vllm)}
    formats = {tally.candidate.event_format for tally in equals if isinstance(tally.candidate, Sglang)}
    seed = None if vllm is None else vllm.hash_seed
    reason = f"{best.confirmed} blocks have the hashes of {scheme}"
    if vllm is not None:
        reason += f" with the seed {seed!r}" if seed is not None else ", with a seed that was not tried"
    if best.contradicted:
        reason += f"; {best.contradicted} have not: their salt or key is not on the wire, or another engine made them"
    return SchemeReport(
        scheme=scheme,
        hash_seed=seed,
        hash_form=form,
        key_form=key_forms.pop() if len(key_forms) == 1 else None,
        event_format=formats.pop() if len(formats) == 1 else None,
        bigram=any(sample.is_pairs for sample in found.samples),
        block_size=found.samples[0].block_size,
        none_hash=None if vllm is None else vllm.none_hash,
        confirmed=best.confirmed,
        contradicted=best.contradicted,
        unchecked=dict(found.unusable + best.unchecked),
        namespaces=best.namespaces(),
        schemes_tried=schemes,
        seeds_tried=clues.seeds if vllm is not None else (),
        reason=reason,
    )


def unknown(found: Samples, schemes: tuple[HashScheme, ...], clues: Clues) -> SchemeReport:
    """The report of a stream that no candidate explains."""
    blocks = len({short(block) for sample in found.samples for block in sample.blocks})
    unchecked = Counter(found.unusable)
    if not found.samples:
        reason = "no store tells its blocks' tokens"
    elif not any(sample.parent is None for sample in found.samples) and found.form != "bytes":
        reason = "no store begins a prompt: hashes of later blocks depend on the first block's whole digest"
    elif not schemes:
        size = "several sizes" if found.digest_size is None else f"{found.digest_size} bytes"
        reason = f"no scheme has digests of {size}"
    elif all(sample.lora_name is not None for sample in found.samples):
        reason = "every store is under an adapter whose path or key is not on the wire"
    else:
        reason = (
            "no scheme gives these hashes with a seed that was tried: PYTHONHASHSEED is random or another, or a salt or"
            " key that is not on the wire enters all of them"
        )
    if blocks:
        unchecked[UNCONFIRMED] = blocks
    sizes = [sample.block_size for sample in found.samples]
    return SchemeReport(
        scheme=None,
        hash_seed=None,
        hash_form=found.form,
        key_form=None,
        event_format=None,
        bigram=any(sample.is_pairs for sample in found.samples),
        block_size=sizes[0] if sizes else None,
        none_hash=None,
        confirmed=0,
        contradicted=0,
        unchecked=dict(unchecked),
        namespaces=(),
        schemes_tried=schemes,
        seeds_tried=clues.seeds,
        reason=reason,
    )
