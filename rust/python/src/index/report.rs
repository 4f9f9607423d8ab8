//! `kvevents._core.index.ApplyReport`.

use kvevents_core::index::{Ignored, Report};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::classes;

#[pyclass(module = "kvevents._core.index", frozen)]
pub(crate) struct ApplyReport(pub(super) Report);

#[pymethods]
impl ApplyReport {
    #[getter]
    fn dp_rank(&self) -> Option<i64> {
        self.0.dp_rank
    }

    #[getter]
    fn events(&self) -> usize {
        self.0.events
    }

    #[getter]
    fn stored(&self) -> usize {
        self.0.stored
    }

    #[getter]
    fn removed(&self) -> usize {
        self.0.removed
    }

    #[getter]
    fn cleared(&self) -> usize {
        self.0.cleared
    }

    #[getter]
    fn pending(&self) -> usize {
        self.0.pending
    }

    #[getter]
    fn parked(&self) -> usize {
        self.0.parked
    }

    #[getter]
    fn unaligned(&self) -> usize {
        self.0.unaligned
    }

    #[getter]
    fn removal_misses(&self) -> usize {
        self.0.removal_misses
    }

    #[getter]
    fn dropped(&self) -> usize {
        self.0.dropped
    }

    #[getter]
    fn skipped<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let class = classes::SKIPPED_EVENT.get(py)?;
        let events = self.0.skipped.iter();
        let events: PyResult<Vec<_>> = events
            .map(|event| class.call1((event.code, event.offset, &event.reason)))
            .collect();
        PyList::new(py, events?)
    }

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
            removal_misses,
            dropped,
            ..
        } = &self.0;
        format!(
            "ApplyReport(events={events}, stored={stored}, removed={removed}, cleared={cleared}, pending={pending}, \
             parked={parked}, removal_misses={removal_misses}, dropped={dropped}, skipped={}, error={:?}, \
             ignored={:?})",
            self.0.skipped.len(),
            self.0.error,
            self.ignored()
        )
    }
}
