"""A set model of the index for the routing tests: what each worker holds, as leading block ids."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

BLOCK = 4


@dataclass(frozen=True)
class Held:
    worker: str
    dp_rank: int
    usable: int
    state: str = "live"
    fastest: dict[str, int] = field(default_factory=dict)


class ModelIndex:
    """A prompt is a list of token ids; a block is known by the prefix that ends with it."""

    def __init__(self, block_size: int = BLOCK) -> None:
        self.block_size = block_size
        self.states: dict[str, str] = {}
        self.tiers: dict[str, dict[str, int]] = {}
        self._held: dict[tuple[str, int], set[tuple[Any, ...]]] = {}

    def store(self, worker: str, tokens: Sequence[int], *, dp_rank: int = 0, namespace: object = None) -> None:
        held = self._held.setdefault((worker, dp_rank), set())
        held.update((namespace, *tokens[:end]) for end in self._ends(tokens))

    def match(
        self,
        tokens: Sequence[int],
        *,
        lora_name: str | None = None,
        lora_id: int | None = None,
        cache_salt: str | None = None,
        extra_keys: Any = None,
    ) -> list[Held]:
        adapter = lora_id if lora_name is None else lora_name
        namespace = None if adapter is cache_salt is extra_keys is None else (adapter, cache_salt, extra_keys)
        found = []
        for (worker, dp_rank), held in self._held.items():
            usable = 0
            for end in self._ends(tokens):
                if (namespace, *tokens[:end]) not in held:
                    break
                usable += 1
            state = self.states.get(worker, "live")
            tiers = self.tiers.get(worker, {"GPU": usable})
            found.append(Held(worker, dp_rank, usable, state, tiers))
        return found

    def _ends(self, tokens: Sequence[int]) -> range:
        return range(self.block_size, len(tokens) + 1, self.block_size)
