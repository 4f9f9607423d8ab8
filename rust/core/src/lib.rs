//! KV cache events without Python: tokens, hashing, the wire codec, the recorder and the prefix index.
#![deny(unsafe_code)]

pub mod hash;
pub mod index;
pub mod merge;
pub mod pages;
pub mod recorder;
pub mod slots;
pub mod tokens;
pub mod wire;
