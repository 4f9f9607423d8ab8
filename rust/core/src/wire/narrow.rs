//! Decoding integers of at most 32 bits side by side: token ids, which nearly all of a payload consists of.
//!
//! Where an id begins is known only when the one before has been looked at, so the time goes by in waiting for one
//! byte after the other. The marks of two and four bytes, which vocabularies consist of, are therefore looked for in a
//! whole window at once; from one id to the next it is then a shift, and the bytes are read besides.

/// An id of two bytes, and one of four.
const MIDDLE: u8 = 0xcd;
const WIDE: u8 = 0xce;
/// Bytes whose marks are looked for at once.
const WINDOW: usize = 64;
/// Bytes that the last id of a window may reach beyond its first.
const REACH: usize = 5;
/// Ids that are decoded one by one after a window began with neither mark.
const PAUSE: usize = 8;

/// Decode as many ids as there are places, from the start of `bytes`; how many bytes they take. None where something
/// else comes before the end, or the bytes end within an id.
pub(super) fn decode(bytes: &[u8], ids: &mut [u32]) -> Option<usize> {
    let (mut done, mut offset) = (0, 0);
    while done < ids.len() {
        let (more, length) = marked(&bytes[offset..], &mut ids[done..]);
        done += more;
        offset += length;
        if more == 0 {
            let end = ids.len().min(done + PAUSE);
            offset += plain(&bytes[offset..], &mut ids[done..end])?;
            done = end;
        }
    }
    Some(offset)
}

/// The same, one by one.
fn plain(bytes: &[u8], ids: &mut [u32]) -> Option<usize> {
    let mut rest = bytes;
    for place in ids {
        let (&first, after) = rest.split_first()?;
        let width = match first {
            0..0x80 => 0,
            0xcc => 1,
            MIDDLE => 2,
            WIDE => 4,
            _ => return None,
        };
        let (value, after) = after.split_at_checked(width)?;
        *place = match value {
            [] => first.into(),
            _ => value.iter().fold(0, |id, &byte| id << 8 | u32::from(byte)),
        };
        rest = after;
    }
    Some(bytes.len() - rest.len())
}

/// Decode ids of two and four bytes until there is something else, or a window's worth is done. Gives how many, and
/// how many bytes they take.
#[cfg(target_arch = "x86_64")]
fn marked(bytes: &[u8], ids: &mut [u32]) -> (usize, usize) {
    let Some(window) = bytes.first_chunk::<{ WINDOW + REACH }>() else {
        return (0, 0);
    };
    let (mut wide, middle) = marks(window);
    let mut any = wide | middle;
    let (mut count, mut offset) = (0, 0);
    while any & 1 != 0 && count < ids.len() {
        let is_wide = wide & 1;
        let value: [u8; 4] = window[offset + 1..offset + REACH].try_into().expect("four bytes");
        ids[count] = u32::from_be_bytes(value) >> (16 - 16 * is_wide);
        count += 1;
        let length = 3 + 2 * is_wide;
        offset += length as usize;
        wide >>= length;
        any >>= length;
    }
    (count, offset)
}

#[cfg(not(target_arch = "x86_64"))]
fn marked(_bytes: &[u8], _ids: &mut [u32]) -> (usize, usize) {
    (0, 0)
}

/// Which of the window's bytes are the mark of four bytes, and which of two: a bit each.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
fn marks(window: &[u8; WINDOW + REACH]) -> (u64, u64) {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8};
    let (mut wide, mut middle) = (0, 0);
    for (part, bytes) in window[..WINDOW].chunks_exact(16).enumerate() {
        // SAFETY: every x86-64 processor has SSE2, and the load reads the chunk's 16 bytes, wherever they lie.
        let (is_wide, is_middle) = unsafe {
            let bytes = _mm_loadu_si128(bytes.as_ptr().cast());
            let places_of = |mark: u8| _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(mark as i8)));
            (places_of(WIDE), places_of(MIDDLE))
        };
        wide |= u64::from(is_wide as u16) << (16 * part);
        middle |= u64::from(is_middle as u16) << (16 * part);
    }
    (wide, middle)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Integers in their smallest forms, a few of them wider than 32 bits.
    fn written() -> impl Strategy<Value = Vec<u64>> {
        let id = prop_oneof![
            1 => 0_u64..300,
            8 => 256_u64..150_000,
            4 => any::<u32>().prop_map(u64::from),
        ];
        prop::collection::vec(id, 0..200)
    }

    proptest! {
        #[test]
        fn windows_are_decoded_as_one_by_one(values in written(), cut in any::<prop::sample::Index>(), noise: u8, wide: bool) {
            let mut out = crate::wire::Writer::new();
            for &value in &values {
                out.uint(value);
            }
            if wide {
                out.uint(1 << 40);
            }
            let mut bytes = out.into_bytes();
            let count = values.len() + usize::from(wide);
            let (mut ids, mut expected) = (vec![0; count], vec![0; count]);
            let length = bytes.len();
            prop_assert_eq!(decode(&bytes, &mut ids), (!wide).then_some(length));
            if !wide {
                prop_assert!(ids.iter().map(|&id| u64::from(id)).eq(values));
            }
            // With any byte changed and any end cut off, both say the same.
            if length > 0 {
                bytes[cut.index(length)] = noise;
                for bytes in [&bytes[..], &bytes[..cut.index(length)]] {
                    prop_assert_eq!(decode(bytes, &mut ids), plain(bytes, &mut expected));
                }
            }
        }
    }
}
