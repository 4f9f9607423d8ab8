//! The `sglang` scheme: SHA-256 chained over the pages of a prompt.
//!
//! The digest of a page covers the full digest of the page before it and the page's token ids; engines announce its first
//! eight bytes. A salt seeds the chain; an adapter (or, in the `dynamo` format, any namespace) *wraps* the announced ids.
//! Pinned by `tests/golden/test_hashes.py` against streams of SGLang 0.5.23.

use std::borrow::Cow;

use sha2::{Digest as _, Sha256};
use smallvec::SmallVec;

use super::sha256::Chained;
use crate::pages::Paging;
use crate::tokens::TokenSlice;

/// The full digest of a page: what the next page's digest is chained to.
pub type Digest = [u8; 32];

const SALT_TAG: &[u8] = b"sglang-cache-salt-v1\0";
const NAMESPACE_TAG: &[u8] = b"sglang-kv-event-namespace-v1";
/// Marks a page whose ids are hashed with 64 bits each.
const WIDE_PAGE: [u8; 1] = [0xff];

/// The digest of one page. For bigrams `page` holds both members of each pair, flattened.
pub fn page_digest(prior: Option<&Digest>, page: TokenSlice<'_>) -> Digest {
    let mut hasher = hasher(prior);
    update(&mut hasher, page);
    hasher.finalize().into()
}

/// The digest of one page of bigrams, from its tokens: one more than there are pairs.
pub fn bigram_page_digest(prior: Option<&Digest>, page: TokenSlice<'_>) -> Digest {
    let mut hasher = hasher(prior);
    match page {
        TokenSlice::U32(ids) => update_narrow(&mut hasher, &pairs(ids)),
        TokenSlice::U64(ids) => update(&mut hasher, TokenSlice::U64(&pairs(ids))),
    }
    hasher.finalize().into()
}

/// Hashes page after page of a prompt.
pub(super) struct Pages {
    paging: Paging,
    /// Of whole pages whose ids fit 32 bits; none if no page is whole.
    messages: Option<Chained>,
}

impl Pages {
    /// For the pages of so many tokens, cut so.
    pub fn new(paging: Paging, tokens: usize) -> Self {
        let members = if paging.is_bigram() { 2 } else { 1 };
        let message = || Chained::new(members * paging.page_size() * size_of::<u32>());
        Self {
            paging,
            messages: (paging.count(tokens) > 0).then(message),
        }
    }

    /// The digest of a page; the last one of a prompt may be shorter.
    pub fn digest(&mut self, prior: Option<&Digest>, page: TokenSlice<'_>) -> Digest {
        let is_whole = (self.paging.count(page.len()), self.paging.left_over(page.len())) == (1, 0);
        if let (Some(messages), Some(prior), true, true) = (&mut self.messages, prior, is_whole, page.is_narrow()) {
            return match (page, self.paging.is_bigram()) {
                (TokenSlice::U32(ids), false) => messages.digest(prior, |out| fill(out, ids.iter().copied())),
                (TokenSlice::U64(ids), false) => {
                    messages.digest(prior, |out| fill(out, ids.iter().map(|&id| id as u32)))
                }
                (TokenSlice::U32(ids), true) => messages.digest(prior, |out| fill(out, members(ids))),
                (TokenSlice::U64(ids), true) => {
                    messages.digest(prior, |out| fill(out, members(ids).map(|id| id as u32)))
                }
            };
        }
        if self.paging.is_bigram() {
            bigram_page_digest(prior, page)
        } else {
            page_digest(prior, page)
        }
    }
}

fn fill(out: &mut [u8], ids: impl Iterator<Item = u32>) {
    for (out, id) in out.as_chunks_mut().0.iter_mut().zip(ids) {
        *out = id.to_le_bytes();
    }
}

/// Both members of each pair of neighbours.
fn members<T: Copy>(ids: &[T]) -> impl Iterator<Item = T> {
    ids.windows(2).flatten().copied()
}

/// What stands in for the digest before the first page in a salted namespace.
pub fn salt_seed(salt: &str) -> Digest {
    Sha256::new()
        .chain_update(SALT_TAG)
        .chain_update(salt.as_bytes())
        .finalize()
        .into()
}

/// The seed that wraps the ids of a namespace.
pub fn namespace_seed(extra_key: Option<&str>, cache_salt: Option<&str>) -> Digest {
    let mut hasher = Sha256::new_with_prefix(NAMESPACE_TAG);
    for part in [extra_key, cache_salt] {
        match part {
            None => hasher.update([0]),
            Some(text) => {
                hasher.update([1]);
                hasher.update((text.len() as u64).to_le_bytes());
                hasher.update(text.as_bytes());
            }
        }
    }
    hasher.finalize().into()
}

/// How ids are announced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EventFormat {
    /// Wrapped only in the namespace of an extra key whose adapter has a registered name.
    #[default]
    Default,
    /// Wrapped in every namespace, so that ids of different namespaces differ.
    Dynamo,
}

impl EventFormat {
    /// Every format, by the name users know.
    pub const NAMES: [(&str, Self); 2] = [("default", Self::Default), ("dynamo", Self::Dynamo)];

    /// What wraps the ids of a namespace, if anything does. `named`: the extra key's adapter has a registered name.
    pub fn seed(self, extra_key: Option<&str>, cache_salt: Option<&str>, named: bool) -> Option<Digest> {
        match (self, extra_key, cache_salt) {
            (Self::Default, Some(_), _) if named => Some(namespace_seed(extra_key, None)),
            (Self::Default, ..) | (Self::Dynamo, None, None) => None,
            (Self::Dynamo, ..) => Some(namespace_seed(extra_key, cache_salt)),
        }
    }
}

/// The id of a page inside the namespace of `seed`.
pub fn wrap(seed: &Digest, id: i64) -> i64 {
    let digest = Sha256::new_with_prefix(seed).chain_update(id.to_be_bytes()).finalize();
    page_id(&digest.into())
}

/// The id that engines announce for a page.
pub fn page_id(digest: &Digest) -> i64 {
    let (head, _) = digest.split_first_chunk().expect("a digest has 32 bytes");
    i64::from_be_bytes(*head)
}

fn hasher(prior: Option<&Digest>) -> Sha256 {
    match prior {
        Some(digest) => Sha256::new_with_prefix(digest),
        None => Sha256::new(),
    }
}

fn update(hasher: &mut Sha256, page: TokenSlice<'_>) {
    match page {
        TokenSlice::U32(ids) => update_narrow(hasher, ids),
        TokenSlice::U64(ids) if ids.iter().fold(0, |bits, id| bits | id) >> 32 == 0 => {
            // Few at a time on the stack: the page is never copied whole.
            let mut narrow = [0_u32; 64];
            for ids in ids.chunks(narrow.len()) {
                for (narrow, &id) in narrow.iter_mut().zip(ids) {
                    *narrow = id as u32;
                }
                update_narrow(hasher, &narrow[..ids.len()]);
            }
        }
        TokenSlice::U64(ids) => {
            hasher.update(WIDE_PAGE);
            for id in ids {
                hasher.update(id.to_le_bytes());
            }
        }
    }
}

fn update_narrow(hasher: &mut Sha256, ids: &[u32]) {
    hasher.update(little_endian_bytes(ids));
}

#[cfg(target_endian = "little")]
#[allow(unsafe_code)]
fn little_endian_bytes(ids: &[u32]) -> Cow<'_, [u8]> {
    // SAFETY: the same memory seen as bytes; any byte is a valid `u8`, whose alignment is 1.
    Cow::Borrowed(unsafe { std::slice::from_raw_parts(ids.as_ptr().cast(), size_of_val(ids)) })
}

#[cfg(target_endian = "big")]
fn little_endian_bytes(ids: &[u32]) -> Cow<'_, [u8]> {
    Cow::Owned(ids.iter().flat_map(|id| id.to_le_bytes()).collect())
}

/// Both members of each pair of neighbours; on the stack for pages of up to 64 pairs.
fn pairs<T: Copy>(ids: &[T]) -> SmallVec<[T; 128]> {
    members(ids).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sha256(bytes: &[u8]) -> Digest {
        Sha256::digest(bytes).into()
    }

    #[test]
    fn a_page_is_hashed_as_32_bit_ids_after_the_prior_digest() {
        let first = page_digest(None, TokenSlice::U32(&[1, 0x0203_0405]));
        assert_eq!(first, sha256(&[1, 0, 0, 0, 5, 4, 3, 2]));
        let second = page_digest(Some(&first), TokenSlice::U32(&[7]));
        assert_eq!(second, sha256(&[&first[..], &[7, 0, 0, 0]].concat()));
    }

    #[test]
    fn one_wide_id_widens_its_page_and_no_other() {
        let wide = [1_u64, 1 << 32];
        let bytes: Vec<u8> = wide.iter().flat_map(|id| id.to_le_bytes()).collect();
        assert_eq!(
            page_digest(None, TokenSlice::U64(&wide)),
            sha256(&[&[0xff][..], &bytes].concat())
        );
        let narrow: Vec<u32> = (0..200).collect();
        let stored_wide: Vec<u64> = (0..200).collect();
        assert_eq!(
            page_digest(None, TokenSlice::U64(&stored_wide)),
            page_digest(None, TokenSlice::U32(&narrow))
        );
    }

    #[test]
    fn bigrams_are_hashed_as_both_members_of_each_pair() {
        let flat = page_digest(None, TokenSlice::U32(&[1, 2, 2, 3]));
        assert_eq!(bigram_page_digest(None, TokenSlice::U32(&[1, 2, 3])), flat);
        assert_eq!(bigram_page_digest(None, TokenSlice::U64(&[1, 2, 3])), flat);
    }

    #[test]
    fn namespaces_cannot_be_confused_by_moving_bytes_between_their_parts() {
        let seeds = [
            namespace_seed(None, None),
            namespace_seed(Some(""), None),
            namespace_seed(None, Some("")),
            namespace_seed(Some("tenant"), Some("salt")),
            namespace_seed(Some("t"), Some("enantsalt")),
        ];
        for (index, seed) in seeds.iter().enumerate() {
            assert!(!seeds[..index].contains(seed));
        }
    }
}
