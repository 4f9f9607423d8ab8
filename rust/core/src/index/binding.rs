//! Binding: how an engine's block hash gets its place in the prompt it belongs to.
//!
//! ```text
//!             unknown parent            parent placed
//!   Loose ────────────────▶ Pending ────────────────▶ placed (a member of a block of the forest)
//!     └───────────── root, or parent placed ─────────────▲
//! ```
//!
//! A block goes only to the right until nothing needs it; then it is gone. (A store on the GPU, which alone names
//! salts and images, first takes its blocks back to the left: what it says goes before what waits.)

use std::time::Duration;

use super::blocks::BlockNumber;
use super::forest::{Forest, Found};
use super::record::{Kept, Link, Parked, Pending};
use super::residency::Change;
use super::room::Room;
use super::slice::Store;
use super::source::Source;
use crate::hash::content;

/// What stands above a block.
#[derive(Clone, Copy, Debug)]
enum Above {
    /// Nothing, or a block that has its place; and the hash of all above.
    Known(Option<BlockNumber>, u64),
    /// A block that has no place.
    Unknown(u64),
    /// Nothing, in a namespace that the store cannot name.
    Nameless,
}

/// Where and since when a block waits if it has to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub parked: bool,
    pub now: Duration,
}

impl Source {
    /// Place the blocks of an aligned store and hold them; those that cannot be placed wait.
    pub(super) fn place_all(
        &mut self,
        forest: &mut Forest,
        store: &Store<'_>,
        change: Change,
        names_namespace: bool,
        now: Duration,
    ) {
        if names_namespace && !self.waiting.is_empty() {
            store.blocks.iter().for_each(|&block| self.unpend(block));
        }
        let wait = Wait {
            parked: !names_namespace,
            now,
        };
        let mut above = match store.parent {
            None if names_namespace => Above::Known(None, store.root),
            None => Above::Nameless,
            Some(parent) => match forest.find(self.member, parent) {
                Some(number) => Above::Known(Some(number), forest.content(number)),
                None => Above::Unknown(parent),
            },
        };
        for index in 0..store.blocks.len() {
            above = self.place(forest, store, index, above, change, wait);
        }
    }

    /// Hold a block, placed below what stands above it if that is known. Gives what stands above the next one.
    fn place(
        &mut self,
        forest: &mut Forest,
        store: &Store<'_>,
        index: usize,
        above: Above,
        change: Change,
        wait: Wait,
    ) -> Above {
        let block = store.blocks[index];
        if self.records.is_empty() || !self.records.contains_key(&block) {
            let Above::Known(parent, seed) = above else {
                if let Some(number) = forest.find(self.member, block) {
                    self.change(forest, number, change);
                    return Above::Known(Some(number), forest.content(number));
                }
                return self.place_loose(forest, store, index, above, change, wait);
            };
            let content = store.content(index, seed);
            let number = match forest.seek(self.member, block, content, parent) {
                Found::Mine(number) => {
                    self.change(forest, number, change);
                    number
                }
                Found::Alike(number) => {
                    self.join(forest, number, change);
                    number
                }
                Found::Nothing => {
                    let number = forest.add(block, content, parent);
                    self.join(forest, number, change);
                    number
                }
            };
            let placed = forest.content(number);
            if self.setup.keep_tokens && placed == content && forest.kept(number).is_none() {
                forest.keep(number, keep(store, index));
            }
            return Above::Known(Some(number), placed);
        }
        self.place_loose(forest, store, index, above, change, wait)
    }

    /// The same for a block that has no place so far.
    fn place_loose(
        &mut self,
        forest: &mut Forest,
        store: &Store<'_>,
        index: usize,
        above: Above,
        change: Change,
        wait: Wait,
    ) -> Above {
        let block = store.blocks[index];
        self.change_loose(block, change);
        match above {
            Above::Known(parent, seed) => {
                self.unpend(block);
                self.unpark(block);
                let content = store.content(index, seed);
                let kept = self.setup.keep_tokens.then(|| keep(store, index));
                let number = self.bind(forest, block, parent, content, kept);
                self.bind_waiting(forest, block, number);
                return Above::Known(Some(number), content);
            }
            Above::Unknown(parent) => {
                if parent != block && matches!(self.records[&block].link, Link::Loose(_)) {
                    self.pend(block, parent, keep(store, index), wait);
                }
            }
            Above::Nameless => {}
        }
        self.park(block, false, wait.now);
        Above::Unknown(block)
    }

    /// Give a block without a place its place. The record goes; who waits for it is for the caller to bind.
    fn bind(
        &mut self,
        forest: &mut Forest,
        block: u64,
        parent: Option<BlockNumber>,
        content: u64,
        kept: Option<Kept>,
    ) -> BlockNumber {
        let record = self.records.remove(&block).expect("the block is known by hash");
        let number = match forest.seek(self.member, block, content, parent) {
            Found::Alike(number) => number,
            Found::Nothing => forest.add(block, content, parent),
            Found::Mine(_) => unreachable!("a block has a record or a place, not both"),
        };
        self.join_with(forest, number, record.residency);
        if let Some(kept) = kept.filter(|_| forest.kept(number).is_none()) {
            forest.keep(number, kept);
        }
        number
    }

    /// Bind the blocks that waited for `block`, those that waited for them, and so on.
    fn bind_waiting(&mut self, forest: &mut Forest, block: u64, number: BlockNumber) {
        let mut bound = vec![(block, number)];
        while let Some((block, parent)) = bound.pop() {
            let above = forest.content(parent);
            for child in self.waiting.remove(&block).unwrap_or_default() {
                let record = self.records.get_mut(&child).expect("a block that waits is known");
                let Link::Pending(pending) = std::mem::replace(&mut record.link, Link::Loose(None)) else {
                    unreachable!("only pending blocks wait")
                };
                let Pending {
                    ticket, parked, kept, ..
                } = *pending;
                self.room(parked).leave(ticket);
                let content = content::block(above, kept.tokens.as_slice(), Some(&kept.extra));
                let kept = self.setup.keep_tokens.then_some(kept);
                let number = self.bind(forest, child, Some(parent), content, kept);
                bound.push((child, number));
            }
        }
    }

    /// Let a loose block wait for its parent.
    pub(super) fn pend(&mut self, block: u64, parent: u64, kept: Kept, Wait { parked, now }: Wait) {
        self.unpark(block);
        self.records.entry(parent).or_default().children += 1;
        self.waiting.entry(parent).or_default().insert(block);
        let ticket = self.room(parked).enter(block, now);
        let record = self.records.get_mut(&block).expect("just held");
        record.link = Link::Pending(Box::new(Pending {
            parent,
            ticket,
            parked,
            kept,
        }));
    }

    /// A held block that is loose is parked.
    pub(super) fn park(&mut self, block: u64, unaligned: bool, now: Duration) {
        let record = self.records.get_mut(&block).expect("just held");
        let Link::Loose(parked) = &mut record.link else { return };
        let guest = parked.get_or_insert_with(|| Parked {
            ticket: self.parked.enter(block, now),
            unaligned: false,
        });
        if unaligned && !guest.unaligned {
            guest.unaligned = true;
            self.unaligned += 1;
        }
    }

    pub(super) fn room(&mut self, parked: bool) -> &mut Room {
        if parked { &mut self.parked } else { &mut self.pending }
    }
}

fn keep(store: &Store<'_>, index: usize) -> Kept {
    Kept {
        namespace: store.namespace(index),
        tokens: store.ids(index).to_vec(),
        extra: store.extra(index).into(),
    }
}
