//! `kvevents._core.index.ApplyReport`.

use kvevents_core::index::{Ignored, Report};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::classes;

/// What became of a batch. Counts are in blocks unless they say otherwise.
#[pyclass(module = "kvevents._core.index", frozen)]
pub(crate) struct ApplyReport(pub(super) Report);

#[pymethods]
impl ApplyReport {
    /// The rank it was applied to: the one in the batch, else the argument.
    #[getter]
    fn dp_rank(&self) -> Option<i64> {
        self.0.dp_rank
    }

    /// Events applied.
    #[getter]
    fn events(&self) -> usize {
        self.0.events
    }

    /// Blocks that its stores named.
    #[getter]
    fn stored(&self) -> usize {
        self.0.stored
    }

    /// Blocks (copies) that its removals took away.
    #[getter]
    fn removed(&self) -> usize {
        self.0.removed
    }

    /// Clears among the events.
    #[getter]
    fn cleared(&self) -> usize {
        self.0.cleared
    }

    /// Blocks of this worker and rank that wait for their parent after the batch.
    #[getter]
    fn pending(&self) -> usize {
        self.0.pending
    }

    /// Held blocks of this worker and rank without a place after the batch: known by hash only.
    #[getter]
    fn parked(&self) -> usize {
        self.0.parked
    }

    /// Those of the parked blocks that came by stores with more (or fewer) tokens than their blocks cover.
    #[getter]
    fn unaligned(&self) -> usize {
        self.0.unaligned
    }

    /// Partial pages that its stores named: shorter than the engine's blocks, held by hash, in no match.
    #[getter]
    fn partial(&self) -> usize {
        self.0.partial
    }

    /// Blocks that its removals named and that were not held there.
    #[getter]
    fn removal_misses(&self) -> usize {
        self.0.removal_misses
    }

    /// Pending and parked blocks dropped: too many, too large or too old. The picture is incomplete.
    #[getter]
    fn dropped(&self) -> usize {
        self.0.dropped
    }

    /// Left out: unreadable events, `unknown-tier`, `bad-block-size`, `extra-keys-too-large`, `too-many-groups`.
    #[getter]
    fn skipped<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let class = classes::SKIPPED_EVENT.get(py)?;
        let events = self.0.skipped.iter();
        let events: PyResult<Vec<_>> = events
            .map(|event| class.call1((event.code, event.offset, &event.reason)))
            .collect();
        PyList::new(py, events?)
    }

    /// A block size that contradicts the registered or learned one; the events with it were not applied.
    #[getter]
    fn error<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        let message = self.0.error.clone()?;
        Some(
            classes::config_error(py, message)
                .into_value(py)
                .into_bound(py)
                .into_any(),
        )
    }

    /// Why nothing of it was applied: `worker-removed` or `duplicate` (its sequence was applied before).
    #[getter]
    fn ignored(&self) -> Option<&'static str> {
        self.0.ignored.map(Ignored::name)
    }

    fn __repr__(&self) -> String {
        let Report {
            events,
            stored,
            removed,
            cleared,
            pending,
            parked,
            partial,
            removal_misses,
            dropped,
            ..
        } = &self.0;
        format!(
            "ApplyReport(events={events}, stored={stored}, removed={removed}, cleared={cleared}, pending={pending}, \
             parked={parked}, partial={partial}, removal_misses={removal_misses}, dropped={dropped}, skipped={}, error={:?}, \
             ignored={:?})",
            self.0.skipped.len(),
            self.0.error,
            self.ignored()
        )
    }
}
