//! What an event off the wire says besides its blocks.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::Scope;
use super::encoded::frame_bytes;
use crate::wire::{Event, Field, Fields, NoPlace, Tag, Writer};

/// What an event says besides its blocks: what must be equal in events that are folded into each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub tag: Tag,
    /// Where the blocks are, or are no more.
    pub scope: Scope,
    is_pairs: bool,
    has_extra_keys: bool,
    /// Of `cache_salt` and `metadata`, what says nothing that the other does not say.
    pub repeats: Vec<Field>,
    /// Fields with a value, each with the place where its bytes end.
    values: Vec<(Field, usize)>,
    pub unknown_len: usize,
    /// The values as they go onto the wire, then unknown names and their values.
    bytes: Box<[u8]>,
    /// Equal for equal frames.
    pub number: u64,
    /// Bytes on the wire, as a map.
    pub size: usize,
}

impl Frame {
    pub fn new(event: &Event<'_>) -> Self {
        let mut bytes = Writer::new();
        let tag = event.tag();
        let by_block = [
            Field::BlockHashes,
            Field::ParentBlockHash,
            Field::TokenIds,
            Field::ExtraKeys,
        ];
        let fields = tag.fields().iter().copied();
        let values: Vec<(Field, usize)> = fields
            .filter(|field| !by_block.contains(field) && event.has(*field))
            .map(|field| {
                put(event.write(field, &mut bytes));
                (field, bytes.as_bytes().len())
            })
            .collect();
        put(event.write_unknown(&mut bytes));
        let (medium, locality, group_idx) = match event {
            Event::Stored(stored) => (stored.medium, stored.locality, stored.group_idx),
            Event::Removed(removed) => (removed.medium, removed.locality, removed.group_idx),
            Event::Cleared(_) => (None, None, None),
        };
        let names = values.iter().fold(0, |names, &(field, _)| names | 1 << field as u64);
        let sizes = values.iter().map(|(field, _)| 1 + field.name().len());
        Self {
            number: xxh3_64_with_seed(bytes.as_bytes(), names),
            size: frame_bytes(tag) + sizes.sum::<usize>() + bytes.as_bytes().len(),
            tag,
            scope: Scope::read(medium, locality, group_idx),
            is_pairs: matches!(event, Event::Stored(stored) if stored.token_ids.is_pairs()),
            has_extra_keys: event.has(Field::ExtraKeys),
            repeats: [Field::CacheSalt, Field::Metadata]
                .into_iter()
                .filter(|field| event.repeats(*field))
                .collect(),
            values,
            unknown_len: event.unknown_len(),
            bytes: bytes.into_bytes().into(),
        }
    }

    /// A value as it goes onto the wire.
    pub fn value(&self, field: Field) -> Option<&[u8]> {
        let at = self.values.iter().position(|(known, _)| *known == field)?;
        let start = at.checked_sub(1).map_or(0, |before| self.values[before].1);
        Some(&self.bytes[start..self.values[at].1])
    }

    /// Unknown names and their values.
    pub fn unknown(&self) -> &[u8] {
        &self.bytes[self.values.last().map_or(0, |&(_, end)| end)..]
    }
}

fn put(written: Result<(), NoPlace>) {
    written.expect("what was read can be written");
}
