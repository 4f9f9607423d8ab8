//! A source: one rank of one worker, and what its engine holds.

use hashbrown::{HashMap, HashSet};
use std::sync::Arc;

use super::blocks::BlockNumber;
use super::counters::Counters;
use super::cut::Cut;
use super::forest::Nearby;
use super::forests::Forests;
use super::geometry::Geometry;
use super::group::{Groups, Kind};
use super::holders::Member;
use super::record::{RECORD_BYTES, Record};
use super::report::Report;
use super::residency::Change;
use super::room::{Allowance, Room, Terms};
use super::slice::Store;
use super::tier::{Medium, Tier, Tiers};

/// Why a store was not applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It contradicts the block size that was registered or learned.
    Geometry {
        /// What the source was known for.
        expected: String,
        /// What came.
        got: Geometry,
    },
    /// One more group than a source may have.
    Groups,
    /// More blocks than an index can number.
    Blocks,
}

/// What a source's removals came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removal {
    /// Blocks (copies) that went.
    pub removed: usize,
    /// Blocks that were not held there.
    pub misses: usize,
}

/// How a source is set up; does not change while it is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Block size that the caller registered.
    pub block_size: Option<u32>,
    /// GPU copies are counted; else every tier is a set.
    pub counted: bool,
    /// Groups that the caller declared.
    pub groups: Groups,
    /// Tokens stay with their blocks.
    pub keep_tokens: bool,
}

/// Whose a source is.
#[derive(Clone, Debug)]
pub struct Owner {
    /// The worker's id.
    pub worker: Arc<str>,
    /// The rank; None where the engine does not say.
    pub dp_rank: Option<i64>,
    /// State as the transport said it last.
    pub state: Arc<str>,
}

/// One rank of one worker.
#[derive(Debug)]
pub struct Source {
    /// Whose it is.
    pub owner: Owner,
    /// Its number among the holders of blocks; another one after each clear.
    pub member: Member,
    /// How it is set up.
    pub setup: Setup,
    /// How its engine cuts tokens, once known.
    pub geometry: Option<Geometry>,
    /// Its groups.
    pub groups: Groups,
    /// The blocks that its size was learned from, while they may all have been partial pages.
    pub tried: Vec<u64>,
    /// Blocks of the forest that it is a member of.
    pub bound: usize,
    /// Of those, the ones below which it has blocks without the next number, and how many.
    pub forks: HashMap<BlockNumber, u32>,
    /// Blocks without a place, by engine hash.
    pub records: HashMap<u64, Record>,
    /// Pending blocks by the parent they wait for.
    pub waiting: HashMap<u64, HashSet<u64>>,
    /// Blocks that wait for their parent.
    pub pending: Room,
    /// Held blocks without a place.
    pub parked: Room,
    /// Blocks that others stopped to wait for: looked at when the event is done.
    pub loosened: Vec<u64>,
    /// Parked blocks that came by unaligned stores.
    pub unaligned: usize,
    /// Blocks of the last events for which no room was left.
    pub turned_away: usize,
    /// Blocks that a full-attention group holds, by tier.
    pub held: [usize; 4],
    /// What happened so far.
    pub counters: Counters,
    /// Sequence of the last batch.
    pub last_seq: Option<u64>,
    /// What is wrong with it, until a clear.
    pub error: Option<String>,
}

impl Source {
    /// A source that holds nothing.
    pub fn new(owner: Owner, member: Member, setup: Setup) -> Self {
        Self {
            owner,
            member,
            geometry: None,
            tried: Vec::new(),
            groups: setup.groups.clone(),
            setup,
            bound: 0,
            forks: HashMap::new(),
            records: HashMap::new(),
            waiting: HashMap::new(),
            pending: Room::default(),
            parked: Room::default(),
            loosened: Vec::new(),
            unaligned: 0,
            turned_away: 0,
            held: [0; 4],
            counters: Counters::default(),
            last_seq: None,
            error: None,
        }
    }

    /// Forget everything that is held, pending or parked, and how it was cut. The caller retires the member.
    pub fn forget(&mut self, member: Member) {
        let owner = self.owner.clone();
        *self = Self {
            counters: std::mem::take(&mut self.counters),
            last_seq: self.last_seq,
            ..Self::new(owner, member, self.setup.clone())
        };
    }

    /// What the transport said of it, but `degraded` while its events contradict what is known of it.
    pub fn state(&self) -> Arc<str> {
        match self.error {
            Some(_) => "degraded".into(),
            None => Arc::clone(&self.owner.state),
        }
    }

    /// Blocks it knows, held or not.
    pub fn blocks(&self) -> usize {
        self.bound + self.records.len()
    }

    /// Apply a store: place its blocks if their tokens say where they belong, and hold them.
    pub fn store(&mut self, forests: &mut Forests, store: &Store<'_>, terms: &Terms) -> Result<(), Refusal> {
        let (group, changed) = self.groups.learn(store.group, store.kind).ok_or(Refusal::Groups)?;
        if changed {
            self.held = self.count_held(forests);
        }
        let full = self.groups.kind(group) == Kind::Full;
        let cut = match store.units {
            0 => Cut::Whole,
            _ if full => self.judge(store)?,
            _ if matches!(self.judge(store), Ok(Cut::Partial)) => Cut::Partial,
            _ => Cut::Whole,
        };
        if cut == Cut::Larger {
            self.unlearn_size(forests);
        }
        let aligned = store.is_aligned();
        if aligned && cut != Cut::Partial && (full || self.geometry == Some(store.geometry)) {
            self.learn_size(store);
        }
        let change = Change::Add {
            tier: store.tier,
            group,
            counted: self.setup.counted && store.tier == Tier::Gpu,
        };
        if cut == Cut::Partial {
            self.hold_partial(forests, store, change);
        } else if aligned && self.geometry == Some(store.geometry) {
            let forest = forests.open(store.geometry);
            if forest.room() < store.blocks.len() + self.records.len() {
                return Err(Refusal::Blocks);
            }
            self.place_all(forest, store, change, full && store.tier == Tier::Gpu, terms);
        } else {
            let mut forest = self.geometry.and_then(|geometry| forests.get_mut(geometry));
            let mut nearby = Nearby::default();
            let mut allowance = Allowance::new(terms.parked);
            for &block in store.blocks {
                let found = forest
                    .as_deref()
                    .and_then(|forest| nearby.find(forest, self.member, block));
                if let (Some(forest), Some(number)) = (forest.as_deref_mut(), found) {
                    self.change(forest, number, change);
                } else if allowance.admit(RECORD_BYTES) || self.records.contains_key(&block) {
                    self.change_loose(block, change);
                    self.park(block, store.units > 0 && !aligned, terms.now);
                } else {
                    self.turned_away += 1;
                }
            }
        }
        self.release_loosened();
        Ok(())
    }

    /// Apply a removal.
    pub fn remove(&mut self, forests: &mut Forests, blocks: &[u64], medium: Medium, group: u64) -> Removal {
        let change = match (medium, self.groups.find(group)) {
            (Medium::Unknown, _) => Change::Clear,
            (Medium::Known(tier), Some(group)) => Change::Take { tier, group },
            (Medium::Unstated, Some(group)) => Change::TakeUnstated { group },
            (_, None) => {
                return Removal {
                    removed: 0,
                    misses: blocks.len(),
                };
            }
        };
        let mut forest = self.geometry.and_then(|geometry| forests.get_mut(geometry));
        let mut outcome = Removal::default();
        let mut nearby = Nearby::default();
        for &block in blocks {
            let found = forest
                .as_deref()
                .and_then(|forest| nearby.find(forest, self.member, block));
            let done = if let (Some(forest), Some(number)) = (forest.as_deref_mut(), found) {
                self.take(forest, number, change)
            } else {
                self.take_loose(block, change)
            };
            if done {
                outcome.removed += 1;
            } else {
                outcome.misses += 1;
            }
        }
        outcome
    }

    /// Drop pending and parked blocks that are too many or too old; how many, with those that were not let in.
    pub fn expire(&mut self, terms: &Terms) -> usize {
        let mut dropped = std::mem::take(&mut self.turned_away);
        while let Some(block) = self.pending.overdue(terms.pending, terms.now) {
            self.drop(block);
            dropped += 1;
        }
        while let Some(block) = self.parked.overdue(terms.parked, terms.now) {
            self.drop(block);
            dropped += 1;
        }
        dropped
    }

    /// The last of a batch: what it comes to, and the gauges after it.
    pub fn close_batch(&mut self, report: &mut Report) {
        report.pending = self.pending.len();
        report.parked = self.parked.len();
        report.unaligned = self.unaligned;
        self.counters.add(report);
    }

    /// A block went from some tiers to others.
    pub(super) fn count(&mut self, before: Tiers, after: Tiers) {
        if before == after {
            return;
        }
        for tier in Tier::ALL {
            let held = &mut self.held[tier as usize];
            *held = *held + usize::from(after.contains(tier)) - usize::from(before.contains(tier));
        }
    }

    /// Blocks that a full-attention group holds, by tier, counted.
    pub(super) fn count_held(&self, forests: &Forests) -> [usize; 4] {
        let full = self.groups.full();
        let mut held = [0; 4];
        let mut add = |tiers: Tiers| {
            let tiers = Tier::ALL.into_iter().filter(|&tier| tiers.contains(tier));
            tiers.for_each(|tier| held[tier as usize] += 1);
        };
        self.records
            .values()
            .for_each(|record| add(record.residency.tiers(full)));
        for (_, residency) in self.placed(forests) {
            add(residency.tiers(full));
        }
        held
    }
}
