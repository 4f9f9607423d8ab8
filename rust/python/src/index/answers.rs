//! What the index says, as plain Python values; `kvevents.index` gives them their classes.

use std::sync::Arc;

use kvevents_core::index::{DumpEvent, Geometry, Holdings, Kind, Match, RankDump, SourceStats, Stats, Tier};
use kvevents_core::tokens::TokenVec;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PySet, PyTuple};

/// (worker, rank, total, by tier, by fastest tier, usable, state) for each match.
pub(super) fn matches(py: Python<'_>, matches: Vec<Match>) -> PyResult<Bound<'_, PyList>> {
    let rows: PyResult<Vec<_>> = matches
        .into_iter()
        .map(|found| {
            let tiers = PyTuple::new(py, found.tiers)?;
            let fastest = PyTuple::new(py, found.fastest)?;
            let worker: &str = &found.worker;
            let state: &str = &found.state;
            (worker, found.dp_rank, found.total, tiers, fastest, found.usable, state).into_pyobject(py)
        })
        .collect();
    PyList::new(py, rows?)
}

/// {rank: {tier: set of engine hashes}}.
pub(super) fn holdings(py: Python<'_>, holdings: Vec<Holdings>) -> PyResult<Bound<'_, PyDict>> {
    let ranks = PyDict::new(py);
    for (rank, tiers) in holdings {
        let by_tier = PyDict::new(py);
        for (tier, blocks) in Tier::ALL.into_iter().zip(tiers) {
            by_tier.set_item(tier.name(), PySet::new(py, blocks)?)?;
        }
        ranks.set_item(rank, by_tier)?;
    }
    Ok(ranks)
}

/// Figures under the names of `kvevents.index.IndexStats`.
pub(super) fn stats<'py>(py: Python<'py>, stats: &Stats) -> PyResult<Bound<'py, PyDict>> {
    let figures = PyDict::new(py);
    figures.set_item("blocks", stats.blocks)?;
    figures.set_item("memory_bytes", stats.memory_bytes)?;
    figures.set_item("ignored_batches", stats.ignored_batches)?;
    let workers: Vec<&str> = stats.workers.iter().map(Arc::as_ref).collect();
    figures.set_item("workers", workers)?;
    let sources: PyResult<Vec<_>> = stats.sources.iter().map(|source| source_stats(py, source)).collect();
    figures.set_item("sources", sources?)?;
    Ok(figures)
}

fn source_stats<'py>(py: Python<'py>, source: &SourceStats) -> PyResult<Bound<'py, PyDict>> {
    let figures = PyDict::new(py);
    let worker: &str = &source.worker;
    let state: &str = &source.state;
    figures.set_item("worker", worker)?;
    figures.set_item("dp_rank", source.dp_rank)?;
    figures.set_item("state", state)?;
    figures.set_item("error", source.error.as_deref())?;
    figures.set_item("block_size", source.geometry.map(|geometry| geometry.block_size))?;
    figures.set_item("bigram", source.geometry.is_some_and(|geometry| geometry.pairs))?;
    let tiers = PyDict::new(py);
    for (tier, blocks) in Tier::ALL.into_iter().zip(source.tiers) {
        tiers.set_item(tier.name(), blocks)?;
    }
    figures.set_item("tiers", tiers)?;
    figures.set_item("blocks", source.blocks)?;
    figures.set_item("pending", source.pending)?;
    figures.set_item("parked", source.parked)?;
    figures.set_item("unaligned", source.unaligned)?;
    figures.set_item("last_seq", source.last_seq)?;
    let counters = &source.counters;
    figures.set_item("events", counters.events)?;
    figures.set_item("stored", counters.stored)?;
    figures.set_item("removed", counters.removed)?;
    figures.set_item("cleared", counters.cleared)?;
    figures.set_item("removal_misses", counters.removal_misses)?;
    figures.set_item("dropped", counters.dropped)?;
    figures.set_item("partial", counters.partial)?;
    figures.set_item("refused", counters.refused)?;
    figures.set_item("duplicates", counters.duplicates)?;
    let skipped = PyDict::new(py);
    for (code, count) in &counters.skipped {
        skipped.set_item(*code, count)?;
    }
    figures.set_item("skipped", skipped)?;
    Ok(figures)
}

/// [(rank, [fields of an event by name])]; extra keys are msgpack, `is_store` tells the class.
pub(super) fn dump(py: Python<'_>, ranks: Vec<RankDump>) -> PyResult<Bound<'_, PyList>> {
    let list = PyList::empty(py);
    for rank in ranks {
        let events: PyResult<Vec<_>> = rank.events.into_iter().map(|event| dump_event(py, event)).collect();
        list.append((rank.dp_rank, events?))?;
    }
    Ok(list)
}

fn dump_event(py: Python<'_>, event: DumpEvent) -> PyResult<(bool, Bound<'_, PyDict>)> {
    let fields = PyDict::new(py);
    let signed: Vec<i64> = event.blocks.iter().map(|&block| block as i64).collect();
    fields.set_item("block_hashes", signed)?;
    fields.set_item("medium", event.tier.name())?;
    let kind = event.group.stated.map(Kind::name);
    if event.group.index != 0 || kind.is_some() {
        fields.set_item("group_idx", event.group.index)?;
    }
    if !event.is_store {
        return Ok((false, fields));
    }
    fields.set_item("parent_block_hash", event.parent.map(|parent| parent as i64))?;
    let pairs = event.geometry.is_some_and(|geometry| geometry.pairs);
    fields.set_item("token_ids", token_ids(py, &event.tokens, pairs)?)?;
    fields.set_item(
        "block_size",
        event.geometry.map_or(0, |geometry: Geometry| geometry.block_size),
    )?;
    fields.set_item("kv_cache_spec_kind", kind)?;
    if let Some(Kind::Window(window)) = event.group.stated {
        fields.set_item("kv_cache_spec_sliding_window", window)?;
    }
    if let Some(namespace) = event.namespace {
        fields.set_item("lora_name", namespace.lora_name)?;
        fields.set_item("lora_id", namespace.lora_id)?;
        fields.set_item("cache_salt", namespace.cache_salt)?;
    }
    if event.extra.iter().any(|entry| !entry.is_empty()) {
        let entries: Vec<_> = event.extra.iter().map(|entry| PyBytes::new(py, entry)).collect();
        fields.set_item("extra_keys", entries)?;
    }
    Ok((true, fields))
}

/// The ids as `BlockStored.token_ids` has them: a list, of neighbours where blocks are made of pairs.
fn token_ids<'py>(py: Python<'py>, tokens: &TokenVec, pairs: bool) -> PyResult<Bound<'py, PyAny>> {
    let ids: Vec<u64> = tokens.as_slice().iter().collect();
    if pairs {
        let pairs: Vec<(u64, u64)> = ids.windows(2).map(|pair| (pair[0], pair[1])).collect();
        return pairs.into_bound_py_any(py);
    }
    ids.into_bound_py_any(py)
}
