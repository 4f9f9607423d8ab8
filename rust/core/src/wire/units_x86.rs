//! Token ids in vector instructions: two at a time, whatever their sizes, without a branch.
//!
//! The bytes of two ids and the marks of all forms lie in one register; which of them go where is looked up by the sizes
//! of the two. The twin of `put_ids` in `units`, which says what is right.
#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m128i, _mm_blend_epi16, _mm_castps_si128, _mm_castsi128_ps, _mm_cmpeq_epi32, _mm_loadu_si128, _mm_max_epu32,
    _mm_movemask_ps, _mm_set_epi32, _mm_set1_epi32, _mm_shuffle_epi8, _mm_shuffle_ps, _mm_srli_si128, _mm_storeu_si128,
};

/// Most bytes of an id.
const ID_BYTES: usize = 5;
const VECTOR: usize = size_of::<__m128i>();
/// Where the marks of ids of one, two and four bytes lie behind two ids.
const MARKS: u8 = 8;
/// The largest ids that need no mark, and those of one and of two bytes.
const LARGEST: [i32; 3] = [0x7f, 0xff, 0xffff];

/// How two ids go out. The index has two bits for each of `LARGEST`: whether the ids are above it.
struct Layouts {
    /// For each byte the place it comes from.
    sources: [[u8; VECTOR]; 64],
    lengths: [u8; 64],
}

static LAYOUTS: Layouts = Layouts::new();

impl Layouts {
    const fn new() -> Self {
        let mut all = Self {
            sources: [[0; VECTOR]; 64],
            lengths: [0; 64],
        };
        let mut index = 0;
        while index < all.sources.len() {
            let sources = &mut all.sources[index];
            let (mut id, mut end) = (0, 0);
            while id < 2 {
                let above = (index >> id & 1) + (index >> (2 + id) & 1) + (index >> (4 + id) & 1);
                if above > 0 {
                    sources[end] = MARKS + above as u8 - 1;
                    end += 1;
                }
                // Big-endian, the ids little-endian in four bytes each.
                let mut left = [1, 1, 2, 4][above];
                while left > 0 {
                    left -= 1;
                    sources[end] = 4 * id as u8 + left;
                    end += 1;
                }
                id += 1;
            }
            all.lengths[index] = end as u8;
            index += 1;
        }
        all
    }
}

/// Ids of 32 bits, or of 64 that are known to fit 32.
pub(super) trait Id: Copy + Default {
    /// The bytes of four of them as one or two vectors, narrowed to one.
    ///
    /// # Safety
    /// The processor has SSE 4.1.
    unsafe fn load(quad: &[Self; 4]) -> __m128i;
}

impl Id for u32 {
    #[target_feature(enable = "sse4.1")]
    unsafe fn load(quad: &[Self; 4]) -> __m128i {
        // SAFETY: four ids are as long as a vector.
        unsafe { _mm_loadu_si128(quad.as_ptr().cast()) }
    }
}

impl Id for u64 {
    #[target_feature(enable = "sse4.1")]
    unsafe fn load(quad: &[Self; 4]) -> __m128i {
        // SAFETY: four ids are as long as two vectors.
        let (first, second) = unsafe {
            let vectors: *const __m128i = quad.as_ptr().cast();
            (_mm_loadu_si128(vectors), _mm_loadu_si128(vectors.add(1)))
        };
        // The lower half of each.
        let halves = _mm_shuffle_ps::<0b10_00_10_00>(_mm_castsi128_ps(first), _mm_castsi128_ps(second));
        _mm_castps_si128(halves)
    }
}

/// Append ids, each in its smallest form. False, with nothing done, where the processor cannot.
pub(super) fn append<T: Id>(out: &mut Vec<u8>, ids: &[T]) -> bool {
    if !is_x86_feature_detected!("sse4.1") {
        return false;
    }
    let (quads, rest) = ids.as_chunks();
    // SAFETY: the processor has these instructions.
    unsafe {
        append_quads(out, quads);
        if !rest.is_empty() {
            let mut last = [T::default(); 4];
            last[..rest.len()].copy_from_slice(rest);
            append_quads(out, &[last]);
        }
    }
    // What was filled up with zeros took a byte each.
    if !rest.is_empty() {
        out.truncate(out.len() - (4 - rest.len()));
    }
    true
}

#[target_feature(enable = "sse4.1")]
fn append_quads<T: Id>(out: &mut Vec<u8>, quads: &[[T; 4]]) {
    out.reserve(ID_BYTES * 4 * quads.len() + VECTOR);
    let marks = _mm_set_epi32(0, 0x00ce_cdcc, 0, 0);
    let [plain, one, two] = LARGEST.map(|largest| _mm_set1_epi32(largest));
    let mut end = out.len();
    for quad in quads {
        // SAFETY: this function has the same instructions.
        let ids = unsafe { T::load(quad) };
        let (plain, one, two) = (above(ids, plain), above(ids, one), above(ids, two));
        for (pair, index) in [
            (ids, plain & 3 | (one & 3) << 2 | (two & 3) << 4),
            (_mm_srli_si128(ids, 8), plain >> 2 | (one >> 2) << 2 | (two >> 2) << 4),
        ] {
            let bytes = _mm_blend_epi16(pair, marks, 0xf0);
            // SAFETY: the index has six bits. Before each store `end` has grown by at most ten bytes for each pair
            // before it, so that a vector at `end` lies in what was reserved.
            unsafe {
                let sources = _mm_loadu_si128(LAYOUTS.sources.get_unchecked(index).as_ptr().cast());
                let place = out.as_mut_ptr().add(end);
                _mm_storeu_si128(place.cast(), _mm_shuffle_epi8(bytes, sources));
                end += usize::from(*LAYOUTS.lengths.get_unchecked(index));
            }
        }
    }
    // SAFETY: the bytes up to `end` were written, and they lie in what was reserved.
    unsafe { out.set_len(end) };
}

/// One bit an id.
#[target_feature(enable = "sse4.1")]
fn above(ids: __m128i, limit: __m128i) -> usize {
    let is_below = _mm_cmpeq_epi32(_mm_max_epu32(ids, limit), limit);
    !_mm_movemask_ps(_mm_castsi128_ps(is_below)) as usize & 0xf
}
