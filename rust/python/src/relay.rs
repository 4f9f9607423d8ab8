//! `kvevents._core.relay`.

use std::sync::Mutex;

use kvevents_core::relay;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::classes;
use crate::numbers;
use crate::wire::{dialect as dialect_of, payload};

/// The batches of one rank, without what undoes itself.
#[pyclass(module = "kvevents._core.relay", frozen)]
struct CompactedLog(Mutex<relay::CompactedLog>);

#[pymethods]
impl CompactedLog {
    #[new]
    fn new() -> Self {
        Self(Mutex::default())
    }

    /// Add a batch.
    #[pyo3(signature = (data, /))]
    fn add(&self, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = data.py();
        let data = payload(data)?;
        py.detach(|| self.locked(|log| log.add(&data)))
            .map_err(|error| classes::wire_error(py, &error))
    }

    /// Leave out what nobody needs any more.
    fn compact(&self, py: Python<'_>) {
        py.detach(|| self.locked(relay::CompactedLog::compact));
    }

    /// What is left, as batches of about `max_bytes`.
    #[pyo3(signature = (*, dialect = "sglang", max_bytes = 1_048_576))]
    fn batches<'py>(
        &self,
        py: Python<'py>,
        dialect: &str,
        #[pyo3(from_py_with = numbers::max_bytes)] max_bytes: usize,
    ) -> PyResult<Bound<'py, PyList>> {
        let dialect = dialect_of(py, dialect)?;
        let batches = py.detach(|| self.locked(|log| log.batches(&dialect, max_bytes)));
        PyList::new(py, batches.iter().map(|batch| PyBytes::new(py, batch)))
    }

    /// The blocks that are held, for when something after them is lost.
    fn remains(&self, py: Python<'_>) -> Remains {
        Remains(Mutex::new(py.detach(|| self.locked(|log| log.remains()))))
    }

    /// A log with the same batches.
    fn copy(&self, py: Python<'_>) -> Self {
        Self(Mutex::new(py.detach(|| self.locked(|log| log.clone()))))
    }

    /// Bytes of what is there, within a few an event.
    #[getter]
    fn size_bytes(&self) -> usize {
        self.locked(|log| log.size())
    }

    /// The same right after the last compaction.
    #[getter]
    fn compacted_bytes(&self) -> usize {
        self.locked(|log| log.compacted_size())
    }

    /// Events that could not be read and were left out.
    #[getter]
    fn unread_events(&self) -> u64 {
        self.locked(|log| log.unread())
    }

    fn __len__(&self) -> usize {
        self.locked(|log| log.len())
    }
}

impl CompactedLog {
    fn locked<T>(&self, work: impl FnOnce(&mut relay::CompactedLog) -> T) -> T {
        work(&mut self.0.lock().expect("nothing panics under the lock"))
    }
}

/// What a rank held before something of its stream was lost.
#[pyclass(module = "kvevents._core.relay", frozen)]
struct Remains(Mutex<relay::Remains>);

#[pymethods]
impl Remains {
    /// Read the next batch of the stream.
    #[pyo3(signature = (data, /))]
    fn confirm<'py>(&self, data: &Bound<'py, PyAny>) -> PyResult<Option<(Bound<'py, PyBytes>, usize)>> {
        let py = data.py();
        let data = payload(data)?;
        let confirmed = py
            .detach(|| self.0.lock().expect("nothing panics under the lock").confirm(&data))
            .map_err(|error| classes::wire_error(py, &error))?;
        Ok(confirmed.map(|confirmed| (PyBytes::new(py, &confirmed.payload), confirmed.blocks)))
    }

    fn __len__(&self) -> usize {
        self.0.lock().expect("nothing panics under the lock").len()
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<CompactedLog>()?;
    module.add_class::<Remains>()
}
