//! What a source knows about a block that has no place: held by hash only, or waiting for its parent.

use super::residency::Residency;
use crate::hash::content::{self, Adapter};
use crate::tokens::{TokenSlice, TokenVec};

/// About what a block without a place takes, besides what it is computed from.
pub const RECORD_BYTES: usize = 256;

/// Why a block has no place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// Known by its engine hash only. Parked while it is held; else it is there because others wait for it.
    Loose(Option<Parked>),
    /// Its tokens are known, its parent's place is not yet.
    Pending(Box<Pending>),
    /// It is a page that is not full: held by its hash, and never placed.
    Partial,
}

/// What a block waits for, and what it needs to be placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The block it waits for.
    pub parent: u64,
    /// Its ticket.
    pub ticket: u64,
    /// It waits in the parked room: it came by a store that could not have named its namespace.
    pub parked: bool,
    /// What it is computed from.
    pub kept: Kept,
}

/// A held block without a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parked {
    /// Its ticket in the parked room.
    pub ticket: u64,
    /// It came by a store with more (or fewer) tokens than its blocks cover.
    pub unaligned: bool,
}

/// What a block was computed from: kept while it is pending, and longer where the index keeps tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The namespace, of a first block.
    pub namespace: Option<Namespace>,
    /// The ids the block covers.
    pub tokens: TokenVec,
    /// Its extra keys in canonical form; empty for none.
    pub extra: Box<[u8]>,
}

impl Kept {
    /// Bytes on the heap, with its own.
    pub fn size_bytes(&self) -> usize {
        kept_bytes(self.tokens.as_slice(), &self.extra)
    }
}

/// What keeping these would take.
pub fn kept_bytes(tokens: TokenSlice<'_>, extra: &[u8]) -> usize {
    let id = if tokens.is_narrow() { 4 } else { 8 };
    size_of::<Kept>() + tokens.len() * id + extra.len()
}

/// A namespace, owned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespace {
    /// The adapter's name.
    pub lora_name: Option<String>,
    /// The adapter's number.
    pub lora_id: Option<i64>,
    /// The tenant's salt.
    pub cache_salt: Option<String>,
}

impl Namespace {
    /// The seed of its first blocks.
    pub fn root(&self) -> u64 {
        content::root(
            Adapter::new(self.lora_name.as_deref(), self.lora_id),
            self.cache_salt.as_deref(),
        )
    }
}

/// One block of one source that has no place.
///
/// It stays while it is held, or while others wait for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Where it is held.
    pub residency: Residency,
    /// Why it has no place.
    pub link: Link,
    /// Blocks that wait for it.
    pub children: u32,
}

impl Default for Record {
    fn default() -> Self {
        Self {
            residency: Residency::default(),
            link: Link::Loose(None),
            children: 0,
        }
    }
}

impl Record {
    /// Whether nothing needs it any more.
    pub fn is_idle(&self) -> bool {
        self.residency.is_empty() && self.children == 0
    }
}
