//! Integrity: what must hold after every step, checked from scratch.

use hashbrown::HashMap;

use super::PrefixIndex;
use super::record::Link;
use super::source::Source;
use super::state::State;
use super::table::{Geometry, Holder};
use crate::hash::content;

impl PrefixIndex {
    /// Check every invariant; the first faults found, one sentence each. Costs time in the number of blocks.
    pub fn check_integrity(&self) -> Vec<String> {
        let _writer = self.writer.lock();
        self.state.read().faults()
    }
}

/// What the tables must say: holders by geometry and content.
type Expected = HashMap<(Geometry, u64), Vec<Holder>>;

impl State {
    /// Every invariant that does not hold.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut expected = Expected::new();
        for (owner, source) in self.owners().into_iter().zip(&self.sources) {
            match (owner, source) {
                (Some((worker, rank)), Some(source)) => {
                    let found = source.faults(&mut expected);
                    faults.extend(
                        found
                            .into_iter()
                            .map(|fault| format!("{} rank {rank:?}: {fault}", worker.id)),
                    );
                }
                (None, None) => {}
                (owner, _) => faults.push(format!("a source and its worker do not know each other: {owner:?}")),
            }
        }
        for (geometry, table) in self.tables.iter() {
            if table.is_empty() {
                faults.push(format!("the table of {geometry:?} is empty and still there"));
            }
            for (content, holders) in table.iter() {
                let mut wanted = expected.remove(&(geometry, content)).unwrap_or_default();
                let mut holders = holders.to_vec();
                let order = |holder: &Holder| (holder.source, holder.block);
                wanted.sort_by_key(order);
                holders.sort_by_key(order);
                if wanted != holders {
                    faults.push(format!(
                        "content {content:x}: the table says {holders:?}, the sources {wanted:?}"
                    ));
                }
            }
        }
        let missing = expected.into_keys();
        faults.extend(
            missing.map(|(geometry, content)| format!("content {content:x} is not in the table of {geometry:?}")),
        );
        faults
    }
}

impl Source {
    /// Every invariant of this source that does not hold; its bound and held blocks go to `expected`.
    fn faults(&self, expected: &mut Expected) -> Vec<String> {
        let mut faults = Vec::new();
        let mut children: HashMap<u64, u32> = HashMap::new();
        let (mut pending, mut waiting, mut parked, mut unaligned) = (0, 0, 0, 0);
        let full = self.groups.full();
        for (&block, record) in &self.records {
            let mut fault = |what: &str| faults.push(format!("block {block:x}: {what}"));
            if record.is_idle() {
                fault("nothing needs it and it is still there");
            }
            match record.link {
                Link::Loose(guest) => {
                    if guest.is_some() == record.residency.is_empty() {
                        fault("parked and held must go together");
                    }
                    if record.kept.is_some() {
                        fault("loose and keeps tokens");
                    }
                    if let Some(guest) = guest {
                        parked += 1;
                        unaligned += usize::from(guest.unaligned);
                        if self.parked.get(guest.ticket) != Some(block) {
                            fault("its ticket is not in the parked room");
                        }
                    }
                }
                Link::Pending {
                    parent,
                    ticket,
                    parked: in_parked,
                } => {
                    waiting += 1;
                    let (room, count) = if in_parked {
                        (&self.parked, &mut parked)
                    } else {
                        (&self.pending, &mut pending)
                    };
                    *count += 1;
                    *children.entry(parent).or_default() += 1;
                    if room.get(ticket) != Some(block) {
                        fault("its ticket is not in its waiting room");
                    }
                    if record.kept.is_none() {
                        fault("pending without tokens");
                    }
                    if !self.waiting.get(&parent).is_some_and(|blocks| blocks.contains(&block)) {
                        fault("it does not wait for its parent");
                    }
                    if self
                        .records
                        .get(&parent)
                        .is_none_or(|parent| matches!(parent.link, Link::Bound { .. }))
                    {
                        fault("it waits for a parent that is bound or not there");
                    }
                }
                Link::Bound { parent, content } => {
                    if let Some(parent) = parent {
                        *children.entry(parent).or_default() += 1;
                    }
                    match self.geometry {
                        None => fault("bound in a source without geometry"),
                        Some(_) if record.residency.is_empty() => {}
                        Some(geometry) => expected.entry((geometry, content)).or_default().push(record.holder(
                            block,
                            self.number,
                            full,
                        )),
                    }
                    if !self.is_placed_right(parent, content, block) {
                        fault("its content hash is not that of its parent and tokens");
                    }
                }
            }
        }
        for (block, record) in &self.records {
            if children.remove(block).unwrap_or_default() != record.children {
                faults.push(format!("block {block:x}: its count of children is wrong"));
            }
        }
        if let Some(block) = children.into_keys().next() {
            faults.push(format!("block {block:x}: it has children and is not there"));
        }
        let all_waiting: usize = self.waiting.values().map(hashbrown::HashSet::len).sum();
        let gauges = [pending, waiting, parked, unaligned];
        if gauges != [self.pending.len(), all_waiting, self.parked.len(), self.unaligned] {
            faults.push(format!(
                "counted {gauges:?} pending, waiting, parked, unaligned blocks; the gauges differ"
            ));
        }
        if self.held != self.count_held() {
            faults.push(format!(
                "counted {:?} held blocks by tier, the gauges say {:?}",
                self.count_held(),
                self.held
            ));
        }
        faults
    }

    /// A bound block hangs on a bound parent, and where tokens are kept its hash follows from them.
    fn is_placed_right(&self, parent: Option<u64>, content: u64, block: u64) -> bool {
        let above = match parent.map(|parent| self.records.get(&parent).map(|record| &record.link)) {
            None => None,
            Some(Some(&Link::Bound { content, .. })) => Some(content),
            Some(_) => return false,
        };
        let Some(kept) = &self.records[&block].kept else {
            return true;
        };
        let root = || kept.namespace.as_ref().map(super::record::Namespace::root);
        let Some(seed) = above.or_else(root) else { return false };
        content::block(seed, kept.tokens.as_slice(), Some(&kept.extra)) == content
    }
}
