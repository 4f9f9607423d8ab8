//! Block hashes: what engines call a block, and what the index calls it.

mod cbor;
pub mod chain;
pub mod content;
pub mod sglang;
pub mod vllm;
