//! `kvevents._core.routing`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use kvevents_core::index::Tier;
use kvevents_core::learned::Holder;
use kvevents_core::routing::{Asked, Judged, Law, Placing, Rank, Reported, Settings, Slot, Table};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::index::Found;
use crate::learned::{PromptChain, PyLearnedIndex};
use crate::numbers;

/// Ranks that a prompt may go to, in order.
#[pyclass(module = "kvevents._core.routing", frozen)]
pub(crate) struct Candidates(Vec<Slot>);

#[pymethods]
impl Candidates {
    #[new]
    #[pyo3(signature = (slots, /))]
    fn new(slots: Bound<'_, PyList>) -> PyResult<Self> {
        let slots = slots.iter().map(|slot| numbers::slot(&slot));
        slots.collect::<PyResult<_>>().map(Self)
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }
}

/// Every candidate's figures for one prompt, and what they were made of.
#[pyclass(module = "kvevents._core.routing", frozen)]
pub(crate) struct Judgement {
    judged: Vec<Judged>,
    chain: Py<PromptChain>,
    prompt_tokens: u64,
    block_size: u64,
    now: f64,
    oldest: f64,
}

impl Judgement {
    fn get(&self, place: usize) -> PyResult<&Judged> {
        let count = self.judged.len();
        (self.judged.get(place))
            .ok_or_else(|| PyIndexError::new_err(format!("expected one of {count} candidates, got {place}")))
    }

    fn before(&self, one: usize, other: usize) -> std::cmp::Ordering {
        let (one, other) = (&self.judged[one], &self.judged[other]);
        (one.cost.total_cmp(&other.cost))
            .then(one.last_chosen.cmp(&other.last_chosen))
            .then(one.dp_rank.cmp(&other.dp_rank))
    }
}

/// (worker, rank, by events, usable, indexed, usable of whoever has most)
type Facts<'a> = (&'a str, i64, bool, u64, Option<u64>, u64);

/// (queued, decode, held, requests, recent, last chosen, reported, opened, prefilling)
type Load = (
    i64,
    i64,
    i64,
    u64,
    f64,
    u64,
    Option<Report>,
    Vec<(u64, f64)>,
    Vec<(u64, f64)>,
);

/// (running, waiting, of others running, waiting, their tokens, when)
type Report = (u64, u64, u64, u64, Option<u64>, f64);

#[pymethods]
impl Judgement {
    fn __len__(&self) -> usize {
        self.judged.len()
    }

    /// The candidate that costs least; of equals the least recently chosen, then the first by rank.
    #[getter]
    fn cheapest(&self) -> usize {
        let places = 0..self.judged.len();
        places.min_by(|&one, &other| self.before(one, other)).unwrap_or(0)
    }

    /// All of them in that order.
    fn ranking(&self) -> Vec<usize> {
        let mut places: Vec<_> = (0..self.judged.len()).collect();
        places.sort_by(|&one, &other| self.before(one, other));
        places
    }

    fn facts(&self, #[pyo3(from_py_with = numbers::place)] place: usize) -> PyResult<Facts<'_>> {
        let one = self.get(place)?;
        let most = self.judged.iter().map(|one| one.usable).max().unwrap_or(0);
        Ok((&*one.worker, one.dp_rank, one.by_events, one.usable, one.indexed, most))
    }

    /// The turn in which a candidate was last chosen.
    fn last_chosen(&self, #[pyo3(from_py_with = numbers::place)] place: usize) -> PyResult<u64> {
        Ok(self.get(place)?.last_chosen)
    }

    /// The fields of `kvevents.routing.Score`, in order.
    fn score<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = numbers::place)] place: usize,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let one = self.get(place)?;
        let tiers = PyDict::new(py);
        if let Some(fastest) = one.tiers {
            for (tier, blocks) in Tier::ALL.into_iter().zip(fastest) {
                tiers.set_item(tier.name(), blocks)?;
            }
        }
        let first = (
            &*one.worker,
            one.dp_rank,
            if one.by_events { "events" } else { "learned" },
            one.usable,
            one.indexed,
            one.pending,
            tiers,
            one.state.as_deref(),
            one.prefill,
        );
        let rest = (
            one.queued,
            one.held,
            one.requests,
            one.surplus,
            one.shared,
            one.reported,
            one.cost,
        );
        let (first, rest) = (first.into_pyobject(py)?, rest.into_pyobject(py)?);
        first
            .as_sequence()
            .concat(rest.as_sequence())?
            .cast_into::<PyTuple>()
            .map_err(PyErr::from)
    }
}

/// Every rank of every worker, and the requests open on them.
#[pyclass(name = "Table", module = "kvevents._core.routing", frozen)]
pub(crate) struct PyTable(Mutex<Table>);

impl PyTable {
    /// Nothing in here panics while it holds the lock, so a poisoned one holds a sound table all the same.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, slot: Slot, change: impl FnOnce(&mut Rank)) {
        if let Some(rank) = self.table().rank_mut(slot) {
            change(rank);
        }
    }
}

#[pymethods]
impl PyTable {
    #[new]
    #[pyo3(signature = (*, trust, half_life_s, tiers, memory_tokens, request_tokens))]
    fn new(trust: f64, half_life_s: f64, tiers: [f64; 4], memory_tokens: f64, request_tokens: f64) -> Self {
        Self(Mutex::new(Table::new(Settings {
            trust,
            half_life_s,
            tiers,
            memory_tokens,
            request_tokens,
        })))
    }

    fn add(
        &self,
        worker: &str,
        #[pyo3(from_py_with = numbers::rank)] rank: i64,
        #[pyo3(from_py_with = numbers::holder)] holder: Holder,
        source: Option<&str>,
        recent: f64,
    ) -> Slot {
        let rank = Rank::new(worker.into(), rank, holder, source.map(Into::into), recent);
        self.table().add(rank)
    }

    fn remove(&self, #[pyo3(from_py_with = numbers::slot)] slot: Slot) {
        self.table().remove(slot);
    }

    fn set_holder(
        &self,
        #[pyo3(from_py_with = numbers::slot)] slot: Slot,
        #[pyo3(from_py_with = numbers::holder)] holder: Holder,
    ) {
        self.change(slot, |rank| rank.holder = holder);
    }

    fn set_source(&self, #[pyo3(from_py_with = numbers::slot)] slot: Slot, state: Option<&str>) {
        self.change(slot, |rank| rank.source = state.map(Into::into));
    }

    fn set_trust(&self, #[pyo3(from_py_with = numbers::slot)] slot: Slot, trust: Option<f64>) {
        self.change(slot, |rank| rank.trust = trust);
    }

    /// Say whether a rank may be chosen; what its engine said is forgotten, and one that is up has done so much of late.
    fn set_up(&self, #[pyo3(from_py_with = numbers::slot)] slot: Slot, up: bool, recent: f64) {
        self.change(slot, |rank| {
            rank.is_up = up;
            rank.reported = None;
            if up {
                rank.recent = recent;
            }
        });
    }

    fn report(
        &self,
        #[pyo3(from_py_with = numbers::slot)] slot: Slot,
        #[pyo3(from_py_with = numbers::running)] running: u64,
        #[pyo3(from_py_with = numbers::waiting)] waiting: u64,
        #[pyo3(from_py_with = numbers::tokens)] tokens: Option<u64>,
        now: f64,
    ) {
        self.change(slot, |rank| rank.report(running, waiting, tokens, now));
    }

    fn mean_recent(&self) -> f64 {
        self.table().mean_recent()
    }

    #[getter]
    fn age(&self) -> f64 {
        self.table().age()
    }

    /// The figures of `kvevents.routing.Load`, in order; None where the rank is gone.
    fn load(&self, #[pyo3(from_py_with = numbers::slot)] slot: Slot) -> Option<Load> {
        let report = |said: Reported| {
            let foreign = (said.foreign_running, said.foreign_waiting, said.foreign_tokens);
            (said.running, said.waiting, foreign.0, foreign.1, foreign.2, said.at)
        };
        let times = |times: &std::collections::BTreeMap<u64, f64>| times.iter().map(|(&one, &at)| (one, at)).collect();
        self.table().rank(slot).map(|rank| {
            (
                rank.queued,
                rank.decode,
                rank.held,
                rank.requests(),
                rank.recent,
                rank.last_chosen,
                rank.reported.map(report),
                times(&rank.opened),
                times(&rank.prefilling),
            )
        })
    }

    #[allow(clippy::too_many_arguments, reason = "what a prompt is judged by")]
    fn judge(
        &self,
        candidates: PyRef<'_, Candidates>,
        found: Option<PyRef<'_, Found>>,
        learned: PyRef<'_, PyLearnedIndex>,
        chain: Py<PromptChain>,
        #[pyo3(from_py_with = numbers::prompt_tokens)] prompt_tokens: u64,
        by_events: bool,
        now: f64,
        oldest: f64,
        law: Option<(f64, f64, f64)>,
    ) -> Judgement {
        let block_size = u64::from(learned.block_size);
        let asked = Asked {
            chain: &chain.get().0,
            prompt_tokens,
            block_size,
            by_events,
            now,
            oldest,
        };
        let law = law.map(|(prefill, held, balance)| Law { prefill, held, balance });
        let found = found.as_ref().map_or(&[][..], |found| &found.0);
        let judged = (self.table()).judge(&candidates.0, found, &asked, &learned.learned(), law);
        Judgement {
            judged,
            chain,
            prompt_tokens,
            block_size,
            now,
            oldest,
        }
    }

    /// Open a request on a candidate; its number. `decodes`: its prompt is computed elsewhere.
    fn place(
        &self,
        judgement: PyRef<'_, Judgement>,
        #[pyo3(from_py_with = numbers::place)] place: usize,
        learned: PyRef<'_, PyLearnedIndex>,
        #[pyo3(from_py_with = numbers::output_tokens)] output_tokens: u64,
        decodes: bool,
    ) -> PyResult<u64> {
        let chosen = judgement.get(place)?;
        let asked = Asked {
            chain: &judgement.chain.get().0,
            prompt_tokens: judgement.prompt_tokens,
            block_size: judgement.block_size,
            by_events: true,
            now: judgement.now,
            oldest: judgement.oldest,
        };
        let placing = Placing {
            prefill: (!decodes).then_some(chosen.prefill.ceil() as i64),
            output_tokens,
        };
        Ok(self.table().place(chosen.slot, placing, &asked, &mut learned.learned()))
    }

    fn computed(&self, #[pyo3(from_py_with = numbers::request)] request: u64) {
        self.table().computed(request);
    }

    fn end(&self, #[pyo3(from_py_with = numbers::request)] request: u64) {
        self.table().end(request);
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyTable>()?;
    module.add_class::<Candidates>()?;
    module.add_class::<Judgement>()
}
