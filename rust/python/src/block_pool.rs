//! `kvevents._core.block_pool`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use kvevents_core::block_pool::{BlockPool, PoolError};
use kvevents_core::hash::chain::HashChain;
use kvevents_core::hash::namespace::Scheme;
use kvevents_core::hash::sglang::Digest;
use kvevents_core::recorder::{Group, RemoveEach, Store};
use pyo3::exceptions::{PyAssertionError, PyValueError};
use pyo3::prelude::*;

use crate::buffers::{TokenArgument, int64_view};
use crate::classes;
use crate::hashing::{DETACH_ABOVE, PyHashChain, choice, detach_if};
use crate::numbers;
use crate::recorder::EventRecorder;
use crate::slots::Slots;

/// What vLLM calls the tier and the one cache group of a model with full attention.
const MEDIUM: &str = "GPU";
const GROUP: Group<'_> = Group {
    index: 0,
    kind: "full_attention",
    sliding_window: None,
};

/// Far more than any KV memory has, and few enough to make room for all of them at once.
const MOST_BLOCKS: u32 = 1 << 26;

#[pyclass(frozen, name = "BlockPool", module = "kvevents._core.block_pool")]
struct PyBlockPool {
    pool: Mutex<BlockPool>,
    page_size: usize,
    scheme: Scheme,
    recorder: Py<EventRecorder>,
}

#[pymethods]
impl PyBlockPool {
    #[new]
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = numbers::num_blocks)] num_blocks: u32,
        #[pyo3(from_py_with = numbers::page_size)] page_size: usize,
        scheme: &str,
        recorder: Py<EventRecorder>,
    ) -> PyResult<Self> {
        let schemes = Scheme::NAMES
            .into_iter()
            .filter(|(_, scheme)| matches!(scheme, Scheme::Vllm(_)));
        let scheme = choice(py, "scheme", scheme, &schemes.collect::<Vec<_>>())?;
        let refused = |message: String| Err(classes::config_error(py, message));
        if num_blocks < 2 {
            return refused(format!(
                "num_blocks: expected at least 2, of which one is a placeholder, got {num_blocks}"
            ));
        }
        if num_blocks > MOST_BLOCKS {
            return refused(format!("num_blocks: expected at most {MOST_BLOCKS}, got {num_blocks}"));
        }
        let got = recorder.get().page_size();
        if got != page_size {
            return refused(format!("recorder: expected one for pages of {page_size}, got {got}"));
        }
        Ok(Self {
            pool: Mutex::new(BlockPool::new(num_blocks)),
            page_size,
            scheme,
            recorder,
        })
    }

    #[getter]
    fn num_blocks(&self) -> usize {
        self.lock().blocks()
    }

    #[getter]
    fn free(&self) -> usize {
        self.lock().free()
    }

    #[getter]
    fn labelled(&self) -> usize {
        self.lock().labelled()
    }

    #[getter]
    fn evictable(&self) -> usize {
        self.lock().evictable()
    }

    fn lookup<'py>(&self, py: Python<'py>, chain: &PyHashChain) -> PyResult<Bound<'py, PyAny>> {
        let found = self.lock().lookup(self.digests(&chain.0)?);
        int64_view(py, found.into_iter())
    }

    fn slots<'py>(&self, py: Python<'py>, blocks: Slots) -> PyResult<Bound<'py, PyAny>> {
        self.lock().parked(&blocks).map_err(refused)?;
        let size = self.page_size as i64;
        let slots: Vec<i64> = blocks
            .iter()
            .flat_map(|block| block * size..(block + 1) * size)
            .collect();
        int64_view(py, slots.into_iter())
    }

    fn parked(&self, blocks: Slots) -> PyResult<usize> {
        self.lock().parked(&blocks).map_err(refused)
    }

    #[pyo3(signature = (blocks, chain = None))]
    fn hold(&self, blocks: Slots, chain: Option<&PyHashChain>) -> PyResult<()> {
        let digests = chain.map(|chain| self.digests(&chain.0)).transpose()?;
        self.lock().hold(&blocks, digests).map_err(refused)
    }

    fn take<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = numbers::count)] count: usize,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(taken) = self.lock().take(count) else {
            return Ok(None);
        };
        self.announce_evicted(&taken.evicted);
        int64_view(py, taken.blocks.into_iter()).map(Some)
    }

    #[pyo3(signature = (blocks, chain, tokens, *, session_id = None))]
    fn publish(
        &self,
        py: Python<'_>,
        blocks: Slots,
        chain: &PyHashChain,
        tokens: TokenArgument,
        session_id: Option<&str>,
    ) -> PyResult<()> {
        let chain = &chain.0;
        let digests = self.digests(chain)?;
        let tokens = tokens.as_slice();
        let expected = chain.len() * self.page_size;
        if tokens.len() != expected {
            return Err(PyValueError::new_err(format!(
                "tokens: expected {expected}, those of the chain's {} pages, got {}",
                chain.len(),
                tokens.len()
            )));
        }
        self.lock().publish(&blocks, digests).map_err(refused)?;
        let Some(recorder) = self.recorder.get().active() else {
            return Ok(());
        };
        let store = Store {
            chain,
            tokens,
            medium: MEDIUM,
            session_id,
            registered: None,
            group: Some(GROUP),
        };
        detach_if(py, chain.len() > DETACH_ABOVE, || recorder.store(&store))
            .expect("page size and tokens are those of the chain");
        Ok(())
    }

    fn release(&self, blocks: Slots) -> PyResult<()> {
        self.lock().release(&blocks).map_err(refused)
    }

    fn evict(&self, #[pyo3(from_py_with = numbers::count)] count: usize) -> usize {
        let evicted = self.lock().evict(count);
        self.announce_evicted(&evicted);
        evicted.len()
    }

    fn reset(&self) -> bool {
        let is_done = self.lock().reset();
        if let (true, Some(recorder)) = (is_done, self.recorder.get().active()) {
            recorder.clear();
        }
        is_done
    }

    fn ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let ids: Vec<i64> = self.lock().digests().map(|digest| self.scheme.id(digest)).collect();
        int64_view(py, ids.into_iter())
    }

    fn queue<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let queue: Vec<i64> = self.lock().queue().map(i64::from).collect();
        int64_view(py, queue.into_iter())
    }

    fn check_integrity(&self) -> PyResult<()> {
        self.lock().check().map_err(PyAssertionError::new_err)
    }
}

impl PyBlockPool {
    fn lock(&self) -> MutexGuard<'_, BlockPool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The digests of a chain that is cut and hashed as this pool's blocks are.
    fn digests<'a>(&self, chain: &'a HashChain) -> PyResult<&'a [Digest]> {
        let namespace = chain.namespace();
        if (namespace.scheme, namespace.paging.page_size()) == (self.scheme, self.page_size) {
            return Ok(chain.digests());
        }
        Err(PyValueError::new_err(format!(
            "chain: expected pages of {} hashed as the pool's, got pages of {} in the scheme {}",
            self.page_size,
            namespace.paging.page_size(),
            namespace.scheme.name()
        )))
    }

    fn announce_evicted(&self, evicted: &[Digest]) {
        let Some(recorder) = self.recorder.get().active() else {
            return;
        };
        let ids: Vec<i64> = evicted.iter().map(|digest| self.scheme.id(digest)).collect();
        recorder.remove_each(&RemoveEach {
            scheme: self.scheme,
            ids: &ids,
            medium: MEDIUM,
            group_idx: Some(GROUP.index),
        });
    }
}

fn refused(error: PoolError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyBlockPool>()
}
