//! vLLM's block hashes: a digest over the digest of the block above, the block's token ids, and what else identifies it.
//!
//! Read off vLLM 0.32 (`v1/core/kv_cache_utils.py`); pinned by the recorded streams. A scheme is an algorithm over a
//! serialisation of the three: `sha256_cbor` is SHA-256 over canonical CBOR.

use sha2::{Digest as _, Sha256};

use super::cbor::Cbor;
use super::sglang::Digest;
use crate::tokens::TokenSlice;

/// What vLLM derives the first parent from where `PYTHONHASHSEED` is not set, since 0.29.
pub const DEFAULT_SEED: &str = "vllm-none-hash";

/// One of vLLM's ways to hash blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// SHA-256 over canonical CBOR.
    Sha256Cbor,
}

/// What identifies a block beside its tokens; vLLM's order is that of the variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtraKey<'a> {
    /// The adapter; its path is not on the wire.
    Adapter {
        /// Its name.
        name: &'a str,
        /// Where it was loaded from.
        path: &'a str,
    },
    /// The tenant's salt, in the first block of a prompt.
    Salt(&'a str),
}

/// Extra keys in the form that enters a hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extra(Box<[u8]>);

impl Scheme {
    /// What stands in for the digest above the first block.
    pub fn root(self, seed: &str) -> Digest {
        let mut bytes = Cbor::default();
        bytes.text(seed);
        self.digest(&bytes)
    }

    /// Serialise extra keys, once for all blocks that have them. They are tagged, as since vLLM 0.31.
    pub fn extra(self, keys: &[ExtraKey<'_>]) -> Extra {
        let mut bytes = Cbor::default();
        if keys.is_empty() {
            bytes.null();
        } else {
            bytes.array(keys.len());
        }
        for key in keys {
            let parts: &[&str] = match key {
                ExtraKey::Adapter { name, path } => &["lora", name, path],
                ExtraKey::Salt(salt) => &["cache_salt", salt],
            };
            bytes.array(parts.len());
            for part in parts {
                bytes.text(part);
            }
        }
        Extra(bytes.as_bytes().into())
    }

    /// The digest of a block.
    pub fn block(self, parent: &Digest, tokens: TokenSlice<'_>, extra: &Extra) -> Digest {
        let mut bytes = Cbor::default();
        bytes.array(3);
        bytes.bytes(parent);
        bytes.ids(tokens);
        bytes.raw(&extra.0);
        self.digest(&bytes)
    }

    /// What events call a block: the last eight bytes of its digest.
    pub fn id(self, digest: &Digest) -> u64 {
        let (_, tail) = digest.split_last_chunk().expect("a digest has 32 bytes");
        u64::from_be_bytes(*tail)
    }

    fn digest(self, bytes: &Cbor) -> Digest {
        match self {
            Self::Sha256Cbor => Sha256::digest(bytes.as_bytes()).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEME: Scheme = Scheme::Sha256Cbor;

    fn sha256(parts: &[&[u8]]) -> Digest {
        Sha256::digest(parts.concat()).into()
    }

    #[test]
    fn a_block_is_hashed_over_the_parent_the_ids_and_the_extra_keys() {
        let root = SCHEME.root("0");
        assert_eq!(root, sha256(&[&[0x61, 0x30]]));
        let plain = SCHEME.block(&root, TokenSlice::U32(&[1, 500]), &SCHEME.extra(&[]));
        assert_eq!(
            plain,
            sha256(&[&[0x83, 0x58, 0x20], &root, &[0x82, 1, 0x19, 0x01, 0xf4, 0xf6]])
        );
        let keys = [ExtraKey::Adapter { name: "ad", path: "/p" }, ExtraKey::Salt("s")];
        let keyed = SCHEME.block(&root, TokenSlice::U32(&[1]), &SCHEME.extra(&keys));
        let extra = b"\x82\x83\x64lora\x62ad\x62/p\x82\x6acache_salt\x61s";
        assert_eq!(keyed, sha256(&[&[0x83, 0x58, 0x20], &root, &[0x81, 1], extra]));
    }

    #[test]
    fn events_carry_the_end_of_a_digest() {
        let mut digest = Digest::default();
        digest[24..].copy_from_slice(&[0x80, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(SCHEME.id(&digest), (1 << 63) + 1);
    }
}
