//! What makes equal tokens different blocks, and how they are hashed.

use super::content::{self, Adapter};
use super::sglang::{self, Digest, EventFormat};
use super::vllm::{self, ExtraKey, Hasher, PageKeys, SeedError};
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
    pub const NAMES: [(&str, Self); 7] = [
        ("sglang", Self::Sglang),
        ("vllm-sha256", Self::Vllm(vllm::Scheme::Sha256)),
        ("vllm-sha256-cbor", Self::Vllm(vllm::Scheme::Sha256Cbor)),
        ("vllm-xxhash", Self::Vllm(vllm::Scheme::Xxhash)),
        ("vllm-xxhash-cbor", Self::Vllm(vllm::Scheme::XxhashCbor)),
        ("vllm-builtin", Self::Vllm(vllm::Scheme::Builtin)),
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
        matches!(self, Self::Vllm(scheme) if scheme.is_unsigned())
    }

    /// The bytes of a digest that the scheme fills.
    pub fn digest_bytes(self, digest: &Digest) -> &[u8] {
        &digest[..self.digest_size()]
    }

    /// A digest from the bytes that the scheme fills; None unless they are as many.
    pub fn digest_of(self, bytes: &[u8]) -> Option<Digest> {
        let mut digest = Digest::default();
        (bytes.len() == self.digest_size()).then(|| digest[..bytes.len()].copy_from_slice(bytes))?;
        Some(digest)
    }

    /// Bytes of a digest.
    pub fn digest_size(self) -> usize {
        match self {
            Self::Sglang => 32,
            Self::Vllm(scheme) => scheme.digest_size(),
            Self::Content => 8,
        }
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
    /// By where the adapter was loaded from (vLLM).
    pub adapter_path: Option<&'a str>,
    /// By the adapter's number in place of its name (vLLM before 0.11).
    pub adapter_number: Option<i64>,
    /// By process (vLLM).
    pub process: vllm::Process<'a>,
}

impl<'a> Separation<'a> {
    fn vllm_adapter(&self) -> Option<vllm::Adapter<'a>> {
        match (self.adapter_number, self.extra_key) {
            (Some(number), _) => Some(vllm::Adapter::Number(number)),
            (None, Some(name)) => Some(vllm::Adapter::Name {
                name,
                path: self.adapter_path.unwrap_or_default(),
            }),
            (None, None) => None,
        }
    }
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
    Vllm(Hasher),
    Content {
        root: u64,
    },
}

impl Hashing {
    fn new(scheme: Scheme, by: &Separation<'_>) -> Result<Self, SeedError> {
        Ok(match scheme {
            Scheme::Sglang => Self::Sglang {
                seed: by.cache_salt.map(sglang::salt_seed),
            },
            Scheme::Vllm(scheme) => Self::Vllm(Hasher::new(scheme, by.process, by.vllm_adapter(), by.cache_salt)?),
            Scheme::Content => Self::Content {
                root: content::root(Adapter::new(by.extra_key, None), by.cache_salt),
            },
        })
    }

    /// The digest of a page below `prior`; None above the first page of a prompt. `pages` is SGLang's, keys are vLLM's.
    fn page(&self, prior: Option<&Digest>, page: TokenSlice<'_>, pages: &mut sglang::Pages, keys: &PageKeys) -> Digest {
        match self {
            Self::Sglang { seed } => pages.digest(prior.or(seed.as_ref()), page),
            Self::Vllm(hasher) => hasher.block(prior, page, keys),
            Self::Content { root } => {
                let parent = prior.map_or(*root, |prior| sglang::page_id(prior).cast_unsigned());
                content_digest(content::block(parent, page, None))
            }
        }
    }
}

impl Namespace {
    /// A namespace; pages of pairs are no affair of vLLM's.
    pub fn new(scheme: Scheme, paging: Paging, by: Separation<'_>) -> Result<Self, SeedError> {
        let cache_salt = by.cache_salt.filter(|salt| !salt.is_empty());
        let by = Separation { cache_salt, ..by };
        Ok(Self {
            scheme,
            paging,
            extra_key: by.extra_key.map(Into::into),
            cache_salt: by.cache_salt.map(Into::into),
            hashing: Hashing::new(scheme, &by)?,
        })
    }

    /// A page's own extra keys in the form that enters its hash. None where the namespace's hashes have none of that
    /// form.
    pub fn page_keys(&self, keys: &[ExtraKey<'_>]) -> Option<PageKeys> {
        match &self.hashing {
            Hashing::Vllm(hasher) => hasher.page_keys(keys),
            Hashing::Sglang { .. } | Hashing::Content { .. } => keys.is_empty().then(PageKeys::default),
        }
    }

    /// The digests of the pages of `tokens`, which continue the page with digest `above` (None: start a prompt). A last
    /// page that is not whole counts as one.
    pub fn digests(&self, above: Option<Digest>, tokens: TokenSlice<'_>) -> impl ExactSizeIterator<Item = Digest> {
        self.digests_with(above, tokens, &[])
    }

    /// The digests of pages of which the first ones have extra keys of their own.
    pub fn digests_with(
        &self,
        above: Option<Digest>,
        tokens: TokenSlice<'_>,
        keys: &[PageKeys],
    ) -> impl ExactSizeIterator<Item = Digest> {
        let none = PageKeys::default();
        let mut prior = above;
        let overlap = usize::from(self.paging.is_bigram());
        let size = self.paging.page_size();
        let units = tokens.len().saturating_sub(overlap);
        let mut pages = sglang::Pages::new(self.paging, tokens.len());
        (0..units.div_ceil(size)).map(move |page| {
            let end = units.min((page + 1) * size) + overlap;
            let keys = keys.get(page).unwrap_or(&none);
            let page = tokens.slice(page * size, end);
            let digest = self.hashing.page(prior.as_ref(), page, &mut pages, keys);
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
