//! Rewriting batches for whoever may not see what they say of prompts and tenants: bytes to bytes, in the shape and
//! with the fields they came in.
//!
//! | what | becomes |
//! |---|---|
//! | block hashes, parents | hashes of the same type under a key, every form of one hash still one hash |
//! | token ids | ids made from the block's content hash under the key, as many |
//! | salts, sessions, adapters (name, number), owners, extra keys | pseudonyms under the key |
//! | times, ranks, block sizes, groups, windows, tiers and kinds that are known | stay |
//! | tiers, localities and kinds that are not known, tags of unknown events | pseudonyms |
//! | unknown fields, trailing elements, what unknown and unusable events hold | gone, counted |
//!
//! A batch that cannot be read is refused; there is nothing in it that could be told apart.

mod blocks;
mod contents;
mod names;
mod values;

use std::ops::Range;

use crate::tokens::TokenSlice;
use crate::wire::{
    Batch, Cursor, EngineHash, Event, Fault, Field, FieldOrder, FieldValue, HashList, Header, Limits, RANK_KEYS,
    Skipped, TYPE, Tag, TokenList, WireError, Writer, read_batch_in_order,
};
use blocks::Blocks;
use contents::Contents;
pub use names::{Content, KEY_BYTES, Names};

/// What stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// Block hashes.
    pub hashes: bool,
    /// Token ids.
    pub tokens: bool,
}

/// A batch under new names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewritten {
    /// The batch.
    pub payload: Vec<u8>,
    /// Its events, the unreadable ones included.
    pub events: u64,
    /// Block hashes in them.
    pub blocks: u64,
    /// Clears among the events.
    pub cleared: u64,
    /// Events that were not read and are empty now.
    pub emptied_events: u64,
    /// Fields and elements of unknown meaning that are gone.
    pub dropped_fields: u64,
}

/// Rewrites the batches of one source, in their order.
pub struct Rewriter {
    names: Names,
    keep: Keep,
    limits: Limits,
    blocks: Blocks,
    /// The source has sent hashes below zero, so its integers are signed.
    is_signed: bool,
    contents: Contents,
    ids: Vec<u32>,
    order: FieldOrder,
    tokens: Vec<u32>,
}

impl Rewriter {
    /// A rewriter that remembers the content of up to `remembered` blocks, to see what a block continues.
    pub fn new(names: Names, keep: Keep, remembered: usize) -> Self {
        Self {
            names,
            keep,
            limits: Limits::default(),
            blocks: Blocks::new(remembered),
            is_signed: false,
            contents: Contents::default(),
            ids: Vec::new(),
            order: FieldOrder::default(),
            tokens: Vec::new(),
        }
    }

    /// Rewrite a batch.
    pub fn rewrite(&mut self, data: &[u8]) -> Result<Rewritten, WireError> {
        let batch = read_batch_in_order(data, &self.limits, &mut self.ids, &mut self.order)?;
        self.is_signed |= batch.events.iter().any(has_negative_hash);
        if !self.keep.tokens {
            self.contents.read(&batch, &self.ids, &mut self.blocks);
        }
        let mut out = Writer::with_capacity(data.len() + data.len() / 2);
        self.write_frame(data, &batch, &mut out)?;
        let blocks = batch.events.iter().filter_map(hashes).map(|list| list.len() as u64);
        let unknown = batch.events.iter().map(|event| event.unknown().len() as u64);
        Ok(Rewritten {
            payload: out.into_bytes(),
            events: (batch.events.len() + batch.skipped.len()) as u64,
            blocks: blocks.sum(),
            cleared: batch
                .events
                .iter()
                .filter(|event| matches!(event, Event::Cleared(_)))
                .count() as u64,
            emptied_events: batch.skipped.len() as u64,
            dropped_fields: batch.unread_fields + unknown.sum::<u64>(),
        })
    }

    fn write_frame(&mut self, data: &[u8], batch: &Batch<'_>, out: &mut Writer) -> Result<(), WireError> {
        let mut cursor = Cursor::new(data);
        match cursor.header()? {
            Header::Map(pairs) => {
                let mut keys = Vec::new();
                for _ in 0..pairs {
                    keys.extend(cursor.key()?.filter(|key| is_frame_key(key)));
                    cursor.skip(0)?;
                }
                out.map(keys.len());
                for key in keys {
                    out.str(key);
                    match key {
                        "ts" => out.f64(batch.ts),
                        "events" => self.write_events(data, batch, out)?,
                        _ => rank(batch, out),
                    }
                }
            }
            Header::Array(length) => {
                let length = length.min(3);
                out.array(length);
                out.f64(batch.ts);
                self.write_events(data, batch, out)?;
                if length == 3 {
                    rank(batch, out);
                }
            }
            other => unreachable!("the reader let {other:?} pass as a batch"),
        }
        Ok(())
    }

    /// The events, each in its place.
    fn write_events(&mut self, data: &[u8], batch: &Batch<'_>, out: &mut Writer) -> Result<(), WireError> {
        out.array(batch.events.len() + batch.skipped.len());
        let mut skipped = batch.skipped.iter().peekable();
        for (index, event) in batch.events.iter().enumerate() {
            while let Some(skipped) = skipped.next_if(|skipped| skipped.offset < event.offset()) {
                self.write_emptied(data, skipped, out)?;
            }
            self.write_event(data, index, event, out);
        }
        skipped.try_for_each(|skipped| self.write_emptied(data, skipped, out))
    }

    fn write_event(&mut self, data: &[u8], index: usize, event: &Event<'_>, out: &mut Writer) {
        let order = std::mem::take(&mut self.order);
        let fields = order.of(index);
        let is_map = is_map(data[event.offset()]);
        if is_map {
            out.map(1 + fields.len());
            out.str(TYPE);
        } else {
            out.array(1 + fields.len());
        }
        out.str(event.tag().wire_name());
        for &field in fields {
            if is_map {
                out.str(field.name());
            }
            match event.value(field) {
                None => out.nil(),
                Some(value) => self.write_value(index, event, field, value, out),
            }
        }
        self.order = order;
    }

    fn write_value(&mut self, index: usize, event: &Event<'_>, field: Field, value: FieldValue<'_>, out: &mut Writer) {
        match value {
            FieldValue::Hashes(hashes) => {
                out.array(hashes.len());
                hashes.iter().for_each(|hash| self.write_hash(hash, out));
            }
            FieldValue::Hash(hash) => self.write_hash(hash, out),
            FieldValue::Tokens(tokens) => self.write_tokens(index, event, tokens, out),
            FieldValue::Unsigned(number) => out.uint(number),
            FieldValue::Signed(number) => out.uint(self.names.number(number.into())),
            FieldValue::Text(text) => values::text(field, text, &self.names, out),
            FieldValue::Raw(raw) if field == Field::Metadata => values::metadata(raw, &self.names, out),
            FieldValue::Raw(raw) => values::any(raw, &self.names, out),
        }
    }

    fn write_hash(&self, hash: EngineHash<'_>, out: &mut Writer) {
        if self.keep.hashes {
            out.hash(hash);
        } else {
            self.names.hash(hash, self.is_signed, out);
        }
    }

    fn write_tokens(&mut self, index: usize, event: &Event<'_>, tokens: TokenList<'_>, out: &mut Writer) {
        out.array(tokens.len());
        if self.keep.tokens {
            out.raw(tokens.bytes());
        } else if let Event::Stored(stored) = event {
            self.contents.tokens(index, stored, &self.names, &mut self.tokens);
            if tokens.is_pairs() {
                out.pairs(TokenSlice::U32(&self.tokens));
            } else {
                out.ids(TokenSlice::U32(&self.tokens));
            }
        }
    }

    /// An event that was not read keeps its shape and, of a known type, its tag. It can be used as little as before.
    fn write_emptied(&self, data: &[u8], skipped: &Skipped, out: &mut Writer) -> Result<(), WireError> {
        let mut cursor = Cursor::new(&data[skipped.offset..]);
        let is_map = is_map(cursor.peek()?);
        let tag = match &skipped.error.fault {
            Fault::UnknownTag { .. } => find_tag(&mut cursor)?.map(|tag| format!("Unknown-{}", self.names.text(tag))),
            // A clear without fields would be a clear.
            _ => find_tag(&mut cursor)?
                .filter(|tag| Tag::from_name(tag).is_some_and(|tag| tag != Tag::AllBlocksCleared))
                .map(str::to_owned),
        };
        match (tag, is_map) {
            (None, true) => out.map(0),
            (None, false) => out.array(0),
            (Some(tag), true) => {
                out.map(1);
                out.str(TYPE);
                out.str(&tag);
            }
            (Some(tag), false) => {
                out.array(1);
                out.str(&tag);
            }
        }
        Ok(())
    }
}

/// The tag of an event that may be of any type; None where it has none that is a string.
fn find_tag<'a>(cursor: &mut Cursor<'a>) -> Result<Option<&'a str>, WireError> {
    match cursor.header()? {
        Header::Array(1..) => string(cursor),
        Header::Map(pairs) => {
            for _ in 0..pairs {
                if cursor.key()? == Some(TYPE) {
                    return string(cursor);
                }
                cursor.skip(0)?;
            }
            Ok(None)
        }
        _ => Ok(None),
    }
}

fn string<'a>(cursor: &mut Cursor<'a>) -> Result<Option<&'a str>, WireError> {
    match cursor.header()? {
        Header::Str(length) => cursor.text(length).map(Some),
        _ => Ok(None),
    }
}

fn is_frame_key(key: &str) -> bool {
    key == "ts" || key == "events" || RANK_KEYS.contains(&key)
}

fn is_map(first: u8) -> bool {
    matches!(first, 0x80..=0x8f | 0xde | 0xdf)
}

fn rank(batch: &Batch<'_>, out: &mut Writer) {
    match batch.dp_rank {
        Some(rank) => out.int(rank),
        None => out.nil(),
    }
}

fn hashes<'a>(event: &Event<'a>) -> Option<HashList<'a>> {
    match event {
        Event::Stored(stored) => Some(stored.block_hashes),
        Event::Removed(removed) => Some(removed.block_hashes),
        Event::Cleared(_) => None,
    }
}

fn has_negative_hash(event: &Event<'_>) -> bool {
    hashes(event).is_some_and(|list| list.iter().any(|hash| matches!(hash, EngineHash::Negative(_))))
}

/// The ids that stand for those of a prompt in what a rewriter under these names writes: a range of `tokens` a block.
pub fn prompt(names: &Names, root: u64, tokens: TokenSlice<'_>, size: usize) -> Vec<u32> {
    let size = size.clamp(1, tokens.len().max(1));
    let mut out = Vec::with_capacity(tokens.len());
    let mut content = root;
    let blocks = (0..tokens.len().div_ceil(size)).map(|index| index * size..tokens.len().min((index + 1) * size));
    for Range { start, end } in blocks {
        content = crate::hash::content::block(content, tokens.slice(start, end), None);
        names.tokens(Content::Known(content), size, &mut out);
    }
    out.truncate(tokens.len());
    out
}
