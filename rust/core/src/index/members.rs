//! Numbers under which sources are in the holders of blocks.

use super::holders::Member;

/// Which source each member is.
#[derive(Debug, Default)]
pub struct Members {
    sources: Vec<Option<u32>>,
    free: Vec<Member>,
}

impl Members {
    /// A number for a source, or (None) for one that is retired from the start.
    pub fn enlist(&mut self, source: Option<u32>) -> Member {
        let member = self.free.pop().unwrap_or_else(|| {
            self.sources.push(None);
            self.sources.len() as Member - 1
        });
        self.sources[member as usize] = source;
        member
    }

    /// The source of a member; None if it was retired.
    pub fn source(&self, member: Member) -> Option<u32> {
        self.sources[member as usize]
    }

    /// The number is that of no source any more, though it still stands in sets.
    pub fn retire(&mut self, member: Member) {
        self.sources[member as usize] = None;
    }

    /// The number is in no set any more.
    pub fn free(&mut self, member: Member) {
        self.sources[member as usize] = None;
        self.free.push(member);
    }

    /// Bytes on the heap.
    pub fn size_bytes(&self) -> usize {
        self.sources.capacity() * size_of::<Option<u32>>() + self.free.capacity() * size_of::<Member>()
    }
}
