//! Adapter names: what Python registered, and what stays in force while pages are live.

use std::sync::Mutex;

use kvevents_core::hash::sglang::EventFormat;
use kvevents_core::recorder::Namings;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::hashing::choice;
use crate::numbers;

/// In the `dynamo` format an adapter's id is the end of an extra key: so many characters.
const ADAPTER_ID_CHARS: usize = 32;

/// The name that `lora_names` (a mapping or None) has for an extra key.
pub(super) fn registered(
    lora_names: Option<&Bound<'_, PyAny>>,
    format: EventFormat,
    extra_key: Option<&str>,
) -> PyResult<Option<String>> {
    let (Some(names), Some(extra_key)) = (lora_names, extra_key) else {
        return Ok(None);
    };
    let py = names.py();
    let look_up = |key: &str| -> PyResult<Option<String>> {
        let get = names.getattr(pyo3::intern!(py, "get")).map_err(|_| {
            let got = names.get_type();
            PyTypeError::new_err(format!(
                "lora_names: expected a mapping of names by extra key, got {got}"
            ))
        })?;
        get.call1((PyString::new(py, key),))?.extract()
    };
    match (look_up(extra_key)?, format) {
        (None, EventFormat::Dynamo) => match extra_key.char_indices().rev().nth(ADAPTER_ID_CHARS - 1) {
            // An extra key of 32 characters or less was looked up whole already.
            None | Some((0, _)) => Ok(None),
            Some((start, _)) => look_up(&extra_key[start..]),
        },
        (name, _) => Ok(name),
    }
}

#[pyclass(module = "kvevents._core.recorder", frozen)]
pub(super) struct AdapterNames(Mutex<Namings>);

#[pymethods]
impl AdapterNames {
    #[new]
    fn new() -> Self {
        Self(Mutex::default())
    }

    #[pyo3(signature = (extra_key, pages, lora_names, event_format))]
    fn store(
        &self,
        extra_key: &str,
        #[pyo3(from_py_with = numbers::pages)] pages: usize,
        lora_names: Option<&Bound<'_, PyAny>>,
        event_format: &Bound<'_, PyString>,
    ) -> PyResult<Option<String>> {
        let format = choice(
            event_format.py(),
            "event_format",
            event_format.to_str()?,
            &EventFormat::NAMES,
        )?;
        let registered = registered(lora_names, format, Some(extra_key))?;
        let mut namings = self.0.lock().expect("nothing panics under the lock");
        Ok(namings
            .store(format, Some(extra_key), pages, registered.as_deref())
            .map(|name| name.to_string()))
    }

    #[pyo3(signature = (extra_key, pages, lora_names, event_format))]
    fn remove(
        &self,
        extra_key: &str,
        #[pyo3(from_py_with = numbers::pages)] pages: usize,
        lora_names: Option<&Bound<'_, PyAny>>,
        event_format: &Bound<'_, PyString>,
    ) -> PyResult<Option<String>> {
        let format = choice(
            event_format.py(),
            "event_format",
            event_format.to_str()?,
            &EventFormat::NAMES,
        )?;
        let registered = registered(lora_names, format, Some(extra_key))?;
        let mut namings = self.0.lock().expect("nothing panics under the lock");
        Ok(namings
            .remove(Some(extra_key), pages, registered.as_deref())
            .map(|name| name.to_string()))
    }

    fn clear(&self) {
        self.0.lock().expect("nothing panics under the lock").clear();
    }
}
