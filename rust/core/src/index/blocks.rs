//! Blocks by number: what each is called, what it holds, and what it hangs on, 24 bytes each.
//!
//! Blocks that are added one after the other mostly get consecutive numbers, so whoever follows a prompt mostly reads
//! what lies next to what it read before. Memory comes and goes in chunks; nothing moves when more is needed.

use super::holders::HolderSet;

/// Number of a block.
pub type BlockNumber = u32;

const CHUNK: usize = 1024;
/// A chunk is filled again once so many of its blocks are free.
const ROOMY: usize = CHUNK / 4;
const WORD: usize = u64::BITS as usize;

/// Blocks at most: the upper bits of a number that names a parent are flags.
pub const MAX_BLOCKS: usize = NO_PARENT as usize / CHUNK * CHUNK;
const NO_PARENT: u32 = (1 << 29) - 1;

/// What the blocks that share something with this one make it necessary to look at. A flag may stay when its reason
/// is gone.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flag {
    /// Blocks under other engine hashes have the same content.
    Alias = 1 << 29,
    /// Blocks with other contents have the same engine hash.
    Homonym = 1 << 30,
    /// Some block below it does not have the next number.
    Fork = 1 << 31,
}

#[derive(Clone, Copy, Debug, Default)]
struct Name {
    content: u64,
    engine: u64,
}

/// What a block hangs on, and who holds it.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    parent: u32,
    /// Who holds it.
    pub holders: HolderSet,
}

impl Link {
    /// The block above; None at the start of a prompt.
    pub fn parent(self) -> Option<BlockNumber> {
        let parent = self.parent & NO_PARENT;
        (parent != NO_PARENT).then_some(parent)
    }

    /// Whether it has the flag.
    pub fn has(self, flag: Flag) -> bool {
        self.parent & flag as u32 != 0
    }
}

/// Room for some blocks with consecutive numbers.
#[derive(Debug)]
pub struct Chunk {
    names: Box<[Name]>,
    links: Box<[Link]>,
    used: [u64; CHUNK / WORD],
    len: usize,
}

impl Chunk {
    /// Room without a block in it.
    pub fn new() -> Self {
        let empty = Link {
            parent: NO_PARENT,
            holders: 0,
        };
        Self {
            names: vec![Name::default(); CHUNK].into_boxed_slice(),
            links: vec![empty; CHUNK].into_boxed_slice(),
            used: [0; CHUNK / WORD],
            len: 0,
        }
    }

    fn is_used(&self, place: usize) -> bool {
        self.used[place / WORD] & 1 << (place % WORD) != 0
    }

    fn next_free(&self, from: usize) -> Option<usize> {
        let mut skip = from % WORD;
        for word in from / WORD..CHUNK / WORD {
            let free = !self.used[word] >> skip << skip;
            if free != 0 {
                return Some(word * WORD + free.trailing_zeros() as usize);
            }
            skip = 0;
        }
        None
    }
}

/// All blocks of one geometry.
#[derive(Debug, Default)]
pub struct Blocks {
    chunks: Vec<Option<Box<Chunk>>>,
    len: usize,
    /// The chunk that is being filled, and from where on it may have room.
    open: usize,
    cursor: usize,
    /// Chunks that may be filled again, and places without a chunk.
    roomy: Vec<usize>,
    vacant: Vec<usize>,
    /// A chunk to be opened next.
    spare: Option<Box<Chunk>>,
}

impl Blocks {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// How many more there can be for sure.
    pub fn room(&self) -> usize {
        MAX_BLOCKS - (self.chunks.len() - self.vacant.len()) * CHUNK
    }

    /// Whether it would be good to have a spare chunk before so many blocks are added.
    pub fn wants_chunk(&self, blocks: usize) -> bool {
        let has_chunk = self.spare.is_some() || !self.roomy.is_empty();
        !has_chunk && !self.chunks.is_empty() && CHUNK - self.cursor < blocks
    }

    /// A chunk to be opened next; the one that was there before.
    pub fn give_chunk(&mut self, chunk: Box<Chunk>) -> Option<Box<Chunk>> {
        self.spare.replace(chunk)
    }

    /// Bytes on the heap.
    pub fn size_bytes(&self) -> usize {
        let chunk = size_of::<Chunk>() + CHUNK * (size_of::<Name>() + size_of::<Link>());
        (self.chunks.len() - self.vacant.len() + usize::from(self.spare.is_some())) * chunk
            + self.chunks.capacity() * size_of::<Option<Box<Chunk>>>()
            + (self.roomy.capacity() + self.vacant.capacity()) * size_of::<usize>()
    }

    /// Add a block, with the next number if that is free. There must be room.
    pub fn insert(&mut self, engine: u64, content: u64, parent: Option<BlockNumber>) -> BlockNumber {
        let place = self.free_place();
        let chunk = self.chunks[self.open].as_mut().expect("the open chunk is there");
        chunk.names[place] = Name { content, engine };
        chunk.links[place] = Link {
            parent: parent.unwrap_or(NO_PARENT),
            holders: 0,
        };
        chunk.used[place / WORD] |= 1 << (place % WORD);
        chunk.len += 1;
        self.len += 1;
        self.cursor = place + 1;
        (self.open * CHUNK + place) as BlockNumber
    }

    fn free_place(&mut self) -> usize {
        if let Some(Some(chunk)) = self.chunks.get(self.open) {
            if let Some(place) = chunk.next_free(self.cursor) {
                return place;
            }
            if CHUNK - chunk.len >= ROOMY {
                self.roomy.push(self.open);
            }
        }
        self.open = self.next_chunk();
        let spare = &mut self.spare;
        let chunk =
            self.chunks[self.open].get_or_insert_with(|| spare.take().unwrap_or_else(|| Box::new(Chunk::new())));
        chunk.next_free(0).expect("a chunk that is opened has room")
    }

    fn next_chunk(&mut self) -> usize {
        while let Some(number) = self.roomy.pop() {
            // It may have gone since, or be here twice and have been filled.
            if self.chunks[number]
                .as_ref()
                .is_some_and(|chunk| CHUNK - chunk.len >= ROOMY)
            {
                return number;
            }
        }
        self.vacant.pop().unwrap_or_else(|| {
            assert!(self.chunks.len() < MAX_BLOCKS / CHUNK, "the caller asked for room");
            self.chunks.push(None);
            self.chunks.len() - 1
        })
    }

    /// Take a block away.
    pub fn remove(&mut self, block: BlockNumber) {
        let (number, place) = split(block);
        let chunk = self.chunks[number].as_mut().expect("the block is there");
        debug_assert!(chunk.is_used(place));
        chunk.used[place / WORD] &= !(1 << (place % WORD));
        chunk.len -= 1;
        chunk.links[place].holders = 0;
        self.len -= 1;
        if number == self.open {
            return;
        }
        if chunk.len == 0 {
            self.chunks[number] = None;
            self.vacant.push(number);
        } else if CHUNK - chunk.len == ROOMY {
            self.roomy.push(number);
        }
    }

    /// What a block hangs on and who holds it.
    pub fn link(&self, block: BlockNumber) -> Link {
        let (number, place) = split(block);
        self.chunk(number).links[place]
    }

    /// The same for a number that may not be in use: then nobody holds it.
    pub fn try_link(&self, block: BlockNumber) -> Option<Link> {
        let (number, place) = split(block);
        Some(self.chunks.get(number)?.as_ref()?.links[place])
    }

    /// What its engine calls it.
    pub fn engine(&self, block: BlockNumber) -> u64 {
        let (number, place) = split(block);
        self.chunk(number).names[place].engine
    }

    /// Its content hash.
    pub fn content(&self, block: BlockNumber) -> u64 {
        let (number, place) = split(block);
        self.chunk(number).names[place].content
    }

    /// Set who holds it.
    pub fn set_holders(&mut self, block: BlockNumber, holders: HolderSet) {
        self.link_mut(block).holders = holders;
    }

    /// Set or clear a flag.
    pub fn set(&mut self, block: BlockNumber, flag: Flag, on: bool) {
        let parent = &mut self.link_mut(block).parent;
        *parent = if on {
            *parent | flag as u32
        } else {
            *parent & !(flag as u32)
        };
    }

    /// How many numbers in use are below each chunk: what `rank` begins with.
    pub fn ranks(&self) -> Vec<u32> {
        let mut below = 0;
        let mut ranks = Vec::with_capacity(self.chunks.len());
        for chunk in &self.chunks {
            ranks.push(below);
            below += chunk.as_ref().map_or(0, |chunk| chunk.len as u32);
        }
        ranks
    }

    /// How many numbers in use are below this one.
    pub fn rank(&self, ranks: &[u32], block: BlockNumber) -> u32 {
        let (number, place) = split(block);
        let used = &self.chunk(number).used;
        let words: u32 = used[..place / WORD].iter().map(|word| word.count_ones()).sum();
        let in_word = used[place / WORD] & !(u64::MAX << (place % WORD));
        ranks[number] + words + in_word.count_ones()
    }

    /// Every number in use, in order.
    pub fn iter(&self) -> impl Iterator<Item = BlockNumber> {
        (0..self.end()).filter(|&block| self.contains(block))
    }

    /// A number above all that are in use.
    pub fn end(&self) -> BlockNumber {
        (self.chunks.len() * CHUNK) as BlockNumber
    }

    /// Whether the number is in use.
    pub fn contains(&self, block: BlockNumber) -> bool {
        let (number, place) = split(block);
        matches!(self.chunks.get(number), Some(Some(chunk)) if chunk.is_used(place))
    }

    fn chunk(&self, number: usize) -> &Chunk {
        self.chunks[number].as_ref().expect("the block is there")
    }

    fn link_mut(&mut self, block: BlockNumber) -> &mut Link {
        let (number, place) = split(block);
        let chunk = self.chunks[number].as_mut().expect("the block is there");
        &mut chunk.links[place]
    }
}

fn split(block: BlockNumber) -> (usize, usize) {
    (block as usize / CHUNK, block as usize % CHUNK)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_go_up_and_free_ones_come_again_a_chunk_at_a_time() {
        let mut blocks = Blocks::default();
        let numbers: Vec<_> = (0..2 * CHUNK as u64)
            .map(|name| blocks.insert(name, name, None))
            .collect();
        assert!(numbers.is_sorted() && numbers.windows(2).all(|pair| pair[1] == pair[0] + 1));
        for &number in &numbers[..ROOMY - 1] {
            blocks.remove(number);
        }
        assert_eq!(
            blocks.insert(0, 0, None) as usize,
            2 * CHUNK,
            "the first chunk is too full"
        );
        blocks.remove(numbers[CHUNK - 1]);
        for number in 1..CHUNK {
            assert_eq!(blocks.insert(0, 0, None) as usize, 2 * CHUNK + number);
        }
        assert_eq!(blocks.insert(0, 0, None), 0, "now it has room");
    }

    #[test]
    fn empty_chunks_are_given_back() {
        let mut blocks = Blocks::default();
        let numbers: Vec<_> = (0..10 * CHUNK as u64)
            .map(|name| blocks.insert(name, name, None))
            .collect();
        let full = blocks.size_bytes();
        for &number in &numbers {
            blocks.remove(number);
        }
        assert!(blocks.size_bytes() < full / 8);
        assert_eq!((blocks.len(), blocks.iter().count()), (0, 0));
    }

    proptest! {
        #[test]
        fn every_block_keeps_what_it_was_given(steps in prop::collection::vec((0_u8..3, any::<u32>()), 0..200)) {
            let mut blocks = Blocks::default();
            let mut model: BTreeMap<BlockNumber, (u64, Option<BlockNumber>, bool)> = BTreeMap::new();
            for (kind, draw) in steps {
                let chosen = model.keys().nth(draw as usize % model.len().max(1)).copied();
                match (kind, chosen) {
                    (0, Some(number)) => {
                        blocks.remove(number);
                        model.remove(&number);
                    }
                    (1, Some(number)) => {
                        blocks.set(number, Flag::Homonym, draw % 2 == 0);
                        model.get_mut(&number).expect("chosen").2 = draw % 2 == 0;
                    }
                    _ => {
                        let number = blocks.insert(u64::from(draw), !u64::from(draw), chosen);
                        prop_assert!(model.insert(number, (draw.into(), chosen, false)).is_none());
                    }
                }
                for (&number, &(engine, parent, flag)) in &model {
                    let link = blocks.link(number);
                    prop_assert_eq!((blocks.engine(number), blocks.content(number)), (engine, !engine));
                    prop_assert_eq!((link.parent(), link.has(Flag::Homonym), link.has(Flag::Alias)), (parent, flag, false));
                }
            }
            prop_assert!(blocks.iter().eq(model.keys().copied()));
            let ranks = blocks.ranks();
            prop_assert!(model.keys().zip(0..).all(|(&number, rank)| blocks.rank(&ranks, number) == rank));
        }
    }
}
