//! The coalescing recorder: from token buffers to encoded batches.
