//! Writing token ids and pairs of them: the one place where an event costs per token.

#[cfg(target_arch = "x86_64")]
use super::units_x86::Id;
use super::writer::Writer;
use crate::tokens::TokenSlice;

/// Units that are laid out on the stack at a time.
const CHUNK: usize = 64;
/// Most bytes of an id that fits 32 bits.
const ID_BYTES: usize = 5;
/// Most bytes of a pair of such ids.
const PAIR_BYTES: usize = 1 + 2 * ID_BYTES;
/// The mark of an array of two.
const PAIR: u64 = 0x92 << 56;

impl Writer {
    /// Token ids, without an array around them.
    pub fn ids(&mut self, ids: TokenSlice<'_>) {
        match ids {
            TokenSlice::U32(ids) => self.narrow_ids(ids),
            TokenSlice::U64(ids) => {
                for ids in ids.chunks(CHUNK) {
                    if is_narrow(ids) {
                        self.narrow_ids(ids);
                    } else {
                        ids.iter().copied().for_each(|id| self.uint(id));
                    }
                }
            }
        }
    }

    /// Pairs of neighbours, without an array around them: one less than there are ids.
    pub fn pairs(&mut self, ids: TokenSlice<'_>) {
        let pairs = ids.len().saturating_sub(1);
        for start in (0..pairs).step_by(CHUNK) {
            let ids = ids.slice(start, pairs.min(start + CHUNK) + 1);
            match ids {
                TokenSlice::U32(ids) => self.narrow_pairs(ids.iter().copied()),
                TokenSlice::U64(ids) if is_narrow(ids) => self.narrow_pairs(ids.iter().map(|&id| id as u32)),
                TokenSlice::U64(ids) => {
                    for pair in ids.windows(2) {
                        self.array(2);
                        self.uint(pair[0]);
                        self.uint(pair[1]);
                    }
                }
            }
        }
    }

    /// Ids that fit 32 bits.
    fn narrow_ids<T: Id + Into<u64>>(&mut self, ids: &[T]) {
        #[cfg(target_arch = "x86_64")]
        if super::units_x86::append(self.buffer(), ids) {
            return;
        }
        self.put_ids(ids);
    }

    fn put_ids<T: Copy + Into<u64>>(&mut self, ids: &[T]) {
        for ids in ids.chunks(CHUNK) {
            let mut line = Line::<{ ID_BYTES * CHUNK + SLACK }>::new();
            for &id in ids {
                line.put(encoded(id.into() as u32));
            }
            self.raw(line.bytes());
        }
    }

    /// The pairs of at most a chunk and one id.
    fn narrow_pairs(&mut self, ids: impl Iterator<Item = u32>) {
        let mut line = Line::<{ PAIR_BYTES * CHUNK + SLACK }>::new();
        let mut first = None;
        for id in ids {
            let second = encoded(id);
            if let Some(first) = first.replace(second) {
                line.put((PAIR, 1));
                line.put(first);
                line.put(second);
            }
        }
        self.raw(line.bytes());
    }
}

#[cfg(not(target_arch = "x86_64"))]
trait Id: Copy {}

#[cfg(not(target_arch = "x86_64"))]
impl<T: Copy> Id for T {}

/// Room for a whole word behind the last value, which may be one byte long.
const SLACK: usize = size_of::<u64>() - 1;

/// Values side by side. Each is written as a word, of which the next one overwrites what is not the value's own.
struct Line<const ROOM: usize> {
    out: [u8; ROOM],
    end: usize,
}

impl<const ROOM: usize> Line<ROOM> {
    fn new() -> Self {
        Self { out: [0; ROOM], end: 0 }
    }

    fn put(&mut self, (word, length): (u64, usize)) {
        self.out[self.end..self.end + size_of::<u64>()].copy_from_slice(&word.to_be_bytes());
        self.end += length;
    }

    fn bytes(&self) -> &[u8] {
        &self.out[..self.end]
    }
}

fn is_narrow(ids: &[u64]) -> bool {
    ids.iter().fold(0, |bits, id| bits | id) >> u32::BITS == 0
}

/// An id in its smallest form, in the upper bytes of a word, and how many of them.
fn encoded(id: u32) -> (u64, usize) {
    let id = u64::from(id);
    if id <= 0xff {
        // Rare in any vocabulary.
        return if id < 0x80 {
            (id << 56, 1)
        } else {
            (0xcc << 56 | id << 48, 2)
        };
    }
    // No branch between the two common forms, which alternate at random.
    let is_wide = id > 0xffff;
    let middle = 0xcd << 56 | id << 40;
    let wide = 0xce << 56 | id << 24;
    (if is_wide { wide } else { middle }, 3 + 2 * usize::from(is_wide))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tokens::TokenVec;

    /// Ids around every change of form.
    fn id() -> impl Strategy<Value = u64> {
        (0_u32..=40, -1_i64..=1).prop_map(|(bits, step)| (1_u64 << bits).saturating_add_signed(step))
    }

    proptest! {
        #[test]
        fn ids_and_pairs_are_written_as_one_by_one(ids in prop::collection::vec(id(), 0..200), narrow: bool) {
            let ids: Vec<u64> = ids.into_iter().map(|id| if narrow { id & 0xffff_ffff } else { id }).collect();
            let (mut expected_ids, mut expected_pairs) = (Writer::new(), Writer::new());
            let mut smallest = TokenVec::default();
            for &id in &ids {
                expected_ids.uint(id);
                smallest.push(id);
            }
            for pair in ids.windows(2) {
                expected_pairs.array(2);
                expected_pairs.uint(pair[0]);
                expected_pairs.uint(pair[1]);
            }
            if let TokenVec::U32(ids) = &smallest {
                let mut written = Writer::new();
                written.put_ids(ids);
                prop_assert_eq!(&written, &expected_ids);
            }
            for tokens in [TokenSlice::U64(&ids), smallest.as_slice()] {
                let (mut written_ids, mut written_pairs) = (Writer::new(), Writer::new());
                written_ids.ids(tokens);
                written_pairs.pairs(tokens);
                prop_assert_eq!(&written_ids, &expected_ids);
                prop_assert_eq!(&written_pairs, &expected_pairs);
            }
        }
    }
}
