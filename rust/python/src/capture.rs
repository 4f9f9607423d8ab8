//! `kvevents._core.capture`.

use std::sync::Mutex;

use kvevents_core::hash::content::{Adapter, root};
use kvevents_core::pseudonyms::{self, KEY_BYTES, Keep, Names, prompt};
use kvevents_core::wire::{Event, Limits, read_batch};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffers::{TokenArgument, int64_view};
use crate::classes;
use crate::numbers;
use crate::wire::payload;

/// Keyed pseudonyms: equal for equal values under one key, and without the key as good as random.
#[pyclass(module = "kvevents._core.capture", frozen)]
struct Pseudonyms(Names);

#[pymethods]
impl Pseudonyms {
    #[new]
    #[pyo3(signature = (key, /))]
    fn new(py: Python<'_>, key: &[u8]) -> PyResult<Self> {
        let key: [u8; KEY_BYTES] = key.try_into().map_err(|_| {
            let message = format!("key: expected {KEY_BYTES} random bytes, got {}", key.len());
            classes::config_error(py, message)
        })?;
        Ok(Self(Names::new(key)))
    }

    /// What stands for a salt, a session, the name of an adapter, or a text among extra keys.
    #[pyo3(signature = (text, /))]
    fn text(&self, text: &str) -> String {
        self.0.text(text)
    }

    /// What stands for the number of an adapter.
    #[pyo3(signature = (number, /))]
    fn number(&self, #[pyo3(from_py_with = numbers::number)] number: i64) -> u64 {
        self.0.number(number.into())
    }

    /// What stands for a block's id, both as signed integers of 64 bits.
    #[pyo3(signature = (block, /))]
    fn block(&self, #[pyo3(from_py_with = numbers::block)] block: i64) -> i64 {
        self.0.hash_key(block.cast_unsigned()).cast_signed()
    }

    /// What stands for the tokens of a prompt, int64.
    #[pyo3(signature = (tokens, block_size, *, lora_name = None, lora_id = None, cache_salt = None))]
    fn prompt<'py>(
        &self,
        py: Python<'py>,
        tokens: TokenArgument,
        #[pyo3(from_py_with = numbers::tokens_in_block)] block_size: u32,
        lora_name: Option<&str>,
        #[pyo3(from_py_with = numbers::lora_id)] lora_id: Option<i64>,
        cache_salt: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let root = root(Adapter::new(lora_name, lora_id), cache_salt);
        let ids = prompt(&self.0, root, tokens.as_slice(), block_size as usize);
        int64_view(py, ids.into_iter().map(i64::from))
    }
}

/// Rewrites the batches of one source under pseudonyms, bytes to bytes.
#[pyclass(module = "kvevents._core.capture", frozen)]
struct Rewriter(Mutex<pseudonyms::Rewriter>);

#[pymethods]
impl Rewriter {
    #[new]
    #[pyo3(signature = (pseudonyms, /, *, keep_hashes = false, keep_tokens = false, remembered_blocks = 3_670_016))]
    fn new(
        pseudonyms: &Pseudonyms,
        keep_hashes: bool,
        keep_tokens: bool,
        #[pyo3(from_py_with = numbers::remembered_blocks)] remembered_blocks: usize,
    ) -> Self {
        let keep = Keep {
            hashes: keep_hashes,
            tokens: keep_tokens,
        };
        let rewriter = pseudonyms::Rewriter::new(pseudonyms.0.clone(), keep, remembered_blocks);
        Self(Mutex::new(rewriter))
    }

    /// Rewrite the next batch, in whatever dialect; it keeps its own.
    #[pyo3(signature = (data, /))]
    fn rewrite(&self, data: &Bound<'_, PyAny>) -> PyResult<Rewritten> {
        let py = data.py();
        let data = payload(data)?;
        let rewritten = py.detach(|| self.0.lock().expect("nothing panics under the lock").rewrite(&data));
        let rewritten = rewritten.map_err(|error| classes::wire_error(py, &error))?;
        Ok(Rewritten {
            payload: PyBytes::new(py, &rewritten.payload).unbind(),
            events: rewritten.events,
            blocks: rewritten.blocks,
            cleared: rewritten.cleared,
            emptied_events: rewritten.emptied_events,
            dropped_fields: rewritten.dropped_fields,
        })
    }
}

#[pyclass(module = "kvevents._core.capture", frozen, get_all)]
struct Rewritten {
    payload: Py<PyBytes>,
    events: u64,
    blocks: u64,
    cleared: u64,
    emptied_events: u64,
    dropped_fields: u64,
}

/// How many events a batch has, how many block hashes they name, and how many of them are clears.
#[pyfunction]
#[pyo3(signature = (data, /))]
fn measure(data: &Bound<'_, PyAny>) -> PyResult<(usize, usize, usize)> {
    let py = data.py();
    let data = payload(data)?;
    let measured = py.detach(|| {
        let batch = read_batch(&data, &Limits::default())?;
        let blocks = batch.events.iter().map(|event| match event {
            Event::Stored(stored) => stored.block_hashes.len(),
            Event::Removed(removed) => removed.block_hashes.len(),
            Event::Cleared(_) => 0,
        });
        let clears = batch.events.iter().filter(|event| matches!(event, Event::Cleared(_)));
        Ok((batch.events.len() + batch.skipped.len(), blocks.sum(), clears.count()))
    });
    measured.map_err(|error| classes::wire_error(py, &error))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Pseudonyms>()?;
    module.add_class::<Rewriter>()?;
    module.add_class::<Rewritten>()?;
    module.add_function(wrap_pyfunction!(measure, module)?)
}
