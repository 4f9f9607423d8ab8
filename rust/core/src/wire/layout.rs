//! Which fields each dialect gives its events, and in which order: the one table that reader and writer follow.
//!
//! Read off SGLang (`disaggregation/kv_events.py`) and vLLM (`distributed/kv_events.py`); pinned by the golden streams.

use super::names::Field::{
    self, BlockHashes, BlockSize, CacheSalt, ExtraKeys, GroupIdx, KvCacheSpecKind, KvCacheSpecSlidingWindow, Locality,
    LoraId, LoraName, Medium, Metadata, Ownership, ParentBlockHash, SessionId, TokenIds,
};
use super::names::Tag;

/// Slots of a store (tag not counted) on which all dialects of the array shape agree.
pub(super) const AFTER_MEDIUM: usize = 6;

/// How an event is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `{"type": tag, name: value, ...}`; a field beyond `always` is written when it has a value.
    Map,
    /// `[tag, value, ...]`; the fields beyond `always` are written all when one of them has a value, else none.
    Array,
}

/// Order of an event's fields.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Written whether they have a value or not.
    pub always: &'static [Field],
    /// Written after them when there is something to say.
    pub optional: &'static [Field],
}

impl Layout {
    const EMPTY: Self = Self {
        always: &[],
        optional: &[],
    };

    /// Whether the field has a place in it.
    pub fn contains(&self, field: Field) -> bool {
        self.always.contains(&field) || self.optional.contains(&field)
    }

    /// The fields in their order, from a slot on.
    pub fn fields_from(&self, slot: usize) -> impl Iterator<Item = Field> + use<> {
        self.always.iter().chain(self.optional).copied().skip(slot)
    }
}

/// One engine's way to write events.
#[derive(Clone, Copy, Debug)]
pub struct Dialect {
    /// Its name in settings.
    pub name: &'static str,
    /// Maps or arrays.
    pub shape: Shape,
    stored: Layout,
    stored_with_metadata: Option<Layout>,
    removed: Layout,
}

impl Dialect {
    /// SGLang since September 2026.
    pub const SGLANG: Self = Self {
        name: "sglang",
        shape: Shape::Map,
        stored: Layout {
            always: &[BlockHashes, ParentBlockHash, TokenIds, BlockSize, LoraId],
            optional: &[Medium, CacheSalt, SessionId, LoraName],
        },
        stored_with_metadata: None,
        removed: Layout {
            always: &[BlockHashes],
            optional: &[Medium],
        },
    };

    /// SGLang before that.
    pub const SGLANG_ARRAY: Self = Self {
        name: "sglang-array",
        shape: Shape::Array,
        stored: Layout {
            always: &[BlockHashes, ParentBlockHash, TokenIds, BlockSize, LoraId, Medium],
            optional: &[CacheSalt, SessionId, LoraName],
        },
        stored_with_metadata: Some(Layout {
            always: &[
                BlockHashes,
                ParentBlockHash,
                TokenIds,
                BlockSize,
                LoraId,
                Medium,
                Metadata,
            ],
            optional: &[],
        }),
        removed: Layout {
            always: &[BlockHashes, Medium],
            optional: &[],
        },
    };

    /// vLLM since 0.24.
    pub const VLLM: Self = Self {
        name: "vllm",
        shape: Shape::Map,
        stored: Layout {
            always: &[
                BlockHashes,
                ParentBlockHash,
                TokenIds,
                BlockSize,
                LoraId,
                Medium,
                LoraName,
            ],
            optional: &[
                ExtraKeys,
                GroupIdx,
                KvCacheSpecKind,
                KvCacheSpecSlidingWindow,
                Locality,
                Ownership,
                SessionId,
            ],
        },
        stored_with_metadata: None,
        removed: Layout {
            always: &[BlockHashes, Medium],
            optional: &[GroupIdx, Locality, Ownership],
        },
    };

    /// vLLM 0.22 and 0.23, the last to write arrays.
    pub const VLLM_ARRAY: Self = Self {
        name: "vllm-array",
        shape: Shape::Array,
        stored: Layout {
            always: &[
                BlockHashes,
                ParentBlockHash,
                TokenIds,
                BlockSize,
                LoraId,
                Medium,
                LoraName,
                ExtraKeys,
                GroupIdx,
                KvCacheSpecKind,
                KvCacheSpecSlidingWindow,
            ],
            optional: &[Locality, Ownership, SessionId],
        },
        stored_with_metadata: None,
        removed: Layout {
            always: &[BlockHashes, Medium, GroupIdx],
            optional: &[Locality, Ownership],
        },
    };

    /// All of them.
    pub const ALL: [Self; 4] = [Self::SGLANG, Self::SGLANG_ARRAY, Self::VLLM, Self::VLLM_ARRAY];

    /// The dialect of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dialect| dialect.name == name)
    }

    /// How an event of this type is laid out.
    pub fn layout(&self, tag: Tag) -> Layout {
        match tag {
            Tag::BlockStored => self.stored,
            Tag::BlockStoredWithMetadata => self.stored_with_metadata.unwrap_or(self.stored),
            Tag::BlockRemoved => self.removed,
            Tag::AllBlocksCleared => Layout::EMPTY,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn up_to_medium_all_arrays_of_stores_agree() {
        let first = |dialect: Dialect, tag| {
            dialect
                .layout(tag)
                .fields_from(0)
                .take(AFTER_MEDIUM)
                .collect::<Vec<_>>()
        };
        let expected = first(Dialect::SGLANG_ARRAY, Tag::BlockStored);
        assert_eq!(expected.last(), Some(&Medium));
        assert_eq!(first(Dialect::SGLANG_ARRAY, Tag::BlockStoredWithMetadata), expected);
        assert_eq!(first(Dialect::VLLM_ARRAY, Tag::BlockStored), expected);
    }

    #[test]
    fn removals_of_sglang_are_the_beginning_of_those_of_vllm() {
        let fields = |dialect: Dialect| dialect.layout(Tag::BlockRemoved).fields_from(0).collect::<Vec<_>>();
        assert!(fields(Dialect::VLLM_ARRAY).starts_with(&fields(Dialect::SGLANG_ARRAY)));
    }

    #[test]
    fn an_event_can_have_every_field_that_a_dialect_gives_it() {
        for (dialect, tag) in Dialect::ALL
            .iter()
            .flat_map(|dialect| Tag::ALL.map(|tag| (dialect, tag)))
        {
            for field in dialect.layout(tag).fields_from(0) {
                assert_eq!(tag.field(field.name()), Some(field), "{} {}", dialect.name, tag.name());
            }
        }
    }
}
