//! A chain of block hashes that can be continued and split.

use std::ops::Range;
use std::sync::Arc;

use super::content::{self, Adapter};
use super::sglang::{self, Digest, EventFormat};
use super::vllm::{self, ExtraKey};
use crate::pages::Paging;
use crate::tokens::TokenSlice;

/// How pages are hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// SGLang's chain of SHA-256 digests.
    Sglang,
    /// One of vLLM's; the extra key is the adapter's name.
    Vllm(vllm::Scheme),
    /// Our content hashes; the extra key is the adapter's name.
    Content,
}

impl Scheme {
    /// Every scheme, by the name users know.
    pub const NAMES: [(&str, Self); 3] = [
        ("sglang", Self::Sglang),
        ("vllm-sha256-cbor", Self::Vllm(vllm::Scheme::Sha256Cbor)),
        ("content", Self::Content),
    ];

    /// The name users know.
    pub fn name(self) -> &'static str {
        let mut names = Self::NAMES.iter().filter(|(_, scheme)| *scheme == self);
        names.next().expect("every scheme has a name").0
    }

    /// The id of a page: eight bytes of its digest.
    pub fn id(self, digest: &Digest) -> i64 {
        match self {
            Self::Sglang | Self::Content => sglang::page_id(digest),
            Self::Vllm(scheme) => scheme.id(digest).cast_signed(),
        }
    }

    /// Whether engines announce ids as unsigned integers.
    pub fn is_unsigned(self) -> bool {
        matches!(self, Self::Vllm(_))
    }
}

/// A content hash in the shape that chains store.
fn content_digest(hash: u64) -> Digest {
    let mut digest = [0; 32];
    digest[..8].copy_from_slice(&hash.to_be_bytes());
    digest
}

/// What makes equal tokens different blocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Separation<'a> {
    /// By adapter, for instance.
    pub extra_key: Option<&'a str>,
    /// By tenant; an empty salt is none.
    pub cache_salt: Option<&'a str>,
    /// By process (vLLM: `PYTHONHASHSEED`).
    pub hash_seed: Option<&'a str>,
    /// By where the adapter was loaded from (vLLM).
    pub adapter_path: Option<&'a str>,
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
    /// Enters the hashes of the first page and so of all; never empty.
    pub cache_salt: Option<Box<str>>,
    hashing: Hashing,
}

/// What a namespace adds to the tokens of a page.
#[derive(Debug, PartialEq, Eq)]
enum Hashing {
    Sglang {
        /// Stands in for the digest above the first page.
        seed: Option<Digest>,
    },
    Vllm {
        scheme: vllm::Scheme,
        root: Digest,
        /// Of the first page of a prompt.
        first: vllm::Extra,
        /// Of all others.
        others: vllm::Extra,
    },
    Content {
        root: u64,
    },
}

impl Hashing {
    fn new(scheme: Scheme, by: &Separation<'_>) -> Self {
        match scheme {
            Scheme::Sglang => Self::Sglang {
                seed: by.cache_salt.map(sglang::salt_seed),
            },
            Scheme::Vllm(scheme) => {
                let adapter = by.extra_key.map(|name| ExtraKey::Adapter {
                    name,
                    path: by.adapter_path.unwrap_or_default(),
                });
                let salt = by.cache_salt.map(ExtraKey::Salt);
                let others = adapter.as_slice();
                Self::Vllm {
                    scheme,
                    root: scheme.root(by.hash_seed.unwrap_or(vllm::DEFAULT_SEED)),
                    first: scheme.extra(&[others, salt.as_slice()].concat()),
                    others: scheme.extra(others),
                }
            }
            Scheme::Content => Self::Content {
                root: content::root(Adapter::new(by.extra_key, None), by.cache_salt),
            },
        }
    }

    /// The digest of a page below `prior`; None above the first page of a prompt.
    fn page(&self, prior: Option<&Digest>, page: TokenSlice<'_>, bigram: bool) -> Digest {
        match self {
            Self::Sglang { seed } if bigram => sglang::bigram_page_digest(prior.or(seed.as_ref()), page),
            Self::Sglang { seed } => sglang::page_digest(prior.or(seed.as_ref()), page),
            Self::Vllm {
                scheme,
                root,
                first,
                others,
            } => match prior {
                None => scheme.block(root, page, first),
                Some(prior) => scheme.block(prior, page, others),
            },
            Self::Content { root } => {
                let parent = prior.map_or(*root, |prior| sglang::page_id(prior).cast_unsigned());
                content_digest(content::block(parent, page, None))
            }
        }
    }
}

impl Namespace {
    /// A namespace.
    pub fn new(scheme: Scheme, paging: Paging, by: Separation<'_>) -> Self {
        let cache_salt = by.cache_salt.filter(|salt| !salt.is_empty());
        let by = Separation { cache_salt, ..by };
        Self {
            scheme,
            paging,
            extra_key: by.extra_key.map(Into::into),
            cache_salt: by.cache_salt.map(Into::into),
            hashing: Hashing::new(scheme, &by),
        }
    }

    /// The digests of the pages of `tokens`, which continue the page with digest `above` (None: start a prompt). A last
    /// page that is not whole counts as one.
    pub fn digests(&self, above: Option<Digest>, tokens: TokenSlice<'_>) -> impl ExactSizeIterator<Item = Digest> {
        let mut prior = above;
        let overlap = usize::from(self.paging.is_bigram());
        let size = self.paging.page_size();
        let units = tokens.len().saturating_sub(overlap);
        (0..units.div_ceil(size)).map(move |page| {
            let end = units.min((page + 1) * size) + overlap;
            let digest = self
                .hashing
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
            Scheme::Vllm(_) | Scheme::Content => None,
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
    use super::*;

    fn paging(bigram: bool) -> Paging {
        Paging::new(2, bigram).expect("positive")
    }

    fn root(bigram: bool, salt: Option<&str>) -> HashChain {
        let by = Separation {
            cache_salt: salt,
            ..Separation::default()
        };
        HashChain::root(Namespace::new(Scheme::Sglang, paging(bigram), by))
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

    #[test]
    fn a_salt_of_vllm_enters_the_first_block_and_an_adapter_all() {
        let scheme = vllm::Scheme::Sha256Cbor;
        let by = Separation {
            extra_key: Some("ad"),
            cache_salt: Some("s"),
            hash_seed: Some("0"),
            adapter_path: Some("/p"),
        };
        let root = HashChain::root(Namespace::new(Scheme::Vllm(scheme), paging(false), by));
        let whole = extend(&root, &[1, 2, 3, 4]);
        let adapter = ExtraKey::Adapter { name: "ad", path: "/p" };
        let first = scheme.extra(&[adapter, ExtraKey::Salt("s")]);
        let first = scheme.block(&scheme.root("0"), TokenSlice::U32(&[1, 2]), &first);
        let second = scheme.block(&first, TokenSlice::U32(&[3, 4]), &scheme.extra(&[adapter]));
        assert_eq!(whole.digests(), [first, second]);
        assert_eq!(extend(&extend(&root, &[1, 2]), &[3, 4]).digests(), [second]);
        assert_eq!(whole.ids().last(), Some(scheme.id(&second).cast_signed()));
    }
}
