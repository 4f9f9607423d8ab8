//! The merge rule over Python events.

use kvevents_core::coalesce::merge::View;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

/// Python values that are the same by `==`; values that cannot be compared are not.
struct Same<'py>(Bound<'py, PyAny>);

impl PartialEq for Same<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.0.eq(&other.0).unwrap_or(false)
    }
}

#[pyfunction]
#[pyo3(signature = (tail, event, /))]
pub(super) fn merges(tail: &Bound<'_, PyAny>, event: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(view(tail)?.takes(&view(event)?))
}

/// An event by its fields, whoever declared its class; what has none, or others than they should be, is a barrier.
fn view<'py>(event: &Bound<'py, PyAny>) -> PyResult<View<Same<'py>, Same<'py>>> {
    let is_no_event = |error: &PyErr| {
        let py = event.py();
        error.is_instance_of::<PyTypeError>(py) || error.is_instance_of::<PyOverflowError>(py)
    };
    match read(event) {
        Err(error) if is_no_event(&error) => Ok(View::Barrier),
        read => read,
    }
}

fn read<'py>(event: &Bound<'py, PyAny>) -> PyResult<View<Same<'py>, Same<'py>>> {
    let py = event.py();
    let class = event.get_type();
    let Some(names) = class.getattr_opt(intern!(py, "__struct_fields__"))? else {
        return Ok(View::Barrier);
    };
    let names = names.cast_into::<PyTuple>()?;
    let (mut hashes, mut parent, mut tokens, mut block_size, mut entries) = (None, None, None, 0, None);
    let mut compared = vec![class.into_any()];
    for name in names.iter() {
        let name = name.cast::<PyString>()?;
        let value = event.getattr(name)?;
        match name.to_str()? {
            "block_hashes" => hashes = Some(value),
            "parent_block_hash" => parent = Some(value).filter(|value| !value.is_none()),
            "token_ids" => tokens = Some(value),
            // Concatenated block by block, if both have them.
            "extra_keys" => {
                compared.push(value.is_none().into_pyobject(py)?.to_owned().into_any());
                entries = Some(value).filter(|value| !value.is_none());
            }
            name => {
                if name == "block_size" {
                    block_size = value.extract()?;
                }
                compared.push(value);
            }
        }
    }
    let Some(hashes) = hashes else {
        return Ok(View::Barrier);
    };
    let Some(tokens) = tokens else {
        let fields = Same(PyTuple::new(py, compared)?.into_any());
        return Ok(View::Removed { fields });
    };
    let (blocks, units) = (hashes.len()?, tokens.len()?);
    let last = if blocks > 0 {
        Some(Same(hashes.get_item(blocks - 1)?))
    } else {
        None
    };
    if units > 0 {
        // Ids and pairs of ids do not go into one list.
        compared.push(tokens.get_item(0)?.get_type().into_any());
    }
    let has_all_entries = entries.map_or(Ok(true), |entries| entries.len().map(|count| count == blocks))?;
    Ok(View::Stored {
        aligned: has_all_entries && blocks.checked_mul(block_size) == Some(units),
        parent: parent.map(Same),
        last,
        fields: Same(PyTuple::new(py, compared)?.into_any()),
    })
}
