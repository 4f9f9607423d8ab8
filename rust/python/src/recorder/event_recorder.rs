//! The recorder as Python sees it.

use std::time::{SystemTime, UNIX_EPOCH};

use kvevents_core::coalesce::{Cap, Level};
use kvevents_core::hash::sglang::EventFormat;
use kvevents_core::recorder::{Recorder, Refused, Remove, Settings, Stats, Store, Taken};
use kvevents_core::wire::{Dialect, Limits, NoPlace, read_batch};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::group::CacheGroup;
use super::naming::registered;
use crate::buffers::{TokenArgument, int64_view};
use crate::classes;
use crate::hashing::{DETACH_ABOVE, PyHashChain, choice, detach_if};
use crate::numbers;
use crate::wire::{dialect as dialect_of, python_event};

// The signature below shows them to Python users.
const _: () = assert!(Cap::DEFAULT.blocks == 16_384 && Cap::DEFAULT.bytes == 1_048_576);

/// Collects what a cache did and gives it out in batches: the fast way to announce events. Thread-safe.
#[pyclass(module = "kvevents._core.recorder", frozen)]
pub(crate) struct EventRecorder {
    recorder: Recorder,
    enabled: bool,
    lora_names: Option<Py<PyAny>>,
}

#[pymethods]
impl EventRecorder {
    #[new]
    #[pyo3(signature = (
        page_size, *, coalesce = "adjacent", event_format = "default", enabled = true, lora_names = None,
        max_event_blocks = 16_384, max_event_bytes = 1_048_576
    ))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of the Python class")]
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = numbers::page_size)] page_size: usize,
        coalesce: &str,
        event_format: &str,
        enabled: bool,
        lora_names: Option<Py<PyAny>>,
        #[pyo3(from_py_with = numbers::max_event_blocks)] max_event_blocks: usize,
        #[pyo3(from_py_with = numbers::max_event_bytes)] max_event_bytes: usize,
    ) -> PyResult<Self> {
        if page_size == 0 {
            return Err(classes::config_error(
                py,
                "page_size: expected at least 1, got 0".to_owned(),
            ));
        }
        if let Some(names) = lora_names.as_ref().map(|names| names.bind(py))
            && !names.hasattr("get")?
        {
            let message = format!("lora_names: expected a mapping, got {}", names.get_type());
            return Err(classes::config_error(py, message));
        }
        let settings = Settings {
            page_size,
            coalesce: choice(py, "coalesce", coalesce, &Level::NAMES)?,
            event_format: choice(py, "event_format", event_format, &EventFormat::NAMES)?,
            cap: Cap {
                blocks: max_event_blocks,
                bytes: max_event_bytes,
            },
        };
        Ok(Self {
            recorder: Recorder::new(settings),
            enabled,
            lora_names,
        })
    }

    /// Record that blocks are held now. An empty chain says nothing.
    #[pyo3(signature = (chain, tokens, *, medium = "GPU", session_id = None, group = None))]
    fn store(
        &self,
        py: Python<'_>,
        chain: &PyHashChain,
        tokens: &Bound<'_, PyAny>,
        medium: &str,
        session_id: Option<&str>,
        group: Option<&CacheGroup>,
    ) -> PyResult<()> {
        if !self.enabled {
            return Ok(());
        }
        let chain = &chain.0;
        let tokens: TokenArgument = tokens.extract()?;
        let tokens = tokens.as_slice();
        let name = self.registered(py, chain.namespace().extra_key.as_deref())?;
        let store = Store {
            chain,
            tokens,
            medium,
            session_id,
            registered: name.as_deref(),
            group: group.map(CacheGroup::as_core),
        };
        self.record_store(py, &store)
    }

    /// Record that blocks are no longer held in a tier, by a cache group. An empty chain says nothing.
    #[pyo3(signature = (chain, *, medium = "GPU", group = None))]
    fn remove(&self, py: Python<'_>, chain: &PyHashChain, medium: &str, group: Option<&CacheGroup>) -> PyResult<()> {
        if !self.enabled {
            return Ok(());
        }
        let chain = &chain.0;
        let name = self.registered(py, chain.namespace().extra_key.as_deref())?;
        let remove = Remove {
            chain,
            medium,
            registered: name.as_deref(),
            group_idx: group.map(|group| group.as_core().index),
        };
        detach_if(py, chain.len() > DETACH_ABOVE, || self.recorder.remove(&remove))
            .map_err(|refused| raise(py, refused))
    }

    /// Record that nothing is held any more, in any tier.
    fn clear(&self) {
        if self.enabled {
            self.recorder.clear();
        }
    }

    /// Take everything in the queue as events, oldest first.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let taken = self.recorder.take();
        let events = PyList::empty(py);
        if taken.is_empty() {
            return Ok(events);
        }
        // The one way out in all dialects: what the bytes say is what the events say.
        let data = encode(py, &taken, 0.0, None, &Dialect::SGLANG).expect("maps have a place for every field");
        let limits = Limits {
            message_bytes: usize::MAX,
            events: usize::MAX,
            blocks: usize::MAX,
            ..Limits::default()
        };
        let batch = read_batch(&data, &limits).map_err(|error| classes::wire_error(py, &error))?;
        for event in &batch.events {
            events.append(python_event(py, event)?)?;
        }
        Ok(events)
    }

    /// Take everything in the queue as an encoded batch; None if there is nothing.
    #[pyo3(
        signature = (*, ts = None, dp_rank = Some(0), dialect = "sglang"),
        text_signature = "($self, *, ts=None, dp_rank=0, dialect='sglang')"
    )]
    fn take_batch<'py>(
        &self,
        py: Python<'py>,
        ts: Option<f64>,
        #[pyo3(from_py_with = numbers::dp_rank)] dp_rank: Option<i64>,
        dialect: &str,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let dialect = dialect_of(py, dialect)?;
        let taken = self.recorder.take();
        if taken.is_empty() {
            return Ok(None);
        }
        match encode(py, &taken, ts.unwrap_or_else(unix_seconds), dp_rank, &dialect) {
            Ok(data) => Ok(Some(PyBytes::new(py, &data))),
            Err(no_place) => {
                self.recorder.put_back(taken);
                Err(classes::config_error(py, no_place.to_string()))
            }
        }
    }

    /// The ids (int64) under which the blocks of a chain are announced now.
    #[pyo3(signature = (chain, /))]
    fn announced_ids<'py>(&self, py: Python<'py>, chain: &PyHashChain) -> PyResult<Bound<'py, PyAny>> {
        let chain = &chain.0;
        let name = self.registered(py, chain.namespace().extra_key.as_deref())?;
        let ids = detach_if(py, chain.len() > DETACH_ABOVE, || {
            self.recorder.announced(chain, name.as_deref())
        });
        int64_view(py, ids.into_iter())
    }

    /// What was recorded so far, taken or not.
    fn stats(&self) -> RecorderStats {
        let Stats {
            stored_pages,
            removed_pages,
            recorded_events,
            recorded_bytes,
            coalesced_events,
            coalesced_bytes,
            cancelled_pages,
        } = self.recorder.stats();
        RecorderStats {
            stored_pages,
            removed_pages,
            recorded_events,
            recorded_bytes,
            coalesced_events,
            coalesced_bytes,
            cancelled_pages,
        }
    }

    /// Whether calls do anything.
    #[getter]
    fn enabled(&self) -> bool {
        self.enabled
    }

    /// Tokens (pairs, for bigrams) in a page.
    #[getter]
    pub(crate) fn page_size(&self) -> usize {
        self.recorder.settings().page_size
    }

    /// Events in the queue.
    #[getter]
    fn pending(&self) -> usize {
        self.recorder.len()
    }
}

impl EventRecorder {
    fn registered(&self, py: Python<'_>, extra_key: Option<&str>) -> PyResult<Option<String>> {
        let names = self.lora_names.as_ref().map(|names| names.bind(py));
        registered(names, self.recorder.settings().event_format, extra_key)
    }

    /// What records; None while disabled.
    pub(crate) fn active(&self) -> Option<&Recorder> {
        self.enabled.then_some(&self.recorder)
    }

    /// Record a store.
    fn record_store(&self, py: Python<'_>, store: &Store<'_>) -> PyResult<()> {
        let long = store.chain.len() > DETACH_ABOVE;
        detach_if(py, long, || self.recorder.store(store)).map_err(|refused| raise(py, refused))
    }
}

#[pyclass(module = "kvevents._core.recorder", frozen, get_all)]
pub(super) struct RecorderStats {
    stored_pages: u64,
    removed_pages: u64,
    recorded_events: u64,
    recorded_bytes: u64,
    coalesced_events: u64,
    coalesced_bytes: u64,
    cancelled_pages: u64,
}

#[pymethods]
impl RecorderStats {
    fn __repr__(&self) -> String {
        format!(
            "RecorderStats(stored_pages={}, removed_pages={}, recorded_events={}, recorded_bytes={}, \
             coalesced_events={}, coalesced_bytes={}, cancelled_pages={})",
            self.stored_pages,
            self.removed_pages,
            self.recorded_events,
            self.recorded_bytes,
            self.coalesced_events,
            self.coalesced_bytes,
            self.cancelled_pages
        )
    }
}

fn encode(py: Python<'_>, taken: &Taken, ts: f64, dp_rank: Option<i64>, dialect: &Dialect) -> Result<Vec<u8>, NoPlace> {
    detach_if(py, taken.blocks() > DETACH_ABOVE, || taken.encode(ts, dp_rank, dialect))
}

fn raise(py: Python<'_>, refused: Refused) -> PyErr {
    match refused {
        Refused::PageSize { .. } => classes::config_error(py, refused.to_string()),
        Refused::Tokens { .. } => PyValueError::new_err(refused.to_string()),
    }
}

fn unix_seconds() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}
