//! KV cache events without Python: tokens, hashing, the wire codec, the recorder and the prefix index.
#![deny(unsafe_code)]

pub mod tokens;
