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

    #[test]
    fn a_wide_id_widens_the_buffer_and_keeps_what_was_there() {
        let mut ids = TokenVec::default();
        ids.push(7);
        ids.extend(TokenSlice::U64(&[1 << 40]));
        assert_eq!(ids, TokenVec::U64(vec![7, 1 << 40]));
    }
}
