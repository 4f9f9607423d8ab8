"""Every block hash in the vLLM captures, computed again from the tokens."""

from typing import Any

import pytest

from goldens import capture, capture_names, published_frames
from kvevents.events import BlockStored
from kvevents.hashing import HashScheme, block_hashes
from kvevents.wire import decode_batch

SCHEMES: dict[str, HashScheme] = {"sha256_cbor": "vllm-sha256-cbor"}
"""Those that can be computed, by vLLM's name."""


def config(name: str) -> dict[str, Any]:
    settings: dict[str, Any] = capture(name)[0]["config"]
    return settings


def is_computable(name: str) -> bool:
    """Of a known scheme, with extra keys on the wire and tagged in the hashes (since 0.31)."""
    settings = config(name)
    version = tuple(int(part) for part in settings["version"]["version"].split(".")[:2])
    return settings["hash_algo"] in SCHEMES and version >= (0, 31)


NAMES = [name for name in capture_names() if is_computable(name)]


class Prompts:
    """Each block's prompt up to its end, followed from parent to child."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[list[int], str | None]] = {}

    def follow(self, event: BlockStored) -> tuple[list[int], str | None]:
        """The prompt that a store continues, its own tokens included, and the prompt's salt."""
        prompt: list[int] = []
        salt = None
        if event.parent_block_hash is not None:
            prompt, salt = self._known[as_int(event.parent_block_hash)]
        elif event.extra_keys is not None and event.extra_keys[0] is not None:
            (salt,) = event.extra_keys[0]
        prompt = [*prompt, *(token for token in event.token_ids if isinstance(token, int))]
        assert len(event.token_ids) == len(event.block_hashes) * event.block_size
        for index, block in enumerate(reversed(event.block_hashes)):
            self._known[as_int(block)] = prompt[: len(prompt) - index * event.block_size], salt
        return prompt, salt


def as_int(block: int | bytes) -> int:
    """A hash's 64 bits; where events carry whole digests these are their end."""
    return block if isinstance(block, int) else int.from_bytes(block[-8:], "big")


def is_checked(event: object) -> bool:
    """Not those of masked groups and lower tiers (no salt on the wire) and of adapters (their paths are withheld)."""
    if not isinstance(event, BlockStored) or event.medium != "GPU" or event.lora_id is not None:
        return False
    return event.kv_cache_spec_kind == "full_attention"


@pytest.mark.parametrize("name", NAMES)
def test_every_hash_follows_from_the_tokens(name: str) -> None:
    settings = config(name)
    prompts = Prompts()
    checked = 0
    for _, _, payload in published_frames(name):
        for event in decode_batch(payload).events:
            if not is_checked(event):
                continue
            assert isinstance(event, BlockStored)
            prompt, salt = prompts.follow(event)
            ids = block_hashes(
                prompt,
                event.block_size,
                scheme=SCHEMES[settings["hash_algo"]],
                cache_salt=salt,
                hash_seed=settings["PYTHONHASHSEED"],
            )
            blocks = len(event.block_hashes)
            assert [block % 2**64 for block in ids[-blocks:]] == list(map(as_int, event.block_hashes))
            checked += blocks
    assert checked
