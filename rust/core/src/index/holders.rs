//! Who holds a block, as interned sets: blocks that one event brought share a set, and comparing two sets is comparing
//! two numbers.

use std::collections::VecDeque;

use hashbrown::HashTable;

use super::residency::{Change, NOWHERE, Residencies, Residency, ResidencyNumber};
use super::tier::Tiers;

/// A source as sets number it.
pub type Member = u32;

/// An interned set, by number.
pub type HolderSet = u32;

/// The set without members.
pub const NOBODY: HolderSet = 0;

/// Changes that are remembered.
const STEPS: usize = 256;
/// Sets without blocks that are kept for the next block to use.
const IDLE_SETS: usize = 256;

/// One member of a set. Where its residency is empty it holds the block nowhere: it knows it, as a hole above blocks
/// that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Who.
    pub member: Member,
    /// Where.
    pub residency: ResidencyNumber,
}

/// What a change makes of a set.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// The new set; the member is not in it if it is gone.
    pub to: HolderSet,
    /// False when there was nothing to take.
    pub done: bool,
    /// Tiers in which the groups asked about held the block before.
    pub before: Tiers,
    /// And after.
    pub after: Tiers,
    /// The member holds the block nowhere after the change, and does not stay as a hole.
    pub gone: bool,
}

#[derive(Debug, Default)]
struct Interned {
    holders: Box<[Holder]>,
    hash: u64,
    /// Blocks that refer to it.
    blocks: usize,
    /// Tells it from other sets that have had its number.
    birth: u64,
    /// Somebody in it holds the block somewhere.
    is_held: bool,
}

/// A change that was made not long ago: one event makes the same to all its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    from: HolderSet,
    member: Member,
    groups: u32,
    change: Change,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    key: Key,
    outcome: Outcome,
    births: (u64, u64),
}

/// All sets of one geometry.
#[derive(Debug)]
pub struct HolderSets {
    sets: Vec<Interned>,
    free: Vec<HolderSet>,
    /// Sets that have lost their last block, oldest first; some have blocks again.
    idle: VecDeque<HolderSet>,
    by_holders: HashTable<HolderSet>,
    residencies: Residencies,
    steps: Box<[Option<Step>]>,
    births: u64,
    holders: usize,
}

impl Default for HolderSets {
    fn default() -> Self {
        Self {
            sets: vec![Interned::default()],
            free: Vec::new(),
            idle: VecDeque::new(),
            by_holders: HashTable::new(),
            residencies: Residencies::default(),
            steps: vec![None; STEPS].into_boxed_slice(),
            births: 0,
            holders: 0,
        }
    }
}

impl HolderSets {
    /// The members of a set, by member number.
    pub fn holders(&self, set: HolderSet) -> &[Holder] {
        &self.sets[set as usize].holders
    }

    /// Where a member holds the blocks of a set; None if it is not in it.
    pub fn find(&self, set: HolderSet, member: Member) -> Option<&Residency> {
        let holders = self.holders(set);
        let place = place_of(holders, member).ok()?;
        Some(self.residencies.get(holders[place].residency))
    }

    /// Whether a member is in a set.
    pub fn contains(&self, set: HolderSet, member: Member) -> bool {
        place_of(self.holders(set), member).is_ok()
    }

    /// A residency that a set names.
    pub fn residency(&self, number: ResidencyNumber) -> &Residency {
        self.residencies.get(number)
    }

    /// Whether somebody in a set holds its blocks somewhere.
    pub fn is_held(&self, set: HolderSet) -> bool {
        self.sets[set as usize].is_held
    }

    /// What `change` of one member makes of a set; who is not in it holds nothing yet. The outcome tells tiers for
    /// `groups` (a bit each).
    pub fn change(&mut self, set: HolderSet, member: Member, change: Change, groups: u32) -> Outcome {
        let key = Key {
            from: set,
            member,
            groups,
            change,
        };
        let place = key.place();
        if let Some(step) = &self.steps[place]
            && step.key == key
            && step.births == self.births_of(set, step.outcome.to)
        {
            return step.outcome;
        }
        let mut residency = self.find(set, member).cloned().unwrap_or_default();
        let before = residency.tiers(groups);
        let done = residency.apply(change);
        let after = residency.tiers(groups);
        let gone = residency.is_empty() && change != Change::Hollow;
        let to = self.with(set, member, (!gone).then_some(residency));
        let outcome = Outcome {
            to,
            done,
            before,
            after,
            gone,
        };
        let births = self.births_of(set, to);
        self.steps[place] = Some(Step { key, outcome, births });
        outcome
    }

    /// The set in which one member holds as told, or (None) is not.
    pub fn with(&mut self, set: HolderSet, member: Member, residency: Option<Residency>) -> HolderSet {
        let residency = residency.map(|residency| self.residencies.number(residency));
        let holders = self.holders(set);
        let (before, rest) = match place_of(holders, member) {
            Ok(place) => (&holders[..place], &holders[place + 1..]),
            Err(place) => holders.split_at(place),
        };
        let mut new = Vec::with_capacity(holders.len() + 1);
        new.extend_from_slice(before);
        new.extend(residency.map(|residency| Holder { member, residency }));
        new.extend_from_slice(rest);
        self.intern(new)
    }

    /// The number of a residency, to make a set of.
    pub fn number(&mut self, residency: Residency) -> ResidencyNumber {
        self.residencies.number(residency)
    }

    /// The set of these holders, in the order of their members.
    pub fn intern(&mut self, holders: Vec<Holder>) -> HolderSet {
        if holders.is_empty() {
            return NOBODY;
        }
        let hash = hash_of(&holders);
        let sets = &self.sets;
        if let Some(&known) = self
            .by_holders
            .find(hash, |&set| *sets[set as usize].holders == *holders)
        {
            return known;
        }
        for holder in &holders {
            self.residencies.keep(holder.residency);
        }
        self.births += 1;
        self.holders += holders.len();
        let set = self.free.pop().unwrap_or_else(|| {
            self.sets.push(Interned::default());
            self.sets.len() as HolderSet - 1
        });
        self.sets[set as usize] = Interned {
            is_held: holders.iter().any(|holder| holder.residency != NOWHERE),
            holders: holders.into_boxed_slice(),
            hash,
            blocks: 0,
            birth: self.births,
        };
        let sets = &self.sets;
        self.by_holders.insert_unique(hash, set, |&set| sets[set as usize].hash);
        self.idle.push_back(set);
        set
    }

    /// A block refers to `to` instead of `from` from now on.
    pub fn moved(&mut self, from: HolderSet, to: HolderSet) {
        if to != NOBODY {
            self.sets[to as usize].blocks += 1;
        }
        if from != NOBODY {
            let set = &mut self.sets[from as usize];
            set.blocks -= 1;
            if set.blocks == 0 {
                self.idle.push_back(from);
            }
        }
    }

    /// Free sets that have been without blocks for long. To be called between events: within one, sets come and go.
    pub fn tidy(&mut self) {
        while self.idle.len() > IDLE_SETS {
            let set = self.idle.pop_front().expect("there are some");
            self.free_idle(set);
        }
    }

    fn free_idle(&mut self, set: HolderSet) {
        let interned = &mut self.sets[set as usize];
        if interned.blocks > 0 || interned.holders.is_empty() {
            return;
        }
        let hash = interned.hash;
        let holders = std::mem::take(&mut interned.holders);
        interned.birth = 0;
        for holder in &holders {
            self.residencies.let_go(holder.residency);
        }
        self.holders -= holders.len();
        self.free.push(set);
        if let Ok(entry) = self.by_holders.find_entry(hash, |&other| other == set) {
            entry.remove();
        }
    }

    /// Bytes on the heap.
    pub fn size_bytes(&self) -> usize {
        self.sets.capacity() * size_of::<Interned>()
            + self.holders * size_of::<Holder>()
            + (self.free.capacity() + self.idle.capacity()) * size_of::<HolderSet>()
            + self.by_holders.capacity() * (size_of::<HolderSet>() + 1)
            + self.steps.len() * size_of::<Option<Step>>()
            + self.residencies.size_bytes()
    }

    /// Blocks that refer to a set.
    pub fn blocks(&self, set: HolderSet) -> usize {
        self.sets[set as usize].blocks
    }

    /// Every set that has a member.
    pub fn iter(&self) -> impl Iterator<Item = HolderSet> {
        (1..self.sets.len() as HolderSet).filter(|&set| !self.holders(set).is_empty())
    }

    fn births_of(&self, from: HolderSet, to: HolderSet) -> (u64, u64) {
        (self.sets[from as usize].birth, self.sets[to as usize].birth)
    }
}

impl Key {
    fn place(&self) -> usize {
        let change = match self.change {
            Change::Add { tier, group, counted } => 1 + (tier as u32) + 4 * u32::from(group) + 128 * u32::from(counted),
            Change::Take { tier, group } => 256 + (tier as u32) + 4 * u32::from(group),
            Change::TakeUnstated { group } => 512 + u32::from(group),
            Change::Clear => 0,
            Change::Hollow => 1023,
        };
        let mixed = self.from.wrapping_mul(0x9E37_79B1)
            ^ self.member.wrapping_mul(0x85EB_CA77)
            ^ change.wrapping_mul(0xC2B2_AE3D);
        (mixed >> (u32::BITS - STEPS.ilog2())) as usize
    }
}

/// The same in whatever order the holders come.
fn hash_of(holders: &[Holder]) -> u64 {
    let mixed = holders.iter().map(|holder| {
        let packed = u64::from(holder.member) << 32 | u64::from(holder.residency);
        let product = u128::from(packed ^ 0x9E37_79B9_7F4A_7C15) * 0xD6E8_FEB8_6659_FD93;
        product as u64 ^ (product >> 64) as u64
    });
    mixed.fold(0, u64::wrapping_add)
}

fn place_of(holders: &[Holder], member: Member) -> Result<usize, usize> {
    if holders.len() > 16 {
        return holders.binary_search_by_key(&member, |holder| holder.member);
    }
    // A count without branches, over one or two cache lines.
    let place = holders.iter().filter(|holder| holder.member < member).count();
    match holders.get(place) {
        Some(holder) if holder.member == member => Ok(place),
        _ => Err(place),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tier::Tier;
    use super::*;

    const ADD: Change = Change::Add {
        tier: Tier::Gpu,
        group: 0,
        counted: true,
    };
    const TAKE: Change = Change::Take {
        tier: Tier::Gpu,
        group: 0,
    };

    #[test]
    fn equal_sets_have_one_number_however_they_came_about() {
        let mut sets = HolderSets::default();
        let one = sets.change(NOBODY, 1, ADD, 1).to;
        let other = sets.change(NOBODY, 2, ADD, 1).to;
        let both = sets.change(one, 2, ADD, 1).to;
        assert_eq!(sets.change(other, 1, ADD, 1).to, both);
        let outcome = sets.change(both, 1, TAKE, 1);
        assert_eq!((outcome.to, outcome.done, outcome.gone), (other, true, true));
        assert!(!sets.change(other, 1, TAKE, 1).done);
        assert_eq!(sets.change(other, 2, TAKE, 1).to, NOBODY);
    }

    #[test]
    fn a_hole_is_in_the_set_and_holds_nothing() {
        let mut sets = HolderSets::default();
        let hole = sets.with(NOBODY, 3, Some(Residency::default()));
        assert!(sets.contains(hole, 3) && !sets.contains(hole, 2) && !sets.is_held(hole));
        let held = sets.change(hole, 3, ADD, 1);
        assert!(sets.is_held(held.to) && held.before != held.after);
    }

    #[test]
    fn sets_that_were_freed_are_not_remembered() {
        let mut sets = HolderSets::default();
        let mut last = NOBODY;
        // Each step makes a set of one more copy and leaves the one before without blocks.
        for _ in 0..10 * IDLE_SETS {
            let next = sets.change(last, 7, ADD, 1).to;
            sets.moved(last, next);
            last = next;
            sets.tidy();
        }
        let copies = sets.find(last, 7).expect("a member").holds()[0].copies;
        assert_eq!(copies as usize, 10 * IDLE_SETS);
        assert!(sets.sets.len() < 2 * IDLE_SETS + 8 && sets.by_holders.len() < 2 * IDLE_SETS + 8);
        assert_eq!(sets.residencies.get(NOWHERE), &Residency::default());
        let one_less = sets.change(last, 7, TAKE, 1).to;
        assert_eq!(sets.find(one_less, 7).expect("a member").holds()[0].copies, copies - 1);
    }

    #[test]
    fn members_are_found_in_small_and_in_large_sets() {
        let mut sets = HolderSets::default();
        let mut set = NOBODY;
        for member in (0..100).map(|number| number * 37 % 100) {
            assert!(!sets.contains(set, member));
            set = sets.change(set, member, ADD, 1).to;
            assert!(sets.contains(set, member));
        }
        assert!(sets.holders(set).is_sorted_by_key(|holder| holder.member));
    }
}
