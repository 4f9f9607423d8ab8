//! A chain of block hashes that can be continued and split.

use std::ops::Range;
use std::sync::Arc;

use super::namespace::Namespace;
use super::sglang::Digest;
use crate::tokens::TokenSlice;

/// The hashes of consecutive pages of one prompt. Cloning and splitting share the digests, which live as long as the
/// last chain that has one of them.
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
        if self.namespace.paging.left_over(tokens.len()) != 0 {
            return None;
        }
        let above = self.last().copied();
        let digests: Arc<[Digest]> = self.namespace.digests(above, tokens).collect();
        Some(Self {
            namespace: self.namespace.clone(),
            above,
            pages: 0..digests.len(),
            digests,
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
        let scheme = self.namespace.scheme;
        self.digests().iter().map(move |digest| scheme.id(digest))
    }

    /// The id of the page above the first one, not wrapped; None at the start of a prompt.
    pub fn parent_id(&self) -> Option<i64> {
        self.above.as_ref().map(|digest| self.namespace.scheme.id(digest))
    }

    /// The full digests of the pages.
    pub fn digests(&self) -> &[Digest] {
        &self.digests[self.pages.clone()]
    }

    /// The digest that the next page is chained to.
    fn last(&self) -> Option<&Digest> {
        self.digests().last().or(self.above.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::super::content::{self, Adapter};
    use super::super::namespace::{Scheme, Separation};
    use super::super::vllm::{self, Hasher, PageKeys};
    use super::*;
    use crate::pages::Paging;

    fn paging(bigram: bool) -> Paging {
        Paging::new(2, bigram).expect("positive")
    }

    fn root(bigram: bool, salt: Option<&str>) -> HashChain {
        let by = Separation {
            cache_salt: salt,
            ..Separation::default()
        };
        HashChain::root(Namespace::new(Scheme::Sglang, paging(bigram), by).expect("no seed"))
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

    #[test]
    fn content_hashes_chain_as_the_index_chains_them() {
        for bigram in [false, true] {
            let by = Separation {
                extra_key: Some("adapter"),
                cache_salt: Some("salt"),
                ..Separation::default()
            };
            let namespace = Namespace::new(Scheme::Content, paging(bigram), by);
            let root = HashChain::root(namespace.expect("no seed"));
            let tokens = &[1, 2, 3, 4, 5][..4 + usize::from(bigram)];
            let seed = content::root(Some(Adapter::Name("adapter")), Some("salt"));
            let expected = content::chain(seed, TokenSlice::U32(tokens), 2, bigram);
            let first = extend(&root, &tokens[..2 + usize::from(bigram)]);
            let both = [ids(&first), ids(&extend(&first, &tokens[2..]))].concat();
            assert_eq!(both, expected.iter().map(|&hash| hash as i64).collect::<Vec<_>>());
            assert_eq!(first.parent_id(), None);
        }
    }

    #[test]
    fn a_chain_of_vllm_continues_what_its_hasher_began() {
        let by = Separation {
            extra_key: Some("ad"),
            cache_salt: Some("s"),
            adapter_path: Some("/p"),
            process: vllm::Process {
                hash_seed: Some("0"),
                ..vllm::Process::default()
            },
            ..Separation::default()
        };
        let adapter = vllm::Adapter::Name { name: "ad", path: "/p" };
        for (_, scheme) in Scheme::NAMES {
            let Scheme::Vllm(inner) = scheme else { continue };
            let root = HashChain::root(Namespace::new(scheme, paging(false), by).expect("a number"));
            let whole = extend(&root, &[1, 2, 3, 4]);
            let hasher = Hasher::new(inner, by.process, Some(adapter), Some("s")).expect("a number");
            let none = PageKeys::default();
            let first = hasher.block(None, TokenSlice::U32(&[1, 2]), &none);
            let second = hasher.block(Some(&first), TokenSlice::U32(&[3, 4]), &none);
            assert_eq!(whole.digests(), [first, second]);
            assert_eq!(extend(&extend(&root, &[1, 2]), &[3, 4]).digests(), [second]);
            assert_eq!(whole.ids().last(), Some(inner.id(&second).cast_signed()));
            let bytes = scheme.digest_bytes(&second);
            assert_eq!(scheme.digest_of(bytes), Some(second));
            assert_eq!(scheme.digest_of(&bytes[1..]), None);
        }
    }
}
