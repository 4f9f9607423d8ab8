//! `kvevents._core.learned`.

use std::sync::Mutex;

use kvevents_core::learned::{Holder, Learned};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::buffers::TokenArgument;
use crate::hashing::detach_if;
use crate::index::{LONG_PROMPT, PromptArgument};
use crate::numbers;
use crate::texts;

/// A prompt's whole blocks, as content hashes.
#[pyclass(module = "kvevents._core.learned", frozen)]
pub(crate) struct PromptChain(pub(crate) Vec<u64>);

#[pymethods]
impl PromptChain {
    fn __len__(&self) -> usize {
        self.0.len()
    }
}

/// Blocks that holders are believed to hold; the least recently used are forgotten first.
#[pyclass(name = "LearnedIndex", module = "kvevents._core.learned", frozen)]
pub(crate) struct PyLearnedIndex {
    learned: Mutex<Learned>,
    pub(crate) block_size: u32,
}

impl PyLearnedIndex {
    /// Nothing in here panics while it holds the lock, so a poisoned one holds a sound index all the same.
    pub(crate) fn learned(&self) -> std::sync::MutexGuard<'_, Learned> {
        self.learned.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[pymethods]
impl PyLearnedIndex {
    #[new]
    #[pyo3(signature = (block_size, max_blocks))]
    fn new(
        #[pyo3(from_py_with = numbers::tokens_in_block)] block_size: u32,
        #[pyo3(from_py_with = numbers::max_blocks)] max_blocks: u32,
    ) -> Self {
        Self {
            learned: Mutex::new(Learned::new(max_blocks as usize)),
            block_size,
        }
    }

    #[getter]
    fn block_size(&self) -> u32 {
        self.block_size
    }

    /// The blocks of a prompt; `apart` from all others where the ids are no token ids.
    #[allow(
        clippy::too_many_arguments,
        reason = "what identifies a prompt, as for `PrefixIndex.match`"
    )]
    fn chain(
        &self,
        py: Python<'_>,
        tokens: TokenArgument,
        #[pyo3(from_py_with = texts::lora_name)] lora_name: Option<String>,
        #[pyo3(from_py_with = numbers::lora_id)] lora_id: Option<i64>,
        #[pyo3(from_py_with = texts::cache_salt)] cache_salt: Option<String>,
        extra_keys: Option<PyBackedBytes>,
        apart: bool,
    ) -> PyResult<PromptChain> {
        let argument = PromptArgument {
            tokens,
            lora_name,
            lora_id,
            cache_salt,
            extra_keys,
        };
        let prompt = argument.prompt(py)?;
        let hashes = detach_if(py, prompt.tokens.len() > LONG_PROMPT, || {
            prompt.chain(self.block_size, apart)
        });
        Ok(PromptChain(hashes))
    }

    /// Leading blocks that a holder had of a prompt, all of them used since then; from now on it has all.
    #[allow(clippy::too_many_arguments, reason = "a prompt, and by whom and when it was met")]
    fn meet(
        &self,
        py: Python<'_>,
        tokens: TokenArgument,
        #[pyo3(from_py_with = texts::lora_name)] lora_name: Option<String>,
        #[pyo3(from_py_with = numbers::lora_id)] lora_id: Option<i64>,
        #[pyo3(from_py_with = texts::cache_salt)] cache_salt: Option<String>,
        extra_keys: Option<PyBackedBytes>,
        apart: bool,
        #[pyo3(from_py_with = numbers::holder)] holder: Holder,
        now: f64,
        since: f64,
    ) -> PyResult<usize> {
        let chain = self
            .chain(py, tokens, lora_name, lora_id, cache_salt, extra_keys, apart)?
            .0;
        let mut learned = self.learned();
        let depth = learned.depth(&chain, holder, since);
        learned.expire(since);
        learned.learn(&chain, holder, now, 0.0, 0.0);
        Ok(depth)
    }

    /// Leading blocks that each (holder, since) has, all of them used since then.
    fn depths(&self, chain: PyRef<'_, PromptChain>, holders: Vec<(Holder, f64)>) -> Vec<usize> {
        let learned = self.learned();
        let depth = |(holder, since)| learned.depth(&chain.0, holder, since);
        holders.into_iter().map(depth).collect()
    }

    /// The work of each (holder, depth) for prompts that begin with so many blocks of this one, at least one.
    fn works(&self, chain: PyRef<'_, PromptChain>, holders: Vec<(Holder, usize)>, clock: f64) -> Vec<f64> {
        let learned = self.learned();
        let work = |(holder, depth): (Holder, usize)| {
            let block = depth.checked_sub(1).and_then(|last| chain.0.get(last));
            block.map_or(0.0, |&block| learned.work(block, holder, clock))
        };
        holders.into_iter().map(work).collect()
    }

    /// The prompt went to a holder, and costs it so much work.
    fn learn(
        &self,
        chain: PyRef<'_, PromptChain>,
        #[pyo3(from_py_with = numbers::holder)] holder: Holder,
        now: f64,
        work: f64,
        clock: f64,
    ) {
        self.learned().learn(&chain.0, holder, now, work, clock);
    }

    /// Forget what was last used before then.
    fn expire(&self, before: f64) {
        self.learned().expire(before);
    }

    /// Forget what a holder has.
    fn forget(&self, #[pyo3(from_py_with = numbers::holder)] holder: Holder) {
        self.learned().forget(holder);
    }

    /// Blocks of a holder.
    fn held(&self, #[pyo3(from_py_with = numbers::holder)] holder: Holder) -> usize {
        self.learned().held(holder)
    }

    /// Blocks of all holders.
    fn __len__(&self) -> usize {
        self.learned().len()
    }

    /// Blocks forgotten for want of room since the start.
    #[getter]
    fn evicted(&self) -> u64 {
        self.learned().evicted()
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyLearnedIndex>()?;
    module.add_class::<PromptChain>()
}
