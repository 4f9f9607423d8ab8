//! Figures about the index, for people and metrics.

use std::sync::Arc;

use super::PrefixIndex;
use super::record::{Kept, Record};
use super::source::{Counters, Source};
use super::state::State;
use super::table::{Geometry, Holder};
use super::tier::Tier;

/// Figures of one source.
#[derive(Clone, Debug)]
pub struct SourceStats {
    /// The worker's id.
    pub worker: Arc<str>,
    /// The rank; None where the engine does not say.
    pub dp_rank: Option<i64>,
    /// State, as matches report it.
    pub state: Arc<str>,
    /// What is wrong with it.
    pub error: Option<String>,
    /// How its engine cuts tokens, once known.
    pub geometry: Option<Geometry>,
    /// Blocks that a full-attention group holds, by tier, placed or not.
    pub tiers: [usize; 4],
    /// Blocks known, held or not.
    pub blocks: usize,
    /// Blocks that wait for their parent.
    pub pending: usize,
    /// Held blocks without a place.
    pub parked: usize,
    /// Those of them that came by unaligned stores.
    pub unaligned: usize,
    /// Sequence of the last batch.
    pub last_seq: Option<u64>,
    /// What happened so far.
    pub counters: Counters,
}

/// What one rank holds: engine hashes as signed integers, by tier.
pub type Holdings = (Option<i64>, [Vec<i64>; 4]);

/// Figures of the index.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Distinct contents held by anyone.
    pub blocks: usize,
    /// Bytes in use, estimated.
    pub memory_bytes: usize,
    /// Batches that came for removed workers.
    pub ignored_batches: u64,
    /// Workers, with and without sources.
    pub workers: Vec<Arc<str>>,
    /// Each source, by worker and rank.
    pub sources: Vec<SourceStats>,
}

impl PrefixIndex {
    /// Figures; cheap.
    pub fn stats(&self) -> Stats {
        self.state.read().stats()
    }

    /// The blocks whose full attention a worker holds, placed or not, rank by rank; None where it is not there.
    pub fn holdings(&self, id: &str) -> Option<Vec<Holdings>> {
        let state = self.state.read();
        let worker = state.workers.get(id)?;
        Some(
            state
                .ranks(worker)
                .map(|(rank, source)| (rank, source.holdings()))
                .collect(),
        )
    }
}

impl State {
    fn stats(&self) -> Stats {
        let mut workers: Vec<_> = self.workers.iter().collect();
        workers.sort_by_key(|worker| &worker.id);
        let sources = workers.iter().flat_map(|worker| {
            self.ranks(worker)
                .map(|(rank, source)| source.stats(Arc::clone(&worker.id), rank, self.state_name(worker, rank)))
        });
        Stats {
            blocks: self.tables.iter().map(|(_, table)| table.len()).sum(),
            memory_bytes: self.memory(),
            ignored_batches: self.ignored_batches,
            sources: sources.collect(),
            workers: workers.iter().map(|worker| Arc::clone(&worker.id)).collect(),
        }
    }

    fn memory(&self) -> usize {
        let tables: usize = self.tables.iter().map(|(_, table)| table.memory()).sum();
        let contents: usize = self.tables.iter().map(|(_, table)| table.len()).sum();
        let sources = || self.sources.iter().flatten();
        // Of several holders of one content, all but the first lie outside of the table.
        let holders: usize = sources().map(|source| source.records.len()).sum();
        tables + holders.saturating_sub(contents) * size_of::<Holder>() + sources().map(Source::memory).sum::<usize>()
    }
}

impl Source {
    fn holdings(&self) -> [Vec<i64>; 4] {
        let full = self.groups.full();
        Tier::ALL.map(|tier| {
            let held = self
                .records
                .iter()
                .filter(|(_, record)| record.residency.tiers(full).contains(tier));
            held.map(|(&block, _)| block as i64).collect()
        })
    }

    fn stats(&self, worker: Arc<str>, dp_rank: Option<i64>, state: Arc<str>) -> SourceStats {
        SourceStats {
            worker,
            dp_rank,
            state,
            error: self.error.clone(),
            geometry: self.geometry,
            tiers: self.held,
            blocks: self.records.len(),
            pending: self.pending.len(),
            parked: self.parked.len(),
            unaligned: self.unaligned,
            last_seq: self.last_seq,
            counters: self.counters.clone(),
        }
    }

    fn memory(&self) -> usize {
        let with_tokens = if self.setup.keep_tokens {
            self.records.len()
        } else {
            self.pending.len()
        };
        let block_size = self.geometry.map_or(0, |geometry| geometry.block_size as usize);
        let waiting = self.pending.len() + self.parked.len();
        size_of::<Self>()
            + self.records.capacity() * (size_of::<(u64, Record)>() + 1)
            + with_tokens * (size_of::<Kept>() + block_size * size_of::<u32>())
            + waiting * 4 * size_of::<u64>()
    }
}
