//! Content hashes: the identity of a block across engines and workers.
//!
//! A content hash is XXH3-64 over the block's token ids (little-endian, 32 bits each) with the hash of the block above
//! as seed, so it vouches for the whole prefix. The first block's seed is its namespace's [`root`].
//!
//! The bytes that are hashed say by their length and first byte what they are, so that no two different blocks under
//! one parent are hashed over the same bytes:
//!
//! | what | bytes | length modulo 4 |
//! |---|---|---|
//! | ids that fit 32 bits | ids, u32 | 0 |
//! | at least one wider id | `FF`, ids, u64 | 1 |
//! | extra keys, seeded by the hash of the ids | `FE`, length of the extra bytes, u64, the extra bytes, padding | not 0 |

use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::tokens::TokenSlice;

/// Separates these hashes from every other use of XXH3, and this version of them from later ones.
const ROOT_TAG: &[u8] = b"kvevents-content-v1";
const WIDE: u8 = 0xFF;
const EXTRA: u8 = 0xFE;

/// The bytes of a block of 256 ids fit without an allocation.
type Bytes = SmallVec<[u8; 1024]>;

/// What names the adapter of a prompt: its name, or its number where the engine gives no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Adapter<'a> {
    /// By name.
    Name(&'a str),
    /// By number (early vLLM).
    Id(i64),
}

impl<'a> Adapter<'a> {
    /// The name if there is a non-empty one, else the number.
    pub fn new(name: Option<&'a str>, id: Option<i64>) -> Option<Self> {
        match (name, id) {
            (Some(name), _) if !name.is_empty() => Some(Self::Name(name)),
            (_, Some(id)) => Some(Self::Id(id)),
            _ => None,
        }
    }
}

/// The seed of a namespace's first blocks. An empty salt is no salt.
pub fn root(adapter: Option<Adapter<'_>>, salt: Option<&str>) -> u64 {
    let mut bytes = Bytes::from_slice(ROOT_TAG);
    match adapter {
        None => bytes.push(0),
        Some(Adapter::Name(name)) => part(&mut bytes, 1, name.as_bytes()),
        Some(Adapter::Id(id)) => part(&mut bytes, 2, &id.to_le_bytes()),
    }
    match salt {
        None | Some("") => bytes.push(0),
        Some(salt) => part(&mut bytes, 1, salt.as_bytes()),
    }
    xxh3_64_with_seed(&bytes, 0)
}

/// The hash of a block below `parent`.
///
/// `extra` is what else identifies the block (images, embeddings) in one canonical form; none and empty are the same.
pub fn block(parent: u64, tokens: TokenSlice<'_>, extra: Option<&[u8]>) -> u64 {
    let ids = xxh3_64_with_seed(&id_bytes(tokens), parent);
    match extra {
        None | Some([]) => ids,
        Some(extra) => {
            let mut bytes = Bytes::new();
            part(&mut bytes, EXTRA, extra);
            if bytes.len().is_multiple_of(4) {
                bytes.push(0);
            }
            xxh3_64_with_seed(&bytes, ids)
        }
    }
}

/// Token ids that block `index` of a prompt covers: `size` of them, one more where blocks are made of pairs
/// (neighbours share a token). None where the prompt ends before the block does.
pub fn window(tokens: TokenSlice<'_>, index: usize, size: usize, pairs: bool) -> Option<TokenSlice<'_>> {
    let start = index.checked_mul(size)?;
    let end = start.checked_add(size)?.checked_add(usize::from(pairs))?;
    (end <= tokens.len()).then(|| tokens.slice(start, end))
}

/// The hashes of all whole blocks of `tokens` below `parent`, without extra keys.
pub fn chain(parent: u64, tokens: TokenSlice<'_>, size: usize, pairs: bool) -> Vec<u64> {
    let mut last = parent;
    (0..)
        .map_while(|index| window(tokens, index, size, pairs))
        .map(|ids| {
            last = block(last, ids, None);
            last
        })
        .collect()
}

fn part(bytes: &mut Bytes, tag: u8, value: &[u8]) {
    bytes.push(tag);
    bytes.extend_from_slice(&(value.len() as u64).to_le_bytes());
    bytes.extend_from_slice(value);
}

fn id_bytes(tokens: TokenSlice<'_>) -> Bytes {
    let mut bytes = Bytes::new();
    match tokens {
        TokenSlice::U32(ids) => write(&mut bytes, 0, ids, u32::to_le_bytes),
        TokenSlice::U64(ids) if ids.iter().all(|&id| u32::try_from(id).is_ok()) => {
            write(&mut bytes, 0, ids, |id| (id as u32).to_le_bytes());
        }
        TokenSlice::U64(ids) => {
            write(&mut bytes, 1, ids, u64::to_le_bytes);
            bytes[0] = WIDE;
        }
    }
    bytes
}

/// Write `ids` after `skip` bytes; one resize and a loop the compiler turns into a copy.
fn write<T: Copy, const N: usize>(bytes: &mut Bytes, skip: usize, ids: &[T], le: impl Fn(T) -> [u8; N]) {
    bytes.resize(skip + ids.len() * N, 0);
    for (place, &id) in bytes[skip..].chunks_exact_mut(N).zip(ids) {
        place.copy_from_slice(&le(id));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const IDS: [u32; 4] = [1, 2, 3, 4];

    #[test]
    fn hashes_are_fixed_forever() {
        // Snapshots and shards of other machines hold these: a change needs a new ROOT_TAG.
        assert_eq!(root(None, None), 0x9b6b_1c5a_5dbc_8346);
        assert_eq!(
            block(root(None, None), TokenSlice::U32(&IDS), None),
            0xabdd_8302_9c2a_220d
        );
    }

    #[test]
    fn namespaces_have_roots_of_their_own() {
        let roots = HashSet::from([
            root(None, None),
            root(None, Some("x")),
            root(None, Some("y")),
            root(Some(Adapter::Name("x")), None),
            root(Some(Adapter::Name("x")), Some("x")),
            root(Some(Adapter::Name("1")), None),
            root(Some(Adapter::Id(1)), None),
        ]);
        assert_eq!(roots.len(), 7);
        assert_eq!(root(None, Some("")), root(None, None));
    }

    #[test]
    fn width_of_the_buffer_is_not_part_of_the_identity_but_a_wide_id_is() {
        let wide: Vec<u64> = IDS.iter().map(|&id| u64::from(id)).collect();
        assert_eq!(
            block(7, TokenSlice::U64(&wide), None),
            block(7, TokenSlice::U32(&IDS), None)
        );
        assert_ne!(
            block(7, TokenSlice::U64(&[1 + (1 << 32)]), None),
            block(7, TokenSlice::U32(&[1]), None)
        );
        // The same eight bytes as one wide id and as two narrow ones.
        assert_ne!(
            block(7, TokenSlice::U64(&[1 << 32]), None),
            block(7, TokenSlice::U32(&[0, 1]), None)
        );
    }

    #[test]
    fn extra_keys_enter_the_hash_and_empty_ones_do_not() {
        let plain = block(7, TokenSlice::U32(&IDS), None);
        assert_eq!(block(7, TokenSlice::U32(&IDS), Some(b"")), plain);
        assert_ne!(block(7, TokenSlice::U32(&IDS), Some(b"p")), plain);
        assert_ne!(
            block(7, TokenSlice::U32(&IDS), Some(b"p")),
            block(7, TokenSlice::U32(&IDS), Some(b"q"))
        );
    }

    #[test]
    fn a_chain_is_its_blocks_and_pairs_overlap_by_one_token() {
        let ids = TokenSlice::U32(&[1, 2, 3, 4, 5]);
        let first = block(9, ids.slice(0, 2), None);
        assert_eq!(chain(9, ids, 2, false), [first, block(first, ids.slice(2, 4), None)]);
        let first = block(9, ids.slice(0, 3), None);
        assert_eq!(chain(9, ids, 2, true), [first, block(first, ids.slice(2, 5), None)]);
        assert_eq!(chain(9, ids.slice(0, 4), 2, true), [first]);
    }
}
