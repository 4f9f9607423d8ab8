//! The trail of a prompt through a forest: its blocks from the first to the deepest that anyone knows, as runs of
//! blocks with the same holders.

use smallvec::{SmallVec, smallvec};

use super::blocks::{BlockNumber, Flag};
use super::forest::Forest;
use super::geometry::Geometry;
use super::holders::HolderSet;
use super::matching::Walk;
use super::prompt::{Cut, Prompt};
use super::state::State;
use crate::hash::content;

/// Blocks of a prompt that are hashed before it is asked how far it is known: to ask takes longer, if one has to wait.
const FIRST: usize = 256;

/// A prompt's hashes in one geometry, as far as they have been needed.
pub struct Chain {
    geometry: Geometry,
    cut: Cut,
    hashes: Vec<u64>,
    is_whole: bool,
}

impl Chain {
    /// The chain before the first block.
    pub fn new(prompt: &Prompt<'_>, geometry: Geometry, index_block: u32) -> Self {
        Self {
            geometry,
            cut: prompt.cut(geometry, index_block),
            hashes: Vec::new(),
            is_whole: false,
        }
    }

    /// How the prompt is cut.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Hash on: twice as far, or to the end.
    pub fn extend(&mut self, prompt: &Prompt<'_>) {
        let Geometry { block_size, pairs } = self.geometry;
        let from = self.hashes.len();
        let ids = prompt.tokens.len().saturating_sub(usize::from(pairs));
        let all = (ids / block_size as usize).min(self.cut.blocks);
        let to = (2 * from).max(FIRST).min(all);
        self.is_whole = to == all;
        self.hashes.reserve_exact(to - from);
        let mut last = self.hashes.last().copied().unwrap_or(prompt.root);
        for index in from..to {
            let ids = content::window(prompt.tokens, index, block_size as usize, pairs);
            let extra = self.cut.extra.get(index).map(AsRef::as_ref);
            last = content::block(last, ids.expect("the prompt has the block"), extra);
            self.hashes.push(last);
        }
    }

    /// Whether more hashes are needed to tell how far the forest knows the prompt.
    pub fn is_short(&self, forest: &Forest) -> bool {
        !self.is_whole && self.hashes.last().is_none_or(|&last| forest.knows(last))
    }

    /// The blocks of the prompt that the forest knows. A hash vouches for all above it.
    pub fn known(&self, forest: &Forest) -> &[u64] {
        let blocks = match self.hashes.last() {
            Some(&last) if forest.knows(last) => self.hashes.len(),
            _ => self.hashes.partition_point(|&hash| forest.knows(hash)),
        };
        &self.hashes[..blocks]
    }
}

/// Holder sets of a block, one for each name it goes by.
type Sets = SmallVec<[HolderSet; 2]>;

/// Blocks one below the other with the same holders.
struct Run {
    blocks: usize,
    sets: Sets,
}

/// The runs of a prompt from the deepest block that is known up to the first.
fn climb(forest: &Forest, hashes: &[u64]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let Some((&deepest, mut above)) = hashes.split_last() else {
        return runs;
    };
    let mut level: SmallVec<[BlockNumber; 2]> = live(forest, deepest).collect();
    loop {
        let sets: Sets = level.iter().map(|&block| forest.link(block).holders).collect();
        match runs.last_mut() {
            Some(run) if run.sets == sets => run.blocks += 1,
            _ => runs.push(Run { blocks: 1, sets }),
        }
        if let [block] = level[..] {
            let more = straight(forest, block, above.len());
            if let Some(run) = runs.last_mut().filter(|_| more > 0) {
                run.blocks += more;
                above = &above[..above.len() - more];
                level = smallvec![block - more as BlockNumber];
            }
        }
        let Some((&hash, rest)) = above.split_last() else {
            return runs;
        };
        above = rest;
        let mut parents: SmallVec<[BlockNumber; 2]> = SmallVec::new();
        for parent in level.iter().filter_map(|&block| forest.link(block).parent()) {
            if !parents.contains(&parent) {
                parents.push(parent);
            }
        }
        let is_shared = |&parent: &BlockNumber| forest.link(parent).has(Flag::Alias);
        level = if parents.iter().any(is_shared) {
            live(forest, hash).collect()
        } else {
            parents
        };
    }
}

/// How many blocks above this one just have the number before and the same holders; at most so many.
fn straight(forest: &Forest, block: BlockNumber, most: usize) -> usize {
    let holders = forest.link(block).holders;
    let is_next = |&up: &usize| {
        let below = block - up as BlockNumber;
        forest.link(below).parent() == below.checked_sub(1) && below > 0 && {
            let link = forest.link(below - 1);
            link.holders == holders && !link.has(Flag::Alias)
        }
    };
    (0..most).take_while(is_next).count()
}

/// The blocks with a content that sources hold which have not been retired.
fn live(forest: &Forest, content: u64) -> impl Iterator<Item = BlockNumber> {
    forest.with_content(content).filter(|&block| forest.is_live(block))
}

/// Walk down a prompt through one forest, for all sources at once, until none holds the next block.
pub fn walk<'s>(chain: &Chain, forest: &Forest, state: &'s State, index_block: u32) -> Vec<Walk<'s>> {
    let runs = climb(forest, chain.known(forest));
    let mut walks: Vec<Walk<'s>> = Vec::new();
    let Some((first, rest)) = runs.split_last() else {
        return walks;
    };
    for holder in first.sets.iter().flat_map(|&set| forest.sets.holders(set)) {
        let is_new = first.sets.len() == 1 || walks.iter().all(|walk| walk.member() != holder.member);
        if let Some(source) = state.members.source(holder.member).filter(|_| is_new) {
            let source = state.sources[source as usize].as_ref().expect("a member is a source");
            walks.push(Walk::new(source, chain.geometry, index_block));
        }
    }
    let mut alive: Vec<usize> = (0..walks.len()).collect();
    for run in std::iter::once(first).chain(rest.iter().rev()) {
        alive.retain(|&place| {
            let walk = &mut walks[place];
            for &set in &run.sets {
                if let Some(residency) = forest.sets.find(set, walk.member()) {
                    walk.see(residency);
                }
            }
            walk.advance(run.blocks)
        });
        if alive.is_empty() {
            break;
        }
    }
    walks
}
