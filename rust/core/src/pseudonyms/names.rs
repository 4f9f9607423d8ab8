//! Keyed pseudonyms: equal for equal values under one key, and without the key as good as random.
//!
//! BLAKE3 in its keyed mode: a vetted pseudorandom function with an output of any length, one compression for what is
//! replaced here. Each kind of value has a domain of its own, so that no value stands for one of another kind.

use crate::wire::{EngineHash, Writer};

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;

/// What a value is.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Domain {
    Hash = 1,
    Digest = 2,
    Text = 3,
    Number = 4,
    Bytes = 5,
    Tokens = 6,
    LooseTokens = 7,
}

/// Identity of a block, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Its content hash.
    Known(u64),
    /// A hash over its tokens and what its parent is called: the parent's own content is not known.
    Loose(u64),
}

/// Replaces values under a key.
#[derive(Clone)]
pub struct Names([u8; KEY_BYTES]);

impl Names {
    /// Under `key`, which has to be random and is not to be stored beside what is replaced.
    pub fn new(key: [u8; KEY_BYTES]) -> Self {
        Self(key)
    }

    fn reader(&self, domain: Domain, value: &[u8]) -> blake3::OutputReader {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&[domain as u8]);
        hasher.update(value);
        hasher.finalize_xof()
    }

    fn fill(&self, domain: Domain, value: &[u8], out: &mut [u8]) {
        self.reader(domain, value).fill(out);
    }

    fn word(&self, domain: Domain, value: &[u8]) -> u64 {
        let mut out = [0; 8];
        self.fill(domain, value, &mut out);
        u64::from_be_bytes(out)
    }

    /// A hash's key, for all of its forms.
    pub fn hash_key(&self, key: u64) -> u64 {
        self.word(Domain::Hash, &key.to_be_bytes())
    }

    /// A hash: integers as integers of 64 bits (`signed`: as the source's others are), digests as digests of the same
    /// length, eight bytes at least, whose last eight are what the integer would be.
    pub fn hash(&self, hash: EngineHash<'_>, signed: bool, out: &mut Writer) {
        let word = self.hash_key(hash.key());
        match hash {
            EngineHash::Bytes(bytes) => {
                let mut digest = vec![0; bytes.len().max(8)];
                self.fill(Domain::Digest, bytes, &mut digest);
                let start = digest.len() - 8;
                digest[start..].copy_from_slice(&word.to_be_bytes());
                out.bin(&digest);
            }
            _ if signed => out.int(word.cast_signed()),
            _ => out.uint(word),
        }
    }

    /// A text: 16 hex digits, whatever kind of name it is, since engines put one name into several fields. The empty
    /// one stays, for it is what engines say for none.
    pub fn text(&self, text: &str) -> String {
        if text.is_empty() {
            return String::new();
        }
        format!("{:016x}", self.word(Domain::Text, text.as_bytes()))
    }

    /// A number: one from 2^16 to 2^31.
    pub fn number(&self, number: i128) -> u64 {
        let word = self.word(Domain::Number, &number.to_be_bytes());
        FIRST_ID + word % (LAST_ID - FIRST_ID)
    }

    /// Bytes: as many, but 8 at least.
    pub fn bytes(&self, bytes: &[u8]) -> Vec<u8> {
        let mut out = vec![0; bytes.len().max(8)];
        self.fill(Domain::Bytes, bytes, &mut out);
        out
    }

    /// Append the token ids that stand for those of a block of `size`.
    ///
    /// All are from 2^16 on, so that their length on the wire says nothing about the tokens. A block's ids together have
    /// 64 bits or more; the single id of a block of one has 31, more would not fit what consumers take.
    pub fn tokens(&self, content: Content, size: usize, out: &mut Vec<u32>) {
        let (domain, hash) = match content {
            Content::Known(hash) => (Domain::Tokens, hash),
            Content::Loose(hash) => (Domain::LooseTokens, hash),
        };
        let mut reader = self.reader(domain, &hash.to_be_bytes());
        let mut stretch = [0; blake3::BLOCK_LEN];
        let mut left = size;
        while left > 0 {
            reader.fill(&mut stretch);
            let before = out.len();
            if size >= NARROW_FROM {
                let words = stretch.as_chunks::<2>().0.iter().take(left);
                out.extend(words.map(|&word| FIRST_ID as u32 + u32::from(u16::from_be_bytes(word))));
            } else {
                let words = stretch.as_chunks::<4>().0.iter().take(left);
                let span = (LAST_ID - FIRST_ID) as u32;
                out.extend(words.map(|&word| FIRST_ID as u32 + u32::from_be_bytes(word) % span));
            }
            left -= out.len() - before;
        }
    }
}

/// Ids and numbers that stand for others begin here: all take five bytes on the wire.
const FIRST_ID: u64 = 1 << 16;
/// And end below this, which 32-bit signed integers hold.
const LAST_ID: u64 = 1 << 31;
/// Blocks of so many tokens have 64 bits with 16 bits a token.
const NARROW_FROM: usize = 4;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn names() -> Names {
        Names::new([7; KEY_BYTES])
    }

    fn written(hash: EngineHash<'_>, signed: bool) -> Vec<u8> {
        let mut out = Writer::new();
        names().hash(hash, signed, &mut out);
        out.into_bytes()
    }

    #[test]
    fn all_forms_of_a_hash_stay_one_hash() {
        let digest = [&[1; 24][..], &(-5_i64).to_be_bytes()].concat();
        let word = names().hash_key((-5_i64).cast_unsigned()).to_be_bytes();
        assert_eq!(
            written(EngineHash::Unsigned((-5_i64).cast_unsigned()), false)[1..],
            word
        );
        assert_eq!(written(EngineHash::Negative(-5), true)[1..], word);
        let bytes = written(EngineHash::Bytes(&digest), false);
        assert_eq!((bytes.len(), &bytes[..2]), (34, &[0xc4, 32][..]));
        assert_eq!(bytes[26..], word);
        assert_eq!(written(EngineHash::Bytes(&[5]), false).len(), 10);
    }

    #[test]
    fn another_key_gives_other_names() {
        let other = Names::new([8; KEY_BYTES]);
        assert_ne!(other.text("tenant"), names().text("tenant"));
        assert_ne!(other.hash_key(1), names().hash_key(1));
        assert_eq!(names().text("tenant").len(), 16);
        assert_eq!(names().text(""), "");
    }

    #[test]
    fn ids_of_blocks_differ_and_show_no_width() {
        for size in [1, 2, 3, 4, 16, 33, 100] {
            let mut seen = HashSet::new();
            for hash in 0..200 {
                for content in [Content::Known(hash), Content::Loose(hash)] {
                    let mut ids = Vec::new();
                    names().tokens(content, size, &mut ids);
                    assert_eq!(ids.len(), size);
                    assert!(ids.iter().all(|&id| (1 << 16..1 << 31).contains(&id)));
                    assert!(seen.insert(ids));
                }
            }
        }
    }
}
