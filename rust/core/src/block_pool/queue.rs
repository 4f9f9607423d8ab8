//! Blocks that nobody holds, in the order of their reuse.

/// A doubly linked list threaded through one array: any block leaves it from wherever it is, in constant time. Block 0,
/// which is never used, closes the ring.
///
/// ```text
///   0 <-> front <-> ... <-> back <-> 0
/// ```
#[derive(Clone, Debug)]
pub(super) struct FreeQueue {
    links: Vec<Link>,
    len: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Link {
    before: u32,
    after: u32,
}

const RING: u32 = 0;

impl FreeQueue {
    /// Blocks 1 to `blocks - 1`, ascending.
    pub fn new(blocks: u32) -> Self {
        let mut queue = Self {
            links: vec![Link::default(); blocks as usize],
            len: 0,
        };
        (1..blocks).for_each(|block| queue.push_back(block));
        queue
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn push_front(&mut self, block: u32) {
        self.insert(RING, block, self.link(RING).after);
    }

    pub fn push_back(&mut self, block: u32) {
        self.insert(self.link(RING).before, block, RING);
    }

    pub fn pop_front(&mut self) -> Option<u32> {
        let block = self.link(RING).after;
        (block != RING).then(|| {
            self.remove(block);
            block
        })
    }

    /// Take a block out that is in the queue.
    pub fn remove(&mut self, block: u32) {
        let Link { before, after } = self.link(block);
        self.links[before as usize].after = after;
        self.links[after as usize].before = before;
        self.len -= 1;
    }

    /// From front to back.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let next = |block: u32| Some(self.link(block).after).filter(|&block| block != RING);
        std::iter::successors(next(RING), move |&block| next(block))
    }

    fn insert(&mut self, before: u32, block: u32, after: u32) {
        self.links[block as usize] = Link { before, after };
        self.links[before as usize].after = block;
        self.links[after as usize].before = block;
        self.len += 1;
    }

    fn link(&self, block: u32) -> Link {
        self.links[block as usize]
    }
}
