//! The package's Python classes as the core sees them: each is imported once, at its first use.

use kvevents_core::wire::{Tag, WireError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};

/// A class of the package.
pub(crate) struct Class {
    module: &'static str,
    name: &'static str,
    cell: PyOnceLock<Py<PyType>>,
}

impl Class {
    const fn new(module: &'static str, name: &'static str) -> Self {
        Self {
            module,
            name,
            cell: PyOnceLock::new(),
        }
    }

    /// The class itself.
    pub(crate) fn get<'py>(&self, py: Python<'py>) -> PyResult<&Bound<'py, PyType>> {
        self.cell.import(py, self.module, self.name)
    }
}

pub(crate) static BLOCK_STORED: Class = Class::new("kvevents.events", "BlockStored");
pub(crate) static BLOCK_STORED_METADATA: Class = Class::new("kvevents.events", "BlockStoredMetadata");
pub(crate) static BLOCK_STORED_WITH_METADATA: Class = Class::new("kvevents.events", "BlockStoredWithMetadata");
pub(crate) static BLOCK_REMOVED: Class = Class::new("kvevents.events", "BlockRemoved");
pub(crate) static ALL_BLOCKS_CLEARED: Class = Class::new("kvevents.events", "AllBlocksCleared");
pub(crate) static SKIPPED_EVENT: Class = Class::new("kvevents.events", "SkippedEvent");
pub(crate) static EVENT_BATCH: Class = Class::new("kvevents.events", "KVEventBatch");
static WIRE_ERROR: Class = Class::new("kvevents.errors", "WireError");
static CAPACITY_ERROR: Class = Class::new("kvevents.errors", "CapacityError");
static CONFIG_ERROR: Class = Class::new("kvevents.errors", "ConfigError");

/// The class of events with that tag.
pub(crate) fn event(tag: Tag) -> &'static Class {
    match tag {
        Tag::BlockStored => &BLOCK_STORED,
        Tag::BlockStoredWithMetadata => &BLOCK_STORED_WITH_METADATA,
        Tag::BlockRemoved => &BLOCK_REMOVED,
        Tag::AllBlocksCleared => &ALL_BLOCKS_CLEARED,
    }
}

/// `kvevents.errors.WireError`.
pub(crate) fn wire_error(py: Python<'_>, error: &WireError) -> PyErr {
    wire_fault(py, error.fault.to_string(), error.offset)
}

/// `kvevents.errors.WireError` with words of its own.
pub(crate) fn wire_fault(py: Python<'_>, reason: String, offset: usize) -> PyErr {
    match WIRE_ERROR.get(py) {
        Ok(class) => PyErr::from_type(class.clone(), (reason, offset)),
        Err(error) => error,
    }
}

/// Whether it is a `kvevents.errors.WireError`.
pub(crate) fn is_wire_error(py: Python<'_>, error: &PyErr) -> PyResult<bool> {
    Ok(error.is_instance(py, WIRE_ERROR.get(py)?))
}

/// `kvevents.errors.CapacityError`.
pub(crate) fn capacity_error(py: Python<'_>, message: String, requested: usize, available: usize) -> PyErr {
    let error = CAPACITY_ERROR.get(py).and_then(|class| {
        let facts = PyDict::new(py);
        facts.set_item("requested", requested)?;
        facts.set_item("available", available)?;
        class.call((message,), Some(&facts))
    });
    match error {
        Ok(error) => PyErr::from_value(error),
        Err(error) => error,
    }
}

/// `kvevents.errors.ConfigError`.
pub(crate) fn config_error(py: Python<'_>, message: String) -> PyErr {
    match CONFIG_ERROR.get(py) {
        Ok(class) => PyErr::from_type(class.clone(), (message,)),
        Err(error) => error,
    }
}
