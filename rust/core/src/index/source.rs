//! A source: one rank of one worker, and what its engine holds.

use std::collections::BTreeMap;
use std::time::Duration;

use hashbrown::{HashMap, HashSet};

use super::binding::{Input, Wait};
use super::group::{Groups, Kind};
use super::record::{Link, Namespace, Parked, Record};
use super::report::Report;
use super::residency::Residency;
use super::room::{Bounds, Room};
use super::table::{Geometry, Holder, Tables};
use super::tier::{Medium, Tier};
use crate::tokens::TokenSlice;

/// A store as the index takes it: one run of blocks, everything read and normalised.
#[derive(Clone, Copy, Debug)]
pub struct Store<'a> {
    /// Engine hashes, first to last.
    pub blocks: &'a [u64],
    /// Engine hash of the block above the first.
    pub parent: Option<u64>,
    /// The ids; of pairs the sequence they come from, one longer.
    pub tokens: TokenSlice<'a>,
    /// Ids (pairs) that were sent; 0 for a store without tokens.
    pub units: usize,
    /// How it is cut; means nothing without tokens.
    pub geometry: Geometry,
    /// Seed of the namespace.
    pub root: u64,
    /// The namespace itself, where it is to be kept.
    pub namespace: Option<&'a Namespace>,
    /// Extra keys in canonical form, an entry a block or nothing at all.
    pub extra: &'a [Box<[u8]>],
    /// The tier.
    pub tier: Tier,
    /// `group_idx`, 0 where there is none.
    pub group: u64,
    /// The group's kind, where the event says it.
    pub kind: Option<Kind>,
}

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
}

/// What a source's removals came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removal {
    /// Blocks (copies) that went.
    pub removed: usize,
    /// Blocks that were not held there.
    pub misses: usize,
}

/// What happened to a source since it was added, besides what it holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Events applied.
    pub events: u64,
    /// Blocks stored.
    pub stored: u64,
    /// Blocks removed.
    pub removed: u64,
    /// Clears.
    pub cleared: u64,
    /// Removals of what was not held.
    pub removal_misses: u64,
    /// Pending and parked blocks that were dropped: too many, or too old.
    pub dropped: u64,
    /// Stores refused because they contradict the block size.
    pub refused: u64,
    /// Batches ignored because their sequence had been applied before.
    pub duplicates: u64,
    /// Events that could not be used, by code.
    pub skipped: BTreeMap<&'static str, u64>,
}

impl Counters {
    fn add(&mut self, report: &Report) {
        self.events += report.events as u64;
        self.stored += report.stored as u64;
        self.removed += report.removed as u64;
        self.cleared += report.cleared as u64;
        self.removal_misses += report.removal_misses as u64;
        self.dropped += report.dropped as u64;
        for event in &report.skipped {
            *self.skipped.entry(event.code).or_default() += 1;
        }
    }
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

/// One rank of one worker.
#[derive(Debug)]
pub struct Source {
    /// Its number in the index.
    pub number: u32,
    /// How it is set up.
    pub setup: Setup,
    /// How its engine cuts tokens, once known.
    pub geometry: Option<Geometry>,
    /// Its groups.
    pub groups: Groups,
    /// Every block it knows, by engine hash.
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
    pub fn new(number: u32, setup: Setup) -> Self {
        Self {
            number,
            geometry: None,
            groups: setup.groups.clone(),
            setup,
            records: HashMap::new(),
            waiting: HashMap::new(),
            pending: Room::default(),
            parked: Room::default(),
            loosened: Vec::new(),
            unaligned: 0,
            held: [0; 4],
            counters: Counters::default(),
            last_seq: None,
            error: None,
        }
    }

    /// Apply a store: place its blocks if their tokens say where they belong, and hold them.
    pub fn store(&mut self, tables: &mut Tables, store: &Store<'_>, now: Duration) -> Result<(), Refusal> {
        let (group, changed) = self.groups.learn(store.group, store.kind).ok_or(Refusal::Groups)?;
        if changed {
            self.publish_all(tables);
        }
        let full = self.groups.kind(group) == Kind::Full;
        if full && store.units > 0 {
            self.check_geometry(store.geometry)?;
        }
        let aligned = store.units > 0 && store.units == store.blocks.len() * store.geometry.block_size as usize;
        if aligned && full && self.geometry.is_none() {
            self.geometry = Some(store.geometry);
        }
        let placeable = aligned && self.geometry == Some(store.geometry);
        let unaligned = store.units > 0 && !aligned;
        let on_gpu = full && store.tier == Tier::Gpu;
        if placeable && on_gpu && !self.waiting.is_empty() {
            store.blocks.iter().for_each(|&block| self.unpend(block));
        }
        let mut above = self.above(store, on_gpu);
        let wait = Wait { parked: !on_gpu, now };
        for (index, &block) in store.blocks.iter().enumerate() {
            let before = self.hold(block, store.tier, group);
            if placeable {
                above = self.place(tables, block, above, Input::of(store, index), wait);
            }
            self.settle(tables, block, before, unaligned, now);
        }
        self.release_loosened();
        Ok(())
    }

    /// Apply a removal.
    pub fn remove(&mut self, tables: &mut Tables, blocks: &[u64], medium: Medium, group: u64) -> Removal {
        let mut outcome = Removal::default();
        let group = self.groups.find(group);
        for &block in blocks {
            let gone = self.change(block, |residency| match (medium, group) {
                (Medium::Unknown, _) => residency.clear(),
                (Medium::Known(tier), Some(group)) => residency.take(tier, group),
                (Medium::Unstated, Some(group)) => residency.take_unstated(group),
                (_, None) => false,
            });
            if gone == Some(true) {
                outcome.removed += 1;
                self.let_go(tables, block);
            } else {
                outcome.misses += 1;
            }
        }
        outcome
    }

    /// Forget everything that is held, pending or parked, and how it was cut.
    pub fn clear(&mut self, tables: &mut Tables) {
        for (&block, record) in &self.records {
            if let (Link::Bound { content, .. }, Some(geometry)) = (&record.link, self.geometry) {
                tables.unset(geometry, *content, self.number, block);
            }
        }
        self.records = HashMap::new();
        self.waiting = HashMap::new();
        self.pending = Room::default();
        self.parked = Room::default();
        self.unaligned = 0;
        self.held = [0; 4];
        self.geometry = None;
        self.groups = self.setup.groups.clone();
        self.error = None;
    }

    /// Drop pending and parked blocks that are too many or too old; how many.
    pub fn expire(&mut self, pending: Bounds, parked: Bounds, now: Duration) -> usize {
        let mut dropped = 0;
        while let Some(block) = self.pending.overdue(pending, now) {
            self.drop(block);
            dropped += 1;
        }
        while let Some(block) = self.parked.overdue(parked, now) {
            self.drop(block);
            dropped += 1;
        }
        dropped
    }

    /// The last of a batch: its sequence, what it comes to, and the gauges after it.
    pub fn close_batch(&mut self, seq: Option<u64>, report: &mut Report) {
        self.last_seq = seq.or(self.last_seq);
        report.pending = self.pending.len();
        report.parked = self.parked.len();
        report.unaligned = self.unaligned;
        self.counters.add(report);
    }

    /// The geometry must be the one registered or learned.
    fn check_geometry(&self, got: Geometry) -> Result<(), Refusal> {
        let expected = match (self.geometry, self.setup.block_size) {
            (Some(known), _) if known != got => format!(
                "{} of {} as in its first store",
                if known.pairs { "blocks of pairs" } else { "blocks" },
                known.block_size
            ),
            (None, Some(registered)) if registered != got.block_size => format!("blocks of {registered} as registered"),
            _ => return Ok(()),
        };
        Err(Refusal::Geometry { expected, got })
    }

    /// A block is held once more. Gives what the table says about it so far: None if nothing.
    fn hold(&mut self, block: u64, tier: Tier, group: u8) -> Option<Holder> {
        let counted = self.setup.counted && tier == Tier::Gpu;
        let full = self.groups.full();
        let record = self.records.entry(block).or_default();
        let before = matches!(record.link, Link::Bound { .. }).then(|| record.holder(block, self.number, full));
        self.change(block, |residency| residency.add(tier, group, counted));
        before
    }

    /// Change where a block is held, and count that by tier. None where the block is not known.
    pub(super) fn change<T>(&mut self, block: u64, change: impl FnOnce(&mut Residency) -> T) -> Option<T> {
        let full = self.groups.full();
        let residency = &mut self.records.get_mut(&block)?.residency;
        let before = residency.tiers(full);
        let outcome = change(residency);
        let after = residency.tiers(full);
        for tier in Tier::ALL {
            let held = &mut self.held[tier as usize];
            *held = *held + usize::from(after.contains(tier)) - usize::from(before.contains(tier));
        }
        Some(outcome)
    }

    /// After a block was held once more and placed: tell the table what is new, or park the block.
    fn settle(&mut self, tables: &mut Tables, block: u64, before: Option<Holder>, unaligned: bool, now: Duration) {
        let record = self.records.get_mut(&block).expect("just held");
        match &mut record.link {
            Link::Pending { .. } => {}
            Link::Bound { .. } => {
                if before != Some(record.holder(block, self.number, self.groups.full())) {
                    self.publish(tables, block);
                }
            }
            Link::Loose(parked) => {
                let guest = parked.get_or_insert_with(|| Parked {
                    ticket: self.parked.enter(block, now),
                    unaligned: false,
                });
                if unaligned && !guest.unaligned {
                    guest.unaligned = true;
                    self.unaligned += 1;
                }
            }
        }
    }

    /// A block is held once less: tell the table, and let it go if nothing needs it.
    fn let_go(&mut self, tables: &mut Tables, block: u64) {
        let record = &self.records[&block];
        let empty = record.residency.is_empty();
        match record.link {
            Link::Bound { .. } => self.publish(tables, block),
            Link::Loose(_) if empty => self.unpark(block),
            Link::Loose(_) | Link::Pending { .. } => {}
        }
        if empty {
            self.release(block);
        }
    }

    /// Make the table say what the record says.
    pub(super) fn publish(&self, tables: &mut Tables, block: u64) {
        let record = &self.records[&block];
        let (Link::Bound { content, .. }, Some(geometry)) = (&record.link, self.geometry) else {
            return;
        };
        if record.residency.is_empty() {
            tables.unset(geometry, *content, self.number, block);
        } else {
            tables.set(
                geometry,
                *content,
                record.holder(block, self.number, self.groups.full()),
            );
        }
    }

    /// After what counts as full attention has changed.
    fn publish_all(&mut self, tables: &mut Tables) {
        self.held = self.count_held();
        for &block in self.records.keys() {
            self.publish(tables, block);
        }
    }

    /// Blocks that a full-attention group holds, by tier, counted.
    pub(super) fn count_held(&self) -> [usize; 4] {
        let full = self.groups.full();
        let mut held = [0; 4];
        for record in self.records.values() {
            let tiers = record.residency.tiers(full);
            Tier::ALL
                .into_iter()
                .filter(|&tier| tiers.contains(tier))
                .for_each(|tier| held[tier as usize] += 1);
        }
        held
    }
}
