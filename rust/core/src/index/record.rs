//! What a source knows about one of its blocks.

use super::residency::Residency;
use super::table::Holder;
use crate::hash::content::{self, Adapter};
use crate::tokens::TokenVec;

/// Where a block belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// Known by its engine hash only. Parked while it is held; else it is there because others wait for it.
    Loose(Option<Parked>),
    /// Its tokens are known, its parent's place is not yet.
    Pending {
        /// The block it waits for.
        parent: u64,
        /// Its ticket.
        ticket: u64,
        /// It waits in the parked room: it came by a store that could not have named its namespace.
        parked: bool,
    },
    /// It has its content hash, and keeps it for as long as the record is there.
    Bound {
        /// The block above; None at the start of a prompt.
        parent: Option<u64>,
        /// The content hash.
        content: u64,
    },
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

/// One block of one source.
///
/// It stays while it is held, or while blocks below it (held, or with held blocks below them) hang on it: a hole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Where it is held.
    pub residency: Residency,
    /// Where it belongs.
    pub link: Link,
    /// Records whose parent it is, bound or pending.
    pub children: u32,
    /// What it was computed from.
    pub kept: Option<Box<Kept>>,
}

impl Default for Record {
    fn default() -> Self {
        Self {
            residency: Residency::default(),
            link: Link::Loose(None),
            children: 0,
            kept: None,
        }
    }
}

impl Record {
    /// Whether nothing needs it any more.
    pub fn is_idle(&self) -> bool {
        self.residency.is_empty() && self.children == 0
    }

    /// The table's entry for it, once it is bound.
    pub fn holder(&self, block: u64, source: u32, full: u32) -> Holder {
        Holder {
            block,
            source,
            groups: self.residency.groups(),
            tiers: self.residency.tiers(full),
        }
    }
}
