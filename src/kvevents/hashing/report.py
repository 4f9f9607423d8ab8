"""What a stream's hashes tell about the engine that made them."""

from collections.abc import Mapping
from typing import NamedTuple

from kvevents.hashing.names import EventFormat, HashForm, HashScheme, KeyForm


class NamespaceReport(NamedTuple):
    """What was seen of the blocks of one namespace. Salts are secrets: only that there is one is told.

    Attributes:
        lora_name: the adapter that the stores name, if any.
        is_salted: whether the stores carry a salt, or one of those given was found.
        key: what the adapter's blocks were confirmed with: its path (vLLM) or the extra key that wraps ids (SGLang).
        confirmed: blocks whose hash follows from their tokens.
        contradicted: blocks whose hash does not.
        unchecked: blocks that nothing can be said about.
    """

    lora_name: str | None
    is_salted: bool
    key: str | None
    confirmed: int
    contradicted: int
    unchecked: int


class SchemeReport(NamedTuple):
    """How the blocks of a stream are hashed, as far as their tokens tell. Blocks are counted once, when first stored.

    Attributes:
        scheme: None: unknown; `reason` says why.
        hash_seed: the PYTHONHASHSEED that gives the hashes of first blocks, `vllm-none-hash` where vLLM had none.
            None: SGLang, or vLLM with a seed that was not among those tried (a random one, mostly).
        hash_form: how events carry hashes.
        key_form: how vLLM's extra keys enter the hashes; None where no confirmed block tells.
        event_format: how SGLang announces namespaces; None where no confirmed block tells.
        bigram: whether blocks are made of pairs.
        block_size: tokens (pairs) in a block; None where no store tells.
        none_hash: scheme `vllm-builtin`: the process's `hash(None)`.
        confirmed: blocks whose hash follows from their tokens.
        contradicted: blocks whose hash should follow and does not: a wrong adapter path, an untold extra key or salt,
            a mixture of engines, a broken stream.
        unchecked: blocks that nothing can be said about, by the reason why.
        namespaces: the same counts by namespace.
        schemes_tried: the schemes that the form of the hashes allows.
        seeds_tried: the seeds that were tried with them.
        reason: what was found, or why nothing was, in a sentence.
    """

    scheme: HashScheme | None
    hash_seed: str | None
    hash_form: HashForm | None
    key_form: KeyForm | None
    event_format: EventFormat | None
    bigram: bool
    block_size: int | None
    none_hash: int | None
    confirmed: int
    contradicted: int
    unchecked: Mapping[str, int]
    namespaces: tuple[NamespaceReport, ...]
    schemes_tried: tuple[HashScheme, ...]
    seeds_tried: tuple[str, ...]
    reason: str

    @property
    def settings(self) -> dict[str, str]:
        """The engine's settings that the hashes tell, by the engine's own names.

        Two engines whose blocks should have the same hashes must agree in all of them; only what is known is listed.
        """
        if self.scheme is None:
            return {}
        size = {} if self.block_size is None else {"size": str(self.block_size)}
        if not self.scheme.startswith("vllm-"):
            format_ = {} if self.event_format is None else {"event_format": self.event_format}
            pairs = {"speculative decoding": "EAGLE"} if self.bigram else {}
            return {f"--page-{name}": value for name, value in size.items()} | format_ | pairs
        settings = {"--prefix-caching-hash-algo": self.scheme.removeprefix("vllm-").replace("-", "_")}
        settings |= {f"--block-{name}": value for name, value in size.items()}
        if self.hash_seed is None:
            settings["PYTHONHASHSEED"] = "random or not tried"
        else:
            settings["PYTHONHASHSEED"] = "not set" if self.hash_seed == "vllm-none-hash" else self.hash_seed
        if self.scheme != "vllm-builtin":
            settings["VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"] = "0" if self.hash_form == "bytes" else "1"
        if self.key_form is not None:
            settings["vLLM"] = "0.31 or later" if self.key_form == "tagged" else "before 0.31"
        return settings
