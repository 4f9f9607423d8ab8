//! In which tiers and groups one block is held, and how often.

use smallvec::SmallVec;

use super::tier::{Tier, Tiers};

/// A block's copies in one tier and group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hold {
    /// The tier.
    pub tier: Tier,
    /// Dense number of the KV cache group ([`super::group::Groups`]).
    pub group: u8,
    /// Copies: more than one only where they are counted.
    pub copies: u32,
}

/// Where a block is held. Empty: nowhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Residency(SmallVec<[Hold; 2]>);

impl Residency {
    /// Where a block is held, hold by hold.
    pub fn new(holds: Vec<Hold>) -> Self {
        Self(holds.into())
    }

    /// Whether the block is held nowhere.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Every hold, in no order that means anything.
    pub fn holds(&self) -> &[Hold] {
        &self.0
    }

    /// Copies in a tier and group.
    #[cfg(test)]
    pub fn copies(&self, tier: Tier, group: u8) -> u32 {
        self.find(tier, group).map_or(0, |place| self.0[place].copies)
    }

    /// A store: one copy more where copies are counted, else present.
    pub fn add(&mut self, tier: Tier, group: u8, counted: bool) {
        match self.find(tier, group) {
            Some(place) if counted => self.0[place].copies = self.0[place].copies.saturating_add(1),
            Some(_) => {}
            None => self.0.push(Hold { tier, group, copies: 1 }),
        }
    }

    /// A removal: one copy less. False when there was none.
    pub fn take(&mut self, tier: Tier, group: u8) -> bool {
        let Some(place) = self.find(tier, group) else {
            return false;
        };
        self.0[place].copies -= 1;
        if self.0[place].copies == 0 {
            self.0.swap_remove(place);
        }
        true
    }

    /// A removal that names no tier: one GPU copy less, and gone from the other tiers. False when there was nothing.
    pub fn take_unstated(&mut self, group: u8) -> bool {
        let before = self.0.len();
        self.0.retain(|hold| hold.group != group || hold.tier == Tier::Gpu);
        let cleared = self.0.len() < before;
        self.take(Tier::Gpu, group) || cleared
    }

    /// Held nowhere any more. False when it was not held before.
    pub fn clear(&mut self) -> bool {
        let held = !self.is_empty();
        self.0.clear();
        held
    }

    /// Tiers in which one of `groups` (a bit each) holds the block.
    pub fn tiers(&self, groups: u32) -> Tiers {
        let mut tiers = Tiers::default();
        for hold in &self.0 {
            if groups & (1 << hold.group) != 0 {
                tiers.insert(hold.tier);
            }
        }
        tiers
    }

    /// Groups that hold the block in any tier, a bit each.
    pub fn groups(&self) -> u32 {
        self.0.iter().fold(0, |groups, hold| groups | 1 << hold.group)
    }

    fn find(&self, tier: Tier, group: u8) -> Option<usize> {
        self.0.iter().position(|hold| hold.tier == tier && hold.group == group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_counted_only_where_asked_and_a_clear_resets_them() {
        let mut block = Residency::default();
        block.add(Tier::Gpu, 0, true);
        block.add(Tier::Gpu, 0, true);
        block.add(Tier::Cpu, 0, false);
        block.add(Tier::Cpu, 0, false);
        assert!(block.take(Tier::Gpu, 0) && block.take(Tier::Cpu, 0));
        assert!(!block.take(Tier::Cpu, 0));
        assert_eq!(block.copies(Tier::Gpu, 0), 1);
        assert!(block.clear() && !block.clear());
    }

    #[test]
    fn a_removal_without_a_tier_takes_one_gpu_copy_and_everything_below() {
        let mut block = Residency::default();
        block.add(Tier::Gpu, 0, true);
        block.add(Tier::Gpu, 0, true);
        block.add(Tier::Disk, 0, false);
        block.add(Tier::Cpu, 1, false);
        assert!(block.take_unstated(0));
        assert_eq!((block.copies(Tier::Gpu, 0), block.copies(Tier::Disk, 0)), (1, 0));
        assert_eq!(
            (block.tiers(0b11), block.groups()),
            (
                {
                    let mut tiers = Tiers::default();
                    tiers.insert(Tier::Gpu);
                    tiers.insert(Tier::Cpu);
                    tiers
                },
                0b11
            )
        );
        assert!(block.take_unstated(0) && !block.take_unstated(0));
    }
}
