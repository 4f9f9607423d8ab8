//! Python's pickle, protocol 5, as far as block hashes need it: the bytes that `pickle.dumps(value, protocol=5)` gives.
//!
//! A pickle names an object that came before by its number in the memo, so its bytes depend on which parts of a value
//! are *one object*. Here these are the string literals of vLLM's source, and what CPython keeps once whoever made it:
//! the empty string, strings of one Latin-1 character, and bytes of length 0 or 1. All else comes out of a decoder and
//! is an object of its own, though it may be equal to another.

use smallvec::SmallVec;

use super::Encoder;
use super::ids::{self, Bytes, LONGEST};
use crate::tokens::TokenSlice;

const PROTOCOL: [u8; 2] = [0x80, 5];
const FRAME: u8 = 0x95;
/// Opcode and length.
const FRAME_HEAD: usize = 9;
/// A frame ends before the next value once it has so many bytes; a string or bytes of this size stand outside of frames.
const FRAME_TARGET: usize = 64 * 1024;
/// What is shorter gets no frame.
const FRAME_LEAST: usize = 4;
const STOP: u8 = b'.';
const MARK: u8 = b'(';
const MEMOIZE: u8 = 0x94;

/// Writes one value.
#[derive(Debug)]
pub(super) struct Pickle {
    out: Bytes,
    /// Where the head of the open frame stands.
    frame: Option<usize>,
    /// Objects in the memo.
    memo: usize,
    /// Those that can come again, with their places in the memo.
    shared: SmallVec<[(Shared, usize); 4]>,
}

/// A value that is one object wherever it occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shared {
    Literal(&'static str),
    Text(Option<char>),
    Bytes(Option<u8>),
}

impl Default for Pickle {
    fn default() -> Self {
        Self {
            out: SmallVec::from_slice(&PROTOCOL),
            frame: None,
            memo: 0,
            shared: SmallVec::new(),
        }
    }
}

impl Pickle {
    /// The pickle of the value that was written.
    pub fn finish(&mut self) -> &[u8] {
        self.write(&[STOP]);
        self.close_frame();
        &self.out
    }

    fn write(&mut self, bytes: &[u8]) {
        if self.frame.is_none() {
            self.frame = Some(self.out.len());
            self.out.extend_from_slice(&[0; FRAME_HEAD]);
        }
        self.out.extend_from_slice(bytes);
    }

    /// Bytes that fit the open frame before it ends.
    fn room(&self) -> usize {
        let length = self.frame.map(|start| self.out.len() - start - FRAME_HEAD);
        length.map_or(0, |length| FRAME_TARGET.saturating_sub(length))
    }

    /// A value begins.
    fn boundary(&mut self) {
        if self
            .frame
            .is_some_and(|start| self.out.len() - start - FRAME_HEAD >= FRAME_TARGET)
        {
            self.close_frame();
        }
    }

    fn close_frame(&mut self) {
        let Some(start) = self.frame.take() else { return };
        let head_end = start + FRAME_HEAD;
        let length = self.out.len() - head_end;
        if length >= FRAME_LEAST {
            self.out[start] = FRAME;
            self.out[start + 1..head_end].copy_from_slice(&(length as u64).to_le_bytes());
        } else {
            self.out.drain(start..head_end);
        }
    }

    fn memoize(&mut self) {
        self.write(&[MEMOIZE]);
        self.memo += 1;
    }

    /// Name an object that is in the memo already. False if it is not: then it comes next.
    fn recall(&mut self, object: Shared) -> bool {
        self.boundary();
        let known = self.shared.iter().find(|(known, _)| *known == object);
        let Some(&(_, place)) = known else {
            self.shared.push((object, self.memo));
            return false;
        };
        match u8::try_from(place) {
            Ok(place) => self.write(&[b'h', place]),
            Err(_) => self.numbered(b'j', (place as u32).to_le_bytes()),
        }
        true
    }

    fn numbered<const N: usize>(&mut self, opcode: u8, number: [u8; N]) {
        self.write(&[opcode]);
        self.write(&number);
    }

    /// A value with its length before it; opcodes for lengths of 1, 4 and 8 bytes.
    fn sized(&mut self, opcodes: [u8; 3], value: &[u8]) {
        let outside = value.len() >= FRAME_TARGET;
        if outside {
            self.close_frame();
        }
        let length = value.len();
        let mut head: SmallVec<[u8; 16]> = SmallVec::new();
        if let Ok(length) = u8::try_from(length) {
            head.extend_from_slice(&[opcodes[0], length]);
        } else if let Ok(length) = u32::try_from(length) {
            head.push(opcodes[1]);
            head.extend_from_slice(&length.to_le_bytes());
        } else {
            head.push(opcodes[2]);
            head.extend_from_slice(&(length as u64).to_le_bytes());
        }
        if outside {
            self.out.extend_from_slice(&head);
            self.out.extend_from_slice(value);
        } else {
            self.write(&head);
            self.write(value);
        }
        self.memoize();
    }

    fn string(&mut self, value: &str) {
        self.sized([0x8c, b'X', 0x8d], value.as_bytes());
    }

    fn id(&mut self, id: u64) {
        self.boundary();
        if let Ok(id) = u8::try_from(id) {
            self.write(&[b'K', id]);
        } else if let Ok(id) = u16::try_from(id) {
            self.numbered(b'M', id.to_le_bytes());
        } else if let Ok(id) = i32::try_from(id) {
            self.numbered(b'J', id.to_le_bytes());
        } else {
            self.long(i128::from(id));
        }
    }

    /// Two's complement in as few bytes as hold the sign.
    fn long(&mut self, value: i128) {
        let bytes = value.to_le_bytes();
        let bits = 128 - if value < 0 { !value } else { value }.leading_zeros() + 1;
        let length = bits.div_ceil(8) as usize;
        self.write(&[0x8a, length as u8]);
        self.write(&bytes[..length]);
    }
}

impl Encoder for Pickle {
    fn open(&mut self, length: usize) {
        self.boundary();
        if length > 3 {
            self.write(&[MARK]);
        }
    }

    fn close(&mut self, length: usize) {
        match length {
            // The one empty tuple is not memoized.
            0 => return self.write(b")"),
            1..=3 => self.write(&[0x84 + length as u8]),
            _ => self.write(b"t"),
        }
        self.memoize();
    }

    fn ids(&mut self, ids: TokenSlice<'_>) {
        self.open(ids.len());
        let is_short = ids.len() * LONGEST < self.room();
        if !(is_short && ids::append(&mut self.out, ids, i32::MAX.cast_unsigned(), narrow_id)) {
            ids.iter().for_each(|id| self.id(id));
        }
        self.close(ids.len());
    }

    fn digest(&mut self, digest: &[u8]) {
        self.bytes(digest);
    }

    fn none(&mut self) {
        self.boundary();
        self.write(b"N");
    }

    fn int(&mut self, value: i64) {
        if let Ok(value) = u64::try_from(value) {
            return self.id(value);
        }
        self.boundary();
        match i32::try_from(value) {
            Ok(value) => self.numbered(b'J', value.to_le_bytes()),
            Err(_) => self.long(i128::from(value)),
        }
    }

    fn bytes(&mut self, value: &[u8]) {
        let shared = value.len() < 2 && self.recall(Shared::Bytes(value.first().copied()));
        if !shared {
            self.boundary();
            self.sized([b'C', b'B', 0x8e], value);
        }
    }

    fn text(&mut self, value: &str) {
        let mut chars = value.chars();
        let (first, second) = (chars.next(), chars.next());
        let is_kept = second.is_none() && first.is_none_or(|char| char <= '\u{ff}');
        let shared = is_kept && self.recall(Shared::Text(first));
        if !shared {
            self.boundary();
            self.string(value);
        }
    }

    fn literal(&mut self, value: &'static str) {
        if !self.recall(Shared::Literal(value)) {
            self.string(value);
        }
    }
}

/// An id of up to 31 bits; most have more than 8.
fn narrow_id(id: u32, place: &mut [u8; LONGEST]) -> usize {
    let is_wide = id > 0xffff;
    let [opcode, number @ ..] = place;
    *opcode = if is_wide { b'J' } else { b'M' };
    *number = id.to_le_bytes();
    if id < 0x100 {
        *opcode = b'K';
        return 2;
    }
    3 + 2 * usize::from(is_wide)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pickled(write: impl FnOnce(&mut Pickle)) -> Vec<u8> {
        let mut out = Pickle::default();
        write(&mut out);
        out.finish().to_vec()
    }

    /// Expected bytes are those of CPython 3.11; `tests/property/test_hashing_vllm.py` compares with the module itself.
    #[test]
    fn a_block_without_keys_is_one_frame() {
        let bytes = pickled(|out| {
            out.open(3);
            out.digest(&[0xaa; 32]);
            out.ids(TokenSlice::U32(&[1, 255, 256, 65_535, 65_536]));
            out.none();
            out.close(3);
        });
        let body: [&[u8]; 4] = [
            b"C\x20",
            &[0xaa; 32],
            b"\x94(K\x01K\xffM\x00\x01M\xff\xffJ\x00\x00\x01\x00t\x94",
            b"N\x87\x94.",
        ];
        let body = body.concat();
        let head = [&[0x80, 5, 0x95][..], &(body.len() as u64).to_le_bytes()].concat();
        assert_eq!(bytes, [head, body].concat());
    }

    #[test]
    fn a_literal_that_came_before_is_named_by_its_place_and_an_equal_text_is_not() {
        let bytes = pickled(|out| {
            out.open(4);
            out.literal("mm");
            out.text("mm");
            out.text("mm");
            out.literal("mm");
            out.close(4);
        });
        assert_eq!(&bytes[11..], b"(\x8c\x02mm\x94\x8c\x02mm\x94\x8c\x02mm\x94h\x00t\x94.");
    }

    #[test]
    fn what_python_keeps_once_is_one_object() {
        let bytes = pickled(|out| {
            out.open(8);
            for text in ["\u{e9}", "\u{e9}", "\u{100}", "\u{100}", "", ""] {
                out.text(text);
            }
            out.bytes(b"x");
            out.bytes(b"x");
            out.close(8);
        });
        let latin = b"\x8c\x02\xc3\xa9\x94h\x00";
        let beyond = b"\x8c\x02\xc4\x80\x94\x8c\x02\xc4\x80\x94";
        let rest = b"\x8c\x00\x94h\x03C\x01x\x94h\x04t\x94.";
        assert_eq!(bytes[12..], [&latin[..], beyond, rest].concat());
    }

    #[test]
    fn long_numbers_have_room_for_their_sign() {
        let long = |value: i64| pickled(|out| out.int(value))[11..].to_vec();
        assert_eq!(long(1 << 31), b"\x8a\x05\x00\x00\x00\x80\x00.");
        assert_eq!(long(-(1 << 31)), b"J\x00\x00\x00\x80.");
        assert_eq!(long(-(1 << 31) - 1), b"\x8a\x05\xff\xff\xff\x7f\xff.");
        assert_eq!(long(i64::MIN), b"\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80.");
        let ids = pickled(|out| out.ids(TokenSlice::U64(&[u64::MAX])));
        assert_eq!(&ids[11..], b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00\x85\x94.");
    }
}
