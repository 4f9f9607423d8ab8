//! Extra keys of vLLM's blocks out of Python values: for each block None or a sequence of keys.

use kvevents_core::hash::vllm::ExtraKey;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PySequence, PyString};

/// One key: `[image id, offset]`, an image id alone, or a digest of prompt embeddings.
enum Key {
    Image { id: String, offset: Option<i64> },
    Embeddings(Vec<u8>),
}

impl Key {
    fn extract(value: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        if let Ok(id) = value.cast::<PyString>() {
            let id = id.extract()?;
            return Ok(Some(Self::Image { id, offset: None }));
        }
        if let Ok(digest) = value.cast::<PyBytes>() {
            return Ok(Some(Self::Embeddings(digest.as_bytes().to_vec())));
        }
        if value
            .cast::<PySequence>()
            .is_ok_and(|pair| pair.len().is_ok_and(|parts| parts == 2))
            && let (Ok(id), Ok(offset)) = (value.get_item(0)?.extract(), value.get_item(1)?.extract())
        {
            let offset = Some(offset);
            return Ok(Some(Self::Image { id, offset }));
        }
        Ok(None)
    }

    fn borrow(&self) -> ExtraKey<'_> {
        match self {
            Self::Image { id, offset } => ExtraKey::Image { id, offset: *offset },
            Self::Embeddings(digest) => ExtraKey::Embeddings(digest),
        }
    }
}

/// The keys of each block.
pub(super) struct ExtraKeys(Vec<Vec<Key>>);

impl ExtraKeys {
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Each block's keys.
    pub fn blocks(&self) -> impl Iterator<Item = Vec<ExtraKey<'_>>> {
        self.0.iter().map(|keys| keys.iter().map(Key::borrow).collect())
    }
}

impl<'py> FromPyObject<'_, 'py> for ExtraKeys {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let entries = sequence(&object, || {
            "a sequence with None or a sequence of keys for each block".into()
        })?;
        let keys = entries.try_iter()?.enumerate().map(|(block, entry)| {
            let entry = entry?;
            if entry.is_none() {
                return Ok(Vec::new());
            }
            let keys = sequence(&entry, || format!("None or a sequence of keys for block {block}"))?;
            let keys = keys.try_iter()?.map(|key| {
                let key = key?;
                Key::extract(&key)?.ok_or_else(|| {
                    PyValueError::new_err(format!(
                        "extra_keys: expected [image id, offset], an image id or bytes, got {} in block {block}",
                        key.repr()
                            .map_or_else(|_| "something else".into(), |text| text.to_string())
                    ))
                })
            });
            keys.collect()
        });
        keys.collect::<PyResult<_>>().map(Self)
    }
}

/// Strings and bytes are sequences in Python; here they are not.
fn sequence<'a, 'py>(
    value: &'a Bound<'py, PyAny>,
    expected: impl FnOnce() -> String,
) -> PyResult<&'a Bound<'py, PySequence>> {
    match value.cast::<PySequence>() {
        Ok(found) if !value.is_instance_of::<PyString>() && !value.is_instance_of::<PyBytes>() => Ok(found),
        _ => Err(PyTypeError::new_err(format!(
            "extra_keys: expected {}, got {}",
            expected(),
            value.get_type()
        ))),
    }
}
