//! A worker's blocks as the events that would build them.

use hashbrown::HashMap;

use super::forests::Forests;
use super::geometry::Geometry;
use super::group::Group;
use super::record::{Kept, Link, Namespace};
use super::residency::Residency;
use super::source::Source;
use super::tier::Tier;
use super::{IndexError, PrefixIndex};
use crate::tokens::TokenVec;

/// Copies beyond the first of each block that a dump tells at most, or as many as there are blocks if that is more.
const MOST_COPIES: usize = 1 << 20;

/// A rank's events.
#[derive(Clone, Debug)]
pub struct RankDump {
    /// The rank; None where the engine does not say.
    pub dp_rank: Option<i64>,
    /// Its events, in an order in which they can be applied.
    pub events: Vec<DumpEvent>,
}

/// One event of a dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpEvent {
    /// A store, else a removal.
    pub is_store: bool,
    /// Engine hashes, first to last.
    pub blocks: Vec<u64>,
    /// The block above the first.
    pub parent: Option<u64>,
    /// The ids they were computed from; empty where those are not kept.
    pub tokens: TokenVec,
    /// How the ids are cut.
    pub geometry: Option<Geometry>,
    /// The namespace of a first block, where it is kept.
    pub namespace: Option<Namespace>,
    /// Extra keys in canonical form (msgpack), an entry a block.
    pub extra: Vec<Box<[u8]>>,
    /// The tier.
    pub tier: Tier,
    /// The group.
    pub group: Group,
}

impl PrefixIndex {
    /// The events that build what a worker holds, rank by rank; None where the worker is not there.
    ///
    /// With kept tokens the events bind every block again. A block that only a slower tier holds, or a hole, is first
    /// stored on the GPU, so that its place is known, and removed from there in the end. Without tokens the stores
    /// name hashes and parents alone: they add up to the same holdings, and count in matches once other events have
    /// bound the same hashes.
    pub fn dump_events(&self, id: &str) -> Result<Option<Vec<RankDump>>, IndexError> {
        let _gate = self.gate.write();
        let state = self.state.read();
        let Some(worker) = state.workers.get(id) else {
            return Ok(None);
        };
        let dump = |(dp_rank, source): (_, &Source)| {
            let known = source.known(&state.forests);
            let limit = known.len().max(MOST_COPIES);
            let copies = known.iter().map(Known::copies).sum();
            if copies > limit {
                return Err(IndexError::Copies { copies, limit });
            }
            let events = source.dump(known);
            Ok(RankDump { dp_rank, events })
        };
        state.ranks(worker).map(dump).collect::<Result<_, _>>().map(Some)
    }
}

/// A block that a source knows.
struct Known<'a> {
    block: u64,
    parent: Option<u64>,
    residency: &'a Residency,
    kept: Option<&'a Kept>,
}

impl Known<'_> {
    /// Copies beyond the first in each tier and group.
    fn copies(&self) -> usize {
        let holds = self.residency.holds().iter();
        holds.map(|hold| hold.copies as usize - 1).sum()
    }
}

impl Source {
    fn known<'a>(&'a self, forests: &'a Forests) -> Vec<Known<'a>> {
        let keeps = self.setup.keep_tokens;
        let mut known: Vec<_> = self
            .records
            .iter()
            .map(|(&block, record)| {
                let pending = match &record.link {
                    Link::Loose(_) | Link::Partial => None,
                    Link::Pending(pending) => Some(&**pending),
                };
                Known {
                    block,
                    parent: pending.map(|pending| pending.parent),
                    residency: &record.residency,
                    kept: pending.map(|pending| &pending.kept).filter(|_| keeps),
                }
            })
            .collect();
        if let Some(forest) = self.geometry.and_then(|geometry| forests.get(geometry)) {
            known.extend(self.placed(forests).map(|(number, residency)| Known {
                block: forest.blocks.engine(number),
                parent: forest.link(number).parent().map(|parent| forest.blocks.engine(parent)),
                residency,
                kept: forest.kept(number).filter(|_| keeps),
            }));
        }
        known
    }

    fn dump(&self, known: Vec<Known<'_>>) -> Vec<DumpEvent> {
        let mut first = Vec::new();
        let mut rest: Vec<DumpEvent> = Vec::new();
        let mut props = Vec::new();
        for Known {
            block,
            parent,
            residency,
            kept,
        } in top_down(known)
        {
            let mut holds = residency.holds().to_vec();
            let place = self.binding_hold(residency, kept, parent.is_none());
            if let Some(place) = place {
                let (tier, group) = place;
                append(
                    &mut first,
                    self.event(block, parent, kept, tier, self.groups.all()[usize::from(group)]),
                    true,
                );
                match holds.iter_mut().find(|hold| (hold.tier, hold.group) == place) {
                    Some(hold) => hold.copies -= 1,
                    None => props.push(DumpEvent {
                        is_store: false,
                        ..self.event(block, None, None, tier, self.groups.all()[usize::from(group)])
                    }),
                }
            }
            for hold in holds {
                let group = self.groups.all()[usize::from(hold.group)];
                for _ in 0..hold.copies {
                    rest.push(self.event(block, None, None, hold.tier, group));
                }
            }
        }
        rest.sort_by_key(|event| (event.tier, event.group.index));
        let mut events = first;
        rest.into_iter()
            .chain(props)
            .for_each(|event| append(&mut events, event, false));
        events
    }

    /// The tier and group in which a block is stored first, which is where its tokens are told.
    fn binding_hold(&self, residency: &Residency, kept: Option<&Kept>, is_root: bool) -> Option<(Tier, u8)> {
        let full = self.groups.full();
        let holds: Vec<_> = residency.holds().iter().map(|hold| (hold.tier, hold.group)).collect();
        let Some(_) = kept else { return holds.first().copied() };
        let is_full = |&(_, group): &(Tier, u8)| full & (1 << group) != 0;
        let natural = holds
            .iter()
            .copied()
            .filter(is_full)
            .find(|&(tier, _)| tier == Tier::Gpu || !is_root);
        natural.or_else(|| (full != 0).then_some((Tier::Gpu, full.trailing_zeros() as u8)))
    }

    fn event(&self, block: u64, parent: Option<u64>, kept: Option<&Kept>, tier: Tier, group: Group) -> DumpEvent {
        DumpEvent {
            is_store: true,
            blocks: vec![block],
            parent,
            tokens: kept.map(|kept| kept.tokens.clone()).unwrap_or_default(),
            geometry: self.geometry,
            namespace: kept.and_then(|kept| kept.namespace.clone()),
            extra: kept.map(|kept| vec![kept.extra.clone()]).unwrap_or_default(),
            tier,
            group,
        }
    }
}

/// Every block, parents before their children and chains in one piece.
fn top_down(known: Vec<Known<'_>>) -> Vec<Known<'_>> {
    let mut children: HashMap<Option<u64>, Vec<Known<'_>>> = HashMap::new();
    let count = known.len();
    for block in known {
        children.entry(block.parent).or_default().push(block);
    }
    children
        .values_mut()
        .for_each(|blocks| blocks.sort_unstable_by_key(|known| std::cmp::Reverse(known.block)));
    let mut order = Vec::with_capacity(count);
    let mut next = children.remove(&None).unwrap_or_default();
    while let Some(known) = next.pop() {
        next.extend(children.remove(&Some(known.block)).unwrap_or_default());
        order.push(known);
    }
    // Blocks that wait for each other in a circle hang on no root.
    let mut rest: Vec<_> = children.into_values().flatten().collect();
    rest.sort_unstable_by_key(|known| known.block);
    order.extend(rest);
    order
}

/// Add an event: to the last one where both are alike and (`chained`) it goes on where that one ends.
fn append(events: &mut Vec<DumpEvent>, event: DumpEvent, chained: bool) {
    let alike = |last: &DumpEvent| {
        last.is_store == event.is_store
            && (last.tier, last.group) == (event.tier, event.group)
            && last.extra.is_empty() == event.extra.is_empty()
    };
    let goes_on = |last: &DumpEvent| event.parent.is_some() && event.parent == last.blocks.last().copied();
    let Some(last) = events
        .last_mut()
        .filter(|last| alike(last) && (!chained || goes_on(last)))
    else {
        return events.push(event);
    };
    // A block of pairs begins with the id that the one before ends with.
    let overlap = usize::from(event.geometry.is_some_and(|geometry| geometry.pairs));
    let ids = event.tokens.as_slice();
    last.blocks.extend(event.blocks);
    last.tokens.extend(ids.slice(overlap.min(ids.len()), ids.len()));
    last.extra.extend(event.extra);
}
