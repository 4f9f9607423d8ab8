"""Ways in which an engine may have hashed its blocks: each reads a store as it would have hashed it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from kvevents._core.hashing import announced_ids, block_digests, page_digests
from kvevents.events import BlockHash
from kvevents.hashing.names import EventFormat, HashScheme, KeyForm
from kvevents.hashing.samples import Sample, short

UNKNOWN_PARENT = "the block above was not seen"
UNKNOWN_SEED = "first blocks: the seed is random or was not tried"
UNKNOWN_PATH = "vLLM's adapter paths are not on the wire"
UNKNOWN_KEY = "SGLang's extra keys are not on the wire"


DIGEST_SIZES: Mapping[HashScheme, int] = {
    "vllm-sha256": 32,
    "vllm-sha256-cbor": 32,
    "vllm-xxhash": 16,
    "vllm-xxhash-cbor": 16,
}
"""Bytes in a digest, of the schemes whose digests can be on the wire."""


class Reading(NamedTuple):
    """The blocks of a store as a candidate hashes them, in one namespace.

    Attributes:
        digests: full digests.
        ids: what events call the blocks, unsigned.
        key: adapter path or extra key that was taken.
        is_salted: whether a salt was taken, for the first block of a prompt.
    """

    digests: list[bytes]
    ids: list[int]
    key: str | None = None
    is_salted: bool = False


class Place(NamedTuple):
    """Where a chain can be continued: below a block that is known.

    Attributes:
        digest: of that block.
        key: adapter path or extra key of its namespace.
        is_salted: whether the namespace has a salt.
    """

    digest: bytes
    key: str | None
    is_salted: bool


class Candidate(Protocol):
    """One way to hash."""

    @property
    def scheme(self) -> HashScheme: ...

    def below(self, parent: BlockHash, /) -> Place | None:
        """The place below a block of which only the hash is known, where that says enough."""
        ...

    def readings(self, sample: Sample, above: Place | None, /) -> Iterator[Reading]:
        """The sample's blocks below `above` (None: at the start of a prompt) in each namespace they may be in."""
        ...

    def untold(self, sample: Sample, above: Place | None, /) -> str | None:
        """Why hashes that no reading has contradict nothing, if so."""
        ...


@dataclass(frozen=True)
class Vllm:
    """One of vLLM's schemes."""

    scheme: HashScheme
    key_form: KeyForm = "tagged"
    hash_seed: str | None = None
    none_hash: int | None = None
    salts: tuple[str, ...] = ()
    adapter_paths: Mapping[str, str] = field(default_factory=dict)

    def below(self, parent: BlockHash) -> Place | None:
        if self.scheme == "vllm-builtin":
            return Place(short(parent).to_bytes(8, "big"), None, is_salted=False)
        if isinstance(parent, bytes) and len(parent) == DIGEST_SIZES[self.scheme]:
            return Place(parent, None, is_salted=False)
        return None

    def untold(self, sample: Sample, above: Place | None) -> str | None:
        if above is None and self.hash_seed is None:
            return UNKNOWN_SEED
        is_known = self.key_form == "bare" or (sample.lora_name or "") in {"", *self.adapter_paths}
        return None if is_known else UNKNOWN_PATH

    def readings(self, sample: Sample, above: Place | None) -> Iterator[Reading]:
        if self.untold(sample, above) is not None:
            return
        for settings in self._bare(sample) if self.key_form == "bare" else self._tagged(sample):
            salts = [settings.pop("cache_salt", None)]
            if above is None and not (salts[0] or sample.extra_keys):
                salts += self.salts
            for salt in salts:
                digests = block_digests(
                    sample.tokens,
                    sample.block_size,
                    scheme=self.scheme,
                    key_form=self.key_form,
                    # Only first blocks depend on it; some schemes have no default.
                    hash_seed="0" if self.hash_seed is None else self.hash_seed,
                    none_hash=self.none_hash,
                    cache_salt=salt,
                    parent_digest=None if above is None else above.digest,
                    **settings,
                )
                ids = [short(digest) for digest in digests]
                is_salted = salt is not None or (self.key_form == "bare" and has_bare_salt(sample))
                yield Reading(digests, ids, settings.get("adapter_path"), is_salted)

    def _tagged(self, sample: Sample) -> Iterator[dict[str, Any]]:
        """Adapter and salt are told apart from the rest: the first key, and the one text beside it."""
        name = sample.lora_name
        settings: dict[str, Any] = {"extra_keys": [], "cache_salt": None}
        for entry in sample.extra_keys or ():
            keys = list(entry or ())
            if name is not None and keys[:1] == [name]:
                del keys[0]
            texts = [key for key in keys if isinstance(key, str)]
            if texts and not settings["extra_keys"]:
                settings["cache_salt"] = texts[0]
                keys.remove(texts[0])
            if any(isinstance(key, str) for key in keys):
                return  # an image's id alone, as only early versions have it
            settings["extra_keys"].append(keys)
        if name is not None:
            settings |= {"extra_key": name, "adapter_path": self.adapter_paths[name]}
        yield settings

    def _bare(self, sample: Sample) -> Iterator[dict[str, Any]]:
        """The wire's keys are the hash's; before 0.17 they are not on the wire."""
        if sample.extra_keys is not None or sample.lora_id is None:
            yield {"extra_keys": sample.extra_keys}
            return
        if sample.lora_name is not None:
            yield {"extra_key": sample.lora_name}
        yield {"lora_id": sample.lora_id}


def has_bare_salt(sample: Sample) -> bool:
    """Whether a first block has a text among its keys that is not the adapter's name (nor an early image's id)."""
    first = sample.extra_keys[0] if sample.extra_keys else None
    return sample.parent is None and any(isinstance(key, str) and key != sample.lora_name for key in first or ())


@dataclass(frozen=True)
class Sglang:
    """SGLang's scheme with one of its event formats."""

    event_format: EventFormat
    extra_keys: tuple[str, ...] = ()
    scheme: HashScheme = "sglang"

    def below(self, _parent: BlockHash, /) -> Place | None:
        return None

    def untold(self, sample: Sample, above: Place | None) -> str | None:
        return UNKNOWN_KEY if above is None and sample.lora_name is not None else None

    def readings(self, sample: Sample, above: Place | None) -> Iterator[Reading]:
        digests = page_digests(
            sample.tokens,
            sample.block_size,
            above=None if above is None else above.digest.hex(),
            cache_salt=sample.cache_salt,
            bigram=sample.is_pairs,
        )
        raw = [bytes.fromhex(digest) for digest in digests]
        for key in self._keys(sample) if above is None else (above.key,):
            ids = announced_ids(
                digests,
                extra_key=key,
                cache_salt=sample.cache_salt,
                event_format=self.event_format,
                named=sample.lora_name is not None,
            )
            yield Reading(raw, [short(block) for block in ids], key, sample.cache_salt is not None)

    def _keys(self, sample: Sample) -> Sequence[str | None]:
        if sample.lora_name is not None:
            return (sample.lora_name, *self.extra_keys)
        # Without a name the format `default` does not wrap.
        return (None,) if self.event_format == "default" else (None, *self.extra_keys)


@dataclass(frozen=True)
class Content:
    """Content hashes as block names: engines built on this package may use them."""

    scheme: HashScheme = "content"

    def below(self, parent: BlockHash) -> Place | None:
        return Place(short(parent).to_bytes(8, "big"), None, is_salted=False)

    def untold(self, _sample: Sample, _above: Place | None, /) -> str | None:
        return None

    def readings(self, sample: Sample, above: Place | None) -> Iterator[Reading]:
        digests = block_digests(
            sample.tokens,
            sample.block_size,
            scheme="content",
            extra_key=sample.lora_name,
            cache_salt=sample.cache_salt,
            bigram=sample.is_pairs,
            parent_digest=None if above is None else above.digest,
        )
        yield Reading(digests, [short(digest) for digest in digests], None, sample.cache_salt is not None)
