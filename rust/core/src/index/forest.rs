//! All placed blocks of one geometry: the trees of prompts, and who holds which block.
//!
//! A block stands for one content under one engine hash below one parent. Sources whose engines name blocks alike
//! share it; a source is a member of the block's holders while it holds it, or while it holds blocks below it. So the
//! blocks of a source are closed upwards: whoever is a member of a block is a member of all above it.
//!
//! What takes long and can be seen by nobody is done later, some blocks at a time: a block without holders counts
//! nowhere until it is buried, and a member that was *retired* counts nowhere until it is swept out of the holders.

use hashbrown::HashMap;

use super::blocks::{BlockNumber, Blocks, Flag, Link};
use super::burial::Sweep;
use super::holders::{HolderSet, HolderSets, Member, NOBODY, Outcome};
use super::record::Kept;
use super::residency::{Change, Residency};
use super::table::BlockTable;

/// The trees of one geometry.
#[derive(Debug, Default)]
pub struct Forest {
    pub(super) blocks: Blocks,
    pub(super) sets: HolderSets,
    by_content: BlockTable,
    by_engine: BlockTable,
    /// What blocks were computed from, where that is kept.
    kept: HashMap<BlockNumber, Box<Kept>>,
    kept_bytes: usize,
    /// Contents that somebody holds.
    held: usize,
    /// Members over all blocks, of retired sources too.
    records: usize,
    /// Blocks that lost their last holder and may still be there.
    pub(super) dead: Vec<BlockNumber>,
    pub(super) retired: Vec<Member>,
    pub(super) sweep: Option<Sweep>,
}

/// Where the next block of an event is expected: engines name a run from either end.
#[derive(Debug, Default)]
pub struct Nearby {
    expected: BlockNumber,
    last: Option<BlockNumber>,
}

impl Nearby {
    /// The block that a member calls so.
    pub fn find(&mut self, forest: &Forest, member: Member, engine: u64) -> Option<BlockNumber> {
        let block = forest.find_near(member, engine, self.expected)?;
        let goes_up = self.last.replace(block).is_some_and(|last| last + 1 == block);
        self.expected = if goes_up { block + 1 } else { block.saturating_sub(1) };
        Some(block)
    }
}

/// The hash that a table goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// What engines call a block.
    Engine,
    /// What is in it.
    Content,
}

/// A block under the name that a source gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The source is a member.
    Mine(BlockNumber),
    /// Others are, and what the source says about it is the same.
    Alike(BlockNumber),
    /// No such block.
    Nothing,
}

impl Forest {
    /// Whether there is no block.
    pub fn is_empty(&self) -> bool {
        self.blocks.len() == 0
    }

    /// Contents that somebody holds.
    pub fn held(&self) -> usize {
        self.held
    }

    /// How many more blocks there can be for sure.
    pub fn room(&self) -> usize {
        self.blocks.room()
    }

    /// The content hash of a block.
    pub fn content(&self, block: BlockNumber) -> u64 {
        self.blocks.content(block)
    }

    /// What a block hangs on and who holds it.
    pub fn link(&self, block: BlockNumber) -> Link {
        self.blocks.link(block)
    }

    /// Members over all blocks.
    pub fn records(&self) -> usize {
        self.records
    }

    /// Bytes on the heap.
    pub fn size_bytes(&self) -> usize {
        self.blocks.size_bytes()
            + self.sets.size_bytes()
            + self.by_content.size_bytes()
            + self.by_engine.size_bytes()
            + self.kept_bytes
            + self.kept.capacity() * (size_of::<(BlockNumber, Box<Kept>)>() + 1)
    }

    /// The block that a member calls so.
    pub fn find(&self, member: Member, engine: u64) -> Option<BlockNumber> {
        self.with_engine(engine).find(|&block| self.is_member(block, member))
    }

    /// The same, for a caller who expects it at `guess`.
    fn find_near(&self, member: Member, engine: u64, guess: BlockNumber) -> Option<BlockNumber> {
        match self.blocks.try_link(guess) {
            Some(link) if self.sets.contains(link.holders, member) && self.is_named(guess, engine) => Some(guess),
            _ => self.find(member, engine),
        }
    }

    /// The block that a member calls so, or one that others call so with the same content and parent.
    pub fn seek(&self, member: Member, engine: u64, content: u64, parent: Option<BlockNumber>) -> Found {
        if let Some(parent) = parent
            && let Some(found) = self.seek_next(member, engine, content, parent)
        {
            return found;
        }
        let mut alike = Found::Nothing;
        for block in self.with_engine(engine) {
            if self.is_member(block, member) {
                return Found::Mine(block);
            }
            if self.blocks.content(block) == content && self.blocks.link(block).parent() == parent {
                alike = Found::Alike(block);
            }
        }
        alike
    }

    /// `seek` where the block is mostly found: under the number after its parent's. None where that does not tell.
    fn seek_next(&self, member: Member, engine: u64, content: u64, parent: BlockNumber) -> Option<Found> {
        let next = parent + 1;
        let link = self.blocks.try_link(next)?;
        if link.holders == NOBODY || !self.is_named(next, engine) {
            return None;
        }
        if self.sets.contains(link.holders, member) {
            return Some(Found::Mine(next));
        }
        let alike = self.blocks.content(next) == content && link.parent() == Some(parent);
        // No other block has this engine hash, so the source cannot have given it to another one.
        (alike && !link.has(Flag::Homonym)).then_some(Found::Alike(next))
    }

    /// A table.
    pub fn table(&self, by: By) -> &BlockTable {
        match by {
            By::Engine => &self.by_engine,
            By::Content => &self.by_content,
        }
    }

    /// A table.
    pub fn table_mut(&mut self, by: By) -> &mut BlockTable {
        match by {
            By::Engine => &mut self.by_engine,
            By::Content => &mut self.by_content,
        }
    }

    /// Whether a source that was not retired is a member of a block with this content.
    pub fn knows(&self, content: u64) -> bool {
        self.with_content(content).any(|block| self.is_live(block))
    }

    /// All blocks with this engine hash.
    pub fn with_engine(&self, engine: u64) -> impl Iterator<Item = BlockNumber> {
        let blocks = self.by_engine.candidates(engine);
        blocks.filter(move |&block| self.is_named(block, engine))
    }

    /// All blocks with this content.
    pub fn with_content(&self, content: u64) -> impl Iterator<Item = BlockNumber> {
        let blocks = self.by_content.candidates(content);
        blocks.filter(move |&block| self.blocks.content(block) == content)
    }

    /// Whether a source that was not retired is a member of the block. Its parents are live too then.
    pub fn is_live(&self, block: BlockNumber) -> bool {
        let set = self.blocks.link(block).holders;
        if self.retired.is_empty() {
            return set != NOBODY;
        }
        let holders = self.sets.holders(set);
        holders.iter().any(|holder| !self.retired.contains(&holder.member))
    }

    /// Where a member holds a block; None if it is none of its members.
    pub fn residency(&self, block: BlockNumber, member: Member) -> Option<&Residency> {
        self.sets.find(self.blocks.link(block).holders, member)
    }

    /// Whether a source is a member of the block.
    pub fn is_member(&self, block: BlockNumber, member: Member) -> bool {
        self.sets.contains(self.blocks.link(block).holders, member)
    }

    fn is_named(&self, block: BlockNumber, engine: u64) -> bool {
        self.blocks.engine(block) == engine
    }

    /// Add a block that nobody holds yet; a member must be made at once.
    pub fn add(&mut self, engine: u64, content: u64, parent: Option<BlockNumber>) -> BlockNumber {
        let block = self.plant(engine, content, parent);
        if let Some(parent) = parent.filter(|&parent| parent + 1 != block) {
            self.blocks.set(parent, Flag::Fork, true);
        }
        block
    }

    /// The same for a block whose parent may not be there yet, and is flagged by the caller.
    pub fn plant(&mut self, engine: u64, content: u64, parent: Option<BlockNumber>) -> BlockNumber {
        let block = self.blocks.insert(engine, content, parent);
        let Self {
            blocks,
            by_engine,
            by_content,
            ..
        } = self;
        by_engine.insert(engine, block, |other| {
            if blocks.engine(other) == engine {
                blocks.set(other, Flag::Homonym, true);
                blocks.set(block, Flag::Homonym, true);
            }
        });
        by_content.insert(content, block, |other| {
            if blocks.content(other) == content {
                blocks.set(other, Flag::Alias, true);
                blocks.set(block, Flag::Alias, true);
            }
        });
        block
    }

    /// What a change would make of a member's (or a newcomer's) part in a block.
    pub fn foresee(&mut self, block: BlockNumber, member: Member, change: Change, groups: u32) -> Outcome {
        let set = self.blocks.link(block).holders;
        self.sets.change(set, member, change, groups)
    }

    /// Let a block have other holders; if that is nobody it is to be buried.
    pub fn set_holders(&mut self, block: BlockNumber, to: HolderSet) {
        let from = self.blocks.link(block).holders;
        if from == to {
            return;
        }
        let members = |set| self.sets.holders(set).len();
        self.records = self.records + members(to) - members(from);
        self.sets.moved(from, to);
        let (was_held, is_held) = (self.sets.is_held(from), self.sets.is_held(to));
        if was_held != is_held && !self.is_held_under_another_name(block) {
            self.held = self.held + usize::from(is_held) - usize::from(was_held);
        }
        self.blocks.set_holders(block, to);
        if to == NOBODY {
            self.dead.push(block);
        }
    }

    fn is_held_under_another_name(&self, block: BlockNumber) -> bool {
        self.blocks.link(block).has(Flag::Alias)
            && self
                .with_content(self.blocks.content(block))
                .any(|other| other != block && self.sets.is_held(self.blocks.link(other).holders))
    }

    pub(super) fn remove(&mut self, block: BlockNumber) {
        let (engine, content) = (self.blocks.engine(block), self.blocks.content(block));
        let link = self.blocks.link(block);
        self.by_engine.remove(engine, block);
        self.by_content.remove(content, block);
        self.blocks.remove(block);
        if let Some(kept) = self.kept.remove(&block) {
            self.kept_bytes -= kept.size_bytes();
        }
        if link.has(Flag::Homonym) {
            let last = last_of(self.with_engine(engine));
            if let Some(other) = last {
                self.blocks.set(other, Flag::Homonym, false);
            }
        }
        if link.has(Flag::Alias) {
            let last = last_of(self.with_content(content));
            if let Some(other) = last {
                self.blocks.set(other, Flag::Alias, false);
            }
        }
    }

    /// Whether a member of a block is a member of one below it. `forks` counts those that do not have the next number.
    pub fn has_children(&self, block: BlockNumber, member: Member, forks: &HashMap<BlockNumber, u32>) -> bool {
        let next = self.blocks.try_link(block + 1);
        if let Some(next) = next
            && next.holders != NOBODY
            && next.parent() == Some(block)
            && self.sets.contains(next.holders, member)
        {
            return true;
        }
        self.blocks.link(block).has(Flag::Fork) && forks.contains_key(&block)
    }

    /// What a block was computed from, where that is kept.
    pub fn kept(&self, block: BlockNumber) -> Option<&Kept> {
        self.kept.get(&block).map(|kept| &**kept)
    }

    /// Whether it is not known yet what a block was computed from, and may be what a store below `parent` says: an
    /// image may have put it elsewhere.
    pub fn wants_kept(&self, block: BlockNumber, parent: Option<BlockNumber>) -> bool {
        let contents = [self.link(block).parent(), parent].map(|above| above.map(|above| self.content(above)));
        contents[0] == contents[1] && self.kept(block).is_none()
    }

    /// Keep what a block was computed from.
    pub fn keep(&mut self, block: BlockNumber, kept: Kept) {
        self.kept_bytes += kept.size_bytes();
        if let Some(before) = self.kept.insert(block, Box::new(kept)) {
            self.kept_bytes -= before.size_bytes();
        }
    }
}

/// The only one there is.
fn last_of(mut blocks: impl Iterator<Item = BlockNumber>) -> Option<BlockNumber> {
    blocks.next().filter(|_| blocks.next().is_none())
}
