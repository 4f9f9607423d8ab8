//! From a payload to Python events.

use std::borrow::Cow;

use kvevents_core::wire::{
    EngineHash, Event, Field, FieldValue, HashList, Limits, Raw, TokenList, read_batch, read_rank,
};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::classes;

/// Read the payload of one message, whatever dialect it is written in.
#[pyfunction]
#[pyo3(signature = (data, /, *, strict=true))]
pub(super) fn decode_batch<'py>(data: &Bound<'py, PyAny>, strict: bool) -> PyResult<Bound<'py, PyAny>> {
    let py = data.py();
    let data = payload(data)?;
    let batch = read_batch(&data, &Limits::default()).map_err(|error| classes::wire_error(py, &error))?;
    let skipped = PyList::empty(py);
    for event in &batch.skipped {
        if strict && event.code != "unknown-tag" {
            return Err(classes::wire_error(py, &event.error));
        }
        skipped.append(
            classes::SKIPPED_EVENT
                .get(py)?
                .call1((event.code, event.offset, &event.reason))?,
        )?;
    }
    let events = PyList::empty(py);
    for event in &batch.events {
        match python_event(py, event) {
            Ok(event) => events.append(event)?,
            Err(error) if !strict && classes::is_wire_error(py, &error)? => {
                let reason = error.value(py).str()?;
                skipped.append(
                    classes::SKIPPED_EVENT
                        .get(py)?
                        .call1(("wrong-type", event.offset(), reason))?,
                )?;
            }
            Err(error) => return Err(error),
        }
    }
    classes::EVENT_BATCH
        .get(py)?
        .call1((batch.ts, events, batch.dp_rank, skipped, batch.unread_fields))
}

/// The rank that a batch names; None if it names none.
#[pyfunction]
#[pyo3(signature = (data, /))]
pub(super) fn batch_rank(data: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
    let py = data.py();
    read_rank(&payload(data)?).map_err(|error| classes::wire_error(py, &error))
}

/// The bytes of an argument: borrowed from `bytes`, copied from what may change under us.
pub(crate) fn payload<'a>(data: &'a Bound<'_, PyAny>) -> PyResult<Cow<'a, [u8]>> {
    if let Ok(bytes) = data.cast::<PyBytes>() {
        return Ok(Cow::Borrowed(bytes.as_bytes()));
    }
    let buffer = PyBuffer::<u8>::get(data)
        .map_err(|_| PyTypeError::new_err(format!("payload: expected bytes, got {}", data.get_type())))?;
    Ok(Cow::Owned(buffer.to_vec(data.py())?))
}

/// The Python object of an event, its fields in the order of the table, which is that of the class.
pub(crate) fn python_event<'py>(py: Python<'py>, event: &Event<'_>) -> PyResult<Bound<'py, PyAny>> {
    let tag = event.tag();
    let mut values = Vec::with_capacity(tag.fields().len() + 1);
    for field in tag.fields().iter().filter(|field| **field != Field::Metadata) {
        values.push(match event.value(*field) {
            None => py.None().into_bound(py),
            Some(value) => python_value(py, *field, value)?,
        });
    }
    values.push(unknown_fields(py, event.unknown())?);
    let kwargs = match event.value(Field::Metadata) {
        Some(FieldValue::Raw(raw)) => {
            let kwargs = PyDict::new(py);
            kwargs.set_item(Field::Metadata.name(), python_metadata(py, raw)?)?;
            Some(kwargs)
        }
        _ => None,
    };
    classes::event(tag)
        .get(py)?
        .call(PyTuple::new(py, values)?, kwargs.as_ref())
}

fn python_value<'py>(py: Python<'py>, field: Field, value: FieldValue<'_>) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        FieldValue::Hashes(hashes) => python_hashes(py, &hashes)?.into_any(),
        FieldValue::Hash(hash) => python_hash(py, hash)?,
        FieldValue::Tokens(tokens) => python_tokens(py, &tokens)?.into_any(),
        FieldValue::Unsigned(value) => value.into_pyobject(py)?.into_any(),
        FieldValue::Signed(value) => value.into_pyobject(py)?.into_any(),
        FieldValue::Text(text) => PyString::new(py, text).into_any(),
        FieldValue::Raw(raw) => any_value(py, field.name(), raw)?,
    })
}

fn python_hash<'py>(py: Python<'py>, hash: EngineHash<'_>) -> PyResult<Bound<'py, PyAny>> {
    Ok(match hash {
        EngineHash::Unsigned(value) => value.into_pyobject(py)?.into_any(),
        EngineHash::Negative(value) => value.into_pyobject(py)?.into_any(),
        EngineHash::Bytes(bytes) => PyBytes::new(py, bytes).into_any(),
    })
}

fn python_hashes<'py>(py: Python<'py>, hashes: &HashList<'_>) -> PyResult<Bound<'py, PyList>> {
    let list = hashes
        .iter()
        .map(|hash| python_hash(py, hash))
        .collect::<PyResult<Vec<_>>>()?;
    PyList::new(py, list)
}

fn python_tokens<'py>(py: Python<'py>, tokens: &TokenList<'_>) -> PyResult<Bound<'py, PyList>> {
    let mut members = tokens.members();
    if !tokens.is_pairs() {
        return PyList::new(py, members);
    }
    PyList::new(
        py,
        (0..tokens.len()).map(|_| (members.next().unwrap_or_default(), members.next().unwrap_or_default())),
    )
}

fn unknown_fields<'py>(py: Python<'py>, fields: &[(&str, Raw<'_>)]) -> PyResult<Bound<'py, PyAny>> {
    if fields.is_empty() {
        return Ok(py.None().into_bound(py));
    }
    let dict = PyDict::new(py);
    for (name, raw) in fields {
        dict.set_item(name, any_value(py, name, *raw)?)?;
    }
    Ok(dict.into_any())
}

fn python_metadata<'py>(py: Python<'py>, raw: Raw<'_>) -> PyResult<Bound<'py, PyAny>> {
    let value = any_value(py, Field::Metadata.name(), raw)?;
    let map = value.cast_into::<PyDict>()?;
    let name = Field::CacheSalt.name();
    let salt = map.get_item(name)?;
    if salt.is_some() {
        map.del_item(name)?;
    }
    let others = (!map.is_empty()).then_some(map);
    classes::BLOCK_STORED_METADATA.get(py)?.call1((salt, others))
}

/// A value without a schema. The reader knows that it is sound msgpack; what Python cannot hold (a map as a key, a
/// timestamp out of range) is a `WireError`.
fn any_value<'py>(py: Python<'py>, name: &str, raw: Raw<'_>) -> PyResult<Bound<'py, PyAny>> {
    static DECODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    DECODE
        .import(py, "msgspec.msgpack", "decode")?
        .call1((PyBytes::new(py, raw.bytes()),))
        .map_err(|error| {
            classes::wire_fault(
                py,
                format!("{name}: expected a value that Python can hold: {error}"),
                raw.offset(),
            )
        })
}
