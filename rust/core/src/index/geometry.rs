//! How an engine cuts tokens into blocks.

/// Block size, and what a block is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// Tokens (pairs, for bigrams) in a block.
    pub block_size: u32,
    /// Blocks of pairs: each covers one token of the next block too.
    pub pairs: bool,
}
