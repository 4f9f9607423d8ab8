//! vLLM's flat block cache: blocks with a reference count and at most one label, and the queue of their reuse.
//!
//! ```text
//!               take                publish             release
//!   free, bare -----> held, bare ----------> held, labelled ----> free, labelled (at the back of the queue)
//!    ^  ^                 |                         ^                |   |
//!    |  `--- release -----'                         `----- hold -----'   |
//!    |       (to the front)                                              |
//!    `------- take (from the front: the label is lost, held at once) ----'
//! ```
//!
//! A labelled block is found by `lookup` whether somebody holds it or not: being free and being evicted are different
//! things. The order of the queue is the whole policy. Read off vLLM 0.32 (`v1/core/block_pool.py`), pinned by
//! `tests/golden/test_block_pool.py`.

mod labels;
mod queue;

use thiserror::Error;

use crate::hash::sglang::Digest;
use labels::Labels;
use queue::FreeQueue;

/// Why blocks were refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PoolError {
    /// A number that no block has, or that of the placeholder.
    #[error("blocks: expected 1 to {last}, got {block} at position {position}")]
    Unknown {
        /// Index in what was passed.
        position: usize,
        /// What is there.
        block: i64,
        /// Highest number of a block.
        last: u32,
    },
    /// Given back, or to be labelled, but nobody holds it.
    #[error("blocks: nobody holds block {block} at position {position}")]
    NotHeld {
        /// Index in what was passed.
        position: usize,
        /// What is there.
        block: i64,
    },
    /// To be held, but what is expected in it is not there any more.
    #[error("blocks: block {block} at position {position} has lost the expected content")]
    Lost {
        /// Index in what was passed.
        position: usize,
        /// What is there.
        block: i64,
    },
    /// To be labelled, but it is already, or was passed twice.
    #[error("blocks: block {block} at position {position} is published already")]
    Labelled {
        /// Index in what was passed.
        position: usize,
        /// What is there.
        block: i64,
    },
    /// Not one block a digest.
    #[error("blocks: expected {expected}, one a page of the chain, got {got}")]
    Count {
        /// Digests.
        expected: usize,
        /// Blocks.
        got: usize,
    },
}

/// The blocks of a KV memory.
#[derive(Clone, Debug)]
pub struct BlockPool {
    /// Holders of each block.
    holders: Vec<u32>,
    free: FreeQueue,
    labels: Labels,
    /// Blocks that are free and labelled.
    evictable: usize,
}

impl BlockPool {
    /// Blocks 0 to `blocks - 1`, of which block 0 is a placeholder that is never used. All others are free, in
    /// ascending order.
    pub fn new(blocks: u32) -> Self {
        Self {
            holders: vec![0; blocks as usize],
            free: FreeQueue::new(blocks),
            labels: Labels::new(blocks),
            evictable: 0,
        }
    }

    /// Blocks, the placeholder among them.
    pub fn blocks(&self) -> usize {
        self.holders.len()
    }

    /// Blocks that nobody holds.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Blocks that have a label.
    pub fn labelled(&self) -> usize {
        self.labels.len()
    }

    /// Blocks that have a label and that nobody holds.
    pub fn evictable(&self) -> usize {
        self.evictable
    }

    /// The free blocks in the order of their reuse.
    pub fn queue(&self) -> impl Iterator<Item = u32> + '_ {
        self.free.iter()
    }

    /// Every digest that some block carries, each once, in no order.
    pub fn digests(&self) -> impl ExactSizeIterator<Item = &Digest> {
        self.labels.digests()
    }

    /// The blocks that hold the leading pages of a sequence, up to the first page that no block holds.
    pub fn lookup(&self, digests: &[Digest]) -> Vec<i64> {
        let found = digests.iter().map_while(|digest| self.labels.oldest(digest));
        found.map(i64::from).collect()
    }

    /// How many of some blocks nobody holds.
    pub fn parked(&self, blocks: &[i64]) -> Result<usize, PoolError> {
        let held = self.each(blocks, |_, block| Ok(self.holders[block as usize] > 0))?;
        Ok(held.into_iter().filter(|held| !held).count())
    }

    /// Hold blocks; those that are free leave the queue from wherever they are. `digests`: what they have to carry,
    /// where that is known.
    pub fn hold(&mut self, blocks: &[i64], digests: Option<&[Digest]>) -> Result<(), PoolError> {
        if let Some(digests) = digests {
            count(blocks, digests)?;
        }
        let blocks = self.each(blocks, |position, block| {
            let expected = digests.map(|digests| &digests[position]);
            if expected.is_some_and(|digest| self.labels.get(block) != Some(digest)) {
                let block = block.into();
                return Err(PoolError::Lost { position, block });
            }
            Ok(block)
        })?;
        for block in blocks {
            if self.holders[block as usize] == 0 {
                self.free.remove(block);
                self.evictable -= usize::from(self.labels.get(block).is_some());
            }
            self.holders[block as usize] += 1;
        }
        Ok(())
    }

    /// Take blocks from the front of the queue, and the labels of those that have one: the only eviction there is.
    /// None, and nothing changed, where fewer are free.
    pub fn take(&mut self, count: usize) -> Option<Taken> {
        if count > self.free() {
            return None;
        }
        let mut taken = Taken {
            blocks: Vec::with_capacity(count),
            evicted: Vec::new(),
        };
        for _ in 0..count {
            let block = self.free.pop_front().expect("as many are free");
            taken.evicted.extend(self.labels.remove(block));
            self.holders[block as usize] = 1;
            taken.blocks.push(block.into());
        }
        self.evictable -= taken.evicted.len();
        Some(taken)
    }

    /// Label held blocks with the digests of the pages that fill them. That another block carries the same digest makes
    /// no difference.
    pub fn publish(&mut self, blocks: &[i64], digests: &[Digest]) -> Result<(), PoolError> {
        count(blocks, digests)?;
        let numbers = self.each(blocks, |_, block| Ok(block))?;
        for (position, (&block, &digest)) in numbers.iter().zip(digests).enumerate() {
            let number = blocks[position];
            let refused = if self.holders[block as usize] == 0 {
                PoolError::NotHeld {
                    position,
                    block: number,
                }
            } else if self.labels.get(block).is_some() {
                PoolError::Labelled {
                    position,
                    block: number,
                }
            } else {
                self.labels.add(block, digest);
                continue;
            };
            for &block in &numbers[..position] {
                self.labels.remove(block);
            }
            return Err(refused);
        }
        Ok(())
    }

    /// Give back the blocks of a sequence, passed in its order. The last block is given back first, so that the tail of
    /// a sequence is evicted before its head. Those that nobody holds any more go to the back of the queue if they are
    /// labelled, else, being of no further use, to its front.
    pub fn release(&mut self, blocks: &[i64]) -> Result<(), PoolError> {
        let numbers = self.each(blocks, |_, block| Ok(block))?;
        let mut give = |block: u32| {
            let holders = &mut self.holders[block as usize];
            let fewer = holders.checked_sub(1);
            *holders = fewer.unwrap_or(0);
            fewer.is_some()
        };
        let given = numbers.iter().take_while(|&&block| give(block)).count();
        for &block in &numbers[..given] {
            self.holders[block as usize] += 1;
        }
        if let Some(&block) = blocks.get(given) {
            let position = given;
            return Err(PoolError::NotHeld { position, block });
        }
        let mut bare = Vec::new();
        for &block in numbers.iter().rev() {
            self.holders[block as usize] -= 1;
            if self.holders[block as usize] > 0 {
                continue;
            }
            if self.labels.get(block).is_some() {
                self.free.push_back(block);
                self.evictable += 1;
            } else {
                bare.push(block);
            }
        }
        // The last block of the sequence becomes the very front.
        for block in bare.into_iter().rev() {
            self.free.push_front(block);
        }
        Ok(())
    }

    /// Take the labels off the free blocks that would lose them next, up to `count`. Their places in the queue stay.
    pub fn evict(&mut self, count: usize) -> Vec<Digest> {
        let next: Vec<u32> = self
            .free
            .iter()
            .filter(|&block| self.labels.get(block).is_some())
            .take(count)
            .collect();
        self.evictable -= next.len();
        next.into_iter().filter_map(|block| self.labels.remove(block)).collect()
    }

    /// Take all labels off; the queue keeps its order. False, and nothing changed, where somebody holds a block.
    pub fn reset(&mut self) -> bool {
        let is_idle = self.free() + 1 == self.blocks();
        if is_idle {
            self.labels.clear();
            self.evictable = 0;
        }
        is_idle
    }

    /// Say what is broken, if something is.
    pub fn check(&self) -> Result<(), String> {
        self.labels.check()?;
        let mut seen = vec![false; self.blocks()];
        let (mut free, mut evictable) = (0, 0);
        for block in self.queue() {
            if std::mem::replace(&mut seen[block as usize], true) {
                return Err(format!("block {block} is in the queue twice"));
            }
            free += 1;
            evictable += usize::from(self.labels.get(block).is_some());
        }
        if (free, evictable) != (self.free(), self.evictable) {
            return Err(format!(
                "{free} blocks are in the queue, {evictable} of them labelled, but {} and {} are counted",
                self.free(),
                self.evictable
            ));
        }
        for (block, (&holders, &queued)) in self.holders.iter().zip(&seen).enumerate().skip(1) {
            if (holders == 0) != queued {
                let place = if queued { "in" } else { "not in" };
                return Err(format!("block {block} has {holders} holders and is {place} the queue"));
            }
        }
        Ok(())
    }

    /// What `take` says of each block, or the first reason why not.
    fn each<T>(
        &self,
        blocks: &[i64],
        mut take: impl FnMut(usize, u32) -> Result<T, PoolError>,
    ) -> Result<Vec<T>, PoolError> {
        let last = (self.blocks() - 1) as u32;
        let numbers = blocks.iter().enumerate().map(|(position, &block)| {
            let number = u32::try_from(block).ok().filter(|number| (1..=last).contains(number));
            let number = number.ok_or(PoolError::Unknown { position, block, last })?;
            take(position, number)
        });
        numbers.collect()
    }
}

fn count(blocks: &[i64], digests: &[Digest]) -> Result<(), PoolError> {
    let (expected, got) = (digests.len(), blocks.len());
    if expected == got {
        return Ok(());
    }
    Err(PoolError::Count { expected, got })
}

/// Blocks that were taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// In the order of the queue, each held once.
    pub blocks: Vec<i64>,
    /// The labels that were lost to it, in the same order.
    pub evicted: Vec<Digest>,
}
