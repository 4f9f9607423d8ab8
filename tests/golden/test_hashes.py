"""Every hash in the recorded SGLang streams, computed again from the tokens of the operations before it."""

import itertools
from typing import Any

from goldens import Script
from kvevents.hashing import block_hashes

# Mamba trees take plain tokens whatever the header says about speculative decoding.
NEVER_BIGRAM = frozenset({"unified_mamba"})
PROMPTS = frozenset({"insert", "match", "load_back", "insert_host"})


class Announceable:
    """What a script's prompts can lead to: id of a page -> the (tokens, salt) that have it."""

    def __init__(self, header: dict[str, Any]) -> None:
        self.page_size: int = header["page_size"]
        self.bigram = bool(header["eagle"]) and header["cache"] not in NEVER_BIGRAM
        self.event_format = header["event_format"]
        self.named: set[str] = set()
        self.prompts: list[dict[str, Any]] = []
        self.nodes: dict[int, list[int]] = {}
        self.pages: dict[int, list[tuple[list[Any], str | None]]] = {}

    def follow(self, step: dict[str, Any]) -> None:
        if step["op"] in PROMPTS:
            self.prompts.append(step)
            self.add(step)
        elif step["op"] == "node":
            above = self.nodes.get(step["parent"], [])
            path = above + step["tokens"][int(self.bigram and bool(above)) :]
            self.nodes[step["node"]] = path
            self.add({**step, "tokens": path})
        elif step["op"] == "register_lora":
            # A late name changes what the reference announces for pages that are there already.
            self.named.add(step["extra_key"])
            for prompt in self.prompts:
                self.add(prompt)

    def add(self, prompt: dict[str, Any]) -> None:
        tokens, extra_key, salt = prompt["tokens"], prompt.get("extra_key"), prompt.get("cache_salt")
        ids = block_hashes(
            tokens,
            self.page_size,
            extra_key=extra_key,
            cache_salt=salt,
            bigram=self.bigram,
            event_format=self.event_format,
            named=extra_key in self.named,
        )
        units = [list(pair) for pair in itertools.pairwise(tokens)] if self.bigram else tokens
        for page, block in enumerate(ids):
            found = (units[page * self.page_size : (page + 1) * self.page_size], salt or None)
            known = self.pages.setdefault(block, [])
            if found not in known:
                known.append(found)


def test_every_hash_follows_from_the_tokens(golden_script: Script) -> None:
    announceable = Announceable(golden_script.header)
    # Recorder scripts have last pages that are not whole: checked where the mixin is.
    partial: set[int] = set()
    checked = 0
    for step in golden_script.steps:
        announceable.follow(step)
        for event in step.get("events", ()):
            if event.get("block_size", announceable.page_size) != announceable.page_size:
                partial.update(event["block_hashes"])
                continue
            for page, block in enumerate(event.get("block_hashes", ())):
                if block in partial:
                    continue
                assert block in announceable.pages, f"{event['type']} of {block}, which no prompt has"
                if event["type"] == "BlockStored":
                    start = page * event["block_size"]
                    units = event["token_ids"][start : start + event["block_size"]]
                    assert (units, event["cache_salt"]) in announceable.pages[block]
                checked += 1
    assert checked
    assert not partial or golden_script.header["cache"] == "recorder"
