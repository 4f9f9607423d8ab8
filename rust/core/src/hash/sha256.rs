//! SHA-256 over messages of one length, one after the other, each of which begins with the digest of the one before.
//!
//! The padding of a message depends on its length only, so it is laid out once, and a digest is one call of `sha2`'s
//! compression function over the blocks of the message. `sha2` uses SHA-NI where the processor has it.

use sha2::block_api::compress256;
use smallvec::SmallVec;

use super::sglang::Digest;

/// FIPS 180-4, 5.3.3.
const INITIAL: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

const BLOCK: usize = 64;
/// The end mark and the length behind a message.
const PADDING: usize = 1 + size_of::<u64>();

/// Messages of a digest and a body.
pub(super) struct Chained {
    blocks: SmallVec<[[u8; BLOCK]; 8]>,
    body: usize,
}

impl Chained {
    /// Messages whose bodies have `body` bytes.
    pub fn new(body: usize) -> Self {
        let length = size_of::<Digest>() + body;
        let mut blocks = SmallVec::from_elem([0; BLOCK], (length + PADDING).div_ceil(BLOCK));
        let message = blocks.as_flattened_mut();
        message[length] = 0x80;
        let bits = 8 * length as u64;
        *message.last_chunk_mut().expect("a block at least") = bits.to_be_bytes();
        Self { blocks, body }
    }

    /// The digest of `prior` and of the body that `fill` writes, all of it.
    pub fn digest(&mut self, prior: &Digest, fill: impl FnOnce(&mut [u8])) -> Digest {
        let message = self.blocks.as_flattened_mut();
        let (head, rest) = message.split_at_mut(size_of::<Digest>());
        head.copy_from_slice(prior);
        fill(&mut rest[..self.body]);
        let mut state = INITIAL;
        compress256(&mut state, &self.blocks);
        let mut digest = Digest::default();
        for (bytes, word) in digest.as_chunks_mut().0.iter_mut().zip(state) {
            *bytes = word.to_be_bytes();
        }
        digest
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest as _, Sha256};

    use super::*;

    #[test]
    fn digests_are_those_of_sha_256_at_every_length() {
        for body in 0..400 {
            let bytes: Vec<u8> = (0..body).map(|at| at as u8).collect();
            let mut messages = Chained::new(body);
            let mut prior = Digest::from([7; 32]);
            for _ in 0..2 {
                let expected: Digest = Sha256::new_with_prefix(prior).chain_update(&bytes).finalize().into();
                prior = messages.digest(&prior, |out| out.copy_from_slice(&bytes));
                assert_eq!(prior, expected, "{body}");
            }
        }
    }
}
