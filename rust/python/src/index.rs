//! `kvevents._core.index`.

mod answers;
mod found;
mod report;
mod view;

use std::borrow::Cow;
use std::time::Duration;

use kvevents_core::index::{
    Bounds, Config, Group, Handle, IndexError, Kind, Match, Outlook, PrefixIndex, Prompt, Target, WorkerSetup,
};
use kvevents_core::wire::{Limits, Raw};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyDict, PyList};

use crate::buffers::TokenArgument;
use crate::classes;
use crate::hashing::{DETACH_ABOVE, detach_if};
use crate::numbers;
use crate::texts;
use crate::wire::payload;

pub(crate) use found::Found;
use report::ApplyReport;

/// Tokens above which a match releases the GIL. So many take 40 us; a shorter match would be done before it gets the
/// GIL back from a thread that writes to the index, which takes 100 us.
pub(crate) const LONG_PROMPT: usize = 1 << 16;
/// Bytes that a block takes on the wire at least: an integer of 64 bits.
const BLOCK_BYTES: usize = 9;

#[pyclass(module = "kvevents._core.index", frozen, eq, hash)]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct WorkerHandle(Handle);

#[pymethods]
impl WorkerHandle {
    #[getter]
    fn id(&self) -> &str {
        &self.0.id
    }

    fn __repr__(&self) -> String {
        format!("WorkerHandle({:?})", self.0.id)
    }
}

/// A worker as Python names it.
///
/// The id first: what is tried in vain costs as much as a small batch.
enum WorkerArgument<'py> {
    Id(PyBackedStr),
    Handle(PyRef<'py, WorkerHandle>),
}

impl<'py> WorkerArgument<'py> {
    fn read(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(id) = object.extract() {
            return Ok(Self::Id(id));
        }
        let handle = object.extract().map(Self::Handle);
        handle.map_err(|_| texts::type_error("worker", "a handle or an id", object))
    }

    fn target(&self) -> Target<'_> {
        match self {
            Self::Handle(handle) => Target::Handle(&handle.0),
            Self::Id(id) => Target::Id(id),
        }
    }
}

/// Batches of one source as Python hands them over: (sequence, payload) of each.
fn numbered(object: &Bound<'_, PyAny>) -> PyResult<Vec<(u64, PyBackedBytes)>> {
    let refused = |part: &Bound<'_, PyAny>| texts::type_error("batches", "a sequence and a payload of bytes", part);
    let batch = |item: PyResult<Bound<'_, PyAny>>| {
        let item = item?;
        let (seq, data): (Bound<'_, PyAny>, PyBackedBytes) = item.extract().map_err(|_| refused(&item))?;
        let seq = numbers::seq(&seq)?.ok_or_else(|| refused(&item))?;
        Ok((seq, data))
    };
    object.try_iter()?.map(batch).collect()
}

/// A prompt as Python hands it over: tokens, adapter's name, adapter's number, salt, extra keys as msgpack.
pub(crate) struct PromptArgument {
    pub(crate) tokens: TokenArgument,
    pub(crate) lora_name: Option<String>,
    pub(crate) lora_id: Option<i64>,
    pub(crate) cache_salt: Option<String>,
    pub(crate) extra_keys: Option<PyBackedBytes>,
}

impl PromptArgument {
    pub(crate) fn prompt(&self, py: Python<'_>) -> PyResult<Prompt<'_>> {
        let extra_keys = self.extra_keys.as_deref().map(Raw::read).transpose();
        let extra_keys = extra_keys.map_err(|error| classes::wire_error(py, &error))?;
        let (lora_name, cache_salt) = (self.lora_name.as_deref(), self.cache_salt.as_deref());
        Prompt::new(self.tokens.as_slice(), lora_name, self.lora_id, cache_salt, extra_keys)
            .ok_or_else(|| PyTypeError::new_err("extra_keys: expected a list with None or a list for each block"))
    }

    fn read(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self {
            tokens: object.get_item(0)?.extract()?,
            lora_name: texts::lora_name(&object.get_item(1)?)?,
            lora_id: numbers::lora_id(&object.get_item(2)?)?,
            cache_salt: texts::cache_salt(&object.get_item(3)?)?,
            extra_keys: object.get_item(4)?.extract()?,
        })
    }
}

#[pyclass(name = "PrefixIndex", module = "kvevents._core.index", frozen)]
pub(crate) struct PyPrefixIndex(PrefixIndex);

#[pymethods]
impl PyPrefixIndex {
    #[new]
    #[pyo3(signature = (
        block_size, *, keep_tokens, max_pending_blocks, max_pending_bytes, max_pending_age_s, max_parked_blocks,
        max_parked_bytes, max_parked_age_s, max_sources
    ))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of the Python class")]
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = numbers::tokens_in_block)] block_size: u32,
        #[pyo3(from_py_with = keep_tokens_of)] keep_tokens: bool,
        #[pyo3(from_py_with = numbers::max_pending_blocks)] max_pending_blocks: usize,
        #[pyo3(from_py_with = numbers::max_pending_bytes)] max_pending_bytes: usize,
        #[pyo3(from_py_with = max_pending_age_s_of)] max_pending_age_s: Duration,
        #[pyo3(from_py_with = numbers::max_parked_blocks)] max_parked_blocks: usize,
        #[pyo3(from_py_with = numbers::max_parked_bytes)] max_parked_bytes: usize,
        #[pyo3(from_py_with = max_parked_age_s_of)] max_parked_age_s: Duration,
        #[pyo3(from_py_with = numbers::max_sources)] max_sources: usize,
    ) -> PyResult<Self> {
        let config = Config {
            block_size,
            keep_tokens,
            pending: Bounds {
                blocks: max_pending_blocks,
                bytes: max_pending_bytes,
                age: max_pending_age_s,
            },
            parked: Bounds {
                blocks: max_parked_blocks,
                bytes: max_parked_bytes,
                age: max_parked_age_s,
            },
            sources: max_sources,
            wire: Limits::default(),
        };
        PrefixIndex::new(config).map(Self).map_err(|error| raise(py, &error))
    }

    #[getter]
    fn block_size(&self) -> u32 {
        self.0.config().block_size
    }

    /// Groups come as (number, kind, window in tokens).
    #[pyo3(signature = (worker, *, block_size, counted, groups))]
    fn add_worker(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = texts::id)] worker: String,
        #[pyo3(from_py_with = numbers::tokens_in_block_if_known)] block_size: Option<u32>,
        counted: bool,
        groups: Option<Vec<(u64, String, Option<u64>)>>,
    ) -> PyResult<WorkerHandle> {
        let group = |(index, kind, window): (u64, String, _)| Group {
            index,
            stated: Some(Kind::read(&kind, window)),
        };
        let setup = WorkerSetup {
            block_size,
            counted,
            groups: groups.map(|groups| groups.into_iter().map(group).collect()),
        };
        let handle = py.detach(|| self.0.add_worker(&worker, &setup));
        let handle = handle.map_err(|error| raise(py, &error))?;
        Ok(WorkerHandle(handle))
    }

    fn remove_worker(&self, py: Python<'_>, #[pyo3(from_py_with = texts::id)] worker: String) -> bool {
        py.detach(|| self.0.remove_worker(&worker))
    }

    #[pyo3(signature = (worker, dp_rank = None))]
    fn clear_worker(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = texts::id)] worker: String,
        #[pyo3(from_py_with = numbers::dp_rank)] dp_rank: Option<i64>,
    ) {
        py.detach(|| self.0.clear_worker(&worker, dp_rank));
    }

    fn set_state(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = texts::worker_id)] worker_id: String,
        #[pyo3(from_py_with = numbers::dp_rank)] dp_rank: Option<i64>,
        #[pyo3(from_py_with = texts::state)] state: String,
    ) -> PyResult<bool> {
        py.detach(|| self.0.set_state(&worker_id, dp_rank, &state))
            .map_err(|error| raise(py, &error))
    }

    #[pyo3(signature = (worker, data, *, seq = None, dp_rank = None))]
    fn apply(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = WorkerArgument::read)] worker: WorkerArgument<'_>,
        data: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numbers::seq)] seq: Option<u64>,
        #[pyo3(from_py_with = numbers::dp_rank)] dp_rank: Option<i64>,
    ) -> PyResult<ApplyReport> {
        let data = payload(data)?;
        let target = worker.target();
        let long = data.len() > DETACH_ABOVE * BLOCK_BYTES || self.0.is_busy();
        let outcome = detach_if(py, long, || self.0.apply(target, &data, seq, dp_rank));
        outcome.map(ApplyReport).map_err(|error| raise(py, &error))
    }

    /// Apply batches of one source in order, up to the first about which there is something to say.
    #[pyo3(signature = (worker, batches, *, dp_rank=None))]
    fn apply_run(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = WorkerArgument::read)] worker: WorkerArgument<'_>,
        #[pyo3(from_py_with = numbered)] batches: Vec<(u64, PyBackedBytes)>,
        #[pyo3(from_py_with = numbers::dp_rank)] dp_rank: Option<i64>,
    ) -> (usize, Option<ApplyReport>, Vec<i64>) {
        let target = worker.target();
        let size: usize = batches.iter().map(|(_, data)| data.len()).sum();
        let long = size > DETACH_ABOVE * BLOCK_BYTES || self.0.is_busy();
        let batches = batches.iter().map(|(seq, data)| (*seq, &data[..]));
        let run = detach_if(py, long, || self.0.apply_run(target, batches, dp_rank));
        (run.taken, run.report.map(ApplyReport), run.ranks)
    }

    #[pyo3(name = "match", signature = (tokens, lora_name, lora_id, cache_salt, extra_keys))]
    fn match_prompt<'py>(
        &self,
        py: Python<'py>,
        tokens: TokenArgument,
        #[pyo3(from_py_with = texts::lora_name)] lora_name: Option<String>,
        #[pyo3(from_py_with = numbers::lora_id)] lora_id: Option<i64>,
        #[pyo3(from_py_with = texts::cache_salt)] cache_salt: Option<String>,
        extra_keys: Option<PyBackedBytes>,
    ) -> PyResult<Bound<'py, PyList>> {
        let arguments = [PromptArgument {
            tokens,
            lora_name,
            lora_id,
            cache_salt,
            extra_keys,
        }];
        let mut found = self.find(py, &arguments)?;
        answers::matches(py, found.pop().unwrap_or_default())
    }

    /// What `match` tells, without Python values for it.
    #[pyo3(name = "find", signature = (tokens, lora_name, lora_id, cache_salt, extra_keys))]
    fn find_prompt(
        &self,
        py: Python<'_>,
        tokens: TokenArgument,
        #[pyo3(from_py_with = texts::lora_name)] lora_name: Option<String>,
        #[pyo3(from_py_with = numbers::lora_id)] lora_id: Option<i64>,
        #[pyo3(from_py_with = texts::cache_salt)] cache_salt: Option<String>,
        extra_keys: Option<PyBackedBytes>,
    ) -> PyResult<Found> {
        let argument = PromptArgument {
            tokens,
            lora_name,
            lora_id,
            cache_salt,
            extra_keys,
        };
        let mut found = self.find(py, &[argument])?;
        Ok(Found(found.pop().unwrap_or_default()))
    }

    fn match_many<'py>(&self, py: Python<'py>, prompts: Bound<'py, PyList>) -> PyResult<Vec<Bound<'py, PyList>>> {
        let prompts = prompts.iter().map(|prompt| PromptArgument::read(&prompt));
        let prompts: Vec<_> = prompts.collect::<PyResult<_>>()?;
        let found = self.find(py, &prompts)?;
        found.into_iter().map(|matches| answers::matches(py, matches)).collect()
    }

    /// Content hashes, 8 bytes each, little-endian: of the deepest known block, of one half as deep, and so on.
    #[pyo3(signature = (tokens, lora_name, lora_id, cache_salt, extra_keys))]
    fn trail(
        &self,
        py: Python<'_>,
        tokens: TokenArgument,
        #[pyo3(from_py_with = texts::lora_name)] lora_name: Option<String>,
        #[pyo3(from_py_with = numbers::lora_id)] lora_id: Option<i64>,
        #[pyo3(from_py_with = texts::cache_salt)] cache_salt: Option<String>,
        extra_keys: Option<PyBackedBytes>,
    ) -> PyResult<Cow<'static, [u8]>> {
        let argument = PromptArgument {
            tokens,
            lora_name,
            lora_id,
            cache_salt,
            extra_keys,
        };
        let prompt = argument.prompt(py)?;
        let trail = detach_if(py, prompt.tokens.len() > LONG_PROMPT, || self.0.trail(&prompt));
        let bytes: Vec<u8> = trail.iter().flat_map(|hash| hash.to_le_bytes()).collect();
        Ok(bytes.into())
    }

    /// Figures under the names of `kvevents.index.View`; None where there is nothing at the place asked for.
    #[pyo3(signature = (at, depth, limit, holders, trails))]
    fn explore<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = numbers::at)] at: Option<u64>,
        #[pyo3(from_py_with = numbers::depth)] depth: usize,
        #[pyo3(from_py_with = numbers::limit)] limit: usize,
        #[pyo3(from_py_with = numbers::holders)] holders: usize,
        trails: Vec<PyBackedBytes>,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let outlook = Outlook {
            at,
            depth,
            limit,
            holders,
        };
        let view = py.detach(|| {
            let hashes = |trail: &PyBackedBytes| {
                let words = trail.as_chunks::<8>().0.iter();
                words.map(|&word| u64::from_le_bytes(word)).collect::<Vec<_>>()
            };
            let trails: Vec<_> = trails.iter().map(hashes).collect();
            self.0.explore(outlook, &trails)
        });
        view.map(|view| view::figures(py, &view)).transpose()
    }

    fn holdings<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = texts::worker_id)] worker_id: String,
    ) -> PyResult<Bound<'py, PyDict>> {
        let holdings = py.detach(|| self.0.holdings(&worker_id)).unwrap_or_default();
        answers::holdings(py, holdings)
    }

    fn dump_events<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = texts::worker)] worker: String,
    ) -> PyResult<Bound<'py, PyList>> {
        let dump = py.detach(|| self.0.dump_events(&worker));
        let dump = dump.map_err(|error| raise(py, &error))?;
        answers::dump(py, dump.unwrap_or_default())
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        answers::stats(py, &py.detach(|| self.0.stats()))
    }

    fn snapshot(&self, py: Python<'_>) -> Cow<'static, [u8]> {
        py.detach(|| self.0.snapshot()).into()
    }

    fn restore(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let data = payload(data)?;
        py.detach(|| self.0.restore(&data)).map_err(|error| raise(py, &error))
    }

    /// None where the worker is not there.
    #[pyo3(signature = (worker, dp_rank = None))]
    fn snapshot_worker(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = texts::worker)] worker: String,
        #[pyo3(from_py_with = numbers::dp_rank)] dp_rank: Option<i64>,
    ) -> Option<Vec<Cow<'static, [u8]>>> {
        let images = py.detach(|| self.0.snapshot_worker(&worker, dp_rank))?;
        Some(images.into_iter().map(Cow::from).collect())
    }

    #[pyo3(signature = (worker, data, *, seq = None, dp_rank = None))]
    fn restore_worker(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = texts::worker)] worker: String,
        data: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = numbers::seq)] seq: Option<u64>,
        #[pyo3(from_py_with = numbers::dp_rank)] dp_rank: Option<i64>,
    ) -> PyResult<ApplyReport> {
        let data = payload(data)?;
        let outcome = py.detach(|| self.0.restore_worker(&worker, &data, seq, dp_rank));
        outcome.map(ApplyReport).map_err(|error| raise(py, &error))
    }

    fn faults(&self, py: Python<'_>) -> Vec<String> {
        py.detach(|| self.0.check_integrity())
    }
}

impl PyPrefixIndex {
    fn find(&self, py: Python<'_>, arguments: &[PromptArgument]) -> PyResult<Vec<Vec<Match>>> {
        let prompts = arguments.iter().map(|prompt| prompt.prompt(py));
        let prompts: Vec<Prompt<'_>> = prompts.collect::<PyResult<_>>()?;
        let tokens: usize = prompts.iter().map(|prompt| prompt.tokens.len()).sum();
        Ok(detach_if(py, tokens > LONG_PROMPT, || {
            prompts.iter().map(|prompt| self.0.match_prompt(prompt)).collect()
        }))
    }
}

/// The Python exception for an error.
fn raise(py: Python<'_>, error: &IndexError) -> PyErr {
    match error {
        IndexError::Wire(error) => classes::wire_error(py, error),
        IndexError::Snapshot(error) => classes::wire_fault(py, error.reason.clone(), error.offset),
        IndexError::Config(message) => classes::config_error(py, message.clone()),
        IndexError::Copies { copies, limit } => classes::capacity_error(py, error.to_string(), *copies, *limit),
        IndexError::Capacity { limit } => classes::capacity_error(py, error.to_string(), limit + 1, *limit),
    }
}

fn keep_tokens_of(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    object
        .extract()
        .map_err(|_| texts::type_error("keep_tokens", "True or False", object))
}

fn max_pending_age_s_of(object: &Bound<'_, PyAny>) -> PyResult<Duration> {
    seconds(object, "max_pending_age_s")
}

fn max_parked_age_s_of(object: &Bound<'_, PyAny>) -> PyResult<Duration> {
    seconds(object, "max_parked_age_s")
}

fn seconds(object: &Bound<'_, PyAny>, setting: &str) -> PyResult<Duration> {
    let value: f64 = object
        .extract()
        .map_err(|_| texts::type_error(setting, "seconds", object))?;
    Duration::try_from_secs_f64(value).or_else(|_| {
        if value == f64::INFINITY {
            return Ok(Duration::MAX);
        }
        let message = format!("{setting}: expected seconds from 0, got {value}");
        Err(classes::config_error(object.py(), message))
    })
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyPrefixIndex>()?;
    module.add_class::<WorkerHandle>()?;
    module.add_class::<Found>()?;
    module.add_class::<ApplyReport>()
}
