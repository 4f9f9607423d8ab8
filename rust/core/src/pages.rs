//! Pages: how a sequence of token ids is cut for caching.

use crate::tokens::TokenSlice;

/// The cut of a token sequence into pages of units. A unit is one token, or, for bigram keys (EAGLE), one pair of
/// neighbours: a page of `n` pairs reads `n + 1` tokens, the last of which is also the first of the next page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paging {
    page_size: usize,
    overlap: usize,
}

impl Paging {
    /// Pages of `page_size` units; `None` where that is zero.
    pub fn new(page_size: usize, bigram: bool) -> Option<Self> {
        (page_size > 0).then_some(Self {
            page_size,
            overlap: usize::from(bigram),
        })
    }

    /// Units in a page.
    pub fn page_size(self) -> usize {
        self.page_size
    }

    /// Whether a unit is a pair of tokens.
    pub fn is_bigram(self) -> bool {
        self.overlap == 1
    }

    /// Whole pages in a sequence of `tokens` tokens.
    pub fn count(self, tokens: usize) -> usize {
        tokens.saturating_sub(self.overlap) / self.page_size
    }

    /// Units of a sequence of `tokens` tokens that are left over behind its last whole page.
    pub fn left_over(self, tokens: usize) -> usize {
        tokens.saturating_sub(self.overlap) % self.page_size
    }

    /// The tokens of pages `start..end`, the shared last one of a bigram page included. Panics past the end.
    pub fn cut(self, tokens: TokenSlice<'_>, start: usize, end: usize) -> TokenSlice<'_> {
        let first = start * self.page_size;
        if start == end {
            return tokens.slice(first, first);
        }
        tokens.slice(first, end * self.page_size + self.overlap)
    }

    /// How many whole pages two sequences share from their beginnings.
    pub fn common(self, left: TokenSlice<'_>, right: TokenSlice<'_>) -> usize {
        self.count(left.common_prefix(right))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_page_of_pairs_reads_one_token_more() {
        let paging = Paging::new(2, true).expect("positive");
        let ids = [1, 2, 3, 4, 5, 6];
        assert_eq!(paging.count(ids.len()), 2);
        let second = paging.cut(TokenSlice::U32(&ids), 1, 2);
        assert_eq!(second.iter().collect::<Vec<_>>(), [3, 4, 5]);
        assert_eq!(paging.count(0), 0);
        assert!(Paging::new(0, false).is_none());
    }

    proptest! {
        #[test]
        fn common_pages_are_the_pages_that_compare_equal(
            left in prop::collection::vec(0u32..3, 0..40),
            right in prop::collection::vec(0u32..3, 0..40),
            page_size in 1usize..5,
            bigram: bool,
        ) {
            let paging = Paging::new(page_size, bigram).expect("positive");
            let (left, right) = (TokenSlice::U32(&left), TokenSlice::U32(&right));
            let page = |ids, at| paging.cut(ids, at, at + 1).iter().collect::<Vec<_>>();
            let fewest = paging.count(left.len()).min(paging.count(right.len()));
            let expected = (0..fewest).take_while(|&at| page(left, at) == page(right, at)).count();
            prop_assert_eq!(paging.common(left, right), expected);
        }
    }
}
