//! Block hashes: what engines call a block, and what the index calls it.

pub mod chain;
pub mod content;
pub mod namespace;
pub mod sglang;
mod sha256;
pub mod vllm;
