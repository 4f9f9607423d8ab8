//! Numbers that callers pass. One that its argument has no room for is an error of the family, in the argument's words.

use std::fmt::Display;

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::classes;
use crate::texts;

/// A number of a certain width.
pub(crate) trait Width: Display + for<'a, 'py> FromPyObject<'a, 'py> {
    const MAX: Self;
}

macro_rules! widths {
    ($($type:ty),*) => {$(
        impl Width for $type {
            const MAX: Self = Self::MAX;
        }
    )*};
}

widths!(usize, u32, u64, i64);

fn fitting<T: Width>(
    object: &Bound<'_, PyAny>,
    name: &str,
    least: T,
    refuse: impl FnOnce(Python<'_>, String) -> PyErr,
) -> PyResult<T> {
    let py = object.py();
    object.extract::<T>().map_err(|error| {
        let error: PyErr = error.into();
        if error.is_instance_of::<PyTypeError>(py) {
            return texts::type_error(name, "an integer", object);
        }
        if !error.is_instance_of::<PyOverflowError>(py) {
            return error;
        }
        refuse(py, format!("{name}: expected {least} to {}, got {object}", T::MAX))
    })
}

fn value_error(_: Python<'_>, message: String) -> PyErr {
    PyValueError::new_err(message)
}

/// Converters of arguments by name, for `from_py_with`. Settings that do not fit are a `ConfigError`, data a
/// `ValueError`. The value after `=` is the least one that is taken, for the message.
macro_rules! arguments {
    ($refuse:path: $($name:ident: $type:ty = $least:expr),* $(,)?) => {$(
        pub(crate) fn $name(object: &Bound<'_, PyAny>) -> PyResult<$type> {
            fitting(object, stringify!($name), $least, $refuse)
        }
    )*};
    ($refuse:path, optional: $($name:ident: $type:ty = $least:expr),* $(,)?) => {$(
        pub(crate) fn $name(object: &Bound<'_, PyAny>) -> PyResult<Option<$type>> {
            (!object.is_none()).then(|| fitting(object, stringify!($name), $least, $refuse)).transpose()
        }
    )*};
}

arguments! { classes::config_error:
    block_size: usize = 1,
    index: u64 = 0,
    max_blocks: u32 = 0,
    max_bytes: usize = 0,
    max_event_blocks: usize = 0,
    max_event_bytes: usize = 0,
    max_parked_blocks: usize = 0,
    max_parked_bytes: usize = 0,
    max_pending_blocks: usize = 0,
    max_pending_bytes: usize = 0,
    max_sources: usize = 0,
    num_blocks: u32 = 2,
    page_size: usize = 1,
    remembered_blocks: usize = 0,
}

/// Tokens in a block of an index, or of an engine that it follows.
pub(crate) fn tokens_in_block(object: &Bound<'_, PyAny>) -> PyResult<u32> {
    let refused = |got: &Bound<'_, PyAny>| {
        let message = format!("block_size: expected 1 to {} tokens, got {got}", u32::MAX);
        classes::config_error(object.py(), message)
    };
    match fitting(object, "block_size", 1_u32, |_, _| refused(object))? {
        0 => Err(refused(object)),
        size => Ok(size),
    }
}

/// The same where it need not be known.
pub(crate) fn tokens_in_block_if_known(object: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
    (!object.is_none()).then(|| tokens_in_block(object)).transpose()
}

arguments! { classes::config_error, optional:
    sliding_window: u64 = 0,
}

arguments! { value_error:
    block: i64 = i64::MIN,
    count: usize = 0,
    depth: usize = 0,
    end: usize = 0,
    holder: u32 = 0,
    holders: usize = 0,
    limit: usize = 0,
    number: i64 = i64::MIN,
    output_tokens: u64 = 0,
    page: usize = 0,
    pages: usize = 0,
    parent: i64 = i64::MIN,
    place: usize = 0,
    prompt_tokens: u64 = 0,
    rank: i64 = i64::MIN,
    request: u64 = 0,
    running: u64 = 0,
    slot: u64 = 0,
    start: usize = 0,
    waiting: u64 = 0,
}

arguments! { value_error, optional:
    at: u64 = 0,
    dp_rank: i64 = i64::MIN,
    lora_id: i64 = i64::MIN,
    none_hash: i64 = i64::MIN,
    seq: u64 = 0,
    tokens: u64 = 0,
}
