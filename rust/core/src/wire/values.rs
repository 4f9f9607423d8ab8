//! Values of events, borrowed from the payload and decoded where they are used.

use super::cursor::{Cursor, Header, WORD_SIZE, is_word};
use super::error::{Fault, WireError};
use crate::tokens::TokenVec;

/// A value that was checked and is kept as the bytes it came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raw<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Raw<'a> {
    pub(crate) fn new(bytes: &'a [u8], offset: usize) -> Self {
        Self { bytes, offset }
    }

    /// Check a msgpack value that is all there is in `bytes`.
    pub fn read(bytes: &'a [u8]) -> Result<Self, WireError> {
        let mut cursor = Cursor::new(bytes);
        cursor.skip(0)?;
        match cursor.left() {
            0 => Ok(Self { bytes, offset: 0 }),
            count => Err(Fault::TrailingBytes { count }.at(cursor.offset())),
        }
    }

    /// The msgpack value.
    pub fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// Where it begins in the payload.
    pub fn offset(self) -> usize {
        self.offset
    }

    /// Whether it is nil.
    pub fn is_nil(self) -> bool {
        self.bytes == [0xc0]
    }

    /// What it holds, one level deep.
    pub fn value(self) -> Value<'a> {
        let mut cursor = Cursor::new(self.bytes);
        value(&mut cursor, self.offset)
    }
}

/// One level of a value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// Nothing.
    Nil,
    /// True or false.
    Bool(bool),
    /// An integer from 0.
    Unsigned(u64),
    /// An integer below 0.
    Negative(i64),
    /// A float.
    Float(f64),
    /// A string.
    Str(&'a str),
    /// Bytes.
    Bin(&'a [u8]),
    /// The elements of an array.
    Array(Elements<'a>),
    /// The elements of a map: key, value, key, value.
    Map(Elements<'a>),
    /// An extension: its type and body.
    Ext(i8, &'a [u8]),
}

/// The values in an array or a map, one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Elements<'a> {
    bytes: &'a [u8],
    offset: usize,
    left: usize,
}

impl<'a> Iterator for Elements<'a> {
    type Item = Raw<'a>;

    fn next(&mut self) -> Option<Raw<'a>> {
        self.left = self.left.checked_sub(1)?;
        let mut cursor = Cursor::new(self.bytes);
        checked(cursor.skip(0));
        let raw = Raw::new(cursor.since(0), self.offset);
        self.bytes = &self.bytes[raw.bytes.len()..];
        self.offset += raw.bytes.len();
        Some(raw)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Elements<'_> {}

fn value<'a>(cursor: &mut Cursor<'a>, offset: usize) -> Value<'a> {
    let header = checked(cursor.header());
    let elements = |cursor: &mut Cursor<'a>, left| {
        let offset = offset + cursor.offset();
        let bytes = cursor.body(cursor.left());
        Elements { bytes, offset, left }
    };
    match header {
        Header::Nil => Value::Nil,
        Header::Bool(value) => Value::Bool(value),
        Header::Unsigned(value) => Value::Unsigned(value),
        Header::Negative(value) => Value::Negative(value),
        Header::Float(value) => Value::Float(value),
        Header::Str(length) => Value::Str(checked(cursor.text(length))),
        Header::Bin(length) => Value::Bin(cursor.body(length)),
        Header::Array(length) => Value::Array(elements(cursor, length)),
        Header::Map(length) => Value::Map(elements(cursor, 2 * length)),
        Header::Ext(length) => {
            let body = cursor.body(length);
            Value::Ext(body[0] as i8, &body[1..])
        }
    }
}

/// The reader has passed over these bytes once, so reading them again cannot fail.
fn checked<T>(result: Result<T, WireError>) -> T {
    result.expect("the reader checked these bytes")
}

/// What an engine calls a block, as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EngineHash<'a> {
    /// An integer from 0.
    Unsigned(u64),
    /// An integer below 0.
    Negative(i64),
    /// A digest.
    Bytes(&'a [u8]),
}

impl EngineHash<'_> {
    /// One key for all forms of one hash: the last 8 bytes, big-endian.
    pub fn key(self) -> u64 {
        match self {
            Self::Unsigned(value) => value,
            Self::Negative(value) => value as u64,
            Self::Bytes(bytes) => match bytes.last_chunk::<8>() {
                Some(last) => u64::from_be_bytes(*last),
                None => bytes.iter().fold(0, |key, &byte| (key << 8) | u64::from(byte)),
            },
        }
    }
}

/// Hashes in an event, checked and not yet decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HashList<'a> {
    bytes: &'a [u8],
    len: usize,
}

impl<'a> HashList<'a> {
    pub(crate) fn new(bytes: &'a [u8], len: usize) -> Self {
        Self { bytes, len }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Append the key of each hash.
    pub fn keys_into(&self, keys: &mut Vec<u64>) {
        let words = self.bytes.chunks_exact(WORD_SIZE);
        let are_words = self.bytes.len() == self.len * WORD_SIZE && words.clone().all(|word| is_word(word[0]));
        if are_words {
            keys.extend(words.map(|word| word[1..].iter().fold(0, |key, &byte| key << 8 | u64::from(byte))));
        } else {
            keys.extend(self.iter().map(EngineHash::key));
        }
    }

    /// The hashes in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = EngineHash<'a>> + use<'a> {
        let mut cursor = Cursor::new(self.bytes);
        (0..self.len).map(move |_| engine_hash(&mut cursor))
    }
}

fn engine_hash<'a>(cursor: &mut Cursor<'a>) -> EngineHash<'a> {
    match checked(cursor.header()) {
        Header::Unsigned(value) => EngineHash::Unsigned(value),
        Header::Negative(value) => EngineHash::Negative(value),
        Header::Bin(length) => EngineHash::Bytes(cursor.body(length)),
        other => unreachable!("the reader let {other:?} pass as a hash"),
    }
}

/// Tokens in an event, checked and not yet decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenList<'a> {
    bytes: &'a [u8],
    len: usize,
    pairs: bool,
    decoded: Option<usize>,
}

impl<'a> TokenList<'a> {
    pub(crate) fn new(bytes: &'a [u8], len: usize, pairs: bool) -> Self {
        Self {
            bytes,
            len,
            pairs,
            decoded: None,
        }
    }

    /// The same list, whose ids were decoded and begin at `place`.
    pub(crate) fn with_decoded(self, place: usize) -> Self {
        Self {
            decoded: Some(place),
            ..self
        }
    }

    /// The ids among those that were decoded while the batch was read; None for pairs, for ids over 32 bits, and for
    /// integers in unusual forms.
    pub fn decoded<'i>(&self, ids: &'i [u32]) -> Option<&'i [u32]> {
        let place = self.decoded?;
        ids.get(place..place + self.len)
    }

    /// How many tokens, or pairs of them.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements as they came.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Whether the elements are pairs of neighbouring tokens (EAGLE).
    pub fn is_pairs(&self) -> bool {
        self.pairs
    }

    /// The tokens in order; of pairs, the members one after the other.
    pub fn members(&self) -> impl ExactSizeIterator<Item = u64> + use<'a> {
        let mut cursor = Cursor::new(self.bytes);
        let pairs = self.pairs;
        let count = if pairs { 2 * self.len } else { self.len };
        (0..count).map(move |index| {
            if pairs && index % 2 == 0 {
                checked(cursor.header());
            }
            cursor.known_unsigned()
        })
    }

    /// Append the sequence of tokens; of pairs, the first member of each and the second of the last.
    pub fn copy_into(&self, tokens: &mut TokenVec) {
        if self.pairs {
            let mut members = self.members();
            let mut last = None;
            while let (Some(first), second) = (members.next(), members.next()) {
                tokens.push(first);
                last = second;
            }
            if let Some(last) = last {
                tokens.push(last);
            }
        } else {
            self.members().for_each(|id| tokens.push(id));
        }
    }
}

/// The `extra_keys` of a store: one entry a block, nil or an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtraKeys<'a> {
    raw: Raw<'a>,
}

impl<'a> ExtraKeys<'a> {
    pub(crate) fn new(raw: Raw<'a>) -> Self {
        Self { raw }
    }

    /// The whole array as it came.
    pub fn raw(&self) -> Raw<'a> {
        self.raw
    }

    /// One entry a block: nil or an array.
    pub fn iter(&self) -> Elements<'a> {
        match self.raw.value() {
            Value::Array(entries) => entries,
            other => unreachable!("the reader let {other:?} pass as extra keys"),
        }
    }
}

impl<'a> IntoIterator for &ExtraKeys<'a> {
    type Item = Raw<'a>;
    type IntoIter = Elements<'a>;

    fn into_iter(self) -> Elements<'a> {
        self.iter()
    }
}
