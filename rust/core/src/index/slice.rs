//! A slice of a batch: events read, normalised and hashed before the lock is taken.

use std::ops::Range;

use super::geometry::Geometry;
use super::group::Kind;
use super::reading::{EXTRA_BYTES, Identity, kind, oversize};
use super::record::Namespace;
use super::report::Report;
use super::tier::{Medium, Tier};
use crate::hash::content;
use crate::tokens::{TokenSlice, TokenVec};
use crate::wire::{EngineHash, Event, HashList, Stored};

/// Blocks applied under one hold of the lock; an event is never split.
const SLICE: usize = 64;
/// Stores before this one in which its parent is looked for.
const RECENT: usize = 16;

/// Some events. Its buffers are used again for the next ones.
#[derive(Debug)]
pub struct Slice<'a> {
    /// Token ids that were decoded when the batch was read, and the others.
    ids: &'a [u32],
    tokens: TokenVec,
    steps: Vec<Step<'a>>,
    blocks: Vec<u64>,
    contents: Vec<u64>,
}

#[derive(Clone, Debug)]
enum Tokens<'a> {
    Decoded(&'a [u32]),
    Copied(Range<usize>),
}

impl<'a> Tokens<'a> {
    fn of(&'a self, copied: &'a TokenVec) -> TokenSlice<'a> {
        match self {
            Self::Decoded(ids) => TokenSlice::U32(ids),
            Self::Copied(range) => copied.as_slice().slice(range.start, range.end),
        }
    }
}

#[derive(Debug)]
enum Step<'a> {
    Store(StoreStep<'a>),
    Remove {
        blocks: Range<usize>,
        medium: Medium,
        group: u64,
    },
    Clear,
}

#[derive(Debug)]
struct StoreStep<'a> {
    offset: usize,
    blocks: Range<usize>,
    parent: Option<u64>,
    tokens: Tokens<'a>,
    units: usize,
    geometry: Geometry,
    identity: Identity<'a>,
    root: u64,
    tier: Tier,
    group: u64,
    kind: Option<Kind>,
    /// The hash above the first block, and those of the blocks, if that could be foreseen.
    seed: u64,
    contents: Range<usize>,
}

/// One event.
#[derive(Debug)]
pub enum Action<'s> {
    /// Blocks are held.
    Store(Store<'s>),
    /// Blocks are held no more.
    Remove {
        /// The blocks.
        blocks: &'s [u64],
        /// Where.
        medium: Medium,
        /// The group.
        group: u64,
    },
    /// Nothing is held any more.
    Clear,
}

/// A store: one run of blocks.
#[derive(Clone, Copy, Debug)]
pub struct Store<'s> {
    /// Where the event begins in the payload.
    pub offset: usize,
    /// Engine hashes, first to last.
    pub blocks: &'s [u64],
    /// Engine hash of the block above the first.
    pub parent: Option<u64>,
    /// The ids; of pairs the sequence they come from, one longer.
    pub tokens: TokenSlice<'s>,
    /// Ids (pairs) that were sent; 0 for a store without tokens.
    pub units: usize,
    /// How it is cut; means nothing without tokens.
    pub geometry: Geometry,
    /// Seed of the namespace; 0 for a store below another block.
    pub root: u64,
    /// The tier.
    pub tier: Tier,
    /// `group_idx`, 0 where there is none.
    pub group: u64,
    /// The group's kind, where the event says it.
    pub kind: Option<Kind>,
    identity: &'s Identity<'s>,
    seed: u64,
    contents: &'s [u64],
}

impl<'s> Store<'s> {
    /// As many tokens as its blocks cover.
    pub fn is_aligned(&self) -> bool {
        is_aligned(self.units, self.blocks.len(), self.geometry)
    }

    /// The ids that a block of an aligned store covers.
    pub fn ids(&self, index: usize) -> TokenSlice<'s> {
        ids_of(self.tokens, index, self.geometry)
    }

    /// Extra keys of a block in canonical form; empty for none.
    pub fn extra(&self, index: usize) -> &'s [u8] {
        self.identity.extra.get(index).map_or(&[], |extra| extra)
    }

    /// The content hash of a block below one with the hash `above`: hashed before, if `above` is what was foreseen.
    pub fn content(&self, index: usize, above: u64) -> u64 {
        if let Some(&content) = self.contents.get(index) {
            let foreseen = if index == 0 {
                self.seed
            } else {
                self.contents[index - 1]
            };
            if foreseen == above {
                return content;
            }
        }
        content::block(above, self.ids(index), Some(self.extra(index)))
    }

    /// The namespace, of the first block of a prompt.
    pub fn namespace(&self, index: usize) -> Option<Namespace> {
        (index == 0 && self.parent.is_none()).then(|| self.identity.namespace())
    }

    /// A block with its content, if that was foreseen.
    pub fn foreseen_at(&self, index: usize) -> Option<(u64, u64)> {
        Some((*self.blocks.get(index)?, *self.contents.get(index)?))
    }

    /// The blocks with what was foreseen of their contents.
    pub fn foreseen(&self) -> impl Iterator<Item = (u64, Option<u64>)> {
        let contents = (0..).map(|index: usize| self.contents.get(index).copied());
        self.blocks.iter().copied().zip(contents)
    }
}

fn is_aligned(units: usize, blocks: usize, geometry: Geometry) -> bool {
    units > 0 && units == blocks * geometry.block_size as usize
}

fn ids_of(tokens: TokenSlice<'_>, index: usize, Geometry { block_size, pairs }: Geometry) -> TokenSlice<'_> {
    content::window(tokens, index, block_size as usize, pairs).expect("an aligned store covers its blocks")
}

impl<'a> Slice<'a> {
    /// An empty slice of a batch whose token ids were decoded into `ids`.
    pub fn new(ids: &'a [u32]) -> Self {
        Self {
            ids,
            tokens: TokenVec::default(),
            steps: Vec::new(),
            blocks: Vec::new(),
            contents: Vec::new(),
        }
    }

    /// Read the next events in place of those read before: those that name `SLICE` blocks at most, and one at least.
    pub fn read(&mut self, events: &mut std::slice::Iter<'_, Event<'a>>, report: &mut Report) {
        self.steps.clear();
        self.blocks.clear();
        self.contents.clear();
        self.tokens.clear();
        let mut blocks = 0;
        while let Some(event) = events.as_slice().first()
            && (blocks == 0 || blocks + size_of_event(event) <= SLICE)
        {
            blocks += size_of_event(event);
            events.next();
            if let Some(step) = self.read_step(event, report) {
                self.steps.push(step);
            }
        }
    }

    /// An event as the index takes it; None if it cannot be used, which the report then says.
    fn read_step(&mut self, event: &Event<'a>, report: &mut Report) -> Option<Step<'a>> {
        match event {
            Event::Stored(stored) => self.read_store(stored, report).map(Step::Store),
            Event::Removed(removed) => Some(Step::Remove {
                blocks: self.keys(&removed.block_hashes),
                medium: Medium::read(removed.medium, removed.locality),
                group: removed.group_idx.unwrap_or(0),
            }),
            Event::Cleared(_) => Some(Step::Clear),
        }
    }

    fn read_store(&mut self, event: &Stored<'a>, report: &mut Report) -> Option<StoreStep<'a>> {
        let offset = event.offset;
        let tier = match Medium::read(event.medium, event.locality) {
            Medium::Known(tier) => tier,
            Medium::Unstated => Tier::Gpu,
            Medium::Unknown => {
                let medium = event.medium.unwrap_or_default();
                let reason = format!("medium: expected a tier, got {medium:?}");
                report.skip("unknown-tier", offset, reason);
                return None;
            }
        };
        let units = event.token_ids.len();
        let block_size = match u32::try_from(event.block_size) {
            Ok(size) if size > 0 || units == 0 => size,
            _ if units == 0 => 0,
            _ => {
                let size = event.block_size;
                let reason = format!("block_size: expected 1 to {} with tokens, got {size}", u32::MAX);
                report.skip("bad-block-size", offset, reason);
                return None;
            }
        };
        if let Some(size) = oversize(event) {
            let reason = format!("extra_keys: expected at most {EXTRA_BYTES} bytes for a block, got {size}");
            report.skip("extra-keys-too-large", offset, reason);
            return None;
        }
        let identity = Identity::read(event);
        let tokens = event.token_ids.decoded(self.ids).map_or_else(
            || {
                let first = self.tokens.as_slice().len();
                event.token_ids.copy_into(&mut self.tokens);
                Tokens::Copied(first..self.tokens.as_slice().len())
            },
            Tokens::Decoded,
        );
        Some(StoreStep {
            offset,
            blocks: self.keys(&event.block_hashes),
            parent: event.parent_block_hash.map(EngineHash::key),
            tokens,
            units,
            geometry: Geometry {
                block_size,
                pairs: event.token_ids.is_pairs(),
            },
            root: if event.parent_block_hash.is_none() {
                identity.root()
            } else {
                0
            },
            identity,
            tier,
            group: event.group_idx.unwrap_or(0),
            kind: kind(event),
            seed: 0,
            contents: 0..0,
        })
    }

    fn keys(&mut self, hashes: &HashList<'_>) -> Range<usize> {
        let start = self.blocks.len();
        hashes.keys_into(&mut self.blocks);
        start..self.blocks.len()
    }

    /// Hash the blocks of all stores whose place can be foreseen; `bound` knows the content of blocks from before.
    pub fn hash(&mut self, bound: impl Fn(u64) -> Option<u64>) {
        let Self {
            steps,
            blocks,
            tokens,
            contents,
            ..
        } = self;
        let mut recent: Vec<(u64, u64)> = Vec::new();
        for step in steps {
            let Step::Store(step) = step else { continue };
            let count = step.blocks.len();
            if !is_aligned(step.units, count, step.geometry) {
                continue;
            }
            let above = step.parent.map_or(Some(step.root), |parent| {
                let mut stores = recent.iter().rev().take(RECENT);
                let last = stores.find(|(block, _)| *block == parent);
                last.map(|&(_, content)| content).or_else(|| bound(parent))
            });
            let Some(seed) = above else { continue };
            step.seed = seed;
            let ids = step.tokens.of(tokens);
            let mut last = seed;
            let start = contents.len();
            contents.extend((0..count).map(|index| {
                let extra = step.identity.extra.get(index).map(AsRef::as_ref);
                last = content::block(last, ids_of(ids, index, step.geometry), extra);
                last
            }));
            step.contents = start..contents.len();
            if let Some(&block) = blocks[step.blocks.clone()].last() {
                recent.push((block, last));
            }
        }
    }

    /// The events, in order.
    pub fn actions(&self) -> impl Iterator<Item = Action<'_>> {
        self.steps.iter().map(|step| match step {
            Step::Store(step) => Action::Store(Store {
                offset: step.offset,
                blocks: &self.blocks[step.blocks.clone()],
                parent: step.parent,
                tokens: step.tokens.of(&self.tokens),
                units: step.units,
                geometry: step.geometry,
                root: step.root,
                tier: step.tier,
                group: step.group,
                kind: step.kind,
                identity: &step.identity,
                seed: step.seed,
                contents: &self.contents[step.contents.clone()],
            }),
            Step::Remove { blocks, medium, group } => Action::Remove {
                blocks: &self.blocks[blocks.clone()],
                medium: *medium,
                group: *group,
            },
            Step::Clear => Action::Clear,
        })
    }
}

/// Blocks it names; an event that names none costs something too.
fn size_of_event(event: &Event<'_>) -> usize {
    match event {
        Event::Stored(stored) => stored.block_hashes.len().max(1),
        Event::Removed(removed) => removed.block_hashes.len().max(1),
        Event::Cleared(_) => 1,
    }
}
