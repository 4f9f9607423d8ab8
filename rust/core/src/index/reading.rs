//! From an event on the wire to what the index takes.

use super::group::Kind;
use super::record::Namespace;
use super::source::Store;
use super::table::Geometry;
use super::tier::Tier;
use crate::hash::content::{self, Adapter};
use crate::tokens::TokenVec;
use crate::wire::{Elements, EngineHash, Raw, Stored, Value, Writer};

/// A store read off the wire: everything it borrows from is in here.
#[derive(Debug)]
pub struct Reading {
    blocks: Vec<u64>,
    tokens: TokenVec,
    extra: Vec<Box<[u8]>>,
    namespace: Namespace,
    root: u64,
    geometry: Geometry,
    units: usize,
    parent: Option<u64>,
    group: u64,
    kind: Option<Kind>,
}

impl Reading {
    /// Read a store. None where its block size cannot be one: 0 or too large, with tokens.
    pub fn new(event: &Stored<'_>) -> Option<Self> {
        let units = event.token_ids.len();
        let block_size = match u32::try_from(event.block_size) {
            Ok(size) if size > 0 || units == 0 => size,
            _ if units == 0 => 0,
            _ => return None,
        };
        let mut tokens = TokenVec::default();
        event.token_ids.copy_into(&mut tokens);
        let parent = event.parent_block_hash.map(EngineHash::key);
        let mut salt = event.cache_salt.filter(|salt| !salt.is_empty());
        let mut extra = Vec::new();
        if let Some(keys) = &event.extra_keys {
            for (index, entry) in keys.iter().take(event.block_hashes.len()).enumerate() {
                let is_root = index == 0 && parent.is_none();
                let entry = ExtraEntry::read(entry, event.lora_name, is_root);
                salt = salt.or(entry.salt);
                extra.push(entry.canonical());
            }
        }
        if extra.iter().all(|entry| entry.is_empty()) {
            extra = Vec::new();
        }
        let kind = event
            .kv_cache_spec_kind
            .map(|name| Kind::read(name, event.kv_cache_spec_sliding_window));
        Some(Self {
            blocks: event.block_hashes.iter().map(EngineHash::key).collect(),
            tokens,
            extra,
            root: content::root(Adapter::new(event.lora_name, event.lora_id), salt),
            namespace: Namespace {
                lora_name: event.lora_name.map(str::to_owned),
                lora_id: event.lora_id,
                cache_salt: salt.map(str::to_owned),
            },
            geometry: Geometry {
                block_size,
                pairs: event.token_ids.is_pairs(),
            },
            units,
            parent,
            group: event.group_idx.unwrap_or(0),
            kind,
        })
    }

    /// Blocks it stores.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// The store, in the tier that the event names.
    pub fn store(&self, tier: Tier, keep_namespace: bool) -> Store<'_> {
        Store {
            blocks: &self.blocks,
            parent: self.parent,
            tokens: self.tokens.as_slice(),
            units: self.units,
            geometry: self.geometry,
            root: self.root,
            namespace: keep_namespace.then_some(&self.namespace),
            extra: &self.extra,
            tier,
            group: self.group,
            kind: self.kind,
        }
    }
}

/// A block's entry of `extra_keys`, without what names the namespace.
#[derive(Clone, Debug, Default)]
pub struct ExtraEntry<'a> {
    /// The salt, which stands in the first block of a prompt only.
    pub salt: Option<&'a str>,
    /// Everything else: images as `[id, offset]`, a digest of embeddings.
    pub items: Vec<Raw<'a>>,
}

impl<'a> ExtraEntry<'a> {
    /// Read an entry: nil, or the adapter's name, then images, then (`is_root`) the salt, then embeddings.
    pub fn read(entry: Raw<'a>, lora_name: Option<&str>, is_root: bool) -> Self {
        let Value::Array(items) = entry.value() else {
            return Self::default();
        };
        let mut items: Vec<_> = items.collect();
        if lora_name.is_some() && items.first().and_then(|item| text(*item)) == lora_name {
            items.remove(0);
        }
        let place = items.iter().rposition(|item| is_root && text(*item).is_some());
        let salt = place.and_then(|place| text(items.remove(place)));
        Self {
            salt: salt.filter(|salt| !salt.is_empty()),
            items,
        }
    }

    /// The items as bytes that are equal for equal items, however they were packed; empty for none.
    pub fn canonical(&self) -> Box<[u8]> {
        if self.items.is_empty() {
            return Box::default();
        }
        let mut writer = Writer::new();
        writer.array(self.items.len());
        self.items.iter().for_each(|item| rewrite(*item, &mut writer));
        writer.into_bytes().into()
    }
}

/// The string that a value is, if it is one.
fn text(value: Raw<'_>) -> Option<&str> {
    match value.value() {
        Value::Str(text) => Some(text),
        _ => None,
    }
}

/// Write a value in the smallest form of each of its parts.
pub(super) fn rewrite(value: Raw<'_>, writer: &mut Writer) {
    let inner = |elements: Elements<'_>, writer: &mut Writer| elements.for_each(|element| rewrite(element, writer));
    match value.value() {
        Value::Unsigned(number) => writer.uint(number),
        Value::Negative(number) => writer.int(number),
        Value::Float(number) => writer.f64(number),
        Value::Str(text) => writer.str(text),
        Value::Bin(bytes) => writer.bin(bytes),
        Value::Array(elements) => {
            writer.array(elements.len());
            inner(elements, writer);
        }
        Value::Map(elements) => {
            writer.map(elements.len() / 2);
            inner(elements, writer);
        }
        Value::Nil | Value::Bool(_) | Value::Ext(..) => writer.raw(value.bytes()),
    }
}
