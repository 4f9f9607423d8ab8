//! Canonical CBOR, as far as block hashes need it: every value in its smallest form.

use super::Encoder;
use super::ids::{self, Bytes, LONGEST};
use crate::tokens::TokenSlice;

const UNSIGNED: u8 = 0;
const NEGATIVE: u8 = 1;
const BYTES: u8 = 2;
const TEXT: u8 = 3;
const ARRAY: u8 = 4;
const NULL: u8 = 0xf6;

/// Writes one value.
#[derive(Debug, Default)]
pub(super) struct Cbor(Bytes);

impl Cbor {
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn head(&mut self, major: u8, value: u64) {
        let major = major << 5;
        match value {
            0..24 => self.0.push(major | value as u8),
            24..0x100 => self.0.extend_from_slice(&[major | 0x18, value as u8]),
            0x100..0x1_0000 => self.marked(major | 0x19, (value as u16).to_be_bytes()),
            0x1_0000..0x1_0000_0000 => self.marked(major | 0x1a, (value as u32).to_be_bytes()),
            _ => self.marked(major | 0x1b, value.to_be_bytes()),
        }
    }

    fn marked<const N: usize>(&mut self, mark: u8, value: [u8; N]) {
        self.0.push(mark);
        self.0.extend_from_slice(&value);
    }
}

impl Encoder for Cbor {
    fn open(&mut self, length: usize) {
        self.head(ARRAY, length as u64);
    }

    fn close(&mut self, _length: usize) {}

    fn ids(&mut self, ids: TokenSlice<'_>) {
        self.open(ids.len());
        if !ids::append(&mut self.0, ids, u32::MAX, narrow_id) {
            ids.iter().for_each(|id| self.head(UNSIGNED, id));
        }
    }

    fn digest(&mut self, digest: &[u8]) {
        self.bytes(digest);
    }

    fn none(&mut self) {
        self.0.push(NULL);
    }

    fn int(&mut self, value: i64) {
        match u64::try_from(value) {
            Ok(value) => self.head(UNSIGNED, value),
            Err(_) => self.head(NEGATIVE, !value.cast_unsigned()),
        }
    }

    fn bytes(&mut self, value: &[u8]) {
        self.head(BYTES, value.len() as u64);
        self.0.extend_from_slice(value);
    }

    fn text(&mut self, value: &str) {
        self.head(TEXT, value.len() as u64);
        self.0.extend_from_slice(value.as_bytes());
    }

    fn literal(&mut self, value: &'static str) {
        self.text(value);
    }
}

/// An id of up to 32 bits; most have 9 to 32.
fn narrow_id(id: u32, place: &mut [u8; LONGEST]) -> usize {
    let is_wide = id > 0xffff;
    let [mark, number @ ..] = place;
    *mark = 0x19 + u8::from(is_wide);
    *number = if is_wide { id } else { id << 16 }.to_be_bytes();
    match id {
        0..24 => *mark = id as u8,
        24..0x100 => [*mark, number[0]] = [0x18, id as u8],
        _ => return 3 + 2 * usize::from(is_wide),
    }
    1 + usize::from(id >= 24)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_takes_its_smallest_form() {
        let mut out = Cbor::default();
        out.ids(TokenSlice::U64(&[
            0,
            23,
            24,
            255,
            256,
            65_535,
            65_536,
            u64::from(u32::MAX),
            1 << 32,
        ]));
        let expected: [&[u8]; 10] = [
            &[0x89],
            &[0],
            &[0x17],
            &[0x18, 0x18],
            &[0x18, 0xff],
            &[0x19, 1, 0],
            &[0x19, 0xff, 0xff],
            &[0x1a, 0, 1, 0, 0],
            &[0x1a, 0xff, 0xff, 0xff, 0xff],
            &[0x1b, 0, 0, 0, 1, 0, 0, 0, 0],
        ];
        assert_eq!(out.as_bytes(), expected.concat());
    }

    #[test]
    fn negative_numbers_count_from_minus_one() {
        let mut out = Cbor::default();
        for value in [-1, -24, -25, -256, -257, i64::MIN] {
            out.int(value);
        }
        let expected: [&[u8]; 6] = [
            &[0x20],
            &[0x37],
            &[0x38, 0x18],
            &[0x38, 0xff],
            &[0x39, 1, 0],
            &[0x3b, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        ];
        assert_eq!(out.as_bytes(), expected.concat());
    }

    #[test]
    fn ids_of_both_widths_are_the_same_bytes() {
        let (mut narrow, mut wide) = (Cbor::default(), Cbor::default());
        narrow.ids(TokenSlice::U32(&[7, 70_000]));
        wide.ids(TokenSlice::U64(&[7, 70_000]));
        assert_eq!(narrow.as_bytes(), wide.as_bytes());
    }

    #[test]
    fn texts_bytes_and_null_are_told_apart() {
        let mut out = Cbor::default();
        out.open(3);
        out.text("0");
        out.bytes(b"0");
        out.none();
        assert_eq!(out.as_bytes(), [0x83, 0x61, 0x30, 0x41, 0x30, 0xf6]);
    }
}
