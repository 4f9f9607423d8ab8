//! Token ids out of Python values: contiguous integer buffers are borrowed, everything else is copied once.

use kvevents_core::tokens::{TokenSlice, TokenVec};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};

/// Token ids that a Python caller passed. A buffer must not be changed by other threads during the call.
pub enum TokenArgument {
    /// Borrowed, one dimension, contiguous.
    U32(PyBuffer<u32>),
    /// Borrowed; checked to hold no negative id.
    I32(PyBuffer<i32>),
    /// Borrowed.
    U64(PyBuffer<u64>),
    /// Borrowed; checked to hold no negative id.
    I64(PyBuffer<i64>),
    /// Copied.
    Owned(TokenVec),
}

impl TokenArgument {
    /// Borrow the ids for as long as the argument lives.
    #[allow(unsafe_code)]
    pub fn as_slice(&self) -> TokenSlice<'_> {
        // SAFETY: the buffer is contiguous (checked in `extract`), stays exported while `self` lives, and the
        // signed variants were checked to hold no negative value, so their bits are those of the unsigned type.
        unsafe {
            match self {
                Self::U32(buffer) => TokenSlice::U32(contiguous(buffer)),
                Self::I32(buffer) => TokenSlice::U32(contiguous(buffer)),
                Self::U64(buffer) => TokenSlice::U64(contiguous(buffer)),
                Self::I64(buffer) => TokenSlice::U64(contiguous(buffer)),
                Self::Owned(ids) => ids.as_slice(),
            }
        }
    }
}

/// # Safety
/// `buffer` is contiguous, `T` and `U` have the same size and alignment, and every value is valid as `U`.
#[allow(unsafe_code)]
unsafe fn contiguous<T: pyo3::buffer::Element, U>(buffer: &PyBuffer<T>) -> &[U] {
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
        if let Ok(buffer) = PyBuffer::<i64>::get(&object) {
            return borrow(Self::I64(checked(buffer)?));
        }
        if let Ok(buffer) = PyBuffer::<i32>::get(&object) {
            return borrow(Self::I32(checked(buffer)?));
        }
        if let Ok(buffer) = PyBuffer::<u32>::get(&object) {
            return borrow(Self::U32(checked(buffer)?));
        }
        if let Ok(buffer) = PyBuffer::<u64>::get(&object) {
            return borrow(Self::U64(checked(buffer)?));
        }
        copy(&object)
    }
}

fn checked<T: pyo3::buffer::Element>(buffer: PyBuffer<T>) -> PyResult<PyBuffer<T>> {
    if buffer.dimensions() == 1 && buffer.is_c_contiguous() {
        return Ok(buffer);
    }
    Err(PyValueError::new_err(format!(
        "token ids: expected a contiguous buffer of one dimension, got {} dimensions with strides {:?}",
        buffer.dimensions(),
        buffer.strides()
    )))
}

#[allow(unsafe_code)]
fn borrow(argument: TokenArgument) -> PyResult<TokenArgument> {
    // SAFETY: contiguous by `checked`; signed integers are read as what they are.
    let negative = unsafe {
        match &argument {
            TokenArgument::I32(buffer) => first_negative(contiguous::<i32, i32>(buffer)),
            TokenArgument::I64(buffer) => first_negative(contiguous::<i64, i64>(buffer)),
            _ => None,
        }
    };
    match negative {
        None => Ok(argument),
        Some((index, id)) => Err(negative_id(index, id)),
    }
}

fn first_negative<T: Copy + Default + Ord + Into<i64>>(ids: &[T]) -> Option<(usize, i64)> {
    // One pass without branches first: the common case has nothing to find.
    if ids.iter().copied().min().is_none_or(|least| least >= T::default()) {
        return None;
    }
    ids.iter()
        .position(|&id| id < T::default())
        .map(|index| (index, ids[index].into()))
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
    let bytes = PyBytes::new_with(py, values.len() * size_of::<i64>(), |bytes| {
        for (bytes, value) in bytes.chunks_exact_mut(size_of::<i64>()).zip(values) {
            bytes.copy_from_slice(&value.to_ne_bytes());
        }
        Ok(())
    })?;
    PyMemoryView::from(&bytes)?.call_method1("cast", ("q",))
}
