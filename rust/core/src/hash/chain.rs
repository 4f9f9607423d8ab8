//! A chain of block hashes that can be continued and split.

use std::ops::Range;
use std::sync::Arc;

use super::sglang::{self, Digest};
use crate::tokens::TokenSlice;

/// What makes equal tokens different blocks, and how they are hashed.
#[derive(Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Tokens (pairs, for bigrams) in a page; not 0.
    pub page_size: usize,
    /// Separates prompts without entering their chain.
    pub extra_key: Option<Box<str>>,
    /// Seeds the chain; never empty.
    pub cache_salt: Option<Box<str>>,
    /// Pages are made of pairs of neighbouring tokens.
    pub bigram: bool,
    seed: Option<Digest>,
}

impl Namespace {
    /// A namespace; an empty salt is none.
    pub fn new(page_size: usize, extra_key: Option<&str>, cache_salt: Option<&str>, bigram: bool) -> Self {
        let cache_salt = cache_salt.filter(|salt| !salt.is_empty());
        Self {
            page_size,
            extra_key: extra_key.map(Into::into),
            cache_salt: cache_salt.map(Into::into),
            bigram,
            seed: cache_salt.map(sglang::salt_seed),
        }
    }

    /// How many pages `tokens` ids fill, and how many units (ids or pairs) are left over.
    pub fn pages(&self, tokens: usize) -> (usize, usize) {
        let units = tokens.saturating_sub(usize::from(self.bigram));
        (units / self.page_size, units % self.page_size)
    }
}

/// The hashes of consecutive pages of one prompt. Cloning and splitting share the digests.
#[derive(Clone, Debug)]
pub struct HashChain {
    namespace: Arc<Namespace>,
    above: Option<Digest>,
    digests: Arc<[Digest]>,
    pages: Range<usize>,
}

impl HashChain {
    /// The empty chain before the first page.
    pub fn root(namespace: Namespace) -> Self {
        Self {
            namespace: Arc::new(namespace),
            above: None,
            digests: Arc::new([]),
            pages: 0..0,
        }
    }

    /// Hash `tokens`, which continue this chain: the new pages only. None unless they are whole pages; bigrams take one
    /// token more than there are pairs.
    #[must_use]
    pub fn extend(&self, tokens: TokenSlice<'_>) -> Option<Self> {
        let namespace = &*self.namespace;
        let (count, 0) = namespace.pages(tokens.len()) else {
            return None;
        };
        let above = self.last().copied();
        let mut prior = above.or(namespace.seed);
        let size = namespace.page_size;
        let digests = (0..count)
            .map(|page| {
                let start = page * size;
                let digest = if namespace.bigram {
                    sglang::bigram_page_digest(prior.as_ref(), tokens.slice(start, start + size + 1))
                } else {
                    sglang::page_digest(prior.as_ref(), tokens.slice(start, start + size))
                };
                prior = Some(digest);
                digest
            })
            .collect();
        Some(Self {
            namespace: self.namespace.clone(),
            above,
            digests,
            pages: 0..count,
        })
    }

    /// The first `pages` pages and the rest, or None if there are fewer.
    pub fn split(&self, pages: usize) -> Option<(Self, Self)> {
        if pages > self.len() {
            return None;
        }
        let middle = self.pages.start + pages;
        let head = Self {
            pages: self.pages.start..middle,
            ..self.clone()
        };
        let tail = Self {
            above: head.last().copied(),
            pages: middle..self.pages.end,
            ..self.clone()
        };
        Some((head, tail))
    }

    /// The namespace that every page belongs to.
    pub fn namespace(&self) -> &Arc<Namespace> {
        &self.namespace
    }

    /// Number of pages.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether there is no page.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// The ids of the pages, not wrapped.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = i64> {
        self.digests[self.pages.clone()].iter().map(sglang::page_id)
    }

    /// The id of the page above the first one, not wrapped; None at the start of a prompt.
    pub fn parent_id(&self) -> Option<i64> {
        self.above.as_ref().map(sglang::page_id)
    }

    /// The digest that the next page is chained to.
    fn last(&self) -> Option<&Digest> {
        self.digests[self.pages.clone()].last().or(self.above.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(bigram: bool, salt: Option<&str>) -> HashChain {
        HashChain::root(Namespace::new(2, None, salt, bigram))
    }

    fn ids(chain: &HashChain) -> Vec<i64> {
        chain.ids().collect()
    }

    fn extend(chain: &HashChain, tokens: &[u32]) -> HashChain {
        chain.extend(TokenSlice::U32(tokens)).expect("whole pages")
    }

    #[test]
    fn a_chain_continued_in_steps_has_the_ids_of_one_hashed_at_once() {
        for salt in [None, Some("tenant")] {
            let whole = extend(&root(false, salt), &[1, 2, 3, 4, 5, 6]);
            let first = extend(&root(false, salt), &[1, 2]);
            let rest = extend(&first, &[3, 4, 5, 6]);
            assert_eq!([ids(&first), ids(&rest)].concat(), ids(&whole));
            assert_eq!(rest.parent_id(), first.ids().last());
            assert_eq!(first.parent_id(), None);
        }
    }

    #[test]
    fn a_bigram_chain_continues_from_the_overlapping_token() {
        let whole = extend(&root(true, None), &[1, 2, 3, 4, 5]);
        let first = extend(&root(true, None), &[1, 2, 3]);
        let rest = extend(&first, &[3, 4, 5]);
        assert_eq!([ids(&first), ids(&rest)].concat(), ids(&whole));
    }

    #[test]
    fn a_split_slices_and_either_part_can_be_continued() {
        let whole = extend(&root(false, None), &[1, 2, 3, 4, 5, 6]);
        for pages in 0..=3 {
            let (head, tail) = whole.split(pages).expect("within the chain");
            assert_eq!([ids(&head), ids(&tail)].concat(), ids(&whole));
            assert_eq!(tail.parent_id(), head.ids().last());
            let again = extend(&head, &[1, 2, 3, 4, 5, 6][2 * pages..]);
            assert_eq!(ids(&again), ids(&tail));
        }
        assert!(whole.split(4).is_none());
    }

    #[test]
    fn a_partial_page_is_refused() {
        assert!(root(false, None).extend(TokenSlice::U32(&[1, 2, 3])).is_none());
        assert!(root(true, None).extend(TokenSlice::U32(&[1, 2])).is_none());
        assert!(extend(&root(true, None), &[]).is_empty());
    }
}
