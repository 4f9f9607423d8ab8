//! `kvevents._core.hashing`.

use kvevents_core::hash::chain::{HashChain, Namespace, Scheme, Separation};
use kvevents_core::hash::sglang::{Digest, EventFormat, page_id};
use kvevents_core::pages::Paging;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;

use crate::buffers::{TokenArgument, int64_view};
use crate::classes;

/// Calls that touch more blocks than this release the GIL.
pub(crate) const DETACH_ABOVE: usize = 64;

#[pyclass(name = "HashChain", module = "kvevents._core.hashing", frozen)]
pub(crate) struct PyHashChain(pub(crate) HashChain);

#[pymethods]
impl PyHashChain {
    #[staticmethod]
    #[pyo3(signature = (
        page_size, *, scheme = "sglang", extra_key = None, cache_salt = None, bigram = false, hash_seed = None,
        adapter_path = None
    ))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of the Python class")]
    fn root(
        py: Python<'_>,
        page_size: usize,
        scheme: &str,
        extra_key: Option<&str>,
        cache_salt: Option<&str>,
        bigram: bool,
        hash_seed: Option<&str>,
        adapter_path: Option<&str>,
    ) -> PyResult<Self> {
        let by = Separation {
            extra_key,
            cache_salt,
            hash_seed,
            adapter_path,
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

fn namespace(py: Python<'_>, page_size: usize, scheme: &str, by: Separation<'_>, bigram: bool) -> PyResult<Namespace> {
    let refused = |message: String| Err(classes::config_error(py, message));
    let name = scheme;
    let scheme = choice(py, "scheme", scheme, &Scheme::NAMES)?;
    let is_vllm = matches!(scheme, Scheme::Vllm(_));
    if is_vllm && bigram {
        return refused(format!("bigram: the scheme {name} has no pages of pairs"));
    }
    for (setting, value) in [("hash_seed", by.hash_seed), ("adapter_path", by.adapter_path)] {
        if value.is_some() && !is_vllm {
            return refused(format!("{setting}: only schemes of vLLM have it, not {name}"));
        }
    }
    match Paging::new(page_size, bigram) {
        Some(paging) => Ok(Namespace::new(scheme, paging, by)),
        None => refused(format!("page_size: expected at least 1, got {page_size}")),
    }
}

/// The choice called `name`, or a `ConfigError` that lists them.
pub(crate) fn choice<T: Copy>(py: Python<'_>, setting: &str, name: &str, choices: &[(&str, T)]) -> PyResult<T> {
    if let Some(&(_, choice)) = choices.iter().find(|(known, _)| *known == name) {
        return Ok(choice);
    }
    let known: Vec<&str> = choices.iter().map(|(known, _)| *known).collect();
    let known = known.join(", ");
    let message = format!("{setting}: expected one of {known}, got {name:?}");
    Err(classes::config_error(py, message))
}

/// Run `work`, without the GIL if it is `long`.
pub(crate) fn detach_if<T: Send>(py: Python<'_>, long: bool, work: impl FnOnce() -> T + Send) -> T {
    if long { py.detach(work) } else { work() }
}

#[pyfunction]
#[pyo3(signature = (
    tokens, block_size, *, scheme = "sglang", extra_key = None, cache_salt = None, bigram = false,
    event_format = "default", named = false, hash_seed = None, adapter_path = None
))]
#[allow(clippy::too_many_arguments, reason = "keyword arguments of the Python function")]
fn block_hashes<'py>(
    py: Python<'py>,
    tokens: TokenArgument,
    block_size: usize,
    scheme: &str,
    extra_key: Option<&str>,
    cache_salt: Option<&str>,
    bigram: bool,
    event_format: &str,
    named: bool,
    hash_seed: Option<&str>,
    adapter_path: Option<&str>,
) -> PyResult<Bound<'py, PyAny>> {
    let format = choice(py, "event_format", event_format, &EventFormat::NAMES)?;
    let by = Separation {
        extra_key,
        cache_salt,
        hash_seed,
        adapter_path,
    };
    let namespace = namespace(py, block_size, scheme, by, bigram)?;
    let wrapper = namespace.wrapper(format, named);
    let ids = tokens.as_slice();
    let pages = namespace.paging.count(ids.len());
    let whole = namespace.paging.cut(ids, 0, pages);
    let ids: Vec<i64> = detach_if(py, pages > DETACH_ABOVE, || {
        let digests = namespace.digests(None, whole);
        let ids = digests.map(|digest| namespace.scheme.id(&digest));
        ids.map(|id| wrapper.wrap(id)).collect()
    });
    int64_view(py, ids.into_iter())
}

#[pyfunction]
#[pyo3(signature = (tokens, page_size, *, above = None, cache_salt = None, bigram = false))]
fn page_digests(
    py: Python<'_>,
    tokens: TokenArgument,
    page_size: usize,
    above: Option<&str>,
    cache_salt: Option<&str>,
    bigram: bool,
) -> PyResult<Vec<String>> {
    let by = Separation {
        cache_salt,
        ..Separation::default()
    };
    let namespace = namespace(py, page_size, "sglang", by, bigram)?;
    let above = above.map(digest_of).transpose()?;
    let ids = tokens.as_slice();
    let long = namespace.paging.count(ids.len()) > DETACH_ABOVE;
    Ok(detach_if(py, long, || {
        namespace.digests(above, ids).map(|digest| hex(&digest)).collect()
    }))
}

#[pyfunction]
#[pyo3(signature = (digests, *, extra_key = None, cache_salt = None, event_format = "default", named = false))]
fn announced_ids(
    py: Python<'_>,
    digests: Vec<PyBackedStr>,
    extra_key: Option<&str>,
    cache_salt: Option<&str>,
    event_format: &str,
    named: bool,
) -> PyResult<Vec<i64>> {
    let format = choice(py, "event_format", event_format, &EventFormat::NAMES)?;
    let by = Separation {
        extra_key,
        cache_salt,
        ..Separation::default()
    };
    let wrapper = namespace(py, 1, "sglang", by, false)?.wrapper(format, named);
    digests
        .iter()
        .map(|digest| Ok(wrapper.wrap(page_id(&digest_of(digest)?))))
        .collect()
}

fn hex(digest: &Digest) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble)]);
    digest
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
        .collect()
}

fn digest_of(hex: &str) -> PyResult<Digest> {
    let mut digest = Digest::default();
    let pairs = hex.as_bytes().chunks_exact(2);
    if hex.len() == 2 * digest.len() && hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        for (byte, pair) in digest.iter_mut().zip(pairs) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16).expect("checked") as u8;
            *byte = digit(0) << 4 | digit(1);
        }
        return Ok(digest);
    }
    Err(PyValueError::new_err(format!(
        "digest: expected 64 hexadecimal digits, got {hex:?}"
    )))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(block_hashes, module)?)?;
    module.add_function(wrap_pyfunction!(page_digests, module)?)?;
    module.add_function(wrap_pyfunction!(announced_ids, module)?)?;
    module.add_class::<PyHashChain>()
}
