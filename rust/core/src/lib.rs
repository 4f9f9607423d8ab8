//! KV cache events without Python: tokens, hashing, the wire codec, the recorder, vLLM's block pool, the prefix index.
#![deny(unsafe_code)]

pub mod block_pool;
pub mod coalesce;
pub mod hash;
pub mod index;
pub mod learned;
pub mod lint;
pub mod pages;
pub mod prompt;
pub mod pseudonyms;
pub mod recorder;
pub mod relay;
pub mod routing;
pub mod slots;
pub mod tokens;
pub mod wire;
