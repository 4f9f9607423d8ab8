//! What became of a batch.

use crate::wire::Skipped;

/// An event that was left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedEvent {
    /// Stable name of the reason.
    pub code: &'static str,
    /// Where the event begins in the payload.
    pub offset: usize,
    /// What was expected and what came.
    pub reason: String,
}

/// What became of a batch. Gauges are those of its source after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Rank it was applied to.
    pub dp_rank: Option<i64>,
    /// Events applied.
    pub events: usize,
    /// Blocks stored.
    pub stored: usize,
    /// Blocks removed.
    pub removed: usize,
    /// Clears.
    pub cleared: usize,
    /// Gauge: blocks that wait for their parent.
    pub pending: usize,
    /// Gauge: held blocks without a place.
    pub parked: usize,
    /// Gauge: those of the parked blocks that came by unaligned stores.
    pub unaligned: usize,
    /// Partial pages stored: too short to count in matches.
    pub partial: usize,
    /// Removals of what was not held.
    pub removal_misses: usize,
    /// Pending and parked blocks dropped: too many, or too old.
    pub dropped: usize,
    /// Events left out.
    pub skipped: Vec<SkippedEvent>,
    /// A block size contradicted by events, which were then not applied.
    pub error: Option<String>,
    /// The batch was not applied at all.
    pub ignored: Option<Ignored>,
}

impl Report {
    /// A report that says so far only what could not be read.
    pub fn new(dp_rank: Option<i64>, skipped: &[Skipped]) -> Self {
        let mut report = Self {
            dp_rank,
            ..Self::default()
        };
        for event in skipped {
            report.skip(event.code, event.offset, event.reason.clone());
        }
        report
    }

    /// Whether there is nothing to say about the batch but that it was applied.
    pub fn is_plain(&self) -> bool {
        self.cleared == 0
            && self.dropped == 0
            && self.skipped.is_empty()
            && self.error.is_none()
            && self.ignored.is_none()
    }

    /// One more event was left out.
    pub fn skip(&mut self, code: &'static str, offset: usize, reason: String) {
        self.skipped.push(SkippedEvent { code, offset, reason });
    }
}

/// What became of batches that came together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// How many were applied (or ignored), of the first ones.
    pub taken: usize,
    /// Of the last of them, if there is something to say about it.
    pub report: Option<Report>,
    /// The ranks that they were applied to, each once.
    pub ranks: Vec<i64>,
}

/// Why a batch was not applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// It came through a handle from before the worker's removal, or for a removed id.
    WorkerRemoved,
    /// Its sequence has been applied before.
    Duplicate,
}

impl Ignored {
    /// A stable name.
    pub fn name(self) -> &'static str {
        match self {
            Self::WorkerRemoved => "worker-removed",
            Self::Duplicate => "duplicate",
        }
    }
}
