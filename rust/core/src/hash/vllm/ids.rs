//! Token ids as bytes of varying length, many at once.

use smallvec::SmallVec;

use crate::tokens::TokenSlice;

/// What a block is serialised into; 128 ids fit without an allocation.
pub(super) type Bytes = SmallVec<[u8; 1024]>;

/// The most bytes that a form of [`append`] takes: a mark and 32 bits.
pub(super) const LONGEST: usize = 5;

/// Append each id in a form of at most five bytes: `write` fills in the form and says how long it is. False, with
/// nothing written, if an id has bits outside of `mask`, which is all ones from the lowest bit up.
///
/// One place of the longest form after the other is written whole and the next one put over what was too much: lengths
/// are data, not branches, for which the ids of a text are too mixed.
pub(super) fn append(
    out: &mut Bytes,
    ids: TokenSlice<'_>,
    mask: u32,
    write: impl Fn(u32, &mut [u8; LONGEST]) -> usize,
) -> bool {
    let bits = match ids {
        TokenSlice::U32(ids) => u64::from(ids.iter().fold(0, |bits, id| bits | id)),
        TokenSlice::U64(ids) => ids.iter().fold(0, |bits, id| bits | id),
    };
    if bits > u64::from(mask) {
        return false;
    }
    match ids {
        TokenSlice::U32(ids) => append_all(out, ids.iter().copied(), write),
        TokenSlice::U64(ids) => append_all(out, ids.iter().map(|&id| id as u32), write),
    }
    true
}

fn append_all(
    out: &mut Bytes,
    ids: impl ExactSizeIterator<Item = u32>,
    write: impl Fn(u32, &mut [u8; LONGEST]) -> usize,
) {
    let mut end = out.len();
    out.resize(end + LONGEST * ids.len(), 0);
    for id in ids {
        let place = out[end..].first_chunk_mut().expect("room for all");
        end += write(id, place);
    }
    out.truncate(end);
}
