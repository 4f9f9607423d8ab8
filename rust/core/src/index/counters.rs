//! What happened to a source, counted.

use std::collections::BTreeMap;

use super::report::Report;

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
    /// Partial pages stored: too short to count in matches.
    pub partial: u64,
    /// Stores refused because they contradict the block size.
    pub refused: u64,
    /// Batches ignored because their sequence had been applied before.
    pub duplicates: u64,
    /// Events that could not be used, by code.
    pub skipped: BTreeMap<&'static str, u64>,
}

impl Counters {
    /// Count a batch.
    pub fn add(&mut self, report: &Report) {
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
