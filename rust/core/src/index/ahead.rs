//! What applying a slice will need, done before the lock is taken: hashes, memory, and what it will look at.
//!
//! Others may write in between, so all of this is looked at again when the slice is applied.

use super::PrefixIndex;
use super::blocks::{BlockNumber, Chunk};
use super::forest::{By, Forest, Nearby};
use super::slice::{Action, Slice};
use super::state::State;
use super::table::{SHARDS, empty_slots};

/// Memory that a forest will need for the next blocks.
#[derive(Clone, Copy, Debug)]
pub enum Need {
    /// A shard of a table has to grow.
    Shard {
        /// Of which table.
        by: By,
        /// A key of the shard.
        key: u64,
        /// To so many slots.
        slots: usize,
    },
    /// A chunk will be full.
    Chunk,
}

/// What a slice needs, each thing once.
#[derive(Default)]
struct Needs {
    needs: Vec<Need>,
    shards: [[u64; SHARDS / 64]; 2],
}

impl Needs {
    /// A shard of a table has to grow.
    fn push_shard(&mut self, by: By, key: u64, shard: usize, slots: usize) {
        let seen = &mut self.shards[by as usize][shard / 64];
        let bit = 1 << (shard % 64);
        if *seen & bit == 0 {
            *seen |= bit;
            self.needs.push(Need::Shard { by, key, slots });
        }
    }
}

impl PrefixIndex {
    /// Hash a slice, and have at hand what applying it will take.
    pub(super) fn prepare(&self, number: u32, slice: &mut Slice<'_>) {
        slice.hash(|parent| self.state.read().content(number, parent));
        let needs = self.state.read().look_ahead(number, slice);
        for need in needs {
            self.furnish(number, need);
        }
    }

    /// Memory is made and given back outside of the lock.
    fn furnish(&self, number: u32, need: Need) {
        match need {
            Need::Shard { by, key, slots } => {
                let mut slots = empty_slots(slots);
                if let Some(forest) = self.state.write().forest_of(number) {
                    forest.table_mut(by).grow(key, &mut slots);
                }
            }
            Need::Chunk => {
                let chunk = Box::new(Chunk::new());
                let mut state = self.state.write();
                let before = state.forest_of(number).map(|forest| forest.blocks.give_chunk(chunk));
                drop(state);
                drop(before);
            }
        }
    }
}

impl State {
    fn forest_of(&mut self, number: u32) -> Option<&mut Forest> {
        let source = self.sources[number as usize].as_ref()?;
        self.forests.get_mut(source.geometry?)
    }

    /// The content of a block that a source has placed.
    fn content(&self, number: u32, block: u64) -> Option<u64> {
        let source = self.sources[number as usize].as_ref()?;
        let forest = self.forests.get(source.geometry?)?;
        forest.find(source.member, block).map(|block| forest.content(block))
    }

    /// Ask the processor for what a slice of a source's batch will look at. Gives what memory it will need.
    fn look_ahead(&self, number: u32, slice: &Slice<'_>) -> Vec<Need> {
        let Some(source) = self.sources[number as usize].as_ref() else {
            return Vec::new();
        };
        let Some(forest) = source.geometry.and_then(|geometry| self.forests.get(geometry)) else {
            return Vec::new();
        };
        let mut needs = Needs::default();
        let mut blocks = 0;
        for action in slice.actions() {
            match action {
                Action::Store(store) => {
                    blocks += store.blocks.len();
                    for (block, content) in store.foreseen() {
                        forest.expect(block, content, &mut needs);
                    }
                }
                Action::Remove { blocks, .. } => {
                    for &block in blocks {
                        forest.expect_known(block);
                    }
                    // What a block that goes is called otherwise is known only by looking at it.
                    let mut nearby = Nearby::default();
                    for &block in blocks {
                        if let Some(number) = nearby.find(forest, source.member, block) {
                            forest.expect_gone(number);
                        }
                    }
                }
                Action::Clear => {}
            }
        }
        if blocks > 0 && forest.blocks.wants_chunk(blocks) {
            needs.needs.push(Need::Chunk);
        }
        needs.needs
    }
}

impl Forest {
    /// A block may be stored next.
    fn expect(&self, engine: u64, content: Option<u64>, needs: &mut Needs) {
        self.table(By::Engine).prefetch(engine);
        let Some(content) = content else { return };
        self.table(By::Content).prefetch(content);
        for (by, key) in [(By::Engine, engine), (By::Content, content)] {
            let table = self.table(by);
            if let Some(slots) = table.wants(key) {
                needs.push_shard(by, key, table.shard(key), slots);
            }
        }
    }

    /// A block that is there is looked for next.
    fn expect_known(&self, engine: u64) {
        self.table(By::Engine).prefetch(engine);
    }

    /// A block may be buried next.
    fn expect_gone(&self, block: BlockNumber) {
        self.table(By::Content).prefetch(self.content(block));
    }
}
