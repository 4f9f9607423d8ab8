//! `kvevents._core.hashing`.

mod chain;
mod keys;

use kvevents_core::hash::namespace::{Namespace, Scheme, Separation, Wrapper};
use kvevents_core::hash::sglang::{Digest, EventFormat, page_id};
use kvevents_core::hash::vllm::{KeyForm, PageKeys, Process, SeedError, none_hash};
use kvevents_core::pages::Paging;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyList};

pub(crate) use self::chain::PyHashChain;
use self::keys::ExtraKeys;
use crate::buffers::{TokenArgument, int64_view, uint64_view};
use crate::classes;
use crate::numbers;

/// Calls that touch more blocks than this release the GIL.
pub(crate) const DETACH_ABOVE: usize = 64;

fn namespace(py: Python<'_>, page_size: usize, scheme: &str, by: Separation<'_>, bigram: bool) -> PyResult<Namespace> {
    let refused = |message: String| classes::config_error(py, message);
    let name = scheme;
    let scheme = choice(py, "scheme", scheme, &Scheme::NAMES)?;
    let is_vllm = matches!(scheme, Scheme::Vllm(_));
    if is_vllm && bigram {
        return Err(refused(format!("bigram: the scheme {name} has no pages of pairs")));
    }
    for (setting, is_given) in [
        ("hash_seed", by.process.hash_seed.is_some()),
        ("none_hash", by.process.none_hash.is_some()),
        ("key_form", by.process.key_form != KeyForm::default()),
        ("adapter_path", by.adapter_path.is_some()),
        ("lora_id", by.adapter_number.is_some()),
    ] {
        if is_given && !is_vllm {
            return Err(refused(format!("{setting}: only schemes of vLLM have it, not {name}")));
        }
    }
    let Some(paging) = Paging::new(page_size, bigram) else {
        return Err(refused(format!("page_size: expected at least 1, got {page_size}")));
    };
    Namespace::new(scheme, paging, by).map_err(|error| {
        refused(match error {
            SeedError::Missing => format!(
                "hash_seed: {name} needs the engine's PYTHONHASHSEED; without one each process draws its own hashes"
            ),
            SeedError::NotANumber => format!(
                "hash_seed: {name} needs a number from 0 to 2^32-1, got {:?}",
                by.process.hash_seed.unwrap_or_default()
            ),
        })
    })
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

pub(crate) fn key_form(py: Python<'_>, name: &str) -> PyResult<KeyForm> {
    choice(py, "key_form", name, &KeyForm::NAMES)
}

/// Blocks of a prompt to be hashed.
struct Blocks<'a> {
    namespace: Namespace,
    above: Option<Digest>,
    tokens: &'a TokenArgument,
    keys: Vec<PageKeys>,
}

impl<'a> Blocks<'a> {
    fn new(
        py: Python<'_>,
        namespace: Namespace,
        tokens: &'a TokenArgument,
        keys: Option<&ExtraKeys>,
        above: Option<&PyBackedBytes>,
    ) -> PyResult<Self> {
        let scheme = namespace.scheme;
        let above = above.map(|above| {
            scheme.digest_of(above).ok_or_else(|| {
                PyValueError::new_err(format!(
                    "parent_digest: expected {} bytes ({}), got {}",
                    scheme.digest_size(),
                    scheme.name(),
                    above.len()
                ))
            })
        });
        let above = above.transpose()?;
        let keys = keys.map_or_else(|| Ok(Vec::new()), |keys| page_keys(py, &namespace, keys, tokens));
        Ok(Self {
            keys: keys?,
            namespace,
            above,
            tokens,
        })
    }

    /// Of the whole blocks, without the GIL if they are many.
    fn map<T: Send>(&self, py: Python<'_>, each: impl Fn(&Digest) -> T + Sync) -> Vec<T> {
        let ids = self.tokens.as_slice();
        let pages = self.namespace.paging.count(ids.len());
        let whole = self.namespace.paging.cut(ids, 0, pages);
        detach_if(py, pages > DETACH_ABOVE, || {
            let digests = self.namespace.digests_with(self.above, whole, &self.keys);
            digests.map(|digest| each(&digest)).collect()
        })
    }
}

fn page_keys(
    py: Python<'_>,
    namespace: &Namespace,
    keys: &ExtraKeys,
    tokens: &TokenArgument,
) -> PyResult<Vec<PageKeys>> {
    if !matches!(namespace.scheme, Scheme::Vllm(_)) {
        let name = namespace.scheme.name();
        let message = format!("extra_keys: only schemes of vLLM have them, not {name}");
        return Err(classes::config_error(py, message));
    }
    // One entry may stand for the part of a block at the end.
    let blocks = tokens.as_slice().len().div_ceil(namespace.paging.page_size());
    if keys.len() > blocks {
        return Err(PyValueError::new_err(format!(
            "extra_keys: expected an entry for each of {blocks} blocks at most, got {}",
            keys.len()
        )));
    }
    let pages = keys.blocks().enumerate().map(|(block, keys)| {
        namespace.page_keys(&keys).ok_or_else(|| {
            PyValueError::new_err(format!(
                "extra_keys: expected images as [id, offset] in the tagged form, got an id alone in block {block} \
                 (a salt goes into cache_salt, an adapter into extra_key)"
            ))
        })
    });
    pages.collect()
}

/// The ids that an engine announces for the whole blocks of a prompt.
#[pyfunction]
#[pyo3(signature = (
    tokens, block_size, *, scheme = "sglang", extra_key = None, cache_salt = None, bigram = false,
    event_format = "default", named = false, hash_seed = None, adapter_path = None, lora_id = None, extra_keys = None,
    key_form = "tagged", none_hash = None, parent_digest = None
))]
#[allow(clippy::too_many_arguments, reason = "keyword arguments of the Python function")]
fn block_hashes<'py>(
    py: Python<'py>,
    tokens: TokenArgument,
    #[pyo3(from_py_with = numbers::block_size)] block_size: usize,
    scheme: &str,
    extra_key: Option<&str>,
    cache_salt: Option<&str>,
    bigram: bool,
    event_format: &str,
    named: bool,
    hash_seed: Option<&str>,
    adapter_path: Option<&str>,
    #[pyo3(from_py_with = numbers::lora_id)] lora_id: Option<i64>,
    extra_keys: Option<ExtraKeys>,
    key_form: &str,
    #[pyo3(from_py_with = numbers::none_hash)] none_hash: Option<i64>,
    parent_digest: Option<PyBackedBytes>,
) -> PyResult<Bound<'py, PyAny>> {
    let format = choice(py, "event_format", event_format, &EventFormat::NAMES)?;
    let by = Separation {
        extra_key,
        cache_salt,
        adapter_path,
        adapter_number: lora_id,
        process: Process {
            hash_seed,
            key_form: self::key_form(py, key_form)?,
            none_hash,
        },
    };
    let namespace = namespace(py, block_size, scheme, by, bigram)?;
    let wrapper: Wrapper = namespace.wrapper(format, named);
    let scheme = namespace.scheme;
    let blocks = Blocks::new(py, namespace, &tokens, extra_keys.as_ref(), parent_digest.as_ref())?;
    let ids = blocks.map(py, |digest| wrapper.wrap(scheme.id(digest)));
    if scheme.is_unsigned() {
        uint64_view(py, ids.into_iter().map(i64::cast_unsigned))
    } else {
        int64_view(py, ids.into_iter())
    }
}

/// The full digests of the whole blocks of a prompt: what vLLM announces where it is told to send bytes.
#[pyfunction]
#[pyo3(signature = (
    tokens, block_size, *, scheme = "sglang", extra_key = None, cache_salt = None, bigram = false, hash_seed = None,
    adapter_path = None, lora_id = None, extra_keys = None, key_form = "tagged", none_hash = None, parent_digest = None
))]
#[allow(clippy::too_many_arguments, reason = "keyword arguments of the Python function")]
fn block_digests<'py>(
    py: Python<'py>,
    tokens: TokenArgument,
    #[pyo3(from_py_with = numbers::block_size)] block_size: usize,
    scheme: &str,
    extra_key: Option<&str>,
    cache_salt: Option<&str>,
    bigram: bool,
    hash_seed: Option<&str>,
    adapter_path: Option<&str>,
    #[pyo3(from_py_with = numbers::lora_id)] lora_id: Option<i64>,
    extra_keys: Option<ExtraKeys>,
    key_form: &str,
    #[pyo3(from_py_with = numbers::none_hash)] none_hash: Option<i64>,
    parent_digest: Option<PyBackedBytes>,
) -> PyResult<Bound<'py, PyList>> {
    let by = Separation {
        extra_key,
        cache_salt,
        adapter_path,
        adapter_number: lora_id,
        process: Process {
            hash_seed,
            key_form: self::key_form(py, key_form)?,
            none_hash,
        },
    };
    let namespace = namespace(py, block_size, scheme, by, bigram)?;
    let scheme = namespace.scheme;
    let blocks = Blocks::new(py, namespace, &tokens, extra_keys.as_ref(), parent_digest.as_ref())?;
    let digests = blocks.map(py, |digest| *digest);
    PyList::new(
        py,
        digests
            .iter()
            .map(|digest| PyBytes::new(py, scheme.digest_bytes(digest))),
    )
}

#[pyfunction]
#[pyo3(signature = (tokens, page_size, *, above = None, cache_salt = None, bigram = false))]
fn page_digests(
    py: Python<'_>,
    tokens: TokenArgument,
    #[pyo3(from_py_with = numbers::page_size)] page_size: usize,
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

#[pyfunction]
fn solve_none_hash(
    tokens: TokenArgument,
    #[pyo3(from_py_with = numbers::parent)] parent: i64,
    #[pyo3(from_py_with = numbers::block)] block: i64,
) -> i64 {
    none_hash(parent, tokens.as_slice(), block)
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
    module.add_function(wrap_pyfunction!(block_digests, module)?)?;
    module.add_function(wrap_pyfunction!(page_digests, module)?)?;
    module.add_function(wrap_pyfunction!(announced_ids, module)?)?;
    module.add_function(wrap_pyfunction!(solve_none_hash, module)?)?;
    module.add_class::<PyHashChain>()
}
