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

#[pyclass(name = "HashChain", module = "kvevents._core.hashing", frozen)]
pub(crate) struct PyHashChain(pub(crate) HashChain);

#[pymethods]
impl PyHashChain {
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

    fn split(&self, #[pyo3(from_py_with = numbers::pages)] pages: usize) -> PyResult<(Self, Self)> {
        let (head, tail) = self.0.split(pages).ok_or_else(|| {
            PyValueError::new_err(format!(
                "pages: expected at most {} to split off, got {pages}",
                self.0.len()
            ))
        })?;
        Ok((Self(head), Self(tail)))
    }

    #[getter]
    fn ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        int64_view(py, self.0.ids())
    }

    #[getter]
    fn digests<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let scheme = self.0.namespace().scheme;
        let digests = self.0.digests().iter();
        PyList::new(py, digests.map(|digest| PyBytes::new(py, scheme.digest_bytes(digest))))
    }

    #[getter]
    fn parent_id(&self) -> Option<i64> {
        self.0.parent_id()
    }

    #[getter]
    fn page_size(&self) -> usize {
        self.0.namespace().paging.page_size()
    }

    #[getter]
    fn extra_key(&self) -> Option<&str> {
        self.0.namespace().extra_key.as_deref()
    }

    #[getter]
    fn cache_salt(&self) -> Option<&str> {
        self.0.namespace().cache_salt.as_deref()
    }

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
