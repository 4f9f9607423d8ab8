//! `kvevents._core.wire`.

mod decode;
mod encode;

pub(crate) use decode::payload;
use kvevents_core::wire::Dialect;
use pyo3::prelude::*;

use crate::classes;

pub(crate) use decode::python_event;

/// The dialect that a caller names.
pub(crate) fn dialect(py: Python<'_>, name: &str) -> PyResult<Dialect> {
    Dialect::from_name(name).ok_or_else(|| {
        let names = Dialect::ALL.map(|dialect| dialect.name).join(", ");
        classes::config_error(py, format!("dialect: expected one of {names}; got {name:?}"))
    })
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(decode::decode_batch, module)?)?;
    module.add_function(wrap_pyfunction!(decode::batch_rank, module)?)?;
    module.add_function(wrap_pyfunction!(encode::encode_batch, module)?)
}
