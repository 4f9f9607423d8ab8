"""`identify_scheme` over every recorded stream."""

from typing import Any

import pytest

from goldens import Script, capture, capture_names, published_frames
from kvevents.events import KVCacheEvent
from kvevents.hashing import SchemeReport, identify_scheme
from kvevents.wire import decode_batch

FORMS = {"sha256_cbor_bytes.jsonl": "bytes", "v0.10.1_builtin_bs16.jsonl": "signed"}
"""How hashes are carried where it is not as unsigned integers."""

NO_PATH = "vLLM's adapter paths are not on the wire"
NO_TOKENS = "the store carries no tokens"
MASKED = "a masked group lists only the blocks it keeps"
NO_PARENT = "the block above was not seen"

UNCHECKED = {
    "lora_sha256_cbor.jsonl": {NO_PATH: 55, NO_PARENT: 3},
    "offload_cpu_legacy_sha256_cbor.jsonl": {NO_TOKENS: 68},
    "swa_hybrid_sha256_cbor.jsonl": {MASKED: 16},
}
"""Blocks by capture that nothing can be said about."""

ENGINES = [name for name in capture_names() if not name.startswith("negative_")]


def engine_events(name: str) -> list[KVCacheEvent]:
    return [event for _, _, payload in published_frames(name) for event in decode_batch(payload).events]


def identified(name: str, **clues: Any) -> SchemeReport:
    requests = (line["body"] for line in capture(name)[1:] if line.get("op") == "request")
    salts = {body["cache_salt"] for body in requests if body.get("cache_salt")}
    return identify_scheme(engine_events(name), salts=salts, **clues)


@pytest.mark.parametrize("name", ENGINES)
def test_an_engines_settings_are_told_by_its_hashes(name: str) -> None:
    settings = capture(name)[0]["config"]
    report = identified(name)
    assert report.scheme == f"vllm-{settings['hash_algo']}".replace("_", "-")
    assert (report.hash_seed, report.block_size) == (settings["PYTHONHASHSEED"], settings["block_size"])
    assert report.hash_form == FORMS.get(name, "unsigned")
    assert report.contradicted == 0
    assert report.unchecked == UNCHECKED.get(name, {})
    assert report.confirmed == sum(namespace.confirmed for namespace in report.namespaces) > 0
    assert (report.event_format, report.bigram) == (None, False)


@pytest.mark.parametrize("name", ENGINES)
def test_keys_in_the_hashes_tell_on_which_side_of_0_31_an_engine_is(name: str) -> None:
    is_tagged = capture(name)[0]["config"]["version"]["version"].startswith("0.32")
    report = identified(name)
    has_keys = any(namespace.is_salted and namespace.confirmed for namespace in report.namespaces)
    if report.scheme == "vllm-builtin":
        assert report.key_form == "bare"
    elif name == "lora_sha256_cbor.jsonl":
        # The adapters' blocks are those of no bare key.
        assert report.key_form == "tagged"
    else:
        assert report.key_form == (("tagged" if is_tagged else "bare") if has_keys else None)
        assert has_keys == (name not in {"dp2_sha256_cbor.jsonl", "report_full_session.jsonl"})


@pytest.mark.parametrize("name", ENGINES)
def test_the_first_stores_are_enough(name: str) -> None:
    report = identified(name, max_blocks=4)
    assert report.scheme == identified(name).scheme
    assert report.hash_seed == "0"


def test_hash_of_none_is_told_by_one_block() -> None:
    """An engine under Python 3.11: its `hash(None)` is an address, which no setting says."""
    assert identified("v0.10.1_builtin_bs16.jsonl").none_hash == 0x7F1DD9C5BBE


def test_salts_that_are_not_on_the_wire_are_missing() -> None:
    report = identify_scheme(engine_events("v0.12.0_sha256_cbor_bs16.jsonl"))
    assert (report.confirmed, report.contradicted, report.key_form) == (59, 4, None)
    assert "their salt or key is not on the wire" in report.reason


def test_a_seed_that_is_not_tried_leaves_the_scheme_unknown_unless_digests_are_whole() -> None:
    report = identify_scheme(engine_events("sha256_cbor.jsonl"), seeds=["1", "2"])
    assert (report.scheme, report.confirmed) == (None, 0)
    assert "PYTHONHASHSEED is random or another" in report.reason
    assert report.seeds_tried == ("1", "2")
    whole = identify_scheme(engine_events("sha256_cbor_bytes.jsonl"), seeds=["1", "2"])
    assert (whole.scheme, whole.hash_seed) == ("vllm-sha256-cbor", None)
    assert whole.contradicted == 0
    assert whole.unchecked["first blocks: the seed is random or was not tried"] > 0
    assert whole.settings["PYTHONHASHSEED"] == "random or not tried"


def test_engines_that_publish_nothing_tell_nothing() -> None:
    report = identify_scheme(engine_events("negative_v0.10.1_sha256_bs16.jsonl"))
    assert (report.scheme, report.reason) == (None, "no store tells its blocks' tokens")


def script_events(script: Script) -> list[KVCacheEvent]:
    taken = (bytes.fromhex(step["msgpack_hex"]) for step in script.steps if "msgpack_hex" in step)
    return [event for data in taken for event in decode_batch(data).events]


def test_a_script_is_told_by_its_hashes(golden_script: Script) -> None:
    header = golden_script.header
    keys = {step["extra_key"] for step in golden_script.steps if step.get("extra_key") is not None}
    events = script_events(golden_script)
    report = identify_scheme(events, extra_keys=sorted(keys))
    assert (report.scheme, report.hash_seed, report.hash_form) == ("sglang", None, "signed")
    assert report.contradicted == 0
    # In the format `default` a name that is registered late changes the id of a block above.
    is_renamed = "late_lora" in golden_script.name and header["event_format"] == "default"
    assert report.unchecked == ({NO_PARENT: 1} if is_renamed else {})
    assert report.event_format in {None, header["event_format"]}
    if header["event_format"] == "dynamo":
        assert report.event_format == "dynamo"
    # Mamba trees take plain tokens whatever the header says about speculative decoding.
    assert report.bigram == (bool(header["eagle"]) and header["cache"] != "unified_mamba")
    assert report.block_size is not None
    assert report.block_size <= header["page_size"]


@pytest.mark.scripts("radix_dynamo_ns", "radix_namespaces", "unified_full_dynamo_ns")
def test_namespaces_whose_key_is_unknown_are_told_apart(golden_script: Script) -> None:
    """Salts are on the wire, names of adapters too, but not the keys that wrap their blocks' ids."""
    report = identify_scheme(script_events(golden_script))
    assert report.scheme == "sglang"
    assert report.unchecked.keys() == {"SGLang's extra keys are not on the wire", NO_PARENT}
    checked = {namespace.lora_name for namespace in report.namespaces if namespace.confirmed}
    assert checked == {None}
    has_unnamed_keys = golden_script.header["event_format"] == "dynamo"
    assert (report.contradicted > 0) == has_unnamed_keys
    assert report.event_format == golden_script.header["event_format"]
