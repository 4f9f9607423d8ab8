//! A hash table from 64-bit keys to block numbers that stores neither: 11 to 21 bytes an entry.
//!
//! A slot is `tag << 32 | block`, the tag being 32 mixed bits of the key. Home places grow with the tag, so growing,
//! shrinking and closing the gap after a removal read nothing but the slots. Two keys with one tag are told apart by
//! the caller, who can see the block's own key. The upper bits of the tag choose a shard that grows on its own: a
//! small part of the table at a time, so that nobody waits for the whole of it.
//!
//! Engines choose some of the keys. A table mixes its own secret into them, so that nobody can choose keys whose slots
//! are all in one place.

use std::hash::{BuildHasher, RandomState};

const SHARD_BITS: u32 = 9;
/// In how many parts a table grows.
pub const SHARDS: usize = 1 << SHARD_BITS;
/// Most entries that 100 slots may hold; linear probing gets slow above.
const MAX_LOAD_PERCENT: usize = 75;
const MIN_SLOTS: usize = 4;
/// Where the sizes of shards part.
const APART: usize = 64;
const EMPTY: u64 = u64::MAX;
/// Slots in a cache line.
const LINE: usize = 8;

/// Block numbers by key; several blocks may share one. `u32::MAX` is not a block number.
#[derive(Debug)]
pub struct BlockTable {
    shards: Box<[Shard]>,
    slots: usize,
    secret: u64,
}

#[derive(Clone, Debug, Default)]
struct Shard {
    slots: Box<[u64]>,
    len: usize,
}

impl Default for BlockTable {
    fn default() -> Self {
        Self {
            shards: vec![Shard::default(); SHARDS].into_boxed_slice(),
            slots: 0,
            secret: RandomState::new().hash_one(0),
        }
    }
}

fn tag_of(slot: u64) -> u32 {
    (slot >> 32) as u32
}

fn shard_of(tag: u32) -> usize {
    (tag >> (u32::BITS - SHARD_BITS)) as usize
}

/// Twice as many slots, but once a size of its own for each shard: equally full as they are, they would all grow at the
/// same time.
fn more_slots(slots: usize, shard: usize) -> usize {
    let more = slots * 2;
    if slots < APART && more >= APART {
        APART + ((APART * shard) >> SHARD_BITS)
    } else {
        more.max(MIN_SLOTS)
    }
}

/// Slots without entries.
pub fn empty_slots(count: usize) -> Box<[u64]> {
    vec![EMPTY; count].into_boxed_slice()
}

impl BlockTable {
    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.len).sum()
    }

    /// Bytes on the heap.
    pub fn size_bytes(&self) -> usize {
        self.shards.len() * size_of::<Shard>() + self.slots * size_of::<u64>()
    }

    /// Engine hashes may be small numbers in a row; a multiplication spreads them over the tag.
    fn tag(&self, key: u64) -> u32 {
        ((key ^ self.secret).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32
    }

    /// Ask the processor for the key's slot, to be there when it is looked at.
    #[allow(unsafe_code)]
    pub fn prefetch(&self, key: u64) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let tag = self.tag(key);
            let shard = &self.shards[shard_of(tag)];
            let place = shard.slots.as_ptr().wrapping_add(shard.home(tag));
            // Many a search goes on in the next cache line.
            for ahead in [0, LINE / 2] {
                // SAFETY: a prefetch changes nothing that can be seen, whatever the address.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(place.wrapping_add(ahead).cast()) };
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = key;
    }

    /// Blocks under the key, and others whose keys have the same tag.
    pub fn candidates(&self, key: u64) -> impl Iterator<Item = u32> {
        let tag = self.tag(key);
        let shard = &self.shards[shard_of(tag)];
        Candidates {
            slots: &shard.slots,
            at: shard.home(tag),
            tag,
        }
    }

    /// Add a block under the key; `see` is told every candidate that is there already.
    pub fn insert(&mut self, key: u64, block: u32, mut see: impl FnMut(u32)) {
        debug_assert_ne!(block, u32::MAX);
        let tag = self.tag(key);
        let shard = &mut self.shards[shard_of(tag)];
        let before = shard.slots.len();
        if shard.is_full() {
            shard.move_to(&mut empty_slots(more_slots(before, shard_of(tag))));
        }
        let mut at = shard.home(tag);
        while shard.slots[at] != EMPTY {
            if tag_of(shard.slots[at]) == tag {
                see(shard.slots[at] as u32);
            }
            at = shard.after(at);
        }
        shard.slots[at] = u64::from(tag) << 32 | u64::from(block);
        shard.len += 1;
        self.slots = self.slots + shard.slots.len() - before;
    }

    /// The shard that a key belongs to.
    pub fn shard(&self, key: u64) -> usize {
        shard_of(self.tag(key))
    }

    /// How many slots the key's shard will have once it has grown, if it has to for the next entry.
    pub fn wants(&self, key: u64) -> Option<usize> {
        let place = self.shard(key);
        let shard = &self.shards[place];
        shard.is_full().then(|| more_slots(shard.slots.len(), place))
    }

    /// Let the key's shard grow into `slots`, which hold its former ones then; they are not used if it has grown since.
    pub fn grow(&mut self, key: u64, slots: &mut Box<[u64]>) {
        let place = shard_of(self.tag(key));
        let shard = &mut self.shards[place];
        let before = shard.slots.len();
        if before < slots.len() {
            shard.move_to(slots);
            self.slots = self.slots + shard.slots.len() - before;
        }
    }

    /// Take a block under the key away; false if it is not there.
    pub fn remove(&mut self, key: u64, block: u32) -> bool {
        let tag = self.tag(key);
        let shard = &mut self.shards[shard_of(tag)];
        let before = shard.slots.len();
        let removed = shard.remove(u64::from(tag) << 32 | u64::from(block));
        self.slots = self.slots + shard.slots.len() - before;
        removed
    }
}

/// A walk along a probe sequence. Some slot is empty, so it ends.
struct Candidates<'a> {
    slots: &'a [u64],
    at: usize,
    tag: u32,
}

impl Iterator for Candidates<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        loop {
            let slot = *self.slots.get(self.at)?;
            if slot == EMPTY {
                return None;
            }
            self.at += 1;
            if self.at == self.slots.len() {
                self.at = 0;
            }
            if tag_of(slot) == self.tag {
                return Some(slot as u32);
            }
        }
    }
}

impl Shard {
    /// Where a tag belongs: its lower bits, scaled to the slots.
    fn home(&self, tag: u32) -> usize {
        ((u64::from(tag << SHARD_BITS) * self.slots.len() as u64) >> 32) as usize
    }

    fn after(&self, place: usize) -> usize {
        if place + 1 == self.slots.len() { 0 } else { place + 1 }
    }

    fn place(&mut self, slot: u64) {
        let mut at = self.home(tag_of(slot));
        while self.slots[at] != EMPTY {
            at = self.after(at);
        }
        self.slots[at] = slot;
    }

    /// Whether one entry more would be too many.
    fn is_full(&self) -> bool {
        (self.len + 1) * 100 > self.slots.len() * MAX_LOAD_PERCENT
    }

    /// Have the empty `slots`, which hold the former ones then.
    ///
    /// From an empty slot on, entries lie nearly in the order of their homes, in any number of slots. So the next one
    /// mostly goes where its home is, or right after the one before it.
    fn move_to(&mut self, slots: &mut Box<[u64]>) {
        std::mem::swap(&mut self.slots, slots);
        let start = slots.iter().position(|&slot| slot == EMPTY).unwrap_or(0);
        let (after, before) = slots.split_at(start);
        let (mut last, mut next) = (0, 0);
        for slot in before.iter().chain(after).copied().filter(|&slot| slot != EMPTY) {
            let home = self.home(tag_of(slot));
            let at = home.max(next);
            // Whatever lies between a home and the entry that was placed last is full.
            if home >= last && self.slots.get(at) == Some(&EMPTY) {
                self.slots[at] = slot;
                (last, next) = (home, at + 1);
            } else {
                self.place(slot);
            }
        }
    }

    fn remove(&mut self, wanted: u64) -> bool {
        let mut at = self.home(tag_of(wanted));
        loop {
            match self.slots.get(at) {
                None | Some(&EMPTY) => return false,
                Some(&slot) if slot == wanted => break,
                Some(_) => at = self.after(at),
            }
        }
        self.close_gap(at);
        self.len -= 1;
        if self.len == 0 {
            self.slots = Box::default();
        } else if self.slots.len() > MIN_SLOTS && self.len * 4 < self.slots.len() {
            self.move_to(&mut empty_slots((self.len * 2).max(MIN_SLOTS)));
        }
        true
    }

    /// Move later entries of the probe sequence back, so that no search stops too early (no tombstones).
    fn close_gap(&mut self, mut gap: usize) {
        let count = self.slots.len();
        let distance = |from: usize, to: usize| if to >= from { to - from } else { to + count - from };
        let mut at = gap;
        loop {
            at = self.after(at);
            let slot = self.slots[at];
            if slot == EMPTY {
                break;
            }
            // The entry may move into the gap unless its home lies after the gap, going round.
            if distance(self.home(tag_of(slot)), at) >= distance(gap, at) {
                self.slots[gap] = slot;
                gap = at;
            }
        }
        self.slots[gap] = EMPTY;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    /// What the multiplication makes `product` of.
    fn factor(product: u64) -> u64 {
        let mut inverse: u64 = 1;
        for _ in 0..6 {
            inverse = inverse.wrapping_mul(2_u64.wrapping_sub(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(inverse)));
        }
        product.wrapping_mul(inverse)
    }

    proptest! {
        #[test]
        fn it_is_a_set_of_pairs(steps in prop::collection::vec((any::<bool>(), 0_u64..40, 0_u32..4), 0..400)) {
            // Few tags, all in the last part of one shard: long probe sequences that wrap around.
            let mut table = BlockTable::default();
            let secret = table.secret;
            let key = |small: u64| factor(((1 << 23) - 1 - small / 2) << 32) ^ secret;
            let mut model: HashSet<(u64, u32)> = HashSet::new();
            for (add, small, block) in steps {
                let pair = (key(small), block);
                if add && model.insert(pair) {
                    let mut seen = HashSet::new();
                    table.insert(pair.0, pair.1, |other| assert!(seen.insert(other)));
                    prop_assert_eq!(seen.len() + 1, model.iter().filter(|(key, _)| *key == pair.0).count());
                } else if !add {
                    prop_assert_eq!(table.remove(pair.0, pair.1), model.remove(&pair));
                }
                for small in 0..40 {
                    let mut found: Vec<_> = table.candidates(key(small)).collect();
                    let mut expected: Vec<_> = (0..4).filter(|&block| model.contains(&(key(small), block))).collect();
                    found.sort_unstable();
                    expected.sort_unstable();
                    prop_assert_eq!(found, expected);
                }
            }
        }
    }

    #[test]
    fn an_emptied_table_gives_its_memory_back() {
        let mut table = BlockTable::default();
        let empty = table.size_bytes();
        for block in 0..100_000 {
            table.insert(u64::from(block) * 7919, block, |_| ());
        }
        assert!(table.size_bytes() - empty < 100_000 * 17);
        for block in 0..100_000 {
            assert!(table.remove(u64::from(block) * 7919, block));
        }
        assert_eq!(table.size_bytes(), empty);
    }

    #[test]
    fn keys_that_were_chosen_to_meet_do_not() {
        let mut table = BlockTable::default();
        for block in 0..30_000 {
            table.insert(factor(block.into()), block, |_| ());
        }
        let occupied = |shard: &Shard| {
            let runs = shard.slots.split(|&slot| slot == EMPTY).map(<[u64]>::len);
            runs.max().unwrap_or(0)
        };
        let longest = table.shards.iter().map(occupied).max().unwrap_or(0);
        assert!(longest < 300, "{longest} entries in a row");
    }
}
