//! `kvevents._core.yardstick`: what benchmarks measure the package against. Nothing else calls it.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sha2::{Digest, Sha256};

use kvevents_core::tokens::TokenSlice;

use crate::buffers::TokenArgument;
use crate::numbers;

#[pyfunction]
fn sha256_floor(
    tokens: TokenArgument,
    #[pyo3(from_py_with = numbers::page_size)] page_size: usize,
) -> PyResult<[u8; 32]> {
    let TokenSlice::U32(ids) = tokens.as_slice() else {
        return Err(PyValueError::new_err("tokens: expected a buffer of 32-bit ids"));
    };
    if page_size == 0 {
        return Err(PyValueError::new_err("page_size: expected at least 1, got 0"));
    }
    // No longer than what there is to hash.
    let page_size = page_size.min(ids.len() + 1);
    let mut message = vec![0_u8; 32 + 4 * page_size];
    let mut start = 32;
    let mut digest = [0; 32];
    for page in ids.chunks_exact(page_size) {
        let (_, body) = message.split_at_mut(32);
        for (id, out) in page.iter().zip(body.chunks_exact_mut(4)) {
            out.copy_from_slice(&id.to_le_bytes());
        }
        digest = Sha256::digest(&message[start..]).into();
        message[..32].copy_from_slice(&digest);
        start = 0;
    }
    Ok(digest)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(sha256_floor, module)?)
}
