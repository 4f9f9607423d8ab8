//! How a source's stores are cut, beside what is known of its engine's blocks.
//!
//! Some engines announce the last page of a prompt though it is not full: one hash, with its own length as block size.
//! Such a *partial page* is held by its hash, in no match: nothing is reused below it, and once it is full it has
//! another hash. So it contradicts the engine's block size only when something is stored below it. And a size that was
//! learned from blocks that may all have been partial pages is given up for a larger one.

use super::forest::Forest;
use super::forests::Forests;
use super::geometry::Geometry;
use super::record::{Link, Record};
use super::residency::Change;
use super::slice::Store;
use super::source::{Refusal, Source};
use super::tier::Tiers;

/// Lone blocks after which a learned size is certain.
const TRIED: usize = 64;
/// How a store is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// As is known, or nothing is known yet.
    Whole,
    /// One block that is too short.
    Partial,
    /// Into larger blocks than those known so far, which may all have been partial pages.
    Larger,
}

impl Source {
    /// How a store with tokens is cut; refused where that contradicts what is known.
    pub(super) fn judge(&self, store: &Store<'_>) -> Result<Cut, Refusal> {
        let got = store.geometry;
        let Some(known) = self.known_size(got) else {
            return Ok(Cut::Whole);
        };
        let is_below_partial = store.parent.is_some_and(|parent| self.is_partial(parent));
        if got == known && !is_below_partial {
            return Ok(Cut::Whole);
        }
        if !is_below_partial && store.is_aligned() && got.pairs == known.pairs {
            if got.block_size > known.block_size && !self.tried.is_empty() && !self.is_chained(store) {
                return Ok(Cut::Larger);
            }
            // Of a registered size that no store has borne out, a divisor is rather the engine's own size: those in use
            // divide each other, and lengths of prompts mostly do not. (Blocks of one token show by the second one.)
            let is_other_size =
                self.geometry.is_none() && got.block_size > 1 && known.block_size.is_multiple_of(got.block_size);
            let is_lone = store.blocks.len() == 1 && !self.is_parent(store.blocks[0]);
            if got.block_size < known.block_size && is_lone && !is_other_size {
                return Ok(Cut::Partial);
            }
        }
        let below = if is_below_partial {
            ", and none below a shorter one"
        } else {
            ""
        };
        Err(self.contradiction(known, got, below))
    }

    /// Whether blocks of that size may be all that it holds.
    pub(super) fn check_size(&self, got: Geometry) -> Result<(), Refusal> {
        match self.known_size(got) {
            Some(known) if known != got => Err(self.contradiction(known, got, "")),
            _ => Ok(()),
        }
    }

    /// The size learned or else registered, of blocks like those that came.
    fn known_size(&self, got: Geometry) -> Option<Geometry> {
        let registered = self.setup.block_size;
        self.geometry
            .or(registered.map(|block_size| Geometry { block_size, ..got }))
    }

    fn contradiction(&self, known: Geometry, got: Geometry, below: &str) -> Refusal {
        let what = if known.pairs { "blocks of pairs" } else { "blocks" };
        let origin = match self.geometry {
            Some(_) => "as in its first store",
            None => "as registered",
        };
        let expected = format!("{what} of {} {origin}{below}", known.block_size);
        Refusal::Geometry { expected, got }
    }

    /// An aligned store says how large blocks are (of a full-attention group), or bears out what is known.
    pub(super) fn learn_size(&mut self, store: &Store<'_>) {
        let is_first = self.geometry.is_none();
        self.geometry = Some(store.geometry);
        if self.tried.is_empty() && !(is_first && self.setup.block_size.is_none()) {
            return;
        }
        let is_certain = store.blocks.len() > 1
            || self.is_chained(store)
            || self.is_parent(store.blocks[0])
            || self.tried.len() == TRIED;
        if is_certain {
            self.tried = Vec::new();
        } else if !self.tried.contains(&store.blocks[0]) {
            self.tried.push(store.blocks[0]);
        }
    }

    /// After a restoration: a size is uncertain only while every block with a place is one of those tried.
    pub(super) fn check_tried(&mut self, forest: Option<&Forest>) {
        let is_placed = |&&block: &&u64| forest.is_some_and(|forest| forest.find(self.member, block).is_some());
        let is_open = self.geometry.is_some() && self.setup.block_size.is_none() && self.tried.len() <= TRIED;
        let is_twice = (1..self.tried.len()).any(|at| self.tried[..at].contains(&self.tried[at]));
        if !is_open || is_twice || self.tried.iter().filter(is_placed).count() != self.bound {
            self.tried = Vec::new();
        }
    }

    /// The blocks so far were partial pages.
    pub(super) fn unlearn_size(&mut self, forests: &mut Forests) {
        let Some(geometry) = self.geometry.take() else { return };
        let mut forest = forests.get_mut(geometry);
        for block in std::mem::take(&mut self.tried) {
            let placed = forest
                .as_deref_mut()
                .and_then(|forest| Some((forest.find(self.member, block)?, forest)));
            if let Some((number, forest)) = placed {
                let residency = forest.residency(number, self.member).cloned().unwrap_or_default();
                self.take(forest, number, Change::Clear);
                self.count(Tiers::default(), residency.tiers(self.groups.full()));
                let record = Record {
                    residency,
                    ..Record::default()
                };
                self.records.insert(block, record);
            }
            self.unpend(block);
            self.part(block);
        }
        // What is littered goes when it is swept.
        if forest.is_some_and(|forest| forest.is_empty() && !forest.is_littered()) {
            forests.remove(geometry);
        }
    }

    /// Hold a block that is too short.
    pub(super) fn hold_partial(&mut self, forests: &mut Forests, store: &Store<'_>, change: Change) {
        self.counters.partial += store.blocks.len() as u64;
        for &block in store.blocks {
            let forest = self.geometry.and_then(|geometry| forests.get_mut(geometry));
            let placed = forest.and_then(|forest| Some((forest.find(self.member, block)?, forest)));
            if let Some((number, forest)) = placed {
                self.change(forest, number, change);
            } else {
                self.change_loose(block, change);
                self.part(block);
            }
        }
    }

    /// A loose block is a partial page.
    pub(super) fn part(&mut self, block: u64) {
        if !matches!(
            self.records.get(&block),
            Some(Record {
                link: Link::Loose(_),
                ..
            })
        ) {
            return;
        }
        self.unpark(block);
        if let Some(record) = self.records.get_mut(&block) {
            record.link = Link::Partial;
        }
    }

    /// A block that was taken for a partial page is a whole one.
    pub(super) fn make_whole(&mut self, block: u64) {
        if let Some(record) = self.records.get_mut(&block)
            && record.link == Link::Partial
        {
            record.link = Link::Loose(None);
        }
    }

    fn is_partial(&self, block: u64) -> bool {
        let record = self.records.get(&block);
        record.is_some_and(|record| record.link == Link::Partial)
    }

    /// Whether blocks wait for it.
    fn is_parent(&self, block: u64) -> bool {
        self.records.get(&block).is_some_and(|record| record.children > 0)
    }

    /// Whether it hangs on one of the blocks that the size was learned from.
    fn is_chained(&self, store: &Store<'_>) -> bool {
        store.parent.is_some_and(|parent| self.tried.contains(&parent))
    }
}
