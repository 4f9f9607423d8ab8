//! Token ids as the core sees them: borrowed slices of unsigned integers, 32 bits where they fit.

/// A borrowed run of token ids.
#[derive(Clone, Copy, Debug)]
pub enum TokenSlice<'a> {
    /// Ids that fit 32 bits: every vocabulary in use.
    U32(&'a [u32]),
    /// Wider ids, such as placeholders made from an image's hash.
    U64(&'a [u64]),
}

impl<'a> TokenSlice<'a> {
    /// Number of ids.
    pub fn len(self) -> usize {
        match self {
            Self::U32(ids) => ids.len(),
            Self::U64(ids) => ids.len(),
        }
    }

    /// Whether there is no id.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The ids `start..end`.
    #[must_use]
    pub fn slice(self, start: usize, end: usize) -> TokenSlice<'a> {
        match self {
            Self::U32(ids) => Self::U32(&ids[start..end]),
            Self::U64(ids) => Self::U64(&ids[start..end]),
        }
    }

    /// The id at `index`, widened.
    pub fn get(self, index: usize) -> u64 {
        match self {
            Self::U32(ids) => u64::from(ids[index]),
            Self::U64(ids) => ids[index],
        }
    }

    /// The ids, widened.
    pub fn iter(self) -> impl Iterator<Item = u64> + 'a {
        let (narrow, wide): (&[u32], &[u64]) = match self {
            Self::U32(ids) => (ids, &[]),
            Self::U64(ids) => (&[], ids),
        };
        narrow.iter().map(|&id| u64::from(id)).chain(wide.iter().copied())
    }

    /// How many leading ids two runs share; the widths may differ.
    pub fn common_prefix(self, other: TokenSlice<'a>) -> usize {
        match (self, other) {
            (Self::U32(left), TokenSlice::U32(right)) => common_prefix(left, right, |left, right| left == right),
            (Self::U64(left), TokenSlice::U64(right)) => common_prefix(left, right, |left, right| left == right),
            (Self::U32(narrow), TokenSlice::U64(wide)) | (Self::U64(wide), TokenSlice::U32(narrow)) => {
                common_prefix(narrow, wide, equal_widened)
            }
        }
    }

    /// Whether every id fits 32 bits.
    pub fn is_narrow(self) -> bool {
        match self {
            Self::U32(_) => true,
            Self::U64(ids) => u32::try_from(ids.iter().fold(0, |seen, id| seen | id)).is_ok(),
        }
    }

    /// A copy in the narrowest width.
    pub fn to_vec(self) -> TokenVec {
        match self {
            Self::U32(ids) => TokenVec::U32(ids.to_vec()),
            Self::U64(ids) if self.is_narrow() => TokenVec::U32(ids.iter().map(|&id| id as u32).collect()),
            Self::U64(ids) => TokenVec::U64(ids.to_vec()),
        }
    }

    /// Bytes that `write_key` needs.
    pub fn key_len(self) -> usize {
        self.len() * if self.is_narrow() { 4 } else { 8 }
    }

    /// Write the ids as bytes that are equal exactly where two runs of the same length are: little-endian, all in the
    /// narrowest width that holds them.
    pub fn write_key(self, out: &mut [u8]) {
        let width = if self.is_narrow() { 4 } else { 8 };
        for (id, out) in self.iter().zip(out.chunks_exact_mut(width)) {
            out.copy_from_slice(&id.to_le_bytes()[..width]);
        }
    }
}

/// Compared a stretch at a time, since a whole stretch compares in vector instructions and a search does not.
const STRETCH: usize = 128;

fn common_prefix<L: Copy, R: Copy>(left: &[L], right: &[R], equal: impl Fn(&[L], &[R]) -> bool) -> usize
where
    u64: From<L> + From<R>,
{
    let count = left.len().min(right.len());
    let mut at = 0;
    while at < count {
        let end = count.min(at + STRETCH);
        if !equal(&left[at..end], &right[at..end]) {
            let pairs = left[at..end].iter().zip(&right[at..end]);
            let same = pairs.take_while(|&(&left, &right)| u64::from(left) == u64::from(right));
            return at + same.count();
        }
        at = end;
    }
    count
}

fn equal_widened(narrow: &[u32], wide: &[u64]) -> bool {
    let differences = narrow.iter().zip(wide).map(|(&narrow, &wide)| u64::from(narrow) ^ wide);
    differences.fold(0, |seen, difference| seen | difference) == 0
}

/// Token ids that are owned, in the narrowest of the two widths that holds them all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenVec {
    /// Ids that fit 32 bits.
    U32(Vec<u32>),
    /// At least one id does not.
    U64(Vec<u64>),
}

impl Default for TokenVec {
    fn default() -> Self {
        Self::U32(Vec::new())
    }
}

impl TokenVec {
    /// Borrow all of it.
    pub fn as_slice(&self) -> TokenSlice<'_> {
        match self {
            Self::U32(ids) => TokenSlice::U32(ids),
            Self::U64(ids) => TokenSlice::U64(ids),
        }
    }

    /// Take out all ids; the buffer stays, unless it is wide.
    pub fn clear(&mut self) {
        match self {
            Self::U32(ids) => ids.clear(),
            Self::U64(_) => *self = Self::default(),
        }
    }

    /// Append one id, widening the buffer when it has to.
    pub fn push(&mut self, id: u64) {
        match self {
            Self::U32(ids) => {
                if let Ok(narrow) = u32::try_from(id) {
                    ids.push(narrow);
                } else {
                    let mut wide: Vec<u64> = ids.iter().map(|&id| u64::from(id)).collect();
                    wide.push(id);
                    *self = Self::U64(wide);
                }
            }
            Self::U64(ids) => ids.push(id),
        }
    }

    /// Append a run of ids.
    pub fn extend(&mut self, more: TokenSlice<'_>) {
        match (&mut *self, more) {
            (Self::U32(ids), TokenSlice::U32(more)) => ids.extend_from_slice(more),
            (Self::U64(ids), TokenSlice::U64(more)) => ids.extend_from_slice(more),
            (_, more) => more.iter().for_each(|id| self.push(id)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_wide_id_widens_the_buffer_and_keeps_what_was_there() {
        let mut ids = TokenVec::default();
        ids.push(7);
        ids.extend(TokenSlice::U64(&[1 << 40]));
        assert_eq!(ids, TokenVec::U64(vec![7, 1 << 40]));
    }

    #[test]
    fn a_copy_is_as_narrow_as_its_ids() {
        assert_eq!(TokenSlice::U64(&[7, 9]).to_vec(), TokenVec::U32(vec![7, 9]));
        assert_eq!(TokenSlice::U64(&[7, 1 << 32]).to_vec(), TokenVec::U64(vec![7, 1 << 32]));
    }

    fn key(ids: TokenSlice<'_>) -> Vec<u8> {
        let mut bytes = vec![0; ids.key_len()];
        ids.write_key(&mut bytes);
        bytes
    }

    #[test]
    fn a_key_depends_on_the_ids_and_not_on_their_width() {
        assert_eq!(key(TokenSlice::U32(&[7, 9])), key(TokenSlice::U64(&[7, 9])));
        assert_eq!(key(TokenSlice::U64(&[7, 1 << 32])).len(), 16);
    }

    proptest! {
        #[test]
        fn a_common_prefix_is_found_in_every_mix_of_widths(
            shared in prop::collection::vec(any::<u32>(), 0..600),
            left in prop::collection::vec(any::<u32>(), 0..3),
            right in prop::collection::vec(any::<u32>(), 0..3),
        ) {
            let narrow = |tail: &[u32]| [&shared[..], tail].concat();
            let wide = |tail: &[u32]| narrow(tail).into_iter().map(u64::from).collect::<Vec<_>>();
            let expected = shared.len() + left.iter().zip(&right).take_while(|(left, right)| left == right).count();
            let (left, left_wide, right, right_wide) = (narrow(&left), wide(&left), narrow(&right), wide(&right));
            for left in [TokenSlice::U32(&left), TokenSlice::U64(&left_wide)] {
                for right in [TokenSlice::U32(&right), TokenSlice::U64(&right_wide)] {
                    prop_assert_eq!(left.common_prefix(right), expected);
                }
            }
        }
    }
}
