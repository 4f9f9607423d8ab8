//! Matching: how much of a prompt each source holds, block by block from the first.

use std::sync::Arc;

use super::geometry::Geometry;
use super::group::Need;
use super::residency::Residency;
use super::source::{Owner, Source};
use super::tier::{Tier, Tiers};

/// How much of a prompt one source holds, in blocks of the index's size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// The worker's id.
    pub worker: Arc<str>,
    /// The rank; None where the engine does not say.
    pub dp_rank: Option<i64>,
    /// Leading blocks held in any tier.
    pub total: usize,
    /// Leading blocks held in each tier alone.
    pub tiers: [usize; 4],
    /// Of the first `total` blocks, those whose fastest tier is this one.
    pub fastest: [usize; 4],
    /// Leading blocks that the engine will reuse, by the rules of its groups.
    pub usable: usize,
    /// State of the source.
    pub state: Arc<str>,
}

/// What a walk down the prompt has found for one source.
#[derive(Clone, Debug)]
pub struct Walk<'s> {
    source: &'s Source,
    full: u32,
    index_block: u64,
    engine_block: u64,
    needs: Vec<Need>,
    /// Blocks before here that each of `needs` holds without a gap.
    runs: Vec<usize>,
    /// The engine's blocks so far: in any tier, in each tier, usable.
    held: usize,
    held_in: [usize; 4],
    usable: usize,
    /// Tiers that have had every block so far.
    unbroken: Tiers,
    /// Index blocks done by the fastest tier, and the slowest tier of the one that is not done.
    fastest: [usize; 4],
    slowest: Tier,
    /// What is known of the next blocks.
    tiers: Tiers,
    groups: u32,
}

impl<'s> Walk<'s> {
    /// A walk that stands before the first block.
    pub fn new(source: &'s Source, geometry: Geometry, index_block: u32) -> Self {
        let needs = source.groups.needs(u64::from(geometry.block_size));
        Self {
            source,
            full: source.groups.full(),
            index_block: u64::from(index_block),
            engine_block: u64::from(geometry.block_size),
            runs: vec![0; needs.len()],
            needs,
            held: 0,
            held_in: [0; 4],
            usable: 0,
            unbroken: Tiers::ALL,
            fastest: [0; 4],
            slowest: Tier::Gpu,
            tiers: Tiers::default(),
            groups: 0,
        }
    }

    /// The number of its source among the holders.
    pub fn member(&self) -> u32 {
        self.source.member
    }

    /// It holds the next blocks so, besides what was said of them before.
    pub fn see(&mut self, residency: &Residency) {
        self.tiers = self.tiers.or(residency.tiers(self.full));
        self.groups |= residency.groups();
    }

    /// So many blocks further, all of which are as they were seen. False where the source does not hold them: the walk
    /// has ended.
    pub fn advance(&mut self, blocks: usize) -> bool {
        let (tiers, groups) = (std::mem::take(&mut self.tiers), std::mem::take(&mut self.groups));
        let Some(fastest) = tiers.fastest() else { return false };
        self.held += blocks;
        self.unbroken = self.unbroken.and(tiers);
        for tier in Tier::ALL {
            if self.unbroken.contains(tier) {
                self.held_in[tier as usize] = self.held;
            }
        }
        // If what the groups need is not there at the end of these blocks, it is not there in their midst either.
        let mut usable = true;
        for (need, run) in self.needs.iter().zip(&mut self.runs) {
            *run = if groups & (1 << need.group) == 0 {
                0
            } else {
                *run + blocks
            };
            usable &= *run >= need.blocks.min(self.held);
        }
        if usable {
            self.usable = self.held;
        }
        self.count_fastest(fastest);
        true
    }

    /// Index blocks that have ended take the slowest tier of the engine blocks they touch: the first of them what was
    /// seen of it before too.
    fn count_fastest(&mut self, tier: Tier) {
        let end = self.held as u64 * self.engine_block;
        let done = self.fastest.iter().sum::<usize>();
        let now_done = (end / self.index_block) as usize;
        self.slowest = self.slowest.max(tier);
        if now_done > done {
            self.fastest[self.slowest as usize] += 1;
            self.fastest[tier as usize] += now_done - done - 1;
            let is_cut = !end.is_multiple_of(self.index_block);
            self.slowest = if is_cut { tier } else { Tier::Gpu };
        }
    }

    fn blocks(&self, engine_blocks: usize) -> usize {
        (engine_blocks as u64 * self.engine_block / self.index_block) as usize
    }

    /// The answer for this source; None if that is not a single block.
    pub fn finish(self) -> Option<Match> {
        let total = self.blocks(self.held);
        let Owner { worker, dp_rank, .. } = &self.source.owner;
        (total > 0).then(|| Match {
            worker: Arc::clone(worker),
            dp_rank: *dp_rank,
            total,
            tiers: self.held_in.map(|held| self.blocks(held)),
            usable: self.blocks(self.usable),
            fastest: self.fastest,
            state: self.source.state(),
        })
    }
}

/// Best first: usable, then fastest on the GPU, then by id and rank.
pub fn sort(matches: &mut [Match]) {
    let gpu = Tier::Gpu as usize;
    matches.sort_by(|one, other| {
        (other.usable, other.fastest[gpu])
            .cmp(&(one.usable, one.fastest[gpu]))
            .then_with(|| (&one.worker, one.dp_rank).cmp(&(&other.worker, other.dp_rank)))
    });
}
