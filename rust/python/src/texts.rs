//! Strings that callers pass. What is no string is refused in the argument's words.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

/// What came instead of what was expected.
pub(crate) fn type_error(name: &str, expected: &str, object: &Bound<'_, PyAny>) -> PyErr {
    PyTypeError::new_err(format!("{name}: expected {expected}, got {}", object.get_type()))
}

fn text(object: &Bound<'_, PyAny>, name: &str) -> PyResult<String> {
    object.extract().map_err(|_| type_error(name, "a string", object))
}

/// Converters of arguments by name, for `from_py_with`.
macro_rules! texts {
    ($($name:ident),* $(,)?) => {$(
        pub(crate) fn $name(object: &Bound<'_, PyAny>) -> PyResult<String> {
            text(object, stringify!($name))
        }
    )*};
    (optional: $($name:ident),* $(,)?) => {$(
        pub(crate) fn $name(object: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
            (!object.is_none()).then(|| text(object, stringify!($name))).transpose()
        }
    )*};
}

texts! { id, worker, worker_id, state }

texts! { optional: cache_salt, lora_name }
