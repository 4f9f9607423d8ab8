//! Token ids out of Python values: contiguous integer buffers are borrowed, everything else is copied once.

use std::ffi::CStr;
use std::ops::BitOr;

use kvevents_core::tokens::{TokenSlice, TokenVec};
use pyo3::buffer::{ElementType, PyBuffer, PyUntypedBuffer};
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyMemoryView};

use crate::tokens::TokenPages;

/// Token ids that a Python caller passed. A buffer must not be changed by other threads during the call.
pub enum TokenArgument {
    /// Borrowed, one dimension, contiguous.
    U32(PyBuffer<u32>),
    /// Borrowed; holds no negative id.
    I32(PyBuffer<i32>),
    /// Borrowed.
    U64(PyBuffer<u64>),
    /// Borrowed; holds no negative id.
    I64(PyBuffer<i64>),
    /// Pages that are held already.
    Pages(Py<TokenPages>),
    /// Copied.
    Owned(TokenVec),
}

impl TokenArgument {
    /// Borrow the ids for as long as the argument lives.
    #[allow(unsafe_code)]
    pub fn as_slice(&self) -> TokenSlice<'_> {
        // SAFETY: the buffer is contiguous (checked in `extract`) and stays exported while `self` lives; every value of
        // a signed type is a valid value of the unsigned type of its width.
        unsafe {
            match self {
                Self::U32(buffer) => TokenSlice::U32(contiguous(buffer)),
                Self::I32(buffer) => TokenSlice::U32(contiguous(buffer)),
                Self::U64(buffer) => TokenSlice::U64(contiguous(buffer)),
                Self::I64(buffer) => TokenSlice::U64(contiguous(buffer)),
                Self::Pages(pages) => pages.get().as_slice(),
                Self::Owned(ids) => ids.as_slice(),
            }
        }
    }

    fn without_negatives(self) -> PyResult<Self> {
        // A negative id is the upper half of the unsigned type.
        let found = match (&self, self.as_slice()) {
            (Self::I32(_), TokenSlice::U32(ids)) => {
                first_above(ids, i32::MAX as u32).map(|(at, id)| (at, i64::from(id as i32)))
            }
            (Self::I64(_), TokenSlice::U64(ids)) => first_above(ids, i64::MAX as u64).map(|(at, id)| (at, id as i64)),
            _ => None,
        };
        match found {
            None => Ok(self),
            Some((index, id)) => Err(negative_id(index, id)),
        }
    }
}

/// # Safety
/// `buffer` is contiguous, `T` and `U` have the same size and alignment, and every value is valid as `U`.
#[allow(unsafe_code)]
pub(crate) unsafe fn contiguous<T: pyo3::buffer::Element, U>(buffer: &PyBuffer<T>) -> &[U] {
    let count = buffer.item_count();
    if count == 0 {
        return &[];
    }
    // SAFETY: guaranteed by the caller.
    unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast::<U>(), count) }
}

impl<'py> FromPyObject<'_, 'py> for TokenArgument {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(pages) = object.cast::<TokenPages>() {
            return Ok(Self::Pages(pages.to_owned().unbind()));
        }
        if object.is_instance_of::<PyList>() {
            return copy(&object);
        }
        let Ok(buffer) = PyUntypedBuffer::get(&object) else {
            return copy(&object);
        };
        if buffer.dimensions() != 1 {
            return Err(PyValueError::new_err(format!(
                "token ids: expected a buffer of one dimension, got {}",
                buffer.dimensions()
            )));
        }
        let element = ElementType::from_format(buffer.format());
        let borrowed = match element {
            _ if !buffer.is_c_contiguous() || is_swapped(buffer.format()) => None,
            ElementType::SignedInteger { bytes: 4 } => buffer.into_typed().ok().map(Self::I32),
            ElementType::SignedInteger { bytes: 8 } => buffer.into_typed().ok().map(Self::I64),
            ElementType::UnsignedInteger { bytes: 4 } => buffer.into_typed().ok().map(Self::U32),
            ElementType::UnsignedInteger { bytes: 8 } => buffer.into_typed().ok().map(Self::U64),
            _ => None,
        };
        match borrowed {
            Some(argument) => argument.without_negatives(),
            // Strided, misaligned, foreign byte order or another width.
            None => copy(&object),
        }
    }
}

/// Whether the elements are in the byte order of other machines. `ElementType` does not tell.
pub(crate) fn is_swapped(format: &CStr) -> bool {
    match format.to_bytes().first() {
        Some(b'<') => cfg!(target_endian = "big"),
        Some(b'>' | b'!') => cfg!(target_endian = "little"),
        _ => false,
    }
}

/// `limit` is a power of two less one.
fn first_above<T: Copy + Ord + Default + BitOr<Output = T>>(ids: &[T], limit: T) -> Option<(usize, T)> {
    // One pass in vector instructions first: the common case has nothing to find. An id is above a limit of all ones
    // exactly where it has a higher bit.
    if ids.iter().fold(T::default(), |seen, &id| seen | id) <= limit {
        return None;
    }
    ids.iter().position(|&id| id > limit).map(|index| (index, ids[index]))
}

fn negative_id(index: usize, id: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(format!("token ids: expected 0 to 2^64-1, got {id} at position {index}"))
}

fn copy(object: &Bound<'_, PyAny>) -> PyResult<TokenArgument> {
    let mut ids = TokenVec::default();
    for (index, item) in object
        .try_iter()
        .map_err(|_| {
            PyTypeError::new_err(format!(
                "token ids: expected a list or a buffer of integers, got {}",
                object.get_type()
            ))
        })?
        .enumerate()
    {
        let item = item?;
        match item.extract::<u64>() {
            Ok(id) => ids.push(id),
            Err(error) if error.is_instance_of::<PyOverflowError>(object.py()) => return Err(negative_id(index, item)),
            Err(_) => {
                return Err(PyTypeError::new_err(format!(
                    "token ids: expected integers, got {} at position {index}",
                    item.get_type()
                )));
            }
        }
    }
    Ok(TokenArgument::Owned(ids))
}

/// A read-only int64 memoryview over `values`: one copy, and no Python object a value.
pub fn int64_view(py: Python<'_>, values: impl ExactSizeIterator<Item = i64>) -> PyResult<Bound<'_, PyAny>> {
    view(py, values.map(i64::to_ne_bytes), "q")
}

/// The same of uint64.
pub fn uint64_view(py: Python<'_>, values: impl ExactSizeIterator<Item = u64>) -> PyResult<Bound<'_, PyAny>> {
    view(py, values.map(u64::to_ne_bytes), "Q")
}

/// The same of uint32.
pub fn uint32_view(py: Python<'_>, values: impl ExactSizeIterator<Item = u32>) -> PyResult<Bound<'_, PyAny>> {
    view(py, values.map(u32::to_ne_bytes), "I")
}

fn view<'py, const WIDTH: usize>(
    py: Python<'py>,
    values: impl ExactSizeIterator<Item = [u8; WIDTH]>,
    format: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let bytes = PyBytes::new_with(py, values.len() * WIDTH, |bytes| {
        for (bytes, value) in bytes.chunks_exact_mut(WIDTH).zip(values) {
            bytes.copy_from_slice(&value);
        }
        Ok(())
    })?;
    PyMemoryView::from(&bytes)?.call_method1("cast", (format,))
}
