//! Matches that stay in Rust, for a router to go by.

use kvevents_core::index::Match;
use pyo3::prelude::*;

/// (worker, rank, usable blocks, those by fastest tier, state) of a match.
type Row = (String, Option<i64>, usize, [usize; 4], String);

/// What each rank of each worker holds of a prompt.
#[pyclass(module = "kvevents._core.index", frozen)]
pub(crate) struct Found(pub(crate) Vec<Match>);

#[pymethods]
impl Found {
    /// What an index of another kind has told.
    #[new]
    #[pyo3(signature = (rows, /))]
    fn new(rows: Vec<Row>) -> Self {
        let found = |(worker, dp_rank, usable, fastest, state): Row| Match {
            worker: worker.into(),
            dp_rank,
            total: usable,
            tiers: fastest,
            fastest,
            usable,
            state: state.into(),
        };
        Self(rows.into_iter().map(found).collect())
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }
}
