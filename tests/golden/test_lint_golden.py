"""What is found in the recorded streams: a known fault of the engine, or nothing."""

import pytest

import goldens
from kvevents.lint import LintReport, StreamLinter
from kvevents.transport.capture import CaptureReader

SGLANG: dict[str, frozenset[str]] = {
    # An adapter that comes late: the unified cache removes a block under another name than it stored it.
    "unified_full_late_lora": frozenset({"KV301", "KV305"}),
    "unified_full_late_lora_dynamo": frozenset({"KV601"}),
    # What was prefetched is dropped twice.
    "unified_full_hicache_wb_prefetch": frozenset({"KV306", "KV308"}),
    "unified_full_hicache_wt_prefetch": frozenset({"KV306", "KV308"}),
    # Keys of namespaces are not on the wire.
    "radix_dynamo_ns": frozenset({"KV602"}),
    "unified_full_dynamo_ns": frozenset({"KV602"}),
    # The recorder's own scripts change the page size on purpose.
    "recorder_default_p1": frozenset({"KV308"}),
    "recorder_default_eagle_p1": frozenset({"KV308"}),
    "recorder_default": frozenset({"KV308", "KV402"}),
    "recorder_default_eagle": frozenset({"KV308", "KV402"}),
    "recorder_dynamo_p1": frozenset({"KV308", "KV602"}),
    "recorder_dynamo_eagle_p1": frozenset({"KV308", "KV602"}),
    "recorder_dynamo": frozenset({"KV308", "KV402", "KV602"}),
    "recorder_dynamo_eagle": frozenset({"KV308", "KV402", "KV602"}),
    # One block an event, in random scripts that evict a lot.
    "radix_priority_random_p1": frozenset(),
    "unified_full_priority_random_p16": frozenset(),
    "unified_mamba_hicache_wb_random_p16": frozenset(),
    **dict.fromkeys(
        (
            "radix_fifo_random",
            "radix_lfu_random",
            "radix_priority_random",
            "radix_random300",
            "radix_slru_random",
            "unified_full_fifo_random",
            "unified_full_lfu_random",
            "unified_full_priority_random",
            "unified_full_slru_random",
            "unified_full_tlru_random",
            "unified_mamba_hicache_wb_random",
            "unified_mamba_random",
            "unified_swa_mamba_random",
            "unified_swa_mamba_random1",
            "unified_swa_random",
        ),
        frozenset({"KV501"}),
    ),
    # Copies in several namespaces or tiers under one name.
    **dict.fromkeys(
        (
            "radix_eagle_ns",
            "radix_namespaces",
            "unified_full_namespaces",
            "unified_full_random300",
            "unified_full_random90",
            "unified_mamba_hicache_wt_random",
            "unified_swa_hicache_wb_pending_split",
            "unified_swa_hicache_wb_pressure",
            "unified_swa_hicache_wb_random",
            "unified_swa_hicache_wt_random",
            "unified_swa_mamba_hicache_wb_evict_each",
            "unified_swa_mamba_hicache_wb_pending_split",
            "unified_swa_mamba_hicache_wb_pressure",
            "unified_swa_mamba_hicache_wb_random",
            "unified_swa_mamba_hicache_wt_random",
            "unified_swa_mamba_namespaces",
        ),
        frozenset({"KV308"}),
    ),
}
"""By script, or script and page size where they differ; every other script has no findings."""

VLLM: dict[str, set[str]] = {
    "dp2_sha256_cbor": set(),
    "lora_sha256_cbor": set(),
    "negative_v0.10.1_sha256_bs16": set(),
    "offload_cpu_legacy_sha256_cbor": {"KV404"},
    "offload_cpu_sha256_cbor": {"KV306"},
    "report_full_session": {"KV308"},
    "sha256": {"KV308", "KV501"},
    "sha256_cbor": {"KV308", "KV501"},
    "sha256_cbor_bytes": set(),
    "swa_hybrid_sha256_cbor": {"KV308", "KV406"},
    "v0.10.1_builtin_bs16": {"KV602"},
    "v0.10.2_sha256_bs16": {"KV602"},
    "v0.12.0_sha256_cbor_bs16": {"KV602"},
    "v0.16.0_sha256_cbor_bs16": {"KV602"},
    "v0.19.1_sha256_cbor_bs16": set(),
    "v0.20.2_sha256_cbor_bs16": {"KV407"},
    "v0.23.0_sha256_bs16": set(),
    "v0.26.0_sha256_cbor_bs16": set(),
    "v0.32.0_stub_sha256_bs16": {"KV107", "KV308", "KV501"},
    "xxhash": set(),
    "xxhash_cbor": {"KV308", "KV501"},
}
"""Salts were not on the wire before 0.17 (KV602); 0.20 had groups without kinds (KV407)."""


def lint(archive: str, name: str) -> LintReport:
    linter = StreamLinter()
    for record in CaptureReader(goldens.ARCHIVES / f"{archive}.tar.xz" / archive / name).once():
        linter.feed(record)
    return linter.report()


def codes(found: LintReport) -> set[str]:
    return {finding.code for finding in found.findings}


def test_every_capture_of_vllm_has_its_findings() -> None:
    assert {f"{name}.jsonl" for name in VLLM} == set(goldens.capture_names())


def dialect(name: str) -> str:
    if name == "v0.10.1_builtin_bs16":
        return "sglang-array"  # five fields and signed hashes: SGLang's were the same
    return "vllm-array" if name.startswith("v0.") and name < "v0.24" else "vllm"


@pytest.mark.parametrize("name", VLLM)
def test_captures_of_vllm(name: str) -> None:
    found = lint("vllm", f"{name}.jsonl")
    assert codes(found) == VLLM[name]
    for facts in found.streams:
        assert facts.dialect == dialect(name)
        assert facts.hash_seed == "0"
        assert facts.scheme is not None
        assert facts.scheme.removeprefix("vllm-").replace("-", "_") in name or "sha256" in facts.scheme


@pytest.mark.parametrize("name", sorted(goldens.script_sources(None)))
def test_scripts_of_sglang(name: str) -> None:
    found = lint("sglang", name)
    script, _, size = name.partition(".")[0].rpartition("_p")
    assert codes(found) == SGLANG.get(f"{script}_p{size}", SGLANG.get(script, frozenset()))
    (facts,) = found.streams
    assert facts.dialect == ("sglang" if facts.stored_blocks else None)
    assert facts.scheme == (None if "KV601" in codes(found) or not facts.stored_blocks else "sglang")
