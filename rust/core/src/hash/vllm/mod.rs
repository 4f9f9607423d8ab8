//! vLLM's block hashes: a digest over the digest of the block above, the block's token ids, and what else identifies it.
//!
//! A scheme is an algorithm over a serialisation of the three as a Python tuple. Read off vLLM 0.10 to 0.32
//! (`v1/core/kv_cache_utils.py`, `utils/hashing.py`); pinned by the recorded streams.

mod builtin;
mod cbor;
mod ids;
mod keys;
mod pickle;

use sha2::{Digest as _, Sha256};
use xxhash_rust::xxh3::xxh3_128;

pub use self::builtin::none_hash;
use self::builtin::{PythonHash, PythonSeed};
use self::cbor::Cbor;
use self::keys::Item;
pub use self::keys::{Adapter, ExtraKey, KeyForm, PageKeys};
use self::pickle::Pickle;
use super::sglang::Digest;
use crate::tokens::TokenSlice;

/// What vLLM derives the first parent from where `PYTHONHASHSEED` is not set, since 0.29 and for SHA-256 only.
pub const DEFAULT_SEED: &str = "vllm-none-hash";

/// One of vLLM's ways to hash blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// SHA-256 over a pickle.
    Sha256,
    /// SHA-256 over canonical CBOR.
    Sha256Cbor,
    /// XXH3-128 over a pickle.
    Xxhash,
    /// XXH3-128 over canonical CBOR.
    XxhashCbor,
    /// Python's `hash()` (until 0.10): 64 bits.
    Builtin,
}

impl Scheme {
    /// Bytes in a digest.
    pub fn digest_size(self) -> usize {
        match self {
            Self::Sha256 | Self::Sha256Cbor => 32,
            Self::Xxhash | Self::XxhashCbor => 16,
            Self::Builtin => 8,
        }
    }

    /// What events call a block: the last eight bytes of its digest.
    pub fn id(self, digest: &Digest) -> u64 {
        let (_, tail) = digest[..self.digest_size()].split_last_chunk().expect("8 or more");
        u64::from_be_bytes(*tail)
    }

    /// Whether events carry ids as unsigned integers.
    pub fn is_unsigned(self) -> bool {
        self != Self::Builtin
    }
}

/// Why a process's hashes cannot be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeedError {
    /// The scheme has no fixed seed: without `PYTHONHASHSEED` each process draws one.
    Missing,
    /// Python's `hash()` has a number from 0 to 2^32-1 as its seed.
    NotANumber,
}

/// What all hashes of one process have in common.
#[derive(Clone, Copy, Debug, Default)]
pub struct Process<'a> {
    /// Its `PYTHONHASHSEED`.
    pub hash_seed: Option<&'a str>,
    /// How its version writes extra keys.
    pub key_form: KeyForm,
    /// Its `hash(None)`: an address before Python 3.12. Only [`Scheme::Builtin`] depends on it.
    pub none_hash: Option<i64>,
}

/// Hashes the blocks of one namespace.
#[derive(Debug, PartialEq, Eq)]
pub struct Hasher {
    scheme: Scheme,
    python: PythonSeed,
    root: Digest,
    key_form: KeyForm,
    adapter: Option<Item>,
    salt: Option<Item>,
}

impl Hasher {
    /// A hasher. `salt` is not empty.
    pub fn new(
        scheme: Scheme,
        process: Process<'_>,
        adapter: Option<Adapter<'_>>,
        salt: Option<&str>,
    ) -> Result<Self, SeedError> {
        let seed = match scheme {
            Scheme::Sha256 | Scheme::Sha256Cbor => process.hash_seed.unwrap_or(DEFAULT_SEED),
            _ => process.hash_seed.ok_or(SeedError::Missing)?,
        };
        let python = match scheme {
            Scheme::Builtin => PythonSeed::new(seed, process.none_hash).ok_or(SeedError::NotANumber)?,
            _ => PythonSeed::default(),
        };
        let mut hasher = Self {
            scheme,
            python,
            root: Digest::default(),
            key_form: process.key_form,
            adapter: adapter.map(|adapter| Item::adapter(process.key_form, adapter)),
            salt: salt.map(|salt| Item::salt(process.key_form, salt)),
        };
        hasher.root = hasher.digest(&Seed(seed));
        Ok(hasher)
    }

    /// The scheme.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// What stands in for the digest above the first block.
    pub fn root(&self) -> &Digest {
        &self.root
    }

    /// A block's own extra keys in the form that enters its hash. None if that form has no such key.
    pub fn page_keys(&self, keys: &[ExtraKey<'_>]) -> Option<PageKeys> {
        PageKeys::new(self.key_form, keys)
    }

    /// The digest of a block below `prior`; None: of the first block of a prompt.
    pub fn block(&self, prior: Option<&Digest>, tokens: TokenSlice<'_>, keys: &PageKeys) -> Digest {
        self.digest(&Block {
            parent: &prior.unwrap_or(&self.root)[..self.scheme.digest_size()],
            tokens,
            adapter: self.adapter.as_ref(),
            salt: self.salt.as_ref().filter(|_| prior.is_none()),
            keys,
        })
    }

    fn digest(&self, value: &impl Encode) -> Digest {
        let mut digest = Digest::default();
        let place = &mut digest[..self.scheme.digest_size()];
        match self.scheme {
            Scheme::Sha256 => place.copy_from_slice(&Sha256::digest(encoded(value, Pickle::default()).finish())),
            Scheme::Sha256Cbor => place.copy_from_slice(&Sha256::digest(encoded(value, Cbor::default()).as_bytes())),
            Scheme::Xxhash => {
                place.copy_from_slice(&xxh3_128(encoded(value, Pickle::default()).finish()).to_be_bytes());
            }
            Scheme::XxhashCbor => {
                place.copy_from_slice(&xxh3_128(encoded(value, Cbor::default()).as_bytes()).to_be_bytes());
            }
            Scheme::Builtin => {
                place.copy_from_slice(&encoded(value, PythonHash::new(&self.python)).finish().to_be_bytes());
            }
        }
        digest
    }
}

fn encoded<E: Encoder>(value: &impl Encode, mut encoder: E) -> E {
    value.encode(&mut encoder);
    encoder
}

/// Takes a Python value apart as its serialisation asks.
trait Encoder {
    /// A tuple of so many values follows.
    fn open(&mut self, length: usize);
    /// The tuple of so many values, which were opened, is complete.
    fn close(&mut self, length: usize);
    /// A tuple of token ids.
    fn ids(&mut self, ids: TokenSlice<'_>);
    /// A digest.
    fn digest(&mut self, digest: &[u8]);
    fn none(&mut self);
    fn int(&mut self, value: i64);
    fn bytes(&mut self, value: &[u8]);
    fn text(&mut self, value: &str);
    /// A string literal of vLLM's source: one object wherever it occurs.
    fn literal(&mut self, value: &'static str);
}

/// A Python value.
trait Encode {
    fn encode(&self, encoder: &mut impl Encoder);
}

struct Seed<'a>(&'a str);

impl Encode for Seed<'_> {
    fn encode(&self, encoder: &mut impl Encoder) {
        encoder.text(self.0);
    }
}

struct Block<'a> {
    parent: &'a [u8],
    tokens: TokenSlice<'a>,
    adapter: Option<&'a Item>,
    salt: Option<&'a Item>,
    keys: &'a PageKeys,
}

impl Encode for Block<'_> {
    fn encode(&self, encoder: &mut impl Encoder) {
        encoder.open(3);
        encoder.digest(self.parent);
        encoder.ids(self.tokens);
        let extra = || {
            let before = self.adapter.into_iter().chain(&self.keys.images);
            before.chain(self.salt).chain(&self.keys.embeddings)
        };
        match extra().count() {
            0 => encoder.none(),
            length => {
                encoder.open(length);
                for item in extra() {
                    item.encode(encoder);
                }
                encoder.close(length);
            }
        }
        encoder.close(3);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sha256(parts: &[&[u8]]) -> Digest {
        Sha256::digest(parts.concat()).into()
    }

    fn hasher(scheme: Scheme, seed: &str) -> Hasher {
        let process = Process {
            hash_seed: Some(seed),
            ..Process::default()
        };
        Hasher::new(scheme, process, None, None).expect("a number")
    }

    fn plain(hasher: &Hasher, tokens: &[u32]) -> Digest {
        hasher.block(None, TokenSlice::U32(tokens), &PageKeys::default())
    }

    #[test]
    fn a_block_is_hashed_over_the_parent_the_ids_and_the_extra_keys() {
        let hasher = hasher(Scheme::Sha256Cbor, "0");
        let root = *hasher.root();
        assert_eq!(root, sha256(&[&[0x61, 0x30]]));
        assert_eq!(
            plain(&hasher, &[1, 500]),
            sha256(&[&[0x83, 0x58, 0x20], &root, &[0x82, 1, 0x19, 0x01, 0xf4, 0xf6]])
        );
    }

    #[test]
    fn extra_keys_stand_in_one_order_and_the_salt_in_the_first_block_only() {
        let adapter = Adapter::Name { name: "ad", path: "/p" };
        let process = Process::default();
        let hasher = Hasher::new(Scheme::Sha256Cbor, process, Some(adapter), Some("s")).expect("a default seed");
        let root = *hasher.root();
        let image = ExtraKey::Image {
            id: "im",
            offset: Some(-2),
        };
        let keys = hasher.page_keys(&[ExtraKey::Embeddings(b"e"), image]);
        let keys = keys.expect("an offset");
        let first = hasher.block(None, TokenSlice::U32(&[1]), &keys);
        let head = b"\x83\x64lora\x62ad\x62/p\x83\x62mm\x62im\x21";
        let tail = b"\x82\x6dprompt_embeds\x41e";
        let extra = [&[0x84][..], head, b"\x82\x6acache_salt\x61s", tail].concat();
        assert_eq!(first, sha256(&[&[0x83, 0x58, 0x20], &root, &[0x81, 1], &extra]));
        let second = hasher.block(Some(&first), TokenSlice::U32(&[1]), &keys);
        let extra = [&[0x83][..], head, tail].concat();
        assert_eq!(second, sha256(&[&[0x83, 0x58, 0x20], &first, &[0x81, 1], &extra]));
    }

    #[test]
    fn events_carry_the_end_of_a_digest() {
        let mut digest = Digest::default();
        digest[..8].copy_from_slice(&[0xff, 0, 0, 0, 0, 0, 0, 2]);
        digest[8..16].copy_from_slice(&[0x80, 0, 0, 0, 0, 0, 0, 1]);
        digest[24..].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 7]);
        assert_eq!(Scheme::Sha256.id(&digest), 7);
        assert_eq!(Scheme::Xxhash.id(&digest), (1 << 63) + 1);
        assert_eq!(Scheme::Builtin.id(&digest), (0xff << 56) + 2);
    }

    #[test]
    fn a_seed_that_python_draws_is_refused() {
        let new = |scheme, hash_seed| {
            let process = Process {
                hash_seed,
                ..Process::default()
            };
            Hasher::new(scheme, process, None, None).err()
        };
        assert_eq!(new(Scheme::Sha256, None), None);
        assert_eq!(new(Scheme::Xxhash, None), Some(SeedError::Missing));
        assert_eq!(new(Scheme::Xxhash, Some("random")), None);
        assert_eq!(new(Scheme::Builtin, Some("random")), Some(SeedError::NotANumber));
        assert_eq!(new(Scheme::Builtin, Some("4294967295")), None);
    }
}
