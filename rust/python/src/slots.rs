//! `kvevents._core.slots`.
use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kvevents_core::slots::{PagePool, SlotError};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffers::{contiguous, is_swapped};
use crate::numbers;

/// As many as all memories have slots, by `kvevents.caches`.
const MOST_PAGES: usize = 1 << 34;

/// Slots, or blocks, that a caller passed: an int64 buffer, or any sequence of integers. A buffer must not be changed by
/// other threads during the call.
pub(crate) enum Slots {
    /// Borrowed, contiguous.
    Buffer(PyBuffer<i64>),
    /// Copied.
    Owned(Vec<i64>),
}

impl Deref for Slots {
    type Target = [i64];

    #[allow(unsafe_code)]
    fn deref(&self) -> &[i64] {
        match self {
            // SAFETY: the buffer is contiguous (checked in `extract`) and stays exported while `self` lives.
            Self::Buffer(buffer) => unsafe { contiguous(buffer) },
            Self::Owned(slots) => slots,
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for Slots {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match PyBuffer::<i64>::get(&object) {
            Ok(buffer) if is_swapped(buffer.format()) => copied(&object),
            Ok(buffer) if buffer.is_c_contiguous() => Ok(Self::Buffer(buffer)),
            Ok(buffer) => buffer.to_vec(object.py()).map(Self::Owned),
            Err(_) => copied(&object),
        }
    }
}

fn copied(object: &Bound<'_, PyAny>) -> PyResult<Slots> {
    object.extract().map(Slots::Owned).map_err(|error: PyErr| {
        if !error.is_instance_of::<PyOverflowError>(object.py()) {
            return error;
        }
        PyValueError::new_err(format!("slots: expected {} to {}, got others", i64::MIN, i64::MAX))
    })
}

/// Pages of consecutive slots, free, lent or in the cache.
#[pyclass(frozen, subclass, name = "PagePool", module = "kvevents._core.slots")]
struct PyPagePool(Mutex<PagePool>);

impl PyPagePool {
    fn lock(&self) -> MutexGuard<'_, PagePool> {
        // Every change is complete before anything can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refused(error: SlotError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

#[pymethods]
impl PyPagePool {
    #[new]
    fn new(
        #[pyo3(from_py_with = numbers::pages)] pages: usize,
        #[pyo3(from_py_with = numbers::page_size)] page_size: usize,
    ) -> PyResult<Self> {
        if page_size == 0 {
            return Err(PyValueError::new_err("page_size: expected at least 1, got 0"));
        }
        if pages > MOST_PAGES {
            let message = format!("pages: expected at most {MOST_PAGES}, got {pages}");
            return Err(PyValueError::new_err(message));
        }
        Ok(Self(Mutex::new(PagePool::new(pages, page_size))))
    }

    #[getter]
    fn capacity(&self) -> usize {
        self.lock().capacity()
    }

    #[getter]
    fn available(&self) -> usize {
        self.lock().available()
    }

    fn lend<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = numbers::pages)] pages: usize,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let Some(slots) = self.lock().allocate(pages) else {
            return Ok(None);
        };
        let bytes = PyBytes::new_with(py, slots.len() * 8, |out| {
            for (slot, out) in slots.iter().zip(out.chunks_exact_mut(8)) {
                out.copy_from_slice(&slot.to_ne_bytes());
            }
            Ok(())
        })?;
        Ok(Some(bytes))
    }

    fn free(&self, slots: Slots) -> PyResult<()> {
        self.lock().free(&slots).map_err(refused)
    }

    fn check(&self, slots: Slots) -> PyResult<()> {
        self.lock().check(&slots).map_err(refused)
    }

    fn adopt(&self, slots: Slots) -> PyResult<()> {
        self.lock().adopt(&slots).map_err(refused)
    }

    fn release(&self, slots: Slots) -> PyResult<()> {
        self.lock().release(&slots).map_err(refused)
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyPagePool>()
}
