//! The merge rule of coalescing.
