//! Matching: how much of a prompt each source holds, block by block from the first.

use std::sync::Arc;

use super::group::Need;
use super::prompt::Prompt;
use super::source::Source;
use super::table::{Geometry, Table};
use super::tier::{Tier, Tiers};
use crate::hash::content;

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

/// What a walk down the prompt found for one source.
#[derive(Clone, Debug)]
pub struct Walk {
    /// Number of the source.
    pub source: u32,
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
    /// What this step has found.
    tiers: Tiers,
    groups: u32,
}

impl Walk {
    fn new(source: &Source, geometry: Geometry, index_block: u32) -> Self {
        let needs = source.groups.needs(u64::from(geometry.block_size));
        Self {
            source: source.number,
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

    /// One block further. False where the source does not hold it: the walk has ended.
    fn step(&mut self) -> bool {
        let (tiers, groups) = (std::mem::take(&mut self.tiers), std::mem::take(&mut self.groups));
        let Some(fastest) = tiers.fastest() else { return false };
        self.held += 1;
        self.unbroken = self.unbroken.and(tiers);
        for tier in Tier::ALL {
            if self.unbroken.contains(tier) {
                self.held_in[tier as usize] = self.held;
            }
        }
        let mut usable = true;
        for (need, run) in self.needs.iter().zip(&mut self.runs) {
            *run = if groups & (1 << need.group) == 0 { 0 } else { *run + 1 };
            usable &= *run >= need.blocks.min(self.held);
        }
        if usable {
            self.usable = self.held;
        }
        self.count_fastest(fastest);
        true
    }

    /// Index blocks that end within this engine block take the slowest tier of the engine blocks they touch.
    fn count_fastest(&mut self, tier: Tier) {
        self.slowest = self.slowest.max(tier);
        let end = self.held as u64 * self.engine_block;
        let mut done: u64 = self.fastest.iter().sum::<usize>() as u64;
        while (done + 1) * self.index_block <= end {
            self.fastest[self.slowest as usize] += 1;
            done += 1;
            self.slowest = if done * self.index_block < end { tier } else { Tier::Gpu };
        }
    }

    fn blocks(&self, engine_blocks: usize) -> usize {
        (engine_blocks as u64 * self.engine_block / self.index_block) as usize
    }

    /// The answer for this source.
    pub fn finish(self, worker: Arc<str>, dp_rank: Option<i64>, state: Arc<str>) -> Match {
        Match {
            worker,
            dp_rank,
            total: self.blocks(self.held),
            tiers: self.held_in.map(|held| self.blocks(held)),
            usable: self.blocks(self.usable),
            fastest: self.fastest,
            state,
        }
    }
}

/// Walk down a prompt through the blocks of one geometry, for all sources at once, until none holds the next block.
pub fn walk(
    prompt: &Prompt<'_>,
    geometry: Geometry,
    table: &Table,
    sources: &[Option<Source>],
    index_block: u32,
) -> Vec<Walk> {
    let cut = prompt.cut(geometry, index_block);
    let mut walks: Vec<Walk> = Vec::new();
    let mut alive: Vec<usize> = Vec::new();
    let mut place = vec![usize::MAX; sources.len()];
    let mut last = prompt.root;
    for index in 0..cut.blocks {
        let Some(ids) = content::window(prompt.tokens, index, geometry.block_size as usize, geometry.pairs) else {
            break;
        };
        last = content::block(last, ids, cut.extra.get(index).map(AsRef::as_ref));
        for holder in table.get(last) {
            let known = &mut place[holder.source as usize];
            if *known == usize::MAX && index == 0 {
                let source = sources[holder.source as usize].as_ref().expect("a holder is a source");
                *known = walks.len();
                alive.push(walks.len());
                walks.push(Walk::new(source, geometry, index_block));
            }
            if let Some(walk) = walks.get_mut(*known) {
                walk.tiers = walk.tiers.or(holder.tiers);
                walk.groups |= holder.groups;
            }
        }
        alive.retain(|&walk| walks[walk].step());
        if alive.is_empty() {
            break;
        }
    }
    walks
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
