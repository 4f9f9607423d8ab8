//! A survey of a forest: all its blocks as runs with the same holders, and these as a tree by content.
//!
//! Blocks know what is above them and not what is below, so to look down means to look at all of them: some thousands
//! at a time, so that nobody waits long for the lock. What changes meanwhile may be seen half; a run whose parent went
//! or was cut in between is left out.

use std::sync::Arc;

use hashbrown::HashMap;
use smallvec::{SmallVec, smallvec};

use super::PrefixIndex;
use super::blocks::{BlockNumber, Flag};
use super::forest::Forest;
use super::geometry::Geometry;
use super::holders::{HolderSet, NOBODY};
use super::state::State;
use super::tier::Tiers;

/// Blocks that are looked at under one lock: some 200 us.
const SLICE: BlockNumber = 1 << 16;

/// A rank of a worker.
pub type Owner = (Arc<str>, Option<i64>);

/// Who holds the blocks of a run, and in which tiers. Holes, which are held nowhere, have no holders.
pub type Holders = Vec<(u32, Tiers)>;

/// Who there is, and the sets that they form.
#[derive(Debug, Default)]
pub struct Holdings {
    /// Owners by number.
    pub owners: Vec<Owner>,
    numbers: HashMap<Owner, u32>,
    sets: Vec<Holders>,
    by_holders: HashMap<Holders, u32>,
}

impl Holdings {
    /// A set.
    pub fn get(&self, set: u32) -> &Holders {
        &self.sets[set as usize]
    }

    /// The number of a set as it is now; None if it has only members that were retired.
    fn read(&mut self, state: &State, forest: &Forest, set: HolderSet) -> Option<u32> {
        let mut holders = Holders::new();
        let mut is_live = false;
        for holder in forest.sets.holders(set) {
            let source = state.members.source(holder.member);
            let Some(source) = source.and_then(|source| state.sources[source as usize].as_ref()) else {
                continue;
            };
            is_live = true;
            let tiers = forest.sets.residency(holder.residency).tiers(source.groups.full());
            if tiers.fastest().is_some() {
                let owner = (Arc::clone(&source.owner.worker), source.owner.dp_rank);
                holders.push((self.number(owner), tiers));
            }
        }
        holders.sort_unstable_by_key(|&(owner, _)| owner);
        is_live.then(|| self.intern(holders))
    }

    fn number(&mut self, owner: Owner) -> u32 {
        let owners = &mut self.owners;
        *self.numbers.entry(owner).or_insert_with_key(|owner| {
            owners.push(owner.clone());
            owners.len() as u32 - 1
        })
    }

    fn intern(&mut self, holders: Holders) -> u32 {
        let sets = &mut self.sets;
        *self.by_holders.entry(holders).or_insert_with_key(|holders| {
            sets.push(holders.clone());
            sets.len() as u32 - 1
        })
    }
}

/// Blocks with consecutive numbers one below the other, held by the same.
#[derive(Debug)]
struct Run {
    first: BlockNumber,
    blocks: u32,
    /// The block above the first, and its content.
    parent: Option<(BlockNumber, u64)>,
    holders: u32,
    head: u64,
    last: u64,
    /// The contents of all its blocks, where other runs may have the same.
    contents: Vec<u64>,
}

impl Run {
    fn end(&self) -> BlockNumber {
        self.first + self.blocks - 1
    }

    fn content(&self, offset: u32) -> Option<u64> {
        match offset {
            0 => Some(self.head),
            _ if offset + 1 == self.blocks => Some(self.last),
            _ => self.contents.get(offset as usize).copied(),
        }
    }
}

/// A node of the tree: blocks one below the other with the same holders, whatever engines call them.
#[derive(Debug)]
pub struct Node {
    /// The content of its first block.
    pub head: u64,
    /// Its blocks.
    pub blocks: usize,
    /// Blocks above its first.
    pub depth: usize,
    /// The node above.
    pub parent: Option<usize>,
    /// Numbers of the sets of its holders.
    pub sets: SmallVec<[u32; 1]>,
    /// Nodes right below it.
    pub children: Vec<usize>,
    /// Blocks in all nodes below it.
    pub below: usize,
    /// Trails that lead to it or further down.
    pub hits: usize,
}

/// A place in a run: its number, and how many of its blocks are above.
type Place = (u32, u32);

/// One forest as it was seen.
#[derive(Debug)]
pub struct Survey {
    /// How its blocks are cut.
    pub geometry: Geometry,
    runs: Vec<Run>,
    /// The node that each run ends in.
    node_of: Vec<Option<usize>>,
    /// Nodes, each after the one above it.
    pub nodes: Vec<Node>,
    /// Nodes without one above.
    pub roots: Vec<usize>,
    /// The node that the content asked for is at the head of a run in.
    pub found: Option<usize>,
}

impl Survey {
    /// Look at all blocks of a geometry.
    pub fn take(index: &PrefixIndex, geometry: Geometry, holdings: &mut Holdings, at: Option<u64>) -> Self {
        let mut survey = Self {
            geometry,
            runs: Vec::new(),
            node_of: Vec::new(),
            nodes: Vec::new(),
            roots: Vec::new(),
            found: None,
        };
        let mut from = 0;
        loop {
            let state = index.state.read();
            let Some(forest) = state.forests.get(geometry) else {
                break;
            };
            let end = forest.blocks.end();
            if from >= end {
                break;
            }
            let to = end.min(from + SLICE);
            survey.read(&state, forest, from..to, holdings);
            from = to;
        }
        survey.node_of = vec![None; survey.runs.len()];
        survey.grow(at);
        survey
    }

    fn read(&mut self, state: &State, forest: &Forest, blocks: std::ops::Range<BlockNumber>, holdings: &mut Holdings) {
        let mut known: HashMap<HolderSet, Option<u32>> = HashMap::new();
        let mut seen: (HolderSet, Option<u32>) = (NOBODY, None);
        let mut last: Option<(BlockNumber, HolderSet, bool)> = None;
        for block in blocks {
            let Some(link) = forest.blocks.try_link(block).filter(|link| link.holders != NOBODY) else {
                continue;
            };
            if seen.0 != link.holders {
                let set = known.entry(link.holders);
                seen = (
                    link.holders,
                    *set.or_insert_with(|| holdings.read(state, forest, link.holders)),
                );
            }
            let Some(holders) = seen.1 else { continue };
            let content = forest.content(block);
            let is_alias = link.has(Flag::Alias);
            let goes_on = last.is_some_and(|(number, set, alias)| {
                let above = forest.link(number);
                number + 1 == block
                    && (set, alias) == (link.holders, is_alias)
                    && link.parent() == Some(number)
                    && !above.has(Flag::Fork)
            });
            last = Some((block, link.holders, is_alias));
            if !goes_on {
                self.runs.push(Run {
                    first: block,
                    blocks: 0,
                    parent: link.parent().map(|parent| (parent, forest.content(parent))),
                    holders,
                    head: content,
                    last: content,
                    contents: Vec::new(),
                });
            }
            let run = self.runs.last_mut().expect("one was begun");
            run.blocks += 1;
            run.last = content;
            if is_alias {
                run.contents.push(content);
            }
        }
    }

    /// Make the tree of the runs.
    fn grow(&mut self, at: Option<u64>) {
        let mut ends: HashMap<BlockNumber, u32> = HashMap::with_capacity(self.runs.len());
        for (number, run) in self.runs.iter().enumerate() {
            ends.insert(run.end(), number as u32);
        }
        let mut below: Vec<SmallVec<[u32; 2]>> = vec![SmallVec::new(); self.runs.len()];
        let mut roots: Vec<Place> = Vec::new();
        for (number, run) in self.runs.iter().enumerate() {
            match run.parent {
                None => roots.push((number as u32, 0)),
                Some((parent, content)) => {
                    let above = ends
                        .get(&parent)
                        .filter(|&&above| self.runs[above as usize].last == content);
                    if let Some(&above) = above {
                        below[above as usize].push(number as u32);
                    }
                }
            }
        }
        let mut stack: Vec<(Option<usize>, usize, u64, Level)> = Vec::new();
        for (head, level) in self.by_content(roots) {
            stack.push((None, 0, head, level));
        }
        while let Some((parent, depth, head, mut level)) = stack.pop() {
            let place = self.nodes.len();
            let mut blocks = 0;
            let sets = self.sets(&level);
            let mut start = head;
            let next = loop {
                if at == Some(start) {
                    self.found = Some(place);
                }
                let rest = |&(run, offset): &Place| self.runs[run as usize].blocks - offset;
                let step = level.iter().map(rest).min().unwrap_or(0);
                blocks += step as usize;
                let mut next: Vec<Place> = Vec::new();
                for &(number, offset) in &level {
                    if offset + step < self.runs[number as usize].blocks {
                        next.push((number, offset + step));
                    } else {
                        self.node_of[number as usize] = Some(place);
                        next.extend(below[number as usize].iter().map(|&child| (child, 0)));
                    }
                }
                let mut next = self.by_content(next);
                if next.len() == 1 && self.sets(&next[0].1) == sets {
                    (start, level) = next.remove(0);
                } else {
                    break next;
                }
            };
            for (head, level) in next {
                stack.push((Some(place), depth + blocks, head, level));
            }
            match parent {
                Some(parent) => self.nodes[parent].children.push(place),
                None => self.roots.push(place),
            }
            self.nodes.push(Node {
                head,
                blocks,
                depth,
                parent,
                sets,
                children: Vec::new(),
                below: 0,
                hits: 0,
            });
        }
        for place in (0..self.nodes.len()).rev() {
            let size = self.nodes[place].blocks + self.nodes[place].below;
            if let Some(parent) = self.nodes[place].parent {
                self.nodes[parent].below += size;
            }
        }
    }

    /// Places with the same content, together.
    fn by_content(&self, places: Vec<Place>) -> Vec<(u64, Level)> {
        let mut levels: Vec<(u64, Level)> = Vec::with_capacity(places.len());
        let mut known: HashMap<u64, usize> = HashMap::new();
        for (run, offset) in places {
            let Some(content) = self.runs[run as usize].content(offset) else {
                continue;
            };
            let place = *known.entry(content).or_insert(levels.len());
            match levels.get_mut(place) {
                Some((_, level)) => level.push((run, offset)),
                None => levels.push((content, smallvec![(run, offset)])),
            }
        }
        levels
    }

    fn sets(&self, level: &[Place]) -> SmallVec<[u32; 1]> {
        let mut sets: SmallVec<[u32; 1]> = level.iter().map(|&(run, _)| self.runs[run as usize].holders).collect();
        sets.sort_unstable();
        sets.dedup();
        sets
    }

    /// Count trails at the nodes that they lead to, and those above; how many lead to one that is still there.
    pub fn follow(&mut self, index: &PrefixIndex, trails: &[Vec<u64>]) -> usize {
        let mut followed = 0;
        for trail in trails {
            let state = index.state.read();
            let Some(forest) = state.forests.get(self.geometry) else {
                break;
            };
            let place = trail
                .iter()
                .find_map(|&content| forest.with_content(content).find_map(|block| self.node_at(block)));
            if let Some(place) = place {
                self.nodes[place].hits += 1;
                followed += 1;
            }
        }
        for place in (0..self.nodes.len()).rev() {
            if let Some(parent) = self.nodes[place].parent {
                self.nodes[parent].hits += self.nodes[place].hits;
            }
        }
        followed
    }

    fn node_at(&self, block: BlockNumber) -> Option<usize> {
        let number = self.runs.partition_point(|run| run.end() < block);
        let run = self.runs.get(number).filter(|run| run.first <= block)?;
        debug_assert!(run.first <= block);
        self.node_of[number]
    }
}

/// Places with the same content.
type Level = SmallVec<[Place; 1]>;
