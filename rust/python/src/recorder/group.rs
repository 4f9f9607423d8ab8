//! The cache group that an event speaks of.

use kvevents_core::recorder::Group;
use pyo3::prelude::*;

use crate::numbers;

#[pyclass(module = "kvevents._core.recorder", frozen, get_all)]
pub(super) struct CacheGroup {
    index: u64,
    kind: String,
    sliding_window: Option<u64>,
}

impl CacheGroup {
    pub(super) fn as_core(&self) -> Group<'_> {
        Group {
            index: self.index,
            kind: &self.kind,
            sliding_window: self.sliding_window,
        }
    }
}

#[pymethods]
impl CacheGroup {
    #[new]
    #[pyo3(signature = (index, kind, *, sliding_window = None))]
    fn new(
        #[pyo3(from_py_with = numbers::index)] index: u64,
        kind: String,
        #[pyo3(from_py_with = numbers::sliding_window)] sliding_window: Option<u64>,
    ) -> Self {
        Self {
            index,
            kind,
            sliding_window,
        }
    }
}
