//! One event while it is read, field by field, whatever shape it comes in.

use super::cursor::{Cursor, Header, NIL};
use super::error::{Fault, WireError};
use super::event::{Cleared, Event, Metadata, Removed, Stored};
use super::limits::Limits;
use super::names::{Field, Tag};
use super::read::over_limit;
use super::values::{EngineHash, ExtraKeys, HashList, Raw, TokenList};

#[derive(Default)]
pub(super) struct Draft<'a> {
    /// One bit a field.
    seen: u32,
    block_hashes: Option<HashList<'a>>,
    parent_block_hash: Option<EngineHash<'a>>,
    token_ids: Option<TokenList<'a>>,
    block_size: Option<u64>,
    lora_id: Option<i64>,
    medium: Option<&'a str>,
    cache_salt: Option<&'a str>,
    session_id: Option<&'a str>,
    lora_name: Option<&'a str>,
    extra_keys: Option<ExtraKeys<'a>>,
    group_idx: Option<u64>,
    kv_cache_spec_kind: Option<&'a str>,
    kv_cache_spec_sliding_window: Option<u64>,
    locality: Option<&'a str>,
    ownership: Option<&'a str>,
    metadata: Option<Metadata<'a>>,
    unknown: Vec<(&'a str, Raw<'a>)>,
}

impl<'a> Draft<'a> {
    /// Read the value of a field.
    pub(super) fn read(
        &mut self,
        field: Field,
        cursor: &mut Cursor<'a>,
        limits: &Limits,
        ids: Option<&mut Vec<u32>>,
    ) -> Result<(), WireError> {
        let name = field.name();
        if self.has(field) {
            return Err(Fault::DuplicateField { field: name }.at(cursor.offset()));
        }
        self.seen |= 1 << field as u32;
        match field {
            Field::BlockHashes => self.block_hashes = Some(hashes(name, cursor, limits)?),
            Field::ParentBlockHash => self.parent_block_hash = optional_hash(name, cursor)?,
            Field::TokenIds => self.token_ids = Some(tokens(name, cursor, ids)?),
            Field::BlockSize => self.block_size = Some(cursor.u64(name)?),
            Field::LoraId => self.lora_id = cursor.optional_i64(name)?,
            Field::Medium => self.medium = cursor.optional_str(name)?,
            Field::CacheSalt => self.cache_salt = cursor.optional_str(name)?,
            Field::SessionId => self.session_id = cursor.optional_str(name)?,
            Field::LoraName => self.lora_name = cursor.optional_str(name)?,
            Field::ExtraKeys => self.extra_keys = extra_keys(name, cursor, limits)?,
            Field::GroupIdx => self.group_idx = cursor.optional_u64(name)?,
            Field::KvCacheSpecKind => self.kv_cache_spec_kind = cursor.optional_str(name)?,
            Field::KvCacheSpecSlidingWindow => self.kv_cache_spec_sliding_window = cursor.optional_u64(name)?,
            Field::Locality => self.locality = cursor.optional_str(name)?,
            Field::Ownership => self.ownership = cursor.optional_str(name)?,
            Field::Metadata => self.metadata = metadata(name, cursor, limits)?,
        }
        Ok(())
    }

    /// Keep the value of a field that is not known.
    pub(super) fn keep(&mut self, name: &'a str, cursor: &mut Cursor<'a>, limits: &Limits) -> Result<(), WireError> {
        let start = cursor.offset();
        if self.unknown.iter().any(|(known, _)| *known == name) {
            return Err(Fault::DuplicateField {
                field: "of an unknown name",
            }
            .at(start));
        }
        let found = self.unknown.len() + 1;
        if found > limits.unknown_fields {
            return Err(over_limit("unknown fields in an event", limits.unknown_fields, found).at(start));
        }
        let raw = raw_value(cursor, limits, 1)?;
        self.unknown.push((name, raw));
        Ok(())
    }

    pub(super) fn into_event(self, tag: Tag, offset: usize) -> Result<Event<'a>, WireError> {
        let missing = |field: Field| Fault::MissingField { field: field.name() }.at(offset);
        Ok(match tag {
            Tag::AllBlocksCleared => Event::Cleared(Cleared {
                offset,
                unknown: self.unknown,
            }),
            Tag::BlockRemoved => Event::Removed(Removed {
                offset,
                block_hashes: self.block_hashes.ok_or_else(|| missing(Field::BlockHashes))?,
                medium: self.medium,
                group_idx: self.group_idx,
                locality: self.locality,
                ownership: self.ownership,
                unknown: self.unknown,
            }),
            Tag::BlockStored | Tag::BlockStoredWithMetadata => {
                // Without it nobody could tell the start of a prompt from a block in its middle.
                if !self.has(Field::ParentBlockHash) {
                    return Err(missing(Field::ParentBlockHash));
                }
                let inner_salt = self.metadata.and_then(|metadata| metadata.cache_salt);
                Event::Stored(Stored {
                    offset,
                    block_hashes: self.block_hashes.ok_or_else(|| missing(Field::BlockHashes))?,
                    parent_block_hash: self.parent_block_hash,
                    token_ids: self.token_ids.ok_or_else(|| missing(Field::TokenIds))?,
                    block_size: self.block_size.ok_or_else(|| missing(Field::BlockSize))?,
                    lora_id: self.lora_id,
                    medium: self.medium,
                    cache_salt: self.cache_salt.or(inner_salt),
                    session_id: self.session_id,
                    lora_name: self.lora_name,
                    extra_keys: self.extra_keys,
                    group_idx: self.group_idx,
                    kv_cache_spec_kind: self.kv_cache_spec_kind,
                    kv_cache_spec_sliding_window: self.kv_cache_spec_sliding_window,
                    locality: self.locality,
                    ownership: self.ownership,
                    metadata: self.metadata,
                    unknown: self.unknown,
                })
            }
        })
    }

    fn has(&self, field: Field) -> bool {
        self.seen & (1 << field as u32) != 0
    }
}

const A_HASH: &str = "a hash: an integer or binary";

fn hash<'a>(name: &'static str, cursor: &mut Cursor<'a>) -> Result<EngineHash<'a>, WireError> {
    let start = *cursor;
    Ok(match cursor.header()? {
        Header::Unsigned(value) => EngineHash::Unsigned(value),
        Header::Negative(value) => EngineHash::Negative(value),
        Header::Bin(0) => return Err(start.out_of_range(name, "a hash of at least one byte", 0)),
        Header::Bin(length) => EngineHash::Bytes(cursor.body(length)),
        _ => return Err(start.wrong_type(name, A_HASH)),
    })
}

fn optional_hash<'a>(name: &'static str, cursor: &mut Cursor<'a>) -> Result<Option<EngineHash<'a>>, WireError> {
    if cursor.peek()? == NIL {
        cursor.header()?;
        return Ok(None);
    }
    hash(name, cursor).map(Some)
}

fn hashes<'a>(name: &'static str, cursor: &mut Cursor<'a>, limits: &Limits) -> Result<HashList<'a>, WireError> {
    let start = cursor.offset();
    let length = cursor.array(name, "an array of hashes")?;
    if length > limits.blocks {
        return Err(over_limit("blocks in an event", limits.blocks, length).at(start));
    }
    let first = cursor.offset();
    if !cursor.pass_words(length) {
        for _ in 0..length {
            hash(name, cursor)?;
        }
    }
    Ok(HashList::new(cursor.since(first), length))
}

const A_TOKEN: &str = "a token id";

fn tokens<'a>(
    name: &'static str,
    cursor: &mut Cursor<'a>,
    ids: Option<&mut Vec<u32>>,
) -> Result<TokenList<'a>, WireError> {
    let length = cursor.array(name, "an array of token ids, or of pairs of them")?;
    let first = cursor.offset();
    if let Some(ids) = ids {
        let decoded = ids.len();
        if cursor.read_narrow(length, ids) {
            return Ok(TokenList::new(cursor.since(first), length, false).with_decoded(decoded));
        }
    }
    let pairs = length > 0 && matches!(cursor.clone().header()?, Header::Array(_));
    if cursor.pass_unsigned(length, pairs) {
        return Ok(TokenList::new(cursor.since(first), length, pairs));
    }
    for _ in 0..length {
        if pairs {
            let start = *cursor;
            if cursor.array(name, "a pair of token ids")? != 2 {
                return Err(start.wrong_type(name, "a pair of token ids"));
            }
            token(name, cursor)?;
        }
        token(name, cursor)?;
    }
    Ok(TokenList::new(cursor.since(first), length, pairs))
}

fn token(name: &'static str, cursor: &mut Cursor<'_>) -> Result<(), WireError> {
    let start = *cursor;
    match cursor.header()? {
        Header::Unsigned(_) => Ok(()),
        Header::Negative(value) => Err(start.out_of_range(name, "a token id from 0", value.into())),
        _ => Err(start.wrong_type(name, A_TOKEN)),
    }
}

fn extra_keys<'a>(
    name: &'static str,
    cursor: &mut Cursor<'a>,
    limits: &Limits,
) -> Result<Option<ExtraKeys<'a>>, WireError> {
    if cursor.peek()? == NIL {
        cursor.header()?;
        return Ok(None);
    }
    let start = cursor.offset();
    for _ in 0..cursor.array(name, "an array of one entry a block, or nil")? {
        let entry = *cursor;
        match cursor.header()? {
            Header::Nil => {}
            Header::Array(_) => {
                *cursor = entry;
                raw_value(cursor, limits, 2)?;
            }
            _ => return Err(entry.wrong_type(name, "nil or an array for each block")),
        }
    }
    Ok(Some(ExtraKeys::new(Raw::new(cursor.since(start), start))))
}

fn metadata<'a>(
    name: &'static str,
    cursor: &mut Cursor<'a>,
    limits: &Limits,
) -> Result<Option<Metadata<'a>>, WireError> {
    if cursor.peek()? == NIL {
        cursor.header()?;
        return Ok(None);
    }
    let start = *cursor;
    let raw = raw_value(cursor, limits, 1)?;
    let mut inner = start;
    let Header::Map(pairs) = inner.header()? else {
        return Err(start.wrong_type(name, "a map or nil"));
    };
    let mut cache_salt = None;
    for _ in 0..pairs {
        if inner.key()? == Some(Field::CacheSalt.name()) {
            cache_salt = inner.optional_str(Field::CacheSalt.name())?;
        } else {
            inner.skip(0)?;
        }
    }
    Ok(Some(Metadata {
        cache_salt,
        raw,
        is_only_salt: cache_salt.is_some() && pairs == 1,
    }))
}

/// Any value, at `depth` levels below the event's outside.
fn raw_value<'a>(cursor: &mut Cursor<'a>, limits: &Limits, depth: usize) -> Result<Raw<'a>, WireError> {
    let start = cursor.offset();
    let limit = limits.nesting.saturating_sub(depth);
    let found = cursor.skip(limit)?;
    if found > limit {
        return Err(over_limit("levels of arrays and maps in an event", limits.nesting, depth + found).at(start));
    }
    Ok(Raw::new(cursor.since(start), start))
}
