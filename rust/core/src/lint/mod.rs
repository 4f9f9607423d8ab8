//! A stream of batches against what a consumer may rely on: every store has a parent that is held, every removal a
//! block that is held, tokens are as many as blocks take, sizes stay.

mod finding;
mod holdings;
mod rank;

use finding::Findings;
pub use finding::{Finding, Kind};
use rank::Rank;

use crate::index::Tier;
use crate::wire::{Batch, Limits, WireError, read_batch};

/// Ranks that are told apart; a source that names more has them told together in the last.
const MAX_RANKS: usize = 1024;

/// What a batch holds, and what was found in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Linted {
    /// The publisher's clock in unix seconds.
    pub ts: f64,
    /// The rank that the batch names.
    pub dp_rank: Option<i64>,
    /// Its events, unusable ones included.
    pub events: u64,
    /// Blocks in its stores.
    pub stored: u64,
    /// Blocks in its removals.
    pub removed: u64,
    /// By kind.
    pub findings: Vec<Finding>,
}

/// Reads the batches of one source in their order.
#[derive(Debug)]
pub struct Linter {
    /// By the rank that batches name, if they do.
    ranks: Vec<(Option<i64>, Rank)>,
    remembered_blocks: usize,
    block_size: Option<u64>,
    is_whole: bool,
}

impl Linter {
    /// A linter that remembers so many blocks of each rank, of an engine that says how many tokens are in one.
    pub fn new(remembered_blocks: usize, block_size: Option<u64>, is_whole: bool) -> Self {
        Self {
            ranks: Vec::new(),
            remembered_blocks,
            block_size,
            is_whole,
        }
    }

    /// Check the next batch, in whatever dialect.
    pub fn check(&mut self, payload: &[u8]) -> Result<Linted, WireError> {
        let batch = read_batch(payload, &Limits::default())?;
        let mut found = Findings::default();
        check_frame(&batch, &mut found);
        let (stored, removed) = self.rank(batch.dp_rank).check(&batch, &mut found);
        Ok(Linted {
            ts: batch.ts,
            dp_rank: batch.dp_rank,
            events: (batch.events.len() + batch.skipped.len()) as u64,
            stored,
            removed,
            findings: found.take(),
        })
    }

    /// The engine began anew, and is seen from its beginning.
    pub fn begin(&mut self) {
        self.is_whole = true;
        self.ranks.iter_mut().for_each(|(_, rank)| rank.begin());
    }

    /// Batches are missing here: what is not known from here on may have been in them.
    pub fn miss(&mut self) {
        self.is_whole = false;
        self.ranks.iter_mut().for_each(|(_, rank)| rank.miss());
    }

    /// Ranks that batches named; those that name none are one.
    pub fn ranks(&self) -> usize {
        self.ranks.len()
    }

    /// Blocks held in a tier, over the fullest group of each rank.
    pub fn held(&self, tier: Tier) -> u64 {
        self.ranks.iter().map(|(_, rank)| rank.holdings.count(tier)).sum()
    }

    /// Blocks that there was no room to remember.
    pub fn forgotten(&self) -> u64 {
        self.ranks.iter().map(|(_, rank)| rank.holdings.forgotten).sum()
    }

    fn rank(&mut self, name: Option<i64>) -> &mut Rank {
        let known = self.ranks.iter().position(|&(known, _)| known == name);
        let at = known.unwrap_or_else(|| {
            if self.ranks.len() < MAX_RANKS {
                let rank = Rank::new(self.remembered_blocks, self.block_size, self.is_whole);
                self.ranks.push((name, rank));
            }
            self.ranks.len() - 1
        });
        &mut self.ranks[at].1
    }
}

fn check_frame(batch: &Batch<'_>, found: &mut Findings) {
    for skipped in &batch.skipped {
        let kind = if skipped.code == "unknown-tag" {
            Kind::UnknownTag
        } else {
            Kind::UnusableEvent
        };
        let words = || format!("{}: {}", skipped.code, skipped.reason);
        found.explain(kind, skipped.offset, 0, words);
    }
    if batch.unread_fields > 0 {
        found.note(Kind::UnknownField, 0, batch.unread_fields, None);
    }
    for event in &batch.events {
        if let [(name, _), ..] = event.unknown() {
            let fields = event.unknown().len() as u64;
            let words = || format!("{name:?} among them");
            found.explain(Kind::UnknownField, event.offset(), fields, words);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_ranks_than_are_told_apart_share_the_last() {
        let mut linter = Linter::new(1, None, true);
        for rank in 0..2_000 {
            linter.rank(Some(rank));
        }
        assert_eq!(linter.ranks(), MAX_RANKS);
    }
}
