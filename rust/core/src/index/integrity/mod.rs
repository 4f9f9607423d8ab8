//! Integrity: what must hold after every step, checked from scratch.

mod forest;
mod source;

use super::PrefixIndex;
use super::state::State;
use source::Tally;

impl PrefixIndex {
    /// Check every invariant; the faults found, one sentence each. Costs time in the number of blocks.
    pub fn check_integrity(&self) -> Vec<String> {
        let _gate = self.gate.write();
        self.state.read().faults()
    }
}

impl State {
    /// Every invariant that does not hold.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut tallies: Vec<Tally> = self.sources.iter().map(|_| Tally::default()).collect();
        for (geometry, forest) in self.forests.iter() {
            let found = forest.faults(|block, member, residency, found| {
                let number = self.members.source(member).map(|number| number as usize);
                let source = number.and_then(|number| self.sources[number].as_ref());
                let (Some(number), Some(source)) = (number, source) else {
                    return found.push(format!("block {block}: member {member} is no source"));
                };
                if source.member != member || source.geometry != Some(geometry) {
                    found.push(format!("block {block}: member {member} is a source without it"));
                }
                tallies[number].add(source, forest, block, residency, found);
            });
            faults.extend(found.into_iter().map(|fault| format!("{geometry:?}: {fault}")));
        }
        for ((owner, source), tally) in self.owners().into_iter().zip(&self.sources).zip(&tallies) {
            match (owner, source) {
                (Some((worker, rank)), Some(source)) => {
                    let is_owner = source.owner.worker == worker.id && source.owner.dp_rank == rank;
                    if !is_owner || source.owner.state != *worker.state(rank) {
                        faults.push(format!("a source and its worker do not agree: {:?}", source.owner));
                    }
                    let found = source.faults(tally, &self.forests).into_iter();
                    faults.extend(found.map(|fault| format!("{} rank {rank:?}: {fault}", worker.id)));
                }
                (None, None) => {}
                (owner, _) => faults.push(format!("a source and its worker do not know each other: {owner:?}")),
            }
        }
        faults
    }
}
