//! `kvevents._core.hashing`.

use kvevents_core::hash::chain::{HashChain, Namespace};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::buffers::{TokenArgument, int64_view};

/// Calls that touch more blocks than this release the GIL.
pub(crate) const DETACH_ABOVE: usize = 64;

const SCHEMES: &str = "sglang";

#[pyclass(name = "HashChain", module = "kvevents._core.hashing", frozen)]
pub(crate) struct PyHashChain(pub(crate) HashChain);

#[pymethods]
impl PyHashChain {
    #[staticmethod]
    #[pyo3(signature = (page_size, *, scheme = "sglang", extra_key = None, cache_salt = None, bigram = false))]
    fn root(
        py: Python<'_>,
        page_size: usize,
        scheme: &str,
        extra_key: Option<&str>,
        cache_salt: Option<&str>,
        bigram: bool,
    ) -> PyResult<Self> {
        let namespace = namespace(py, page_size, scheme, extra_key, cache_salt, bigram)?;
        Ok(Self(HashChain::root(namespace)))
    }

    fn extend(&self, py: Python<'_>, tokens: TokenArgument) -> PyResult<Self> {
        let count = tokens.as_slice().len();
        let namespace = self.0.namespace();
        let (pages, rest) = namespace.pages(count);
        if rest != 0 {
            let unit = if namespace.bigram { "pairs" } else { "tokens" };
            return Err(PyValueError::new_err(format!(
                "tokens: expected whole pages of {} {unit}, got {count} tokens, which leave {rest} {unit} over",
                namespace.page_size
            )));
        }
        let ids = tokens.as_slice();
        let chain = detach_if(py, pages > DETACH_ABOVE, || self.0.extend(ids));
        Ok(Self(chain.expect("whole pages, as checked")))
    }

    fn split(&self, pages: usize) -> PyResult<(Self, Self)> {
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
    fn parent_id(&self) -> Option<i64> {
        self.0.parent_id()
    }

    #[getter]
    fn page_size(&self) -> usize {
        self.0.namespace().page_size
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
        self.0.namespace().bigram
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __repr__(&self) -> String {
        format!("HashChain({} pages of {})", self.0.len(), self.0.namespace().page_size)
    }
}

fn namespace(
    py: Python<'_>,
    page_size: usize,
    scheme: &str,
    extra_key: Option<&str>,
    cache_salt: Option<&str>,
    bigram: bool,
) -> PyResult<Namespace> {
    if scheme != "sglang" {
        return Err(config_error(
            py,
            &format!("scheme: expected one of {SCHEMES}, got {scheme:?}"),
        )?);
    }
    if page_size == 0 {
        return Err(config_error(py, "page_size: expected at least 1, got 0")?);
    }
    Ok(Namespace::new(page_size, extra_key, cache_salt, bigram))
}

fn config_error(py: Python<'_>, message: &str) -> PyResult<PyErr> {
    let class = py.import("kvevents.errors")?.getattr("ConfigError")?;
    Ok(PyErr::from_value(class.call1((message,))?))
}

/// Run `work`, without the GIL if it is `long`.
pub(crate) fn detach_if<T: Send>(py: Python<'_>, long: bool, work: impl FnOnce() -> T + Send) -> T {
    if long { py.detach(work) } else { work() }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyHashChain>()
}
