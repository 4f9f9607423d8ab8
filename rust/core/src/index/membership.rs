//! A source's part in the blocks of a forest: entering, changing, leaving.

use hashbrown::HashMap;

use super::blocks::BlockNumber;
use super::forest::Forest;
use super::forests::Forests;
use super::holders::HolderSet;
use super::residency::{Change, Residency};
use super::source::Source;

impl Source {
    /// Blocks that it is a member of, and where it holds them.
    pub(super) fn placed<'a>(&self, forests: &'a Forests) -> impl Iterator<Item = (BlockNumber, &'a Residency)> {
        let member = self.member;
        let forest = self
            .geometry
            .filter(|_| self.bound > 0)
            .and_then(|geometry| forests.get(geometry));
        forest.into_iter().flat_map(move |forest| {
            let blocks = forest.blocks.iter();
            blocks.filter_map(move |block| Some((block, forest.residency(block, member)?)))
        })
    }

    /// Change where a block is held that it is a member of; it stays one.
    pub(super) fn change(&mut self, forest: &mut Forest, block: BlockNumber, change: Change) {
        let outcome = forest.foresee(block, self.member, change, self.groups.full());
        self.count(outcome.before, outcome.after);
        forest.set_holders(block, outcome.to);
    }

    /// Become a member of a block by a store of it.
    pub(super) fn join(&mut self, forest: &mut Forest, block: BlockNumber, change: Change) {
        self.change(forest, block, change);
        self.count_in(forest, block);
    }

    /// Become a member of a block that was held (and counted) without a place.
    pub(super) fn join_with(&mut self, forest: &mut Forest, block: BlockNumber, residency: Residency) {
        let set = forest.link(block).holders;
        let to = forest.sets.with(set, self.member, Some(residency));
        forest.set_holders(block, to);
        self.count_in(forest, block);
    }

    /// Count a block that it has become a member of.
    pub(super) fn count_in(&mut self, forest: &Forest, block: BlockNumber) {
        self.bound += 1;
        if let Some(parent) = forest.link(block).parent().filter(|parent| parent + 1 != block) {
            *self.forks.entry(parent).or_default() += 1;
        }
    }

    /// A removal of a block that it is a member of. False when there was nothing to take.
    pub(super) fn take(&mut self, forest: &mut Forest, block: BlockNumber, change: Change) -> bool {
        let full = self.groups.full();
        let outcome = forest.foresee(block, self.member, change, full);
        if !outcome.done {
            return false;
        }
        self.count(outcome.before, outcome.after);
        if !outcome.gone {
            forest.set_holders(block, outcome.to);
        } else if forest.has_children(block, self.member, &self.forks) {
            let hole = forest.foresee(block, self.member, Change::Hollow, full);
            forest.set_holders(block, hole.to);
        } else {
            let above = self.leave(forest, block, outcome.to);
            self.leave_idle(forest, above);
        }
        true
    }

    /// Leave a block if it needs it for nothing, then the one above, and so on upwards.
    pub(super) fn leave_idle(&mut self, forest: &mut Forest, block: Option<BlockNumber>) {
        let mut next = block;
        while let Some(block) = next.filter(|&block| self.is_idle(forest, block)) {
            let outcome = forest.foresee(block, self.member, Change::Clear, self.groups.full());
            next = self.leave(forest, block, outcome.to);
        }
    }

    /// Whether it holds neither a block nor any below it.
    fn is_idle(&self, forest: &Forest, block: BlockNumber) -> bool {
        let residency = forest.residency(block, self.member);
        residency.is_some_and(Residency::is_empty) && !forest.has_children(block, self.member, &self.forks)
    }

    /// Be a member of a block no more, which `others` are. Gives the one above.
    fn leave(&mut self, forest: &mut Forest, block: BlockNumber, others: HolderSet) -> Option<BlockNumber> {
        let parent = forest.link(block).parent();
        forest.set_holders(block, others);
        self.bound -= 1;
        if let Some(parent) = parent.filter(|parent| parent + 1 != block)
            && let Some(count) = self.forks.get_mut(&parent)
        {
            *count -= 1;
            if *count == 0 {
                self.forks.remove(&parent);
                shrink(&mut self.forks);
            }
        }
        parent
    }
}

/// Give memory back once little of it is used.
fn shrink(forks: &mut HashMap<BlockNumber, u32>) {
    if forks.len() * 8 < forks.capacity() {
        forks.shrink_to(forks.len() * 2);
    }
}
