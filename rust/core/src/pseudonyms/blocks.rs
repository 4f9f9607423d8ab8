//! Which blocks were announced, with their content: bounded, what was not asked for longest goes first.

use std::mem;

use hashbrown::HashMap;

/// Content hashes by engine hash, in two generations: when the younger is full it takes the place of the older.
#[derive(Debug)]
pub(super) struct Blocks {
    young: HashMap<u64, u64>,
    old: HashMap<u64, u64>,
    /// Of a generation.
    capacity: usize,
}

impl Blocks {
    /// Room for `capacity` blocks, half of them certain.
    pub fn new(capacity: usize) -> Self {
        Self {
            young: HashMap::new(),
            old: HashMap::new(),
            capacity: capacity.div_ceil(2).max(1),
        }
    }

    /// The content of a block, which is kept longer then.
    pub fn get(&mut self, block: u64) -> Option<u64> {
        if let Some(&content) = self.young.get(&block) {
            return Some(content);
        }
        let content = self.old.remove(&block)?;
        self.insert(block, content);
        Some(content)
    }

    /// Keep a block.
    pub fn insert(&mut self, block: u64, content: u64) {
        if self.young.len() >= self.capacity && !self.young.contains_key(&block) {
            mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        self.young.insert(block, content);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_stays_and_the_rest_goes() {
        let mut blocks = Blocks::new(20);
        for block in 0..1_000 {
            blocks.insert(block, block + 1);
            assert_eq!(blocks.get(0), Some(1));
            assert!(blocks.young.len() + blocks.old.len() <= 20);
        }
        assert_eq!(blocks.get(999), Some(1_000));
        assert_eq!(blocks.get(500), None);
    }
}
