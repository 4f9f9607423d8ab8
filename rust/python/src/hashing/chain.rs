//! `HashChain`.

use kvevents_core::hash::chain::HashChain;
use kvevents_core::hash::namespace::Separation;
use kvevents_core::hash::vllm::Process;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::{DETACH_ABOVE, detach_if, namespace};
use crate::buffers::{TokenArgument, int64_view};
use crate::numbers;

/// The hashes of consecutive pages of one prompt under a namespace.
#[pyclass(name = "HashChain", module = "kvevents._core.hashing", frozen)]
pub(crate) struct PyHashChain(pub(crate) HashChain);

#[pymethods]
impl PyHashChain {
    /// The empty chain before the first page.
    #[staticmethod]
    #[pyo3(signature = (
        page_size, *, scheme = "sglang", extra_key = None, cache_salt = None, bigram = false, hash_seed = None,
        adapter_path = None, key_form = "tagged", none_hash = None
    ))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of the Python class")]
    fn root(
        py: Python<'_>,
        #[pyo3(from_py_with = numbers::page_size)] page_size: usize,
        scheme: &str,
        extra_key: Option<&str>,
        cache_salt: Option<&str>,
        bigram: bool,
        hash_seed: Option<&str>,
        adapter_path: Option<&str>,
        key_form: &str,
        #[pyo3(from_py_with = numbers::none_hash)] none_hash: Option<i64>,
    ) -> PyResult<Self> {
        let by = Separation {
            extra_key,
            cache_salt,
            adapter_path,
            adapter_number: None,
            process: Process {
                hash_seed,
                key_form: super::key_form(py, key_form)?,
                none_hash,
            },
        };
        let namespace = namespace(py, page_size, scheme, by, bigram)?;
        Ok(Self(HashChain::root(namespace)))
    }

    /// Hash `tokens` as the continuation of this chain and return the new pages only.
    fn extend(&self, py: Python<'_>, tokens: TokenArgument) -> PyResult<Self> {
        let ids = tokens.as_slice();
        let paging = self.0.namespace().paging;
        let chain = detach_if(py, paging.count(ids.len()) > DETACH_ABOVE, || self.0.extend(ids));
        chain.map(Self).ok_or_else(|| {
            let unit = if paging.is_bigram() { "pairs" } else { "tokens" };
            PyValueError::new_err(format!(
                "tokens: expected whole pages of {} {unit}, got {} tokens, which leave {} {unit} over",
                paging.page_size(),
                ids.len(),
                paging.left_over(ids.len())
            ))
        })
    }

    /// The first `pages` pages and the rest; nothing is hashed or copied.
    fn split(&self, #[pyo3(from_py_with = numbers::pages)] pages: usize) -> PyResult<(Self, Self)> {
        let (head, tail) = self.0.split(pages).ok_or_else(|| {
            PyValueError::new_err(format!(
                "pages: expected at most {} to split off, got {pages}",
                self.0.len()
            ))
        })?;
        Ok((Self(head), Self(tail)))
    }

    /// The ids of the pages, int64, not wrapped (an `EventRecorder` wraps them as its event format asks).
    #[getter]
    fn ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        int64_view(py, self.0.ids())
    }

    /// The full digests of the pages: 32 bytes, with XXH3 16, with Python's `hash()` and content hashes 8.
    #[getter]
    fn digests<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let scheme = self.0.namespace().scheme;
        let digests = self.0.digests().iter();
        PyList::new(py, digests.map(|digest| PyBytes::new(py, scheme.digest_bytes(digest))))
    }

    /// The id of the page above the first one, not wrapped; None at the start of a prompt.
    #[getter]
    fn parent_id(&self) -> Option<i64> {
        self.0.parent_id()
    }

    /// Tokens (pairs, for bigrams) in a page.
    #[getter]
    fn page_size(&self) -> usize {
        self.0.namespace().paging.page_size()
    }

    /// What separates the prompt's tree from others.
    #[getter]
    fn extra_key(&self) -> Option<&str> {
        self.0.namespace().extra_key.as_deref()
    }

    /// The salt, None where there is none.
    #[getter]
    fn cache_salt(&self) -> Option<&str> {
        self.0.namespace().cache_salt.as_deref()
    }

    /// Whether pages are made of pairs.
    #[getter]
    fn bigram(&self) -> bool {
        self.0.namespace().paging.is_bigram()
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __repr__(&self) -> String {
        format!(
            "HashChain({} pages of {})",
            self.0.len(),
            self.0.namespace().paging.page_size()
        )
    }
}
