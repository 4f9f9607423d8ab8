//! What the blocks of a batch's stores contain, as the index would tell it.
//!
//! A block's tokens are replaced by what the key makes of its content hash, which is what the index compares: blocks
//! are equal afterwards exactly where they were before, and only as whole blocks with all that is above them. (To
//! replace token by token would leave a text in a cipher that its statistics undo.)

use std::ops::Range;

use hashbrown::HashMap;

use super::blocks::Blocks;
use super::names::{Content, Names};
use crate::hash::content;
use crate::index::{Groups, Identity, Kind, Medium, Tier, kind_of};
use crate::tokens::{TokenSlice, TokenVec};
use crate::wire::{Batch, EngineHash, Event, Stored};

/// The contents of one batch; its buffers are used again for the next.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// Of all blocks, store after store.
    blocks: Vec<Content>,
    /// Of each event, the place of its first block and what stands above it.
    events: Vec<(Range<usize>, Content)>,
    keys: Vec<u64>,
    tokens: TokenVec,
    /// Of the source, with the kinds it has said.
    groups: Groups,
}

/// Above the first block of a prompt whose namespace its store cannot name.
const NAMELESS: Content = Content::Loose(0);

impl Contents {
    /// Find out what the stores of a batch contain; `blocks` knows those from before and learns these.
    pub fn read(&mut self, batch: &Batch<'_>, ids: &[u32], blocks: &mut Blocks) {
        self.blocks.clear();
        self.events.clear();
        self.events.resize(batch.events.len(), (0..0, NAMELESS));
        // Children may come before their parent within a batch.
        let mut waiting: HashMap<u64, Vec<usize>> = HashMap::new();
        let mut next = Vec::new();
        for first in 0..batch.events.len() {
            next.push(first);
            while let Some(index) = next.pop() {
                let Event::Stored(stored) = &batch.events[index] else {
                    continue;
                };
                if let Err(parent) = self.read_store(index, stored, ids, blocks, false) {
                    waiting.entry(parent).or_default().push(index);
                } else if !waiting.is_empty() {
                    let children = stored
                        .block_hashes
                        .iter()
                        .filter_map(|block| waiting.remove(&block.key()));
                    next.extend(children.flatten());
                }
            }
        }
        let mut orphans: Vec<usize> = waiting.into_values().flatten().collect();
        orphans.sort_unstable();
        for index in orphans {
            if let Event::Stored(stored) = &batch.events[index] {
                let read = self.read_store(index, stored, ids, blocks, true);
                debug_assert!(read.is_ok(), "the last time an unknown parent is an answer");
            }
        }
    }

    /// The token ids of an event's store under new names; of pairs the sequence they come from, one longer.
    pub fn tokens(&self, event: usize, stored: &Stored<'_>, names: &Names, out: &mut Vec<u32>) {
        out.clear();
        let (range, above) = &self.events[event];
        let (units, size) = (stored.token_ids.len(), block_size(stored));
        if units == 0 {
            return;
        }
        if stored.token_ids.is_pairs() {
            // Neighbours share a token: the last one of a block is the first one of the next.
            let mut last = Vec::new();
            names.tokens(*above, size, &mut last);
            out.extend(last.last());
        }
        let end = out.len() + units;
        for content in &self.blocks[range.clone()] {
            names.tokens(*content, size, out);
        }
        out.truncate(end);
    }

    /// Read one store. Not if its parent, which is then given, is not known; the `last` time it goes without.
    fn read_store(
        &mut self,
        event: usize,
        stored: &Stored<'_>,
        ids: &[u32],
        blocks: &mut Blocks,
        last: bool,
    ) -> Result<(), u64> {
        let identity = Identity::read(stored);
        let names_namespace = self.names_namespace(stored);
        let above = match stored.parent_block_hash.map(EngineHash::key) {
            None if names_namespace => Content::Known(identity.root()),
            None => NAMELESS,
            Some(parent) => match blocks.get(parent) {
                Some(content) => Content::Known(content),
                None if last => Content::Loose(parent),
                None => return Err(parent),
            },
        };
        let tokens = if let Some(ids) = stored.token_ids.decoded(ids) {
            TokenSlice::U32(ids)
        } else {
            self.tokens.clear();
            stored.token_ids.copy_into(&mut self.tokens);
            self.tokens.as_slice()
        };
        let (units, size) = (stored.token_ids.len(), block_size(stored));
        self.keys.clear();
        if stored.block_hashes.len().checked_mul(size) == Some(units) {
            stored.block_hashes.keys_into(&mut self.keys);
        }
        let start = self.blocks.len();
        let mut content = above;
        for index in 0..units.div_ceil(size) {
            let extra = identity.extra.get(index).map(AsRef::as_ref);
            let end = units.min((index + 1) * size) + usize::from(stored.token_ids.is_pairs());
            let ids = tokens.slice(index * size, end);
            let key = self.keys.get(index).copied();
            // A copy in another tier or group says less than the first one did.
            let known = key.filter(|_| !names_namespace).and_then(|key| blocks.get(key));
            content = match (known, content) {
                (Some(known), _) => Content::Known(known),
                (None, Content::Known(above)) => Content::Known(content::block(above, ids, extra)),
                (None, Content::Loose(above)) => Content::Loose(content::block(above, ids, extra)),
            };
            if let (Content::Known(content), Some(key)) = (content, key) {
                blocks.insert(key, content);
            }
            self.blocks.push(content);
        }
        self.events[event] = (start..self.blocks.len(), above);
        Ok(())
    }

    /// Whether a store's fields say all that separates its prompt from others, as the index sees it.
    fn names_namespace(&mut self, stored: &Stored<'_>) -> bool {
        let group = self.groups.learn(stored.group_idx.unwrap_or(0), kind_of(stored));
        let is_full = group.is_some_and(|(group, _)| self.groups.kind(group) == Kind::Full);
        let medium = Medium::read(stored.medium, stored.locality);
        is_full && matches!(medium, Medium::Known(Tier::Gpu) | Medium::Unstated)
    }
}

/// Tokens that are replaced together.
fn block_size(stored: &Stored<'_>) -> usize {
    usize::try_from(stored.block_size)
        .unwrap_or(usize::MAX)
        .clamp(1, stored.token_ids.len().max(1))
}
