//! Writing msgpack: every value in its smallest form, as msgspec does.

use super::values::EngineHash;
use crate::tokens::TokenSlice;

/// A payload in the making.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// An empty payload.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty payload with room for `bytes` bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(bytes),
        }
    }

    /// What was written.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// What was written so far.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// For values that are laid out elsewhere.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Nothing.
    pub fn nil(&mut self) {
        self.bytes.push(0xc0);
    }

    /// A float of 64 bits.
    pub fn f64(&mut self, value: f64) {
        self.bytes.push(0xcb);
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    /// An integer from 0.
    pub fn uint(&mut self, value: u64) {
        if value < 0x80 {
            self.bytes.push(value as u8);
        } else if value <= 0xff {
            self.bytes.extend_from_slice(&[0xcc, value as u8]);
        } else if value <= 0xffff {
            self.marked(0xcd, (value as u16).to_be_bytes());
        } else if value <= 0xffff_ffff {
            self.marked(0xce, (value as u32).to_be_bytes());
        } else {
            self.marked(0xcf, value.to_be_bytes());
        }
    }

    /// An integer.
    pub fn int(&mut self, value: i64) {
        if value >= 0 {
            self.uint(value as u64);
        } else if value >= -0x20 {
            self.bytes.push(value as u8);
        } else if value >= i64::from(i8::MIN) {
            self.bytes.extend_from_slice(&[0xd0, value as u8]);
        } else if value >= i64::from(i16::MIN) {
            self.marked(0xd1, (value as i16).to_be_bytes());
        } else if value >= i64::from(i32::MIN) {
            self.marked(0xd2, (value as i32).to_be_bytes());
        } else {
            self.marked(0xd3, value.to_be_bytes());
        }
    }

    /// A string.
    pub fn str(&mut self, value: &str) {
        let length = value.len();
        match length {
            0..=31 => self.bytes.push(0xa0 | length as u8),
            _ => self.length([0xd9, 0xda, 0xdb], length),
        }
        self.bytes.extend_from_slice(value.as_bytes());
    }

    /// Bytes.
    pub fn bin(&mut self, value: &[u8]) {
        self.length([0xc4, 0xc5, 0xc6], value.len());
        self.bytes.extend_from_slice(value);
    }

    /// The header of an array of `length` values.
    pub fn array(&mut self, length: usize) {
        self.container(0x90, [0xdc, 0xdd], length);
    }

    /// The header of a map of `length` keys and values.
    pub fn map(&mut self, length: usize) {
        self.container(0x80, [0xde, 0xdf], length);
    }

    /// An array of token ids.
    pub fn tokens(&mut self, ids: TokenSlice<'_>) {
        self.array(ids.len());
        self.ids(ids);
    }

    /// A hash, in the form it has.
    pub fn hash(&mut self, hash: EngineHash<'_>) {
        match hash {
            EngineHash::Unsigned(value) => self.uint(value),
            EngineHash::Negative(value) => self.int(value),
            EngineHash::Bytes(bytes) => self.bin(bytes),
        }
    }

    /// A value that is msgpack already.
    pub fn raw(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
    }

    fn marked<const N: usize>(&mut self, marker: u8, value: [u8; N]) {
        self.bytes.push(marker);
        self.bytes.extend_from_slice(&value);
    }

    /// Markers for lengths of 8, 16 and 32 bits.
    fn length(&mut self, [short, middle, long]: [u8; 3], length: usize) {
        if length <= 0xff {
            self.bytes.extend_from_slice(&[short, length as u8]);
        } else {
            self.wide_length([middle, long], length);
        }
    }

    fn container(&mut self, fixed: u8, wide: [u8; 2], length: usize) {
        if length <= 15 {
            self.bytes.push(fixed | length as u8);
        } else {
            self.wide_length(wide, length);
        }
    }

    fn wide_length(&mut self, [middle, long]: [u8; 2], length: usize) {
        if length <= 0xffff {
            self.marked(middle, (length as u16).to_be_bytes());
        } else {
            let length = u32::try_from(length).expect("a payload stays far below 4 GiB");
            self.marked(long, length.to_be_bytes());
        }
    }
}
