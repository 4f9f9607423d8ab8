//! How an engine cuts tokens into blocks.

use std::sync::atomic::{AtomicU64, Ordering};

/// Block size, and what a block is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// Tokens (pairs, for bigrams) in a block.
    pub block_size: u32,
    /// Blocks of pairs: each covers one token of the next block too.
    pub pairs: bool,
}

/// How most engines of an index cut, as far as was seen last. It may be wrong.
#[derive(Debug)]
pub struct LikelyGeometry(AtomicU64);

impl LikelyGeometry {
    /// Engines that cut like the index.
    pub fn new(block_size: u32) -> Self {
        Self(AtomicU64::new(u64::from(block_size) << 1))
    }

    /// What was seen last.
    pub fn get(&self) -> Geometry {
        let seen = self.0.load(Ordering::Relaxed);
        Geometry {
            block_size: (seen >> 1) as u32,
            pairs: seen & 1 != 0,
        }
    }

    /// What is seen now.
    pub fn set(&self, geometry: Geometry) {
        let seen = u64::from(geometry.block_size) << 1 | u64::from(geometry.pairs);
        if self.0.load(Ordering::Relaxed) != seen {
            self.0.store(seen, Ordering::Relaxed);
        }
    }
}
