//! Batches and events as they lie in a payload.

use super::error::WireError;
use super::names::{Field, Tag};
use super::values::{EngineHash, ExtraKeys, HashList, Raw, TokenList};

/// Events that an engine published together.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch<'a> {
    /// The publisher's clock in unix seconds.
    pub ts: f64,
    /// Data-parallel rank; None where the engine does not say.
    pub dp_rank: Option<i64>,
    /// The events that can be used, in order.
    pub events: Vec<Event<'a>>,
    /// The others.
    pub skipped: Vec<Skipped>,
    /// Values passed over: elements after the last field that is known, in the batch and in events of the array
    /// shape, and unknown keys of a batch in the map shape.
    pub unread_fields: u64,
}

/// One event.
#[allow(
    clippy::large_enum_variant,
    reason = "stores are the many, and a box for each would cost an allocation"
)]
#[derive(Clone, Debug, PartialEq)]
pub enum Event<'a> {
    /// Blocks are held now.
    Stored(Stored<'a>),
    /// Blocks are held no more.
    Removed(Removed<'a>),
    /// Nothing is held any more.
    Cleared(Cleared<'a>),
}

/// Blocks that are now held: one run of a prefix chain.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored<'a> {
    /// Where the event begins in the payload.
    pub offset: usize,
    /// The run's blocks, first to last.
    pub block_hashes: HashList<'a>,
    /// The block above the first; None only at the start of a prompt.
    pub parent_block_hash: Option<EngineHash<'a>>,
    /// The run's tokens.
    pub token_ids: TokenList<'a>,
    /// Tokens (pairs, for bigrams) in a block.
    pub block_size: u64,
    /// Number of the adapter, in early vLLM.
    pub lora_id: Option<i64>,
    /// The tier, as the engine spells it.
    pub medium: Option<&'a str>,
    /// Salt of the tenant, from the field of that name, else from `metadata`.
    pub cache_salt: Option<&'a str>,
    /// Attribution, never identity.
    pub session_id: Option<&'a str>,
    /// Name of the adapter.
    pub lora_name: Option<&'a str>,
    /// What else enters each block's hash, in vLLM.
    pub extra_keys: Option<ExtraKeys<'a>>,
    /// Cache group of a hybrid model.
    pub group_idx: Option<u64>,
    /// Kind of that group.
    pub kv_cache_spec_kind: Option<&'a str>,
    /// Its window in tokens.
    pub kv_cache_spec_sliding_window: Option<u64>,
    /// `REMOTE` where the block is not on this host.
    pub locality: Option<&'a str>,
    /// Who owns the copy.
    pub ownership: Option<&'a str>,
    /// SGLang's earlier form: the map that holds the salt.
    pub metadata: Option<Metadata<'a>>,
    /// Fields of a map that are not known, as they came.
    pub unknown: Vec<(&'a str, Raw<'a>)>,
}

/// The map in `BlockStoredWithMetadata`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata<'a> {
    /// Its salt.
    pub cache_salt: Option<&'a str>,
    /// The whole map.
    pub raw: Raw<'a>,
    /// Whether the salt is all it holds.
    pub is_only_salt: bool,
}

/// Blocks that are no longer held in a tier.
#[derive(Clone, Debug, PartialEq)]
pub struct Removed<'a> {
    /// Where the event begins in the payload.
    pub offset: usize,
    /// The blocks.
    pub block_hashes: HashList<'a>,
    /// The tier; None means every tier.
    pub medium: Option<&'a str>,
    /// Cache group of a hybrid model.
    pub group_idx: Option<u64>,
    /// `REMOTE` where the block is not on this host.
    pub locality: Option<&'a str>,
    /// Who owned the copy.
    pub ownership: Option<&'a str>,
    /// Fields of a map that are not known, as they came.
    pub unknown: Vec<(&'a str, Raw<'a>)>,
}

/// Nothing is held any more, in any tier.
#[derive(Clone, Debug, PartialEq)]
pub struct Cleared<'a> {
    /// Where the event begins in the payload.
    pub offset: usize,
    /// Fields of a map that are not known, as they came.
    pub unknown: Vec<(&'a str, Raw<'a>)>,
}

/// An event that was left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Stable name of the reason: `unknown-tag`, `wrong-type`, `out-of-range`, `missing-field`, `duplicate-field`
    /// or `over-limit`.
    pub code: &'static str,
    /// Where the event begins in the payload.
    pub offset: usize,
    /// What was expected and what came, with the position.
    pub reason: String,
    /// The fault itself.
    pub error: WireError,
}

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldValue<'a> {
    /// Of `block_hashes`.
    Hashes(HashList<'a>),
    /// Of `parent_block_hash`.
    Hash(EngineHash<'a>),
    /// Of `token_ids`.
    Tokens(TokenList<'a>),
    /// An integer from 0.
    Unsigned(u64),
    /// An integer.
    Signed(i64),
    /// A string.
    Text(&'a str),
    /// A value with a structure of its own.
    Raw(Raw<'a>),
}

impl<'a> Event<'a> {
    /// Its type.
    pub fn tag(&self) -> Tag {
        match self {
            Self::Stored(stored) if stored.metadata.is_some() => Tag::BlockStoredWithMetadata,
            Self::Stored(_) => Tag::BlockStored,
            Self::Removed(_) => Tag::BlockRemoved,
            Self::Cleared(_) => Tag::AllBlocksCleared,
        }
    }

    /// Where it begins in the payload.
    pub fn offset(&self) -> usize {
        match self {
            Self::Stored(stored) => stored.offset,
            Self::Removed(removed) => removed.offset,
            Self::Cleared(cleared) => cleared.offset,
        }
    }

    /// The value of a field; None where it is nil, absent, or not of this type of event.
    pub fn value(&self, field: Field) -> Option<FieldValue<'a>> {
        match self {
            Self::Stored(stored) => stored.value(field),
            Self::Removed(removed) => removed.value(field),
            Self::Cleared(_) => None,
        }
    }

    /// Fields of a map that are not known, as they came.
    pub fn unknown(&self) -> &[(&'a str, Raw<'a>)] {
        match self {
            Self::Stored(stored) => &stored.unknown,
            Self::Removed(removed) => &removed.unknown,
            Self::Cleared(cleared) => &cleared.unknown,
        }
    }
}

impl<'a> Stored<'a> {
    fn value(&self, field: Field) -> Option<FieldValue<'a>> {
        match field {
            Field::BlockHashes => Some(FieldValue::Hashes(self.block_hashes)),
            Field::ParentBlockHash => self.parent_block_hash.map(FieldValue::Hash),
            Field::TokenIds => Some(FieldValue::Tokens(self.token_ids)),
            Field::BlockSize => Some(FieldValue::Unsigned(self.block_size)),
            Field::LoraId => self.lora_id.map(FieldValue::Signed),
            Field::Medium => self.medium.map(FieldValue::Text),
            Field::CacheSalt => self.cache_salt.map(FieldValue::Text),
            Field::SessionId => self.session_id.map(FieldValue::Text),
            Field::LoraName => self.lora_name.map(FieldValue::Text),
            Field::ExtraKeys => self.extra_keys.map(|keys| FieldValue::Raw(keys.raw())),
            Field::GroupIdx => self.group_idx.map(FieldValue::Unsigned),
            Field::KvCacheSpecKind => self.kv_cache_spec_kind.map(FieldValue::Text),
            Field::KvCacheSpecSlidingWindow => self.kv_cache_spec_sliding_window.map(FieldValue::Unsigned),
            Field::Locality => self.locality.map(FieldValue::Text),
            Field::Ownership => self.ownership.map(FieldValue::Text),
            Field::Metadata => self.metadata.map(|metadata| FieldValue::Raw(metadata.raw)),
        }
    }
}

impl<'a> Removed<'a> {
    fn value(&self, field: Field) -> Option<FieldValue<'a>> {
        match field {
            Field::BlockHashes => Some(FieldValue::Hashes(self.block_hashes)),
            Field::Medium => self.medium.map(FieldValue::Text),
            Field::GroupIdx => self.group_idx.map(FieldValue::Unsigned),
            Field::Locality => self.locality.map(FieldValue::Text),
            Field::Ownership => self.ownership.map(FieldValue::Text),
            _ => None,
        }
    }
}
