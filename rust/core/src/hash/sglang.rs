//! The `sglang` scheme: SHA-256 chained over the pages of a prompt.
