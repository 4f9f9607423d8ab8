"""Whatever is given to the hash entries, they answer or refuse; nothing else happens."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvevents.errors import ConfigError
from kvevents.events import BlockStored
from kvevents.hashing import HashChain, SchemeReport, block_digests, block_hashes, identify_scheme
from strategies import stored_events

SCHEMES = st.sampled_from(
    [
        "sglang",
        "vllm-sha256",
        "vllm-sha256-cbor",
        "vllm-xxhash",
        "vllm-xxhash-cbor",
        "vllm-builtin",
        "content",
        "md5",
        "",
    ]
)
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=4),
    st.binary(max_size=4),
    st.just(object()),
)
NESTED = st.recursive(ODD, lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner), max_leaves=12)
IDS = st.integers(0, 2**64 - 1) | st.integers(-(2**70), 2**70)
TOKENS = st.lists(st.integers(0, 2**33), max_size=12) | st.lists(IDS, max_size=4) | NESTED
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "extra_key": st.none() | st.text(max_size=3),
        "cache_salt": st.none() | st.text(max_size=3),
        "bigram": st.booleans(),
        "hash_seed": st.none() | st.text(max_size=3) | st.sampled_from(["0", "4294967295", "4294967296"]),
        "adapter_path": st.none() | st.text(max_size=3),
        "lora_id": st.none() | st.integers(),
        "extra_keys": st.none() | NESTED,
        "key_form": st.sampled_from(["tagged", "bare", "other"]),
        "none_hash": st.none() | st.integers(),
        "parent_digest": st.none() | st.binary(max_size=40) | st.binary(min_size=32, max_size=32),
    },
)
REFUSED = (ConfigError, ValueError, TypeError, OverflowError)


@given(SCHEMES, TOKENS, st.integers(0, 5), SETTINGS)
def test_a_prompt_is_hashed_or_refused(scheme: Any, tokens: Any, block_size: int, settings: dict[str, Any]) -> None:
    try:
        digests = block_digests(tokens, block_size, scheme=scheme, **settings)
    except REFUSED:
        return
    units = max(len(tokens) - bool(settings.get("bigram")), 0)
    assert len(digests) == units // block_size
    assert all(isinstance(token, int) and 0 <= token < 2**64 for token in tokens)
    ids = block_hashes(tokens, block_size, scheme=scheme, **settings)
    ends = [digest[:8] if scheme == "sglang" else digest[-8:] for digest in digests]
    assert [block % 2**64 for block in ids] == [int.from_bytes(end, "big") for end in ends]


@given(SCHEMES, TOKENS, st.integers(0, 5), SETTINGS)
def test_a_chain_is_extended_or_refused(scheme: Any, tokens: Any, page_size: int, settings: dict[str, Any]) -> None:
    for name in ("extra_keys", "parent_digest", "lora_id"):
        settings.pop(name, None)
    try:
        chain = HashChain.root(page_size, scheme=scheme, **settings).extend(tokens)
    except REFUSED:
        return
    assert chain.digests == block_digests(tokens, page_size, scheme=scheme, **settings)


@given(st.lists(stored_events("vllm") | stored_events("sglang"), max_size=4), st.integers(1, 40))
def test_any_stream_gets_a_report(events: list[BlockStored], max_blocks: int) -> None:
    report = identify_scheme(events, seeds=["0", "x"], salts=["s"], extra_keys=["k"], max_blocks=max_blocks)
    assert isinstance(report, SchemeReport)
    assert report.reason
    # What is random follows from nothing.
    assert (report.scheme, report.confirmed) == (None, 0)
    assert report.settings == {}
