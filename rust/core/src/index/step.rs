//! Events as the index takes them, read before the lock is taken.

use super::reading::Reading;
use super::report::Report;
use super::tier::{Medium, Tier};
use crate::wire::{EngineHash, Event};

/// Blocks applied under one hold of the lock; an event is never split.
const SLICE: usize = 256;

/// One event, read and normalised.
#[derive(Debug)]
pub enum Step {
    /// Blocks are held.
    Store {
        /// The store.
        reading: Reading,
        /// Where.
        tier: Tier,
        /// Where the event begins in the payload.
        offset: usize,
    },
    /// Blocks are held no more.
    Remove {
        /// The blocks.
        blocks: Vec<u64>,
        /// Where.
        medium: Medium,
        /// The group.
        group: u64,
    },
    /// Nothing is held any more.
    Clear,
}

impl Step {
    /// Blocks it names.
    pub fn blocks(&self) -> usize {
        match self {
            Self::Store { reading, .. } => reading.blocks(),
            Self::Remove { blocks, .. } => blocks.len(),
            Self::Clear => 1,
        }
    }
}

/// The next events, until they name `SLICE` blocks: read here, outside of the lock.
pub fn next_slice(events: &mut std::slice::Iter<'_, Event<'_>>, report: &mut Report) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut blocks = 0;
    while blocks < SLICE
        && let Some(event) = events.next()
    {
        if let Some(step) = read_step(event, report) {
            blocks += step.blocks();
            steps.push(step);
        }
    }
    steps
}

/// An event as the index takes it; None if it cannot be used, which the report then says.
fn read_step(event: &Event<'_>, report: &mut Report) -> Option<Step> {
    match event {
        Event::Stored(stored) => {
            let offset = stored.offset;
            let tier = match Medium::read(stored.medium, stored.locality) {
                Medium::Known(tier) => tier,
                Medium::Unstated => Tier::Gpu,
                Medium::Unknown => {
                    let medium = stored.medium.unwrap_or_default();
                    report.skip(
                        "unknown-tier",
                        offset,
                        format!("medium: expected a tier, got {medium:?}"),
                    );
                    return None;
                }
            };
            let Some(reading) = Reading::new(stored) else {
                let size = stored.block_size;
                let reason = format!("block_size: expected 1 to {} with tokens, got {size}", u32::MAX);
                report.skip("bad-block-size", offset, reason);
                return None;
            };
            Some(Step::Store { reading, tier, offset })
        }
        Event::Removed(removed) => Some(Step::Remove {
            blocks: removed.block_hashes.iter().map(EngineHash::key).collect(),
            medium: Medium::read(removed.medium, removed.locality),
            group: removed.group_idx.unwrap_or(0),
        }),
        Event::Cleared(_) => Some(Step::Clear),
    }
}
