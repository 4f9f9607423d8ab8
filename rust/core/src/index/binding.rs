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
use super::forest::{By, Forest, Found};
use super::record::{Kept, Link, Parked, Pending, RECORD_BYTES, kept_bytes};
use super::residency::Change;
use super::room::{Allowance, Room, Terms};
use super::slice::Store;
use super::source::Source;
use crate::hash::content;

/// Blocks of an event for which what was fetched beforehand is not there any more when it is needed, and how far ahead
/// it is fetched again.
const LARGE: usize = 256;
const FAR: usize = 24;

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

/// Where and since when the blocks of an event wait if they have to, and how many still may.
#[derive(Debug)]
struct Wait {
    parked: bool,
    now: Duration,
    allowance: Allowance,
}

impl Source {
    /// Place the blocks of an aligned store and hold them; those that cannot be placed wait.
    pub(super) fn place_all(
        &mut self,
        forest: &mut Forest,
        store: &Store<'_>,
        change: Change,
        names_namespace: bool,
        terms: &Terms,
    ) {
        if names_namespace && !self.waiting.is_empty() {
            store.blocks.iter().for_each(|&block| self.unpend(block));
        }
        let parked = !names_namespace;
        let mut wait = Wait {
            parked,
            now: terms.now,
            allowance: Allowance::new(if parked { terms.parked } else { terms.pending }),
        };
        let mut above = match store.parent {
            None if names_namespace => Above::Known(None, store.root),
            None => Above::Nameless,
            Some(parent) => match forest.find(self.member, parent) {
                Some(number) => Above::Known(Some(number), forest.content(number)),
                None => Above::Unknown(parent),
            },
        };
        let is_large = store.blocks.len() > LARGE;
        for index in 0..store.blocks.len() {
            if is_large && let Some((block, content)) = store.foreseen_at(index + FAR) {
                forest.table(By::Engine).prefetch(block);
                forest.table(By::Content).prefetch(content);
            }
            above = self.place(forest, store, index, above, change, &mut wait);
        }
        // What its blocks waited for until now may have found a place that nobody needs any more.
        for index in 0..self.loosened.len() {
            let place = forest.find(self.member, self.loosened[index]);
            self.leave_idle(forest, place);
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
        wait: &mut Wait,
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
            if self.setup.keep_tokens && placed == content && forest.wants_kept(number, parent) {
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
        wait: &mut Wait,
    ) -> Above {
        let block = store.blocks[index];
        let may_wait = match above {
            Above::Known(..) => true,
            Above::Unknown(_) => {
                let kept = kept_bytes(store.ids(index), store.extra(index));
                wait.allowance.admit(RECORD_BYTES + kept)
            }
            Above::Nameless => wait.allowance.admit(RECORD_BYTES),
        };
        if !may_wait && !self.records.contains_key(&block) {
            // What would be dropped for want of room at the end of the event is not made first.
            self.turned_away += 1;
            return Above::Unknown(block);
        }
        self.change_loose(block, change);
        self.make_whole(block);
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
                if may_wait && parent != block && matches!(self.records[&block].link, Link::Loose(_)) {
                    self.pend(block, parent, keep(store, index), wait.parked, wait.now);
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
        if let Some(kept) = kept.filter(|_| forest.wants_kept(number, parent)) {
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
    pub(super) fn pend(&mut self, block: u64, parent: u64, kept: Kept, parked: bool, now: Duration) {
        self.unpark(block);
        self.records.entry(parent).or_default().children += 1;
        self.waiting.entry(parent).or_default().insert(block);
        let bytes = RECORD_BYTES + kept.size_bytes();
        let ticket = self.room(parked).enter(block, bytes, now);
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
            ticket: self.parked.enter(block, RECORD_BYTES, now),
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
