//! Content hashes: the identity of a block across engines and workers.
//!
//! A content hash is XXH3-64 over the block's token ids (little-endian, 32 bits each) with the hash of the block above
//! as seed, so it vouches for the whole prefix. The first block's seed is its namespace's [`root`]. Longer blocks are
//! hashed 32 ids at a time, each time with the hash so far as seed: up to that length XXH3 is at its best.
//!
//! The bytes that are hashed say by their length and first byte what they are, so that no two different blocks of one
//! length under one parent are hashed over the same bytes:
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
const ROOT_TAG: &[u8] = b"kvevents-content-v2";
const WIDE: u8 = 0xFF;
const EXTRA: u8 = 0xFE;

/// Ids that are hashed at a time.
const STRETCH: usize = 32;

/// Names and extra keys fit without an allocation.
type Bytes = SmallVec<[u8; 256]>;

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
    let ids = match tokens {
        TokenSlice::U32(ids) => ids.chunks(STRETCH).fold(parent, narrow),
        TokenSlice::U64(ids) => ids.chunks(STRETCH).fold(parent, wide),
    };
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

/// The hash of at most a stretch of ids.
#[cfg(target_endian = "little")]
#[allow(unsafe_code)]
fn narrow(seed: u64, ids: &[u32]) -> u64 {
    // SAFETY: the bytes of initialised integers, all of them, under the same borrow; any address suits a byte. A copy
    // instead would double the time of a match.
    let bytes = unsafe { std::slice::from_raw_parts(ids.as_ptr().cast::<u8>(), size_of_val(ids)) };
    xxh3_64_with_seed(bytes, seed)
}

/// The hash of at most a stretch of ids.
#[cfg(not(target_endian = "little"))]
fn narrow(seed: u64, ids: &[u32]) -> u64 {
    let bytes: SmallVec<[u8; STRETCH * size_of::<u32>()]> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    xxh3_64_with_seed(&bytes, seed)
}

/// The same of ids that may be wide.
fn wide(seed: u64, ids: &[u64]) -> u64 {
    if ids.iter().fold(0, |seen, id| seen | id) >> u32::BITS == 0 {
        let mut fitting = [0; STRETCH];
        let fitting = &mut fitting[..ids.len()];
        fitting.iter_mut().zip(ids).for_each(|(place, &id)| *place = id as u32);
        return narrow(seed, fitting);
    }
    let mut bytes = Bytes::from_slice(&[WIDE]);
    bytes.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
    xxh3_64_with_seed(&bytes, seed)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const IDS: [u32; 4] = [1, 2, 3, 4];

    #[test]
    fn hashes_are_fixed_forever() {
        // Snapshots and shards of other machines hold these: a change needs a new ROOT_TAG.
        let long: Vec<u32> = (0..64).collect();
        let root = root(None, None);
        assert_eq!(root, 0x0950_713b_c3f9_124e);
        assert_eq!(block(root, TokenSlice::U32(&IDS), None), 0x4a12_40d9_c8ce_1dc5);
        assert_eq!(block(root, TokenSlice::U32(&long), None), 0x0a3a_77ef_798d_bb48);
        assert_eq!(
            block(root, TokenSlice::U64(&[1 << 40]), Some(b"extra")),
            0x8d8a_3175_0067_8092
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
    fn long_blocks_are_hashed_stretch_by_stretch() {
        let ids: Vec<u32> = (0..65).collect();
        let whole = block(7, TokenSlice::U32(&ids), None);
        let first = block(7, TokenSlice::U32(&ids[..32]), None);
        let second = block(first, TokenSlice::U32(&ids[32..64]), None);
        assert_eq!(block(second, TokenSlice::U32(&ids[64..]), None), whole);
        let wide: Vec<u64> = ids.iter().map(|&id| u64::from(id)).collect();
        assert_eq!(block(7, TokenSlice::U64(&wide), None), whole);
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
