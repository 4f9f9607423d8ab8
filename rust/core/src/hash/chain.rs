//! A chain of block hashes that can be continued and split.
