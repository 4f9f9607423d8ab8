//! Content hashes: the identity of a block across engines and workers.
