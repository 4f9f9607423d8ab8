//! In which tiers and groups one block is held, and how often.

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::tier::{Tier, Tiers};

/// Copies that are counted; as many requests compute one block at once in no engine.
pub const MAX_COPIES: u32 = 1 << 16;

/// A block's copies in one tier and group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hold {
    /// The tier.
    pub tier: Tier,
    /// Dense number of the KV cache group ([`super::group::Groups`]).
    pub group: u8,
    /// Copies: more than one only where they are counted.
    pub copies: u32,
}

/// What an event does to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A store: one copy more where copies are counted, else present.
    Add {
        /// The tier.
        tier: Tier,
        /// The group.
        group: u8,
        /// Copies are counted.
        counted: bool,
    },
    /// A removal: one copy less.
    Take {
        /// The tier.
        tier: Tier,
        /// The group.
        group: u8,
    },
    /// A removal that names no tier: one GPU copy less, and gone from the other tiers.
    TakeUnstated {
        /// The group.
        group: u8,
    },
    /// Held nowhere any more.
    Clear,
    /// The same, but the block stays known: blocks below it are held.
    Hollow,
}

/// Where a block is held. Empty: nowhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Residency(SmallVec<[Hold; 2]>);

impl Residency {
    /// Where a block is held, hold by hold: no two of one tier and group, and all with copies.
    pub fn new(mut holds: Vec<Hold>) -> Self {
        holds.sort_unstable();
        Self(holds.into())
    }

    /// Whether the block is held nowhere.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Every hold, by tier and group.
    pub fn holds(&self) -> &[Hold] {
        &self.0
    }

    /// Change it. False when there was nothing to take.
    pub fn apply(&mut self, change: Change) -> bool {
        match change {
            Change::Add { tier, group, counted } => self.add(tier, group, counted),
            Change::Take { tier, group } => self.take(tier, group),
            Change::TakeUnstated { group } => {
                let before = self.0.len();
                self.0.retain(|hold| hold.group != group || hold.tier == Tier::Gpu);
                let cleared = self.0.len() < before;
                self.take(Tier::Gpu, group) || cleared
            }
            Change::Clear | Change::Hollow => {
                let held = !self.is_empty();
                self.0.clear();
                held
            }
        }
    }

    fn add(&mut self, tier: Tier, group: u8, counted: bool) -> bool {
        match self.find(tier, group) {
            Ok(place) if counted => self.0[place].copies = MAX_COPIES.min(self.0[place].copies + 1),
            Ok(_) => {}
            Err(place) => self.0.insert(place, Hold { tier, group, copies: 1 }),
        }
        true
    }

    fn take(&mut self, tier: Tier, group: u8) -> bool {
        let Ok(place) = self.find(tier, group) else {
            return false;
        };
        self.0[place].copies -= 1;
        if self.0[place].copies == 0 {
            self.0.remove(place);
        }
        true
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

    fn find(&self, tier: Tier, group: u8) -> Result<usize, usize> {
        self.0
            .binary_search_by_key(&(tier, group), |hold| (hold.tier, hold.group))
    }
}

/// A residency by number; the same number is the same residency.
pub type ResidencyNumber = u32;

/// The number of the empty residency.
pub const NOWHERE: ResidencyNumber = 0;

/// Residencies in use; few, since blocks by the million are held in the same ways.
#[derive(Debug)]
pub struct Residencies {
    all: Vec<(Residency, u32)>,
    free: Vec<ResidencyNumber>,
    numbers: HashMap<Residency, ResidencyNumber>,
}

impl Default for Residencies {
    fn default() -> Self {
        Self {
            all: vec![(Residency::default(), 1)],
            free: Vec::new(),
            numbers: HashMap::from_iter([(Residency::default(), NOWHERE)]),
        }
    }
}

impl Residencies {
    /// The residency with a number.
    pub fn get(&self, number: ResidencyNumber) -> &Residency {
        &self.all[number as usize].0
    }

    /// The number of a residency, which is then to be kept.
    pub fn number(&mut self, residency: Residency) -> ResidencyNumber {
        if let Some(&number) = self.numbers.get(&residency) {
            return number;
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.all.push(Default::default());
            self.all.len() as ResidencyNumber - 1
        });
        self.all[number as usize] = (residency.clone(), 0);
        self.numbers.insert(residency, number);
        number
    }

    /// One more use of a number.
    pub fn keep(&mut self, number: ResidencyNumber) {
        self.all[number as usize].1 += 1;
    }

    /// One use less; after the last the number may come to mean something else.
    pub fn let_go(&mut self, number: ResidencyNumber) {
        let (residency, uses) = &mut self.all[number as usize];
        *uses -= 1;
        if *uses == 0 {
            self.numbers.remove(residency);
            *residency = Residency::default();
            self.free.push(number);
        }
    }

    /// Bytes on the heap.
    pub fn size_bytes(&self) -> usize {
        let entry = size_of::<(Residency, u32)>();
        self.all.capacity() * entry + self.numbers.capacity() * (entry + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(tier: Tier, group: u8, counted: bool) -> Change {
        Change::Add { tier, group, counted }
    }

    fn copies(block: &Residency, tier: Tier, group: u8) -> u32 {
        block.find(tier, group).map_or(0, |place| block.0[place].copies)
    }

    #[test]
    fn copies_are_counted_only_where_asked_and_a_clear_resets_them() {
        let mut block = Residency::default();
        block.apply(add(Tier::Gpu, 0, true));
        block.apply(add(Tier::Gpu, 0, true));
        block.apply(add(Tier::Cpu, 0, false));
        block.apply(add(Tier::Cpu, 0, false));
        let take = |tier| Change::Take { tier, group: 0 };
        assert!(block.apply(take(Tier::Gpu)) && block.apply(take(Tier::Cpu)));
        assert!(!block.apply(take(Tier::Cpu)));
        assert_eq!(copies(&block, Tier::Gpu, 0), 1);
        assert!(block.apply(Change::Clear) && !block.apply(Change::Clear));
    }

    #[test]
    fn a_removal_without_a_tier_takes_one_gpu_copy_and_everything_below() {
        let mut block = Residency::default();
        block.apply(add(Tier::Gpu, 0, true));
        block.apply(add(Tier::Gpu, 0, true));
        block.apply(add(Tier::Disk, 0, false));
        block.apply(add(Tier::Cpu, 1, false));
        let take = Change::TakeUnstated { group: 0 };
        assert!(block.apply(take));
        assert_eq!((copies(&block, Tier::Gpu, 0), copies(&block, Tier::Disk, 0)), (1, 0));
        let mut both = Tiers::default();
        both.insert(Tier::Gpu);
        both.insert(Tier::Cpu);
        assert_eq!((block.tiers(0b11), block.groups()), (both, 0b11));
        assert!(block.apply(take) && !block.apply(take));
    }

    #[test]
    fn equal_holds_are_equal_in_whatever_order_they_came() {
        let (mut one, mut other) = (Residency::default(), Residency::default());
        one.apply(add(Tier::Gpu, 0, true));
        one.apply(add(Tier::Cpu, 1, true));
        other.apply(add(Tier::Cpu, 1, true));
        other.apply(add(Tier::Gpu, 0, true));
        assert_eq!(one, other);
    }
}
