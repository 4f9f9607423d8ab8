//! `kvevents._core.tokens`.
use kvevents_core::pages::Paging;
use kvevents_core::tokens::TokenSlice;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffers::TokenArgument;
use crate::numbers;

/// The whole pages of a token sequence: borrowed from what the caller passed, or a copy of its own after `cut`.
#[pyclass(frozen, module = "kvevents._core.tokens")]
pub struct TokenPages {
    tokens: TokenArgument,
    paging: Paging,
    pages: usize,
}

impl TokenPages {
    /// The tokens of the whole pages.
    pub fn as_slice(&self) -> TokenSlice<'_> {
        self.paging.cut(self.tokens.as_slice(), 0, self.pages)
    }

    fn range(&self, start: usize, end: usize) -> PyResult<TokenSlice<'_>> {
        if start <= end && end <= self.pages {
            return Ok(self.paging.cut(self.tokens.as_slice(), start, end));
        }
        Err(PyIndexError::new_err(format!(
            "pages: expected a range within 0 to {}, got {start} to {end}",
            self.pages
        )))
    }
}

#[pymethods]
impl TokenPages {
    #[new]
    #[pyo3(signature = (tokens, page_size, *, bigram = false))]
    fn new(
        tokens: TokenArgument,
        #[pyo3(from_py_with = numbers::page_size)] page_size: usize,
        bigram: bool,
    ) -> PyResult<Self> {
        let paging = Paging::new(page_size, bigram)
            .ok_or_else(|| PyValueError::new_err("page_size: expected at least 1, got 0"))?;
        let pages = paging.count(tokens.as_slice().len());
        Ok(Self { tokens, paging, pages })
    }

    fn __len__(&self) -> usize {
        self.pages
    }

    #[getter]
    fn token_count(&self) -> usize {
        self.tokens.as_slice().len()
    }

    #[pyo3(signature = (page, /))]
    fn key<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = numbers::page)] page: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let tokens = self.range(page, page.saturating_add(1))?;
        PyBytes::new_with(py, tokens.key_len(), |out| {
            tokens.write_key(out);
            Ok(())
        })
    }

    #[pyo3(signature = (other, start, /))]
    fn common(&self, other: &TokenPages, #[pyo3(from_py_with = numbers::start)] start: usize) -> PyResult<usize> {
        let other = other.range(start, other.pages)?;
        Ok(self.paging.common(self.as_slice(), other))
    }

    #[pyo3(signature = (start, end, /))]
    fn cut(
        &self,
        #[pyo3(from_py_with = numbers::start)] start: usize,
        #[pyo3(from_py_with = numbers::end)] end: usize,
    ) -> PyResult<Self> {
        Ok(Self {
            tokens: TokenArgument::Owned(self.range(start, end)?.to_vec()),
            paging: self.paging,
            pages: end - start,
        })
    }

    fn __repr__(&self) -> String {
        let unit = if self.paging.is_bigram() { "pairs" } else { "tokens" };
        format!(
            "<TokenPages: {} pages of {} {unit}>",
            self.pages,
            self.paging.page_size()
        )
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<TokenPages>()
}
