//! `kvevents._core.coalescing`.

use std::sync::Mutex;

use kvevents_core::coalesce::{self, Cap, Level, Refused, Settings, Stats};
use kvevents_core::wire::Limits;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::classes;
use crate::hashing::choice;
use crate::numbers;
use crate::wire::{dialect as dialect_of, payload};

// The signature below shows them to Python users.
const _: () = assert!(Cap::DEFAULT.blocks == 16_384 && Cap::DEFAULT.bytes == 1_048_576);

/// Merges the events of a window of batches: for whoever passes events on.
#[pyclass(module = "kvevents._core.coalescing", frozen)]
struct Coalescer(Mutex<coalesce::Coalescer>);

#[pymethods]
impl Coalescer {
    #[new]
    #[pyo3(signature = (
        coalesce = "chain", *, dialect = "sglang", from_start = false, max_event_blocks = 16_384,
        max_event_bytes = 1_048_576
    ))]
    fn new(
        py: Python<'_>,
        coalesce: &str,
        dialect: &str,
        from_start: bool,
        #[pyo3(from_py_with = numbers::max_event_blocks)] max_event_blocks: usize,
        #[pyo3(from_py_with = numbers::max_event_bytes)] max_event_bytes: usize,
    ) -> PyResult<Self> {
        let settings = Settings {
            level: choice(py, "coalesce", coalesce, &Level::NAMES)?,
            dialect: dialect_of(py, dialect)?,
            cap: Cap {
                blocks: max_event_blocks,
                bytes: max_event_bytes,
            },
            limits: Limits::default(),
            from_start,
        };
        Ok(Self(Mutex::new(coalesce::Coalescer::new(settings))))
    }

    /// Add a batch to the window, in whatever dialect.
    #[pyo3(signature = (data, /))]
    fn add<'py>(&self, data: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let py = data.py();
        let data = payload(data)?;
        let added = py.detach(|| self.locked(|coalescer| coalescer.add(&data)));
        let skipped = added.map_err(|refused| raise(py, &refused))?;
        let unread = PyList::empty(py);
        for event in skipped {
            let class = classes::SKIPPED_EVENT.get(py)?;
            unread.append(class.call1((event.code, event.offset, event.reason))?)?;
        }
        Ok(unread)
    }

    /// Take what waits as one batch of the rank that the batches have; None if there is nothing.
    #[pyo3(signature = (*, ts = None))]
    fn take_batch<'py>(&self, py: Python<'py>, ts: Option<f64>) -> Option<Bound<'py, PyBytes>> {
        let data = py.detach(|| self.locked(|coalescer| coalescer.take(ts)))?;
        Some(PyBytes::new(py, &data))
    }

    /// Events that wait.
    #[getter]
    fn pending(&self) -> usize {
        self.locked(|coalescer| coalescer.len())
    }

    /// Bytes of the batch that waits, within a few an event.
    #[getter]
    fn pending_bytes(&self) -> usize {
        self.locked(|coalescer| coalescer.size())
    }

    /// What came and what goes on, taken or not.
    fn stats(&self) -> CoalescerStats {
        let Stats {
            batches,
            events,
            unread_events,
            unread_fields,
            coalesced_events,
            cancelled_blocks,
        } = self.locked(|coalescer| coalescer.stats());
        CoalescerStats {
            batches,
            events,
            unread_events,
            unread_fields,
            coalesced_events,
            cancelled_blocks,
        }
    }
}

impl Coalescer {
    fn locked<T>(&self, work: impl FnOnce(&mut coalesce::Coalescer) -> T) -> T {
        work(&mut self.0.lock().expect("nothing panics under the lock"))
    }
}

#[pyclass(module = "kvevents._core.coalescing", frozen, get_all)]
struct CoalescerStats {
    batches: u64,
    events: u64,
    unread_events: u64,
    unread_fields: u64,
    coalesced_events: u64,
    cancelled_blocks: u64,
}

#[pymethods]
impl CoalescerStats {
    fn __repr__(&self) -> String {
        format!(
            "CoalescerStats(batches={}, events={}, unread_events={}, unread_fields={}, coalesced_events={}, \
             cancelled_blocks={})",
            self.batches,
            self.events,
            self.unread_events,
            self.unread_fields,
            self.coalesced_events,
            self.cancelled_blocks
        )
    }
}

fn raise(py: Python<'_>, refused: &Refused) -> PyErr {
    match refused {
        Refused::Wire(error) => classes::wire_error(py, error),
        Refused::NoPlace(_) | Refused::OtherRank { .. } => PyValueError::new_err(refused.to_string()),
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Coalescer>()?;
    module.add_class::<CoalescerStats>()
}
