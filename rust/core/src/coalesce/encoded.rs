//! Values that go onto the wire side by side, encoded when they come.

use std::ops::Range;

use crate::tokens::TokenSlice;
use crate::wire::{Cursor, Field, TYPE, Tag, Writer};

/// The elements of an array without its header.
#[derive(Clone, Debug, Default)]
pub(crate) struct Encoded {
    values: Writer,
    count: usize,
}

impl Encoded {
    /// Number of values.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Their bytes.
    pub fn bytes(&self) -> &[u8] {
        self.values.as_bytes()
    }

    /// Append token ids, or the pairs of neighbours among them.
    pub fn extend_tokens(&mut self, tokens: TokenSlice<'_>, bigram: bool) {
        if bigram {
            self.count += tokens.len().saturating_sub(1);
            self.values.pairs(tokens);
        } else {
            self.count += tokens.len();
            self.values.ids(tokens);
        }
    }

    /// Append `count` values that `write` writes.
    pub fn extend(&mut self, count: usize, write: impl FnOnce(&mut Writer)) {
        write(&mut self.values);
        self.count += count;
    }

    /// Append the values of another array.
    pub fn append(&mut self, other: &Self) {
        self.extend(other.count, |values| values.raw(other.bytes()));
    }

    /// Keep the values at positions that are true.
    pub fn retain(&mut self, keep: &[bool]) {
        let mut kept = Self::default();
        for (value, _) in self.iter().zip(keep).filter(|&(_, &keep)| keep) {
            kept.extend(1, |values| values.raw(value));
        }
        *self = kept;
    }

    /// The values of a range of positions.
    pub fn slice(&self, range: Range<usize>) -> Self {
        let mut part = Self::default();
        for value in self.iter().skip(range.start).take(range.len()) {
            part.extend(1, |values| values.raw(value));
        }
        part
    }

    /// Keep the first `count` values.
    pub fn truncate(&mut self, count: usize) {
        let length = self.iter().take(count).map(<[u8]>::len).sum();
        let mut values = Writer::with_capacity(length);
        values.raw(&self.bytes()[..length]);
        *self = Self { values, count };
    }

    /// Write the array.
    pub fn write(&self, out: &mut Writer) {
        out.array(self.count);
        out.raw(self.bytes());
    }

    /// Where the last value begins.
    pub fn start_of_last(&self) -> usize {
        let all_others = self.count.saturating_sub(1);
        self.iter().take(all_others).map(<[u8]>::len).sum()
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut cursor = Cursor::new(self.bytes());
        (0..self.count).map(move |_| {
            let start = cursor.offset();
            cursor.skip(0).expect("what was written can be read");
            cursor.since(start)
        })
    }
}

/// Bytes of an event in a map around what its blocks and its other fields say.
pub(crate) fn frame_bytes(tag: Tag) -> usize {
    // A name and the header of an array.
    let field = |field: Field| 1 + field.name().len() + 3;
    let fields = match tag.plain() {
        Tag::BlockRemoved => field(Field::BlockHashes),
        Tag::AllBlocksCleared => 0,
        _ => [
            Field::BlockHashes,
            Field::ParentBlockHash,
            Field::TokenIds,
            Field::LoraId,
        ]
        .map(field)
        .iter()
        .sum(),
    };
    1 + (1 + TYPE.len()) + (1 + tag.wire_name().len()) + fields
}
