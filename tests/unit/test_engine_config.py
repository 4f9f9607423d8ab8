"""Settings: what engine users write is understood, what is wrong is named."""

from typing import Any

import pytest

from kvevents.engine.config import EngineConfig, KVEventsConfig
from kvevents.engine.timing import TimingModel
from kvevents.errors import ConfigError


def test_the_config_that_engine_users_know() -> None:
    config = KVEventsConfig.from_json(
        '{"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558", "topic": "kv",'
        ' "buffer_steps": 7, "hwm": 8, "max_queue_size": 9, "enable_kv_cache_events": true}'
    )
    assert config == KVEventsConfig(
        endpoint="tcp://*:5557", replay_endpoint="tcp://*:5558", topic="kv", buffer_steps=7, hwm=8, max_queue_size=9
    )
    assert config.is_on


@pytest.mark.parametrize("text", ['{"publisher": "null"}', '{"enable_kv_cache_events": false}'])
def test_events_can_be_off(text: str) -> None:
    assert not KVEventsConfig.from_json(text).is_on


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"endpont": "tcp://*:1"}', "unknown key endpont; known are publisher, endpoint, replay_endpoint, topic"),
        ("tcp://*:5557", "expected a JSON object, got 'tcp://\\*:5557'"),
        ("[1]", "expected a JSON object"),
        ('{"publisher": "kafka"}', "publisher: expected one of 'zmq', 'null', got 'kafka'"),
        ('{"hwm": "many"}', "Expected `int`, got `str` - at `\\$.hwm`"),
        ('{"hwm": -1}', "hwm: expected 0 or more, got -1"),
        ('{"max_queue_size": 0}', "max_queue_size: expected 1 or more, got 0"),
    ],
)
def test_a_wrong_events_config_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        KVEventsConfig.from_json(text)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"dp_size": 0}, "dp_size: expected 1 or more, got 0"),
        ({"page_size": -1}, "page_size: expected 1 or more, got -1"),
        ({"max_running_requests": 0}, "max_running_requests: expected 1 or more"),
        ({"chunked_prefill_size": 0}, "chunked_prefill_size: expected 1 or more"),
        ({"stream_interval": 0}, "stream_interval: expected 1 or more"),
        ({"speed": 0.0}, "speed: expected a number above 0, got 0.0"),
        ({"speed": float("nan")}, "speed: expected a number above 0, got nan"),
        ({"port": 70_000}, "port: expected 0 to 65535, got 70000"),
        ({"page_size": 64, "max_total_tokens": 63}, "expected at least a page \\(64 tokens\\), got 63"),
        ({"max_total_tokens": 10**12}, "max_total_tokens: expected at most 4294967296, got 1000000000000"),
        ({"page_size": 10**20, "max_total_tokens": 10**21}, "max_total_tokens: expected at most 17179869184, got 1000"),
        ({"dp_size": 100_000}, "dp_size: expected at most 1024, got 100000"),
        ({"seed": 2**63}, "seed: expected a signed 64-bit integer"),
        ({"cache": "paged"}, "cache: expected one of radix, .*block_pool, got 'paged'"),
        ({"cache": "block_pool", "eviction_policy": "lfu"}, "a block pool has only its own order, not lfu"),
        ({"cache": "block_pool", "kv_events": KVEventsConfig(format="dynamo")}, "format 'dynamo' is SGLang's"),
        ({"async_scheduling": True}, "async_scheduling: only an engine with the cache block_pool has it, not radix"),
        ({"host_tokens": 8}, "host_tokens: only an engine with the cache hierarchical has it, not radix"),
        ({"cache": "hierarchical", "host_tokens": 8}, "host_tokens: expected 64 to \\d+, got 8"),
        ({"cache": "hierarchical", "write_policy": "never"}, "write_policy: expected one of write_through, .* 'never'"),
        ({"storage": "memory"}, "storage: only an engine with the cache hierarchical has it, not radix"),
        ({"cache": "hierarchical", "storage_tokens": 64}, "storage_tokens: only with a storage, got 64 without one"),
        ({"cache": "hierarchical", "storage_medium": "DISK"}, "storage_medium: only with a storage, got DISK without"),
        ({"cache": "hierarchical", "storage": ""}, "storage: expected memory or a folder, got nothing"),
        (
            {"cache": "hierarchical", "storage": "memory", "storage_medium": "GPU"},
            "storage_medium: expected one of DISK, EXTERNAL, got 'GPU'",
        ),
        (
            {"cache": "hierarchical", "storage": "memory", "storage_tokens": 63},
            "storage_tokens: expected 64 to \\d+, got 63",
        ),
        ({"cache": "hierarchical", "mamba_slots": 9}, "only with mamba among the components, got full"),
        (
            {"sliding_window": 8},
            "sliding_window: only an engine with the cache swa or unified or hierarchical",
        ),
        ({"cache": "swa", "sliding_window": 0}, "sliding_window: expected 1 to \\d+, got 0"),
        (
            {"cache": "swa", "mamba_slots": 9},
            "mamba_slots: only an engine with the cache mamba or unified",
        ),
        ({"cache": "mamba", "mamba_slots": 1}, "mamba_slots: expected 2 to \\d+, got 1"),
        (
            {"cache": "mamba", "components": ("mamba",)},
            "components: only an engine with the cache unified",
        ),
        (
            {"cache": "unified", "components": ("swa", "swa")},
            "components: expected full, swa, mamba, each once, got swa, swa",
        ),
        ({"cache": "unified", "components": ("moe",)}, "components: expected full, swa, mamba, each once, got moe"),
        (
            {"cache": "unified", "components": ("full",), "mamba_slots": 9},
            "only with mamba among the components, got full",
        ),
        ({"cache": "swa", "sliding_window": 100, "window_tokens": 8511}, "window_tokens: expected 8512, .* got 8511"),
        ({"cache": "swa", "window_tokens": 10**6 + 1}, "window_tokens: .* to 1000000, as many as max_total_tokens"),
        (
            {"announce_groups": True},
            "announce_groups: only an engine with the cache swa or mamba",
        ),
        ({"hash_seed": "0"}, "hash_seed: only an engine with the cache block_pool has it"),
    ],
)
def test_a_wrong_setting_is_named(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**setting)


@pytest.mark.parametrize(
    ("setting", "groups"),
    [
        ({"cache": "radix"}, []),
        ({"cache": "swa", "sliding_window": 8}, []),
        ({"cache": "swa", "sliding_window": 8, "announce_groups": True}, ["full_attention", "sliding_window"]),
        ({"cache": "mamba", "announce_groups": True}, ["full_attention", "mamba"]),
        ({"cache": "unified", "announce_groups": True}, ["full_attention", "sliding_window", "mamba"]),
        (
            {"cache": "unified", "components": ("mamba", "full"), "announce_groups": True},
            ["full_attention", "mamba"],
        ),
    ],
)
def test_an_engine_says_its_groups_where_it_announces_them(setting: dict[str, Any], groups: list[str]) -> None:
    config = EngineConfig(**setting)
    assert [group.kind for group in config.groups] == groups
    windows = [group.window for group in config.groups if group.kind == "sliding_window"]
    assert windows in ([], [config.window_size + 1])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"prefill_tokens_per_second": 0.0}, "prefill tokens per second: expected a number above 0, got 0.0"),
        ({"storage_tokens_per_second": float("inf")}, "storage tokens per second: expected a number above 0, got inf"),
        ({"decode_step_ms": -1.0}, "decode_step_ms: expected milliseconds, 0 or more, got -1.0"),
        ({"decode_step_per_request_ms": float("inf")}, "decode_step_per_request_ms: expected milliseconds"),
    ],
)
def test_a_wrong_timing_is_named(setting: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TimingModel(**setting)


def test_a_step_costs_its_prefill_and_a_decode_that_grows_with_the_batch() -> None:
    timing = TimingModel(prefill_tokens_per_second=1000, decode_step_ms=10, decode_step_per_request_ms=0.5)
    assert timing.step_s(prefill_tokens=500, decoding=0) == pytest.approx(0.5)
    assert timing.step_s(prefill_tokens=0, decoding=4) == pytest.approx(0.012)
    assert timing.step_s(prefill_tokens=500, decoding=4) == pytest.approx(0.512)
