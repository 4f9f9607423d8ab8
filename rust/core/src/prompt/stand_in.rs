//! Ids that stand for a text whose tokens are not known.

/// Above every id of a vocabulary: what stands in is never taken for tokens.
pub const STAND_IN: u64 = 1 << 32;

/// About what a token has in English.
const BYTES_PER_ID: usize = 4;

/// An id for every four bytes: equal beginnings of texts have equal beginnings of ids, and a text has about as many as
/// it has tokens. The last bytes, where they are fewer, have one of their own.
pub fn stand_in<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Vec<u64> {
    let mut ids = Vec::new();
    for part in parts {
        ids.reserve(part.len() / BYTES_PER_ID + 1);
        let chunks = part.chunks_exact(BYTES_PER_ID);
        let rest = chunks.remainder();
        ids.extend(chunks.map(|chunk| STAND_IN | u64::from(u32::from_le_bytes(chunk.try_into().expect("four bytes")))));
        if !rest.is_empty() {
            let bytes = rest.iter().fold(0, |seen, &byte| seen << 8 | u64::from(byte));
            ids.push(STAND_IN << 1 | (rest.len() as u64) << 24 | bytes);
        }
    }
    ids
}
