//! `kvevents._core.lint`.

use std::sync::Mutex;

use kvevents_core::index::Tier;
use kvevents_core::lint;
use pyo3::prelude::*;

use crate::classes;
use crate::numbers;
use crate::wire::payload;

/// Reads the batches of one source in their order, and says what does not hold in them.
#[pyclass(module = "kvevents._core.lint", frozen)]
struct Linter(Mutex<lint::Linter>);

#[pymethods]
impl Linter {
    #[new]
    #[pyo3(signature = (*, block_size = None, is_whole = true, remembered_blocks = 8_388_608))]
    fn new(
        #[pyo3(from_py_with = numbers::tokens_in_block_if_known)] block_size: Option<u32>,
        is_whole: bool,
        #[pyo3(from_py_with = numbers::remembered_blocks)] remembered_blocks: usize,
    ) -> Self {
        Self(Mutex::new(lint::Linter::new(
            remembered_blocks,
            block_size.map(u64::from),
            is_whole,
        )))
    }

    /// Check the next batch, in whatever dialect.
    #[pyo3(signature = (data, /))]
    fn check(&self, data: &Bound<'_, PyAny>) -> PyResult<Linted> {
        let py = data.py();
        let data = payload(data)?;
        let linted = py.detach(|| self.lock().check(&data));
        let linted = linted.map_err(|error| classes::wire_error(py, &error))?;
        let findings = linted.findings.into_iter().map(|finding| Py::new(py, Finding(finding)));
        Ok(Linted {
            ts: linted.ts,
            dp_rank: linted.dp_rank,
            events: linted.events,
            stored: linted.stored,
            removed: linted.removed,
            findings: findings.collect::<PyResult<_>>()?,
        })
    }

    /// The engine began anew: nothing is held, and what is known from here on is all there is.
    fn begin(&self) {
        self.lock().begin();
    }

    /// Batches are missing here: what is not known from here on may have been in them.
    fn miss(&self) {
        self.lock().miss();
    }

    /// Blocks held on the GPU, over the fullest group of each rank.
    #[getter]
    fn held(&self) -> u64 {
        self.lock().held(Tier::Gpu)
    }

    /// Ranks that the batches named so far; those that name none are one.
    #[getter]
    fn ranks(&self) -> usize {
        self.lock().ranks()
    }

    /// Blocks that there was no room to remember; from the first on, nothing is called unknown.
    #[getter]
    fn forgotten(&self) -> u64 {
        self.lock().forgotten()
    }
}

impl Linter {
    fn lock(&self) -> std::sync::MutexGuard<'_, lint::Linter> {
        self.0.lock().expect("nothing panics under the lock")
    }
}

/// What a batch holds, and what was found in it.
#[pyclass(module = "kvevents._core.lint", frozen, get_all)]
struct Linted {
    ts: f64,
    dp_rank: Option<i64>,
    events: u64,
    stored: u64,
    removed: u64,
    findings: Vec<Py<Finding>>,
}

/// All of one kind in one batch.
#[pyclass(module = "kvevents._core.lint", frozen)]
struct Finding(lint::Finding);

#[pymethods]
impl Finding {
    #[getter]
    fn kind(&self) -> &'static str {
        self.0.kind.name()
    }

    #[getter]
    fn offset(&self) -> usize {
        self.0.offset
    }

    #[getter]
    fn events(&self) -> u64 {
        self.0.events
    }

    #[getter]
    fn blocks(&self) -> u64 {
        self.0.blocks
    }

    #[getter]
    fn block(&self) -> Option<u64> {
        self.0.block
    }

    #[getter]
    fn detail(&self) -> Option<&str> {
        self.0.detail.as_deref()
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Linter>()?;
    module.add_class::<Linted>()?;
    module.add_class::<Finding>()
}
