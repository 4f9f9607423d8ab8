"""The recorded streams of SGLang's recorder, byte for byte, through the mixin and through `EventRecorder`."""

from typing import Any

import pytest

from goldens import Script
from kvevents.events import KVCacheEvent, KVEventBatch
from kvevents.hashing import HashChain
from kvevents.recorder import EventRecorder, KVCacheEventMixin
from kvevents.wire import encode_batch

pytestmark = pytest.mark.scripts("recorder_")


class Key:
    def __init__(self, step: dict[str, Any], bigram: bool) -> None:
        self.token_ids: list[int] = step["tokens"]
        self.extra_key = step.get("extra_key")
        self.cache_salt = step.get("cache_salt")
        self.is_bigram = bigram


class Node:
    def __init__(self, parent: "Node | None", key: Key | None) -> None:
        self.parent = parent
        self.key: Any = key if key is not None else []
        self.hash_value: list[str] | None = None


class Engine(KVCacheEventMixin):
    """A tree built by hand, as the scripts say."""

    def __init__(self, header: dict[str, Any]) -> None:
        self.enable_kv_cache_events = True
        self.kv_event_queue: list[KVCacheEvent] = []
        self.page_size = header["page_size"]
        self.kv_event_format = header["event_format"]
        self.names: dict[str, str] = {}
        self.kv_event_lora_names = self.names
        self.bigram = header["eagle"]
        self.nodes = {0: Node(None, None)}

    def do(self, step: dict[str, Any]) -> None:
        match step["op"]:
            case "node":
                self.nodes[step["node"]] = Node(self.nodes[step["parent"]], Key(step, self.bigram))
            case "record_store":
                self._record_store_event(
                    self.nodes[step["node"]], step.get("medium"), session_id=step.get("session_id")
                )
            case "record_remove":
                self._record_remove_event(self.nodes[step["node"]], step.get("medium"))
            case "all_cleared":
                self._record_all_cleared_event()
            case _:
                register(self.names, step, self.kv_event_format)


def register(names: dict[str, str], step: dict[str, Any], event_format: str) -> None:
    """Adapter ids name extra keys in the `dynamo` format only."""
    if step["op"] == "register_lora":
        names[step["extra_key"]] = step["lora_name"]
    elif step["op"] == "register_lora_id" and event_format == "dynamo":
        names[step["lora_id"]] = step["lora_name"]


def test_mixin_gives_the_recorded_bytes(golden_script: Script) -> None:
    engine = Engine(golden_script.header)
    takes = 0
    for step in golden_script.steps:
        if step["op"] != "take_events":
            engine.do(step)
            continue
        takes += 1
        assert encode_batch(KVEventBatch(0.0, engine.take_events(), 0)).hex() == step["msgpack_hex"]
    assert takes


class Recorder:
    """The same through chains, for nodes of whole pages."""

    def __init__(self, header: dict[str, Any]) -> None:
        self.page_size = header["page_size"]
        self.event_format = header["event_format"]
        self.bigram = header["eagle"]
        self.names: dict[str, str] = {}
        self.recorder = EventRecorder(self.page_size, event_format=self.event_format, lora_names=self.names)
        self.nodes: dict[int, tuple[HashChain, list[int]]] = {}
        self.partial: set[int] = set()

    def can_do(self, step: dict[str, Any]) -> bool:
        return step.get("node") not in self.partial

    def do(self, step: dict[str, Any]) -> None:
        match step["op"]:
            case "node":
                self.add(step)
            case "record_store":
                options = {name: step[name] for name in ("medium", "session_id") if name in step}
                self.recorder.store(*self.nodes[step["node"]], **options)
            case "record_remove":
                options = {"medium": step["medium"]} if "medium" in step else {}
                self.recorder.remove(self.nodes[step["node"]][0], **options)
            case "all_cleared":
                self.recorder.clear()
            case _:
                register(self.names, step, self.event_format)

    def add(self, step: dict[str, Any]) -> None:
        tokens = step["tokens"]
        if (len(tokens) - self.bigram) % self.page_size:
            self.partial.add(step["node"])
            return
        extra_key, salt = step.get("extra_key"), step.get("cache_salt")
        root = HashChain.root(self.page_size, extra_key=extra_key, cache_salt=salt, bigram=self.bigram)
        above = self.nodes[step["parent"]][0] if step["parent"] else root
        self.nodes[step["node"]] = (above.extend(tokens), tokens)


def test_event_recorder_gives_the_recorded_bytes(golden_script: Script) -> None:
    recorder = Recorder(golden_script.header)
    compared, complete = 0, True
    for step in golden_script.steps:
        if step["op"] == "take_events":
            data = recorder.recorder.take_batch(ts=0.0)
            if complete and step["events"]:
                assert data is not None
                assert data.hex() == step["msgpack_hex"]
                compared += 1
            complete = True
        elif recorder.can_do(step):
            recorder.do(step)
        else:
            # A node with a partial page, which the mixin alone announces.
            complete = False
    assert compared
