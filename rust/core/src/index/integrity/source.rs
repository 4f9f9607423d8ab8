//! Integrity of a source.

use hashbrown::HashMap;

use crate::index::blocks::BlockNumber;
use crate::index::forest::Forest;
use crate::index::forests::Forests;
use crate::index::record::{Link, RECORD_BYTES};
use crate::index::residency::Residency;
use crate::index::source::Source;
use crate::index::tier::{Tier, Tiers};

/// What a source holds in its forest, counted block by block.
#[derive(Debug, Default)]
pub(super) struct Tally {
    bound: usize,
    held: [usize; 4],
    forks: HashMap<BlockNumber, u32>,
}

impl Tally {
    /// One block more.
    pub(super) fn add(
        &mut self,
        source: &Source,
        forest: &Forest,
        block: BlockNumber,
        residency: &Residency,
        faults: &mut Vec<String>,
    ) {
        self.bound += 1;
        count(&mut self.held, residency.tiers(source.groups.full()));
        if let Some(parent) = forest.link(block).parent().filter(|parent| parent + 1 != block) {
            *self.forks.entry(parent).or_default() += 1;
        }
        if residency.is_empty() && !forest.has_children(block, source.member, &source.forks) {
            faults.push(format!("block {block}: member {} needs it for nothing", source.member));
        }
        if !source.records.is_empty() && source.records.contains_key(&forest.blocks.engine(block)) {
            faults.push(format!("block {block}: it has a place and waits for one"));
        }
    }
}

fn count(held: &mut [usize; 4], tiers: Tiers) {
    let tiers = Tier::ALL.into_iter().filter(|&tier| tiers.contains(tier));
    tiers.for_each(|tier| held[tier as usize] += 1);
}

impl Source {
    /// Every invariant of this source that does not hold.
    pub(super) fn faults(&self, tally: &Tally, forests: &Forests) -> Vec<String> {
        let mut faults = Vec::new();
        if self.bound != tally.bound || self.forks != tally.forks {
            faults.push(format!(
                "counted {} placed blocks and forks {:?}, not {} and {:?}",
                tally.bound, tally.forks, self.bound, self.forks
            ));
        }
        let forest = self.geometry.and_then(|geometry| forests.get(geometry));
        let mut held = tally.held;
        let mut children: HashMap<u64, u32> = HashMap::new();
        let (mut pending, mut waiting, mut parked, mut unaligned) = (0, 0, 0, 0);
        for (&block, record) in &self.records {
            let mut fault = |what: &str| faults.push(format!("block {block:x}: {what}"));
            count(&mut held, record.residency.tiers(self.groups.full()));
            if record.is_idle() {
                fault("nothing needs it and it is still there");
            }
            match &record.link {
                Link::Loose(guest) => {
                    if guest.is_some() == record.residency.is_empty() {
                        fault("parked and held must go together");
                    }
                    if let Some(guest) = guest {
                        parked += 1;
                        unaligned += usize::from(guest.unaligned);
                        if self.parked.get(guest.ticket) != Some(block) {
                            fault("its ticket is not in the parked room");
                        }
                    }
                }
                Link::Partial => {}
                Link::Pending(wait) => {
                    waiting += 1;
                    let (room, count) = if wait.parked {
                        (&self.parked, &mut parked)
                    } else {
                        (&self.pending, &mut pending)
                    };
                    *count += 1;
                    *children.entry(wait.parent).or_default() += 1;
                    if room.get(wait.ticket) != Some(block) {
                        fault("its ticket is not in its waiting room");
                    }
                    let blocks = self.waiting.get(&wait.parent);
                    if !blocks.is_some_and(|blocks| blocks.contains(&block)) {
                        fault("it does not wait for its parent");
                    }
                    let is_placed = forest.is_some_and(|forest| forest.find(self.member, wait.parent).is_some());
                    if is_placed || !self.records.contains_key(&wait.parent) {
                        fault("it waits for a parent that has a place or is not there");
                    }
                }
            }
        }
        for (block, record) in &self.records {
            if children.remove(block).unwrap_or_default() != record.children {
                faults.push(format!("block {block:x}: its count of children is wrong"));
            }
        }
        let all_waiting: usize = self.waiting.values().map(hashbrown::HashSet::len).sum();
        let gauges = [pending, waiting, parked, unaligned];
        if gauges != [self.pending.len(), all_waiting, self.parked.len(), self.unaligned] {
            faults.push(format!(
                "counted {gauges:?} pending, waiting, parked, unaligned blocks; the gauges differ"
            ));
        }
        if !self.tried.is_empty() && (self.geometry.is_none() || self.setup.block_size.is_some()) {
            faults.push("its block size is tried and not learned".into());
        }
        let bytes = |parked: bool| -> usize {
            let records = self.records.values().filter_map(|record| match &record.link {
                Link::Pending(pending) if pending.parked == parked => Some(RECORD_BYTES + pending.kept.size_bytes()),
                Link::Loose(Some(_)) if parked => Some(RECORD_BYTES),
                _ => None,
            });
            records.sum()
        };
        if (self.pending.bytes(), self.parked.bytes()) != (bytes(false), bytes(true)) {
            faults.push("the rooms do not take what the blocks in them take".into());
        }
        if self.held != held {
            let told = self.held;
            faults.push(format!("counted {held:?} held blocks by tier, the gauges say {told:?}"));
        }
        faults
    }
}
