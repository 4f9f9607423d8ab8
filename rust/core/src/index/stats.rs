//! Figures about the index, for people and metrics.

use std::sync::Arc;

use super::PrefixIndex;
use super::counters::Counters;
use super::forests::Forests;
use super::geometry::Geometry;
use super::record::Record;
use super::residency::Residency;
use super::source::Source;
use super::state::State;
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
    /// Bytes in use, as the parts account for them.
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
        // No half batch, and nothing that is still to be swept out.
        let _gate = self.gate.write();
        self.state.read().stats()
    }

    /// The blocks whose full attention a worker holds, placed or not, rank by rank; None where it is not there.
    pub fn holdings(&self, id: &str) -> Option<Vec<Holdings>> {
        let _gate = self.gate.write();
        let state = self.state.read();
        let worker = state.workers.get(id)?;
        Some(
            state
                .ranks(worker)
                .map(|(rank, source)| (rank, source.holdings(&state.forests)))
                .collect(),
        )
    }
}

impl State {
    fn stats(&self) -> Stats {
        let mut workers: Vec<_> = self.workers.iter().collect();
        workers.sort_by_key(|worker| &worker.id);
        let sources = workers
            .iter()
            .flat_map(|worker| self.ranks(worker).map(|(_, source)| source.stats()));
        Stats {
            blocks: self.forests.iter().map(|(_, forest)| forest.held()).sum(),
            memory_bytes: self.size_bytes(),
            ignored_batches: self.ignored_batches,
            sources: sources.collect(),
            workers: workers.iter().map(|worker| Arc::clone(&worker.id)).collect(),
        }
    }

    fn size_bytes(&self) -> usize {
        let forests = self
            .forests
            .iter()
            .map(|(_, forest)| size_of_val(forest) + forest.size_bytes());
        let sources = self.sources.iter().flatten().map(Source::size_bytes);
        size_of::<Self>()
            + forests.sum::<usize>()
            + sources.sum::<usize>()
            + self.sources.capacity() * size_of::<Option<Source>>()
            + self.members.size_bytes()
            + self.workers.size_bytes()
    }
}

impl Source {
    fn holdings(&self, forests: &Forests) -> [Vec<i64>; 4] {
        let full = self.groups.full();
        let mut held: [Vec<i64>; 4] = Default::default();
        let mut add = |block: u64, residency: &Residency| {
            let tiers = residency.tiers(full);
            for tier in Tier::ALL.into_iter().filter(|&tier| tiers.contains(tier)) {
                held[tier as usize].push(block as i64);
            }
        };
        for (&block, record) in &self.records {
            add(block, &record.residency);
        }
        if let Some(forest) = self.geometry.and_then(|geometry| forests.get(geometry)) {
            for (number, residency) in self.placed(forests) {
                add(forest.blocks.engine(number), residency);
            }
        }
        held
    }

    fn stats(&self) -> SourceStats {
        SourceStats {
            worker: Arc::clone(&self.owner.worker),
            dp_rank: self.owner.dp_rank,
            state: self.state(),
            error: self.error.clone(),
            geometry: self.geometry,
            tiers: self.held,
            blocks: self.blocks(),
            pending: self.pending.len(),
            parked: self.parked.len(),
            unaligned: self.unaligned,
            last_seq: self.last_seq,
            counters: self.counters.clone(),
        }
    }

    /// Bytes on the heap: what waits, and forks.
    fn size_bytes(&self) -> usize {
        self.forks.capacity() * (size_of::<(u32, u32)>() + 1)
            + self.records.capacity() * (size_of::<(u64, Record)>() + 1)
            + self.pending.bytes()
            + self.parked.bytes()
    }
}
