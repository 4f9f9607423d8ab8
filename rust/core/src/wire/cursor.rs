//! Reading msgpack in place: typed reads over borrowed bytes, each checked against what is left.

use super::error::{Fault, Found, WireError};
use super::narrow;

pub(crate) const NIL: u8 = 0xc0;

/// The header of an array of two.
const A_PAIR: u8 = 0x92;

/// Bytes of an unsigned integer by the first of them; 0 where it is something else.
const UNSIGNED_SIZE: [u8; 256] = {
    let mut sizes = [0; 256];
    let mut first = 0;
    while first < 0x80 {
        sizes[first] = 1;
        first += 1;
    }
    sizes[0xcc] = 2;
    sizes[0xcd] = 3;
    sizes[0xce] = 5;
    sizes[0xcf] = 9;
    sizes
};

/// Bytes of an integer written with 64 bits.
pub(crate) const WORD_SIZE: usize = 9;

/// Whether an integer written with 64 bits begins so.
pub(crate) fn is_word(first: u8) -> bool {
    first == 0xcf || first == 0xd3
}

type Read<T> = Result<T, WireError>;

/// The header of a value, its length already known to fit what is left where it has a body.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Header {
    Nil,
    Bool(bool),
    Unsigned(u64),
    /// Below zero.
    Negative(i64),
    Float(f64),
    Str(usize),
    Bin(usize),
    Array(usize),
    Map(usize),
    /// Body, with the type byte counted in.
    Ext(usize),
}

/// A place in a payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a> {
    data: &'a [u8],
    offset: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Self { data, offset: 0 }
    }

    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    pub(crate) fn left(&self) -> usize {
        self.data.len() - self.offset
    }

    /// The first byte of the next value.
    pub(crate) fn peek(&self) -> Read<u8> {
        match self.data.get(self.offset) {
            Some(&byte) => Ok(byte),
            None => Err(self.cut_off("a value", 1, self.offset)),
        }
    }

    /// The payload from `start` to here.
    pub(crate) fn since(&self, start: usize) -> &'a [u8] {
        &self.data[start..self.offset]
    }

    fn cut_off(&self, what: &'static str, needed: u64, start: usize) -> WireError {
        let left = self.left();
        Fault::CutOff { what, needed, left }.at(start)
    }

    fn take<const N: usize>(&mut self, what: &'static str, start: usize) -> Read<[u8; N]> {
        let Some(bytes) = self.data[self.offset..].first_chunk::<N>() else {
            return Err(self.cut_off(what, N as u64, start));
        };
        self.offset += N;
        Ok(*bytes)
    }

    /// A body of `length` values of at least one byte each must fit what is left.
    fn fits(&self, what: &'static str, length: u64, start: usize) -> Read<usize> {
        if length > self.left() as u64 {
            return Err(self.cut_off(what, length, start));
        }
        Ok(length as usize)
    }

    /// Read the header of the next value; the cursor then stands at its body.
    pub(crate) fn header(&mut self) -> Read<Header> {
        let start = self.offset;
        let first = self.peek()?;
        self.offset += 1;
        Ok(match first {
            0x00..=0x7f => Header::Unsigned(u64::from(first)),
            0x80..=0x8f => Header::Map(self.pairs(u64::from(first & 0x0f), start)?),
            0x90..=0x9f => Header::Array(self.fits("an array", u64::from(first & 0x0f), start)?),
            0xa0..=0xbf => Header::Str(self.fits("a string", u64::from(first & 0x1f), start)?),
            0xc0 => Header::Nil,
            0xc1 => return Err(Fault::ReservedByte.at(start)),
            0xc2 | 0xc3 => Header::Bool(first == 0xc3),
            0xc4..=0xc6 => {
                let length = self.length(first - 0xc4, "binary", start)?;
                Header::Bin(self.fits("binary", length, start)?)
            }
            0xc7..=0xc9 => {
                let length = self.length(first - 0xc7, "an extension", start)?;
                Header::Ext(self.fits("an extension", length + 1, start)?)
            }
            0xca => Header::Float(f64::from(f32::from_be_bytes(self.take("a float", start)?))),
            0xcb => Header::Float(f64::from_be_bytes(self.take("a float", start)?)),
            0xcc => Header::Unsigned(u64::from(u8::from_be_bytes(self.take("an integer", start)?))),
            0xcd => Header::Unsigned(u64::from(u16::from_be_bytes(self.take("an integer", start)?))),
            0xce => Header::Unsigned(u64::from(u32::from_be_bytes(self.take("an integer", start)?))),
            0xcf => Header::Unsigned(u64::from_be_bytes(self.take("an integer", start)?)),
            0xd0 => signed(i8::from_be_bytes(self.take("an integer", start)?)),
            0xd1 => signed(i16::from_be_bytes(self.take("an integer", start)?)),
            0xd2 => signed(i32::from_be_bytes(self.take("an integer", start)?)),
            0xd3 => signed(i64::from_be_bytes(self.take("an integer", start)?)),
            0xd4..=0xd8 => Header::Ext(self.fits("an extension", 1 + (1 << (first - 0xd4)), start)?),
            0xd9..=0xdb => {
                let length = self.length(first - 0xd9, "a string", start)?;
                Header::Str(self.fits("a string", length, start)?)
            }
            0xdc | 0xdd => {
                let length = self.length(first - 0xdb, "an array", start)?;
                Header::Array(self.fits("an array", length, start)?)
            }
            0xde | 0xdf => {
                let length = self.length(first - 0xdd, "a map", start)?;
                Header::Map(self.pairs(length, start)?)
            }
            0xe0..=0xff => Header::Negative(i64::from(first as i8)),
        })
    }

    /// A length of 1, 2 or 4 bytes (`width` 0, 1, 2).
    fn length(&mut self, width: u8, what: &'static str, start: usize) -> Read<u64> {
        Ok(match width {
            0 => u64::from(u8::from_be_bytes(self.take(what, start)?)),
            1 => u64::from(u16::from_be_bytes(self.take(what, start)?)),
            _ => u64::from(u32::from_be_bytes(self.take(what, start)?)),
        })
    }

    fn pairs(&self, count: u64, start: usize) -> Read<usize> {
        self.fits("a map", count * 2, start)?;
        Ok(count as usize)
    }

    /// A body that `header` has checked.
    pub(crate) fn body(&mut self, length: usize) -> &'a [u8] {
        let start = self.offset;
        self.offset += length;
        &self.data[start..self.offset]
    }

    /// The body of a string.
    pub(crate) fn text(&mut self, length: usize) -> Read<&'a str> {
        let start = self.offset;
        std::str::from_utf8(self.body(length)).map_err(|error| Fault::NotUtf8.at(start + error.valid_up_to()))
    }

    /// The array that comes next: its length.
    pub(crate) fn array(&mut self, field: &'static str, expected: &'static str) -> Read<usize> {
        let start = *self;
        match self.header()? {
            Header::Array(length) => Ok(length),
            _ => Err(start.wrong_type(field, expected)),
        }
    }

    /// The key that comes next in a map; None where it is no string.
    pub(crate) fn key(&mut self) -> Read<Option<&'a str>> {
        let start = *self;
        if let Header::Str(length) = self.header()? {
            return Ok(Some(self.text(length)?));
        }
        *self = start;
        self.skip(0)?;
        Ok(None)
    }

    /// A string or nil.
    pub(crate) fn optional_str(&mut self, field: &'static str) -> Read<Option<&'a str>> {
        let start = *self;
        match self.header()? {
            Header::Nil => Ok(None),
            Header::Str(length) => Ok(Some(self.text(length)?)),
            _ => Err(start.wrong_type(field, "a string or nil")),
        }
    }

    /// An integer from 0.
    pub(crate) fn u64(&mut self, field: &'static str) -> Read<u64> {
        let start = *self;
        match self.header()? {
            Header::Unsigned(value) => Ok(value),
            Header::Negative(value) => Err(start.out_of_range(field, "an integer from 0 to 2^64-1", value.into())),
            _ => Err(start.wrong_type(field, "an integer")),
        }
    }

    /// An integer from 0, or nil.
    pub(crate) fn optional_u64(&mut self, field: &'static str) -> Read<Option<u64>> {
        if self.peek()? == NIL {
            self.offset += 1;
            return Ok(None);
        }
        self.u64(field).map(Some)
    }

    /// An integer of 64 bits, or nil.
    pub(crate) fn optional_i64(&mut self, field: &'static str) -> Read<Option<i64>> {
        let start = *self;
        match self.header()? {
            Header::Nil => Ok(None),
            Header::Negative(value) => Ok(Some(value)),
            Header::Unsigned(value) => i64::try_from(value)
                .map(Some)
                .map_err(|_| start.out_of_range(field, "an integer below 2^63", value.into())),
            _ => Err(start.wrong_type(field, "an integer or nil")),
        }
    }

    /// The next value does not fit. To be called on the cursor before the value.
    pub(crate) fn out_of_range(&self, field: &'static str, expected: &'static str, value: i128) -> WireError {
        Fault::OutOfRange { field, expected, value }.at(self.offset)
    }

    /// The next value is not what it should be. To be called on the cursor before the value.
    pub(crate) fn wrong_type(&self, field: &'static str, expected: &'static str) -> WireError {
        let found = Found(self.data.get(self.offset).copied().unwrap_or(0xc1));
        Fault::WrongType { field, expected, found }.at(self.offset)
    }

    /// Pass `count` unsigned integers, or pairs of them, if that is what comes next; else stay. This is what nearly
    /// all of a payload consists of, so it goes by sizes alone and leaves the words to those who find a fault.
    pub(crate) fn pass_unsigned(&mut self, count: usize, pairs: bool) -> bool {
        let mut offset = self.offset;
        for _ in 0..count {
            if pairs {
                if self.data.get(offset) != Some(&A_PAIR) {
                    return false;
                }
                offset += 1;
            }
            for _ in 0..=usize::from(pairs) {
                let size = self
                    .data
                    .get(offset)
                    .map_or(0, |first| UNSIGNED_SIZE[usize::from(*first)]);
                if size == 0 {
                    return false;
                }
                offset += usize::from(size);
            }
        }
        let fits = offset <= self.data.len();
        if fits {
            self.offset = offset;
        }
        fits
    }

    /// Pass `count` integers written with 64 bits, if that is what comes next; else stay.
    pub(crate) fn pass_words(&mut self, count: usize) -> bool {
        let Some(size) = count.checked_mul(WORD_SIZE) else {
            return false;
        };
        let words = self.data[self.offset..].get(..size);
        let fits = words.is_some_and(|words| words.chunks_exact(WORD_SIZE).all(|word| is_word(word[0])));
        if fits {
            self.offset += size;
        }
        fits
    }

    /// Pass `count` unsigned integers of at most 32 bits, in their usual forms, and append them to `ids`, if that is
    /// what comes next; else stay.
    pub(crate) fn read_narrow(&mut self, count: usize, ids: &mut Vec<u32>) -> bool {
        // Each takes a byte at least.
        if count > self.left() {
            return false;
        }
        let before = ids.len();
        ids.resize(before + count, 0);
        let length = narrow::decode(&self.data[self.offset..], &mut ids[before..]);
        match length {
            Some(length) => self.offset += length,
            None => ids.truncate(before),
        }
        length.is_some()
    }

    /// An integer from 0 that is known to come next: eight bytes at once and the surplus shifted out where the
    /// payload is long enough.
    pub(crate) fn known_unsigned(&mut self) -> u64 {
        let first = self.data[self.offset];
        let size = usize::from(UNSIGNED_SIZE[usize::from(first)]);
        if size == 1 {
            self.offset += 1;
            return u64::from(first);
        }
        match self.data[self.offset + 1..].first_chunk::<8>() {
            Some(bytes) if size > 1 => {
                self.offset += size;
                u64::from_be_bytes(*bytes) >> (8 * (9 - size))
            }
            // Near the end of the payload, or written as a signed integer.
            _ => match self.header() {
                Ok(Header::Unsigned(value)) => value,
                other => unreachable!("the reader let {other:?} pass as an unsigned integer"),
            },
        }
    }

    /// Pass one value of any type and give its depth: 0 for a scalar, 1 for a flat array. At most `limit` levels
    /// are told apart; what lies deeper is checked all the same, and the answer is then `limit + 1`.
    pub(crate) fn skip(&mut self, limit: usize) -> Read<usize> {
        // Values still to come at each open level; beyond the limit all levels share the last counter.
        let mut open: Vec<u64> = Vec::new();
        let mut deepest = 0;
        loop {
            let children = match self.header()? {
                Header::Str(length) => {
                    self.text(length)?;
                    0
                }
                Header::Bin(length) | Header::Ext(length) => {
                    self.body(length);
                    0
                }
                Header::Array(length) => {
                    deepest = deepest.max(open.len().min(limit) + 1);
                    length as u64
                }
                Header::Map(length) => {
                    deepest = deepest.max(open.len().min(limit) + 1);
                    2 * length as u64
                }
                _ => 0,
            };
            if children > 0 {
                if open.len() <= limit {
                    open.push(children);
                } else if let Some(shared) = open.last_mut() {
                    *shared += children;
                    // The value itself is done, its children were added in its place.
                    *shared -= 1;
                }
                continue;
            }
            loop {
                match open.last_mut() {
                    None => return Ok(deepest),
                    Some(1) => {
                        open.pop();
                    }
                    Some(more) => {
                        *more -= 1;
                        break;
                    }
                }
            }
        }
    }
}

fn signed(value: impl Into<i64>) -> Header {
    let value = value.into();
    u64::try_from(value).map_or(Header::Negative(value), Header::Unsigned)
}
