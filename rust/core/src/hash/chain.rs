//! A chain of block hashes that can be continued and split.

use std::ops::Range;
use std::sync::Arc;

use super::content::{self, Adapter};
use super::sglang::{self, Digest, EventFormat};
use crate::pages::Paging;
use crate::tokens::TokenSlice;

/// How pages are hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// SGLang's chain of SHA-256 digests.
    Sglang,
    /// Our content hashes; the extra key is the adapter's name.
    Content,
}

impl Scheme {
    /// Every scheme, by the name users know.
    pub const NAMES: [(&str, Self); 2] = [("sglang", Self::Sglang), ("content", Self::Content)];

    /// What the first page is chained to.
    fn seed(self, extra_key: Option<&str>, cache_salt: Option<&str>) -> Option<Digest> {
        match self {
            Self::Sglang => cache_salt.map(sglang::salt_seed),
            Self::Content => Some(content_digest(content::root(Adapter::new(extra_key, None), cache_salt))),
        }
    }

    fn page(self, prior: Option<&Digest>, page: TokenSlice<'_>, bigram: bool) -> Digest {
        match self {
            Self::Sglang if bigram => sglang::bigram_page_digest(prior, page),
            Self::Sglang => sglang::page_digest(prior, page),
            Self::Content => {
                let parent = prior.map(page_id).expect("a content chain starts from a seed");
                content_digest(content::block(parent as u64, page, None))
            }
        }
    }
}

/// The id of a page: the first eight bytes of its digest, in every scheme.
fn page_id(digest: &Digest) -> i64 {
    sglang::page_id(digest)
}

/// A content hash in the shape that chains store.
fn content_digest(hash: u64) -> Digest {
    let mut digest = [0; 32];
    digest[..8].copy_from_slice(&hash.to_be_bytes());
    digest
}

/// What makes equal tokens different blocks, and how they are hashed.
#[derive(Debug, PartialEq, Eq)]
pub struct Namespace {
    /// How pages are hashed.
    pub scheme: Scheme,
    /// How tokens are cut into pages.
    pub paging: Paging,
    /// Separates prompts; whether it enters their hashes is the scheme's affair.
    pub extra_key: Option<Box<str>>,
    /// Seeds the chain; never empty.
    pub cache_salt: Option<Box<str>>,
    seed: Option<Digest>,
}

impl Namespace {
    /// A namespace; an empty salt is none.
    pub fn new(scheme: Scheme, paging: Paging, extra_key: Option<&str>, cache_salt: Option<&str>) -> Self {
        let cache_salt = cache_salt.filter(|salt| !salt.is_empty());
        Self {
            scheme,
            paging,
            extra_key: extra_key.map(Into::into),
            cache_salt: cache_salt.map(Into::into),
            seed: scheme.seed(extra_key, cache_salt),
        }
    }

    /// The digests of the pages of `tokens`, which continue the page with digest `above` (None: start a prompt). A last
    /// page that is not whole counts as one.
    pub fn digests(&self, above: Option<Digest>, tokens: TokenSlice<'_>) -> impl ExactSizeIterator<Item = Digest> {
        let mut prior = above.or(self.seed);
        let overlap = usize::from(self.paging.is_bigram());
        let size = self.paging.page_size();
        let units = tokens.len().saturating_sub(overlap);
        (0..units.div_ceil(size)).map(move |page| {
            let end = units.min((page + 1) * size) + overlap;
            let digest = self
                .scheme
                .page(prior.as_ref(), tokens.slice(page * size, end), overlap == 1);
            prior = Some(digest);
            digest
        })
    }

    /// What turns the ids of a chain into those that are announced; only the `sglang` scheme wraps them. `named`: the
    /// extra key's adapter has a registered name.
    pub fn wrapper(&self, format: EventFormat, named: bool) -> Wrapper {
        Wrapper(match self.scheme {
            Scheme::Sglang => format.seed(self.extra_key.as_deref(), self.cache_salt.as_deref(), named),
            Scheme::Content => None,
        })
    }
}

/// Turns the ids of a chain into those that are announced.
#[derive(Clone, Copy, Debug)]
pub struct Wrapper(Option<Digest>);

impl Wrapper {
    /// The announced form of `id`.
    pub fn wrap(&self, id: i64) -> i64 {
        self.0.as_ref().map_or(id, |seed| sglang::wrap(seed, id))
    }
}

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
        self.digests[self.pages.clone()].iter().map(page_id)
    }

    /// The id of the page above the first one, not wrapped; None at the start of a prompt.
    pub fn parent_id(&self) -> Option<i64> {
        self.above.as_ref().map(page_id)
    }

    /// The digest that the next page is chained to.
    fn last(&self) -> Option<&Digest> {
        self.digests[self.pages.clone()].last().or(self.above.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paging(bigram: bool) -> Paging {
        Paging::new(2, bigram).expect("positive")
    }

    fn root(bigram: bool, salt: Option<&str>) -> HashChain {
        HashChain::root(Namespace::new(Scheme::Sglang, paging(bigram), None, salt))
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
            let namespace = Namespace::new(Scheme::Content, paging(bigram), Some("adapter"), Some("salt"));
            let root = HashChain::root(namespace);
            let tokens = &[1, 2, 3, 4, 5][..4 + usize::from(bigram)];
            let seed = content::root(Some(Adapter::Name("adapter")), Some("salt"));
            let expected = content::chain(seed, TokenSlice::U32(tokens), 2, bigram);
            let first = extend(&root, &tokens[..2 + usize::from(bigram)]);
            let both = [ids(&first), ids(&extend(&first, &tokens[2..]))].concat();
            assert_eq!(both, expected.iter().map(|&hash| hash as i64).collect::<Vec<_>>());
            assert_eq!(first.parent_id(), None);
        }
    }
}
