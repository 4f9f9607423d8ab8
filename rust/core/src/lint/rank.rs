//! The blocks of one rank: what each event says against what was said before.

use hashbrown::{HashMap, HashSet};

use super::finding::{Findings, Kind};
use super::holdings::{Holdings, Known};
use crate::index::{Kind as GroupKind, Medium, Tier};
use crate::wire::{Batch, EngineHash, Event, Removed, Stored};

/// What is known of one rank.
#[derive(Debug)]
pub(super) struct Rank {
    pub holdings: Holdings,
    /// Tokens in a block by tier and group, as first said.
    sizes: HashMap<(Option<Tier>, u64), u64>,
    /// Groups whose kind was said.
    told: HashSet<u64>,
    /// What the engine says of itself.
    block_size: Option<u64>,
    /// Whether all that is held was announced in what was read.
    is_whole: bool,
    /// Stores whose parent is not held so far: where, and the parent.
    waiting: Vec<(usize, u64)>,
    keys: Vec<u64>,
}

impl Rank {
    pub fn new(capacity: usize, block_size: Option<u64>, is_whole: bool) -> Self {
        Self {
            holdings: Holdings::new(capacity),
            sizes: HashMap::new(),
            told: HashSet::new(),
            block_size,
            is_whole,
            waiting: Vec::new(),
            keys: Vec::new(),
        }
    }

    /// Check the events of a batch; the blocks in its stores and in its removals.
    pub fn check(&mut self, batch: &Batch<'_>, found: &mut Findings) -> (u64, u64) {
        let (mut stored, mut removed) = (0, 0);
        for event in &batch.events {
            match event {
                Event::Stored(event) => stored += self.store(event, found),
                Event::Removed(event) => removed += self.remove(event, found),
                Event::Cleared(event) => {
                    found.note(Kind::Cleared, event.offset, 0, None);
                    self.resolve(found);
                    self.holdings.clear();
                    self.is_whole = true;
                }
            }
        }
        self.resolve(found);
        (stored, removed)
    }

    /// The engine began anew.
    pub fn begin(&mut self) {
        self.holdings.forget();
        self.is_whole = true;
    }

    /// Batches are missing here.
    pub fn miss(&mut self) {
        self.is_whole = false;
    }

    /// Check a store; the blocks in it.
    fn store(&mut self, stored: &Stored<'_>, found: &mut Findings) -> u64 {
        let offset = stored.offset;
        let blocks = stored.block_hashes.len() as u64;
        if blocks == 0 {
            found.note(Kind::NoBlocks, offset, 0, None);
            return 0;
        }
        let group = stored.group_idx.unwrap_or(0);
        let medium = Medium::read(stored.medium, stored.locality);
        let tier = Self::read_tier((offset, stored.medium), medium, found);
        if stored.kv_cache_spec_kind.is_some() {
            self.told.insert(group);
        } else if stored.group_idx.is_some() && !self.told.contains(&group) {
            let words = || format!("group {group}");
            found.explain(Kind::GroupWithoutKind, offset, blocks, words);
        }
        self.check_tokens(stored, tier, found);
        if let Some(parent) = stored.parent_block_hash.map(EngineHash::key)
            && self.holdings.find(parent) != Known::Held
        {
            self.waiting.push((offset, parent));
        }
        let place = self.holdings.place(tier, group);
        let mut keys = std::mem::take(&mut self.keys);
        keys.clear();
        stored.block_hashes.keys_into(&mut keys);
        let mut again = 0;
        let mut one = None;
        for &block in &keys {
            if self.holdings.store(block, place) {
                again += 1;
                one = one.or(Some(block));
            }
        }
        self.keys = keys;
        if again > 0 {
            found.note(Kind::StoredAgain, offset, again, one);
        }
        blocks
    }

    fn check_tokens(&mut self, stored: &Stored<'_>, tier: Option<Tier>, found: &mut Findings) {
        let offset = stored.offset;
        let blocks = stored.block_hashes.len() as u64;
        let (size, tokens) = (stored.block_size, stored.token_ids.len() as u64);
        if tokens == 0 {
            let is_gpu = tier == Some(Tier::Gpu);
            let kind = if is_gpu { Kind::NoTokens } else { Kind::NoTokensBelow };
            found.note(kind, offset, blocks, None);
            return;
        }
        let group = stored.group_idx.unwrap_or(0);
        let said = self.block_size.filter(|_| tier == Some(Tier::Gpu) && group == 0);
        let first = *self.sizes.entry((tier, group)).or_insert(said.unwrap_or(size));
        if size != first {
            let words = || format!("expected {first} tokens, got {size}");
            found.explain(Kind::BlockSize, offset, blocks, words);
        }
        let room = blocks.saturating_mul(size);
        if tokens == room {
            return;
        }
        let is_masked = stored
            .kv_cache_spec_kind
            .is_some_and(|kind| GroupKind::read(kind, None) != GroupKind::Full);
        let kind = if tokens > room && is_masked {
            Kind::MaskedStore
        } else if tokens < room && tokens > room - size {
            Kind::PartialBlock
        } else {
            Kind::TokenCount
        };
        let words = || format!("expected {room} tokens for {blocks} blocks of {size}, got {tokens}");
        found.explain(kind, offset, blocks, words);
    }

    /// Check a removal; the blocks in it.
    fn remove(&mut self, removed: &Removed<'_>, found: &mut Findings) -> u64 {
        let offset = removed.offset;
        if removed.block_hashes.is_empty() {
            found.note(Kind::NoBlocks, offset, 0, None);
        }
        let medium = Medium::read(removed.medium, removed.locality);
        Self::read_tier((offset, removed.medium), medium, found);
        let places = self.holdings.removed_from(medium, removed.group_idx.unwrap_or(0));
        let mut keys = std::mem::take(&mut self.keys);
        keys.clear();
        removed.block_hashes.keys_into(&mut keys);
        let mut missing = [(0, None); 2];
        for &block in &keys {
            let known = match self.holdings.remove(block, places) {
                Known::Held => continue,
                Known::Before => &mut missing[0],
                Known::Never => &mut missing[1],
            };
            known.0 += 1;
            known.1 = known.1.or(Some(block));
        }
        self.keys = keys;
        let never = if self.is_trusted() {
            Kind::RemovedUnknown
        } else {
            Kind::RemovedUnseen
        };
        for (kind, (blocks, block)) in [Kind::RemovedAgain, never].into_iter().zip(missing) {
            if blocks > 0 {
                found.note(kind, offset, blocks, block);
            }
        }
        removed.block_hashes.len() as u64
    }

    /// The tier that an event names; none of them for an unknown name.
    fn read_tier(event: (usize, Option<&str>), medium: Medium, found: &mut Findings) -> Option<Tier> {
        match medium {
            Medium::Known(tier) => Some(tier),
            Medium::Unstated => Some(Tier::Gpu),
            Medium::Unknown => {
                let (offset, name) = event;
                found.explain(Kind::UnknownTier, offset, 0, || {
                    format!("{:?}", name.unwrap_or_default())
                });
                None
            }
        }
    }

    /// Judge the stores whose parent was not held when they came.
    fn resolve(&mut self, found: &mut Findings) {
        let mut waiting = std::mem::take(&mut self.waiting);
        for (offset, parent) in waiting.drain(..) {
            let kind = match self.holdings.find(parent) {
                Known::Held => Kind::ParentLater,
                Known::Before => Kind::ParentGone,
                Known::Never if self.is_trusted() => Kind::OrphanParent,
                Known::Never => Kind::UnseenParent,
            };
            found.note(kind, offset, 1, Some(parent));
        }
        self.waiting = waiting;
    }

    /// Whether a block that is not known was never announced.
    fn is_trusted(&self) -> bool {
        self.is_whole && self.holdings.forgotten == 0
    }
}
