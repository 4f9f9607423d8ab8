//! What workers are believed to hold by what was sent to them, for engines that say nothing of their caches.
//!
//! A record stands for one block (by its content hash) on one holder. Records are kept in the order of their last use,
//! those of one prompt so that a block never outlives the blocks above it; so a holder's part of a prompt is found by
//! halving, and what is evicted first is what an engine evicts first.

mod recency;

use std::collections::HashMap;

use hashbrown::HashTable;

use recency::Recency;

/// Who holds blocks: a number of the caller's choice.
pub type Holder = u32;

/// One block on one holder.
#[derive(Clone, Copy, Debug)]
struct Record {
    key: u64,
    holder: Holder,
    /// When it was last used, in the caller's seconds.
    used: f64,
    /// Work for prompts that go through it, as it was at `clock`.
    work: f64,
    clock: f64,
}

impl Record {
    fn work_at(&self, clock: f64) -> f64 {
        self.work * (self.clock - clock).min(0.0).exp2()
    }
}

/// Blocks that holders are believed to hold, at most so many; the least recently used are forgotten first.
#[derive(Debug)]
pub struct Learned {
    records: Vec<Record>,
    free: Vec<u32>,
    table: HashTable<u32>,
    recency: Recency,
    held: HashMap<Holder, usize>,
    max_blocks: usize,
    evicted: u64,
}

/// The key of a block on a holder. Content hashes are spread evenly, so one multiplication keeps holders apart.
fn key(block: u64, holder: Holder) -> u64 {
    block ^ (u64::from(holder) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Learned {
    /// Nothing yet, and never more than `max_blocks` records.
    pub fn new(max_blocks: usize) -> Self {
        Self {
            records: Vec::new(),
            free: Vec::new(),
            table: HashTable::new(),
            recency: Recency::default(),
            held: HashMap::new(),
            max_blocks,
            evicted: 0,
        }
    }

    /// Records in all.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Records of a holder.
    pub fn held(&self, holder: Holder) -> usize {
        self.held.get(&holder).copied().unwrap_or(0)
    }

    /// Records forgotten for want of room since the start.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// A prompt went to a holder: it will hold these blocks, the first of the prompt first. `work` is what the prompt
    /// costs there, counted for each of its blocks; work is half forgotten when `clock` has gone on by one.
    pub fn learn(&mut self, chain: &[u64], holder: Holder, now: f64, work: f64, clock: f64) {
        let chain = &chain[..chain.len().min(self.max_blocks)];
        // The deepest first: the others come after it, and so are more recent.
        for &block in chain.iter().rev() {
            let key = key(block, holder);
            let number = self.find(key).unwrap_or_else(|| self.add(key, holder));
            let record = &mut self.records[number as usize];
            record.work = record.work_at(clock) + work;
            record.clock = clock;
            record.used = now;
            self.recency.touch(number);
        }
    }

    /// Leading blocks of a prompt that a holder has, all of them used at `since` or later.
    pub fn depth(&self, chain: &[u64], holder: Holder, since: f64) -> usize {
        chain.partition_point(|&block| {
            self.find(key(block, holder))
                .is_some_and(|number| self.records[number as usize].used >= since)
        })
    }

    /// The work of a holder for prompts that go through this block; 0 where nothing is known.
    pub fn work(&self, block: u64, holder: Holder, clock: f64) -> f64 {
        self.find(key(block, holder))
            .map_or(0.0, |number| self.records[number as usize].work_at(clock))
    }

    /// Forget what was last used before `before`.
    pub fn expire(&mut self, before: f64) {
        while let Some(oldest) = self.recency.oldest()
            && self.records[oldest as usize].used < before
        {
            self.remove(oldest);
        }
    }

    /// Forget a holder.
    pub fn forget(&mut self, holder: Holder) {
        let all: Vec<u32> = self.table.iter().copied().collect();
        for number in all {
            if self.records[number as usize].holder == holder {
                self.remove(number);
            }
        }
    }

    fn find(&self, key: u64) -> Option<u32> {
        self.table
            .find(key, |&number| self.records[number as usize].key == key)
            .copied()
    }

    fn add(&mut self, key: u64, holder: Holder) -> u32 {
        if self.table.len() >= self.max_blocks
            && let Some(oldest) = self.recency.oldest()
        {
            self.remove(oldest);
            self.evicted += 1;
        }
        let record = Record {
            key,
            holder,
            used: 0.0,
            work: 0.0,
            clock: 0.0,
        };
        let number = if let Some(number) = self.free.pop() {
            self.records[number as usize] = record;
            number
        } else {
            self.records.push(record);
            self.records.len() as u32 - 1
        };
        let records = &self.records;
        self.table
            .insert_unique(key, number, |&other| records[other as usize].key);
        self.recency.add(number);
        *self.held.entry(holder).or_default() += 1;
        number
    }

    fn remove(&mut self, number: u32) {
        let Record { key, holder, .. } = self.records[number as usize];
        if let Ok(entry) = self.table.find_entry(key, |&other| other == number) {
            entry.remove();
        }
        self.recency.remove(number);
        self.free.push(number);
        if let Some(held) = self.held.get_mut(&holder) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(&holder);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NEVER: f64 = f64::INFINITY;

    #[test]
    fn a_holder_has_what_was_sent_to_it_and_others_have_not() {
        let mut learned = Learned::new(100);
        learned.learn(&[1, 2, 3], 0, 10.0, 1.0, 0.0);
        assert_eq!(learned.depth(&[1, 2, 3, 4], 0, 10.0), 3);
        assert_eq!(learned.depth(&[1, 2, 9], 0, 0.0), 2);
        assert_eq!(learned.depth(&[1, 2, 3], 1, 0.0), 0);
        assert_eq!(learned.depth(&[1, 2, 3], 0, 10.5), 0);
        assert_eq!((learned.len(), learned.held(0), learned.held(1)), (3, 3, 0));
        learned.forget(0);
        assert!(learned.is_empty());
        assert_eq!(learned.depth(&[1], 0, 0.0), 0);
    }

    #[test]
    fn work_adds_up_along_the_prompt_and_fades_by_half_a_tick() {
        let mut learned = Learned::new(100);
        learned.learn(&[1, 2], 0, 0.0, 100.0, 0.0);
        learned.learn(&[1, 3], 0, 0.0, 60.0, 1.0);
        assert!((learned.work(1, 0, 1.0) - 110.0).abs() < 1e-9);
        assert!((learned.work(2, 0, 1.0) - 50.0).abs() < 1e-9);
        assert!((learned.work(3, 0, 2.0) - 30.0).abs() < 1e-9);
        assert!(learned.work(1, 1, 1.0).abs() < 1e-9);
    }

    #[test]
    fn the_end_of_the_least_recent_prompt_goes_first() {
        let mut learned = Learned::new(4);
        learned.learn(&[1, 2, 3], 0, 0.0, 0.0, 0.0);
        learned.learn(&[8, 9], 0, 1.0, 0.0, 0.0);
        assert_eq!(learned.depth(&[1, 2, 3], 0, 0.0), 2);
        assert_eq!(learned.evicted(), 1);
        learned.learn(&[20, 21, 22, 23, 24, 25], 1, 2.0, 0.0, 0.0);
        assert_eq!(learned.depth(&[20, 21, 22, 23, 24, 25], 1, 0.0), 4);
        assert_eq!((learned.len(), learned.held(0)), (4, 0));
    }

    #[test]
    fn what_is_old_expires() {
        let mut learned = Learned::new(10);
        learned.learn(&[1, 2], 0, 0.0, 0.0, 0.0);
        learned.learn(&[1, 3], 0, 5.0, 0.0, 0.0);
        learned.expire(5.0);
        assert_eq!(learned.depth(&[1, 2], 0, 0.0), 1);
        assert_eq!(learned.depth(&[1, 3], 0, 0.0), 2);
        learned.expire(NEVER);
        assert!(learned.is_empty());
    }

    proptest! {
        /// Against a plain list of (block, holder, time): depth, bound and counts, whatever comes in which order.
        #[test]
        fn it_answers_as_a_list_in_order_of_use_does(
            prompts in prop::collection::vec((0_u32..3, 0_u64..4, 0_u64..3, 1_usize..6), 1..40),
            bound in 1_usize..12,
        ) {
            let mut learned = Learned::new(bound);
            let mut list: Vec<(u64, u32, f64)> = Vec::new();
            for (now, (holder, trunk, branch, length)) in prompts.into_iter().enumerate() {
                // Blocks of a tree: two of a trunk, then a branch.
                let chain: Vec<u64> = (0..length as u64)
                    .map(|depth| 1 + depth + 10 * trunk + if depth < 2 { 0 } else { 100 * (branch + 1) })
                    .collect();
                let now = now as f64;
                learned.learn(&chain, holder, now, 1.0, 0.0);
                for &block in chain[..length.min(bound)].iter().rev() {
                    list.retain(|&(other, owner, _)| (other, owner) != (block, holder));
                    if list.len() == bound {
                        list.remove(0);
                    }
                    list.push((block, holder, now));
                }
                prop_assert_eq!(learned.len(), list.len());
                for holder in 0..3 {
                    let has = |block: &u64, since: f64| {
                        list.iter().any(|&(other, owner, used)| (other, owner) == (*block, holder) && used >= since)
                    };
                    for since in [0.0, now - 2.0] {
                        let depth = chain.iter().take_while(|block| has(block, since)).count();
                        prop_assert_eq!(learned.depth(&chain, holder, since), depth);
                    }
                    prop_assert_eq!(learned.held(holder), list.iter().filter(|entry| entry.1 == holder).count());
                }
            }
        }
    }
}
