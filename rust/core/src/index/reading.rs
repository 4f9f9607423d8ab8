//! Parts of events in the form that the index takes them.

use super::group::Kind;
use super::record::Namespace;
use crate::hash::content::{self, Adapter};
use crate::wire::{Elements, Raw, Stored, Value, Writer};

/// Bytes of a block's extra keys at most; engines send a name, a digest of 64 letters for each image, and a salt.
pub const EXTRA_BYTES: usize = 1 << 14;

/// What else than tokens a store says about the identity of its blocks.
#[derive(Clone, Debug)]
pub struct Identity<'a> {
    lora_name: Option<&'a str>,
    lora_id: Option<i64>,
    cache_salt: Option<&'a str>,
    /// Extra keys in canonical form, an entry a block or nothing at all.
    pub extra: Vec<Box<[u8]>>,
}

impl<'a> Identity<'a> {
    /// Read it from a store.
    pub fn read(event: &Stored<'a>) -> Self {
        let mut salt = event.cache_salt.filter(|salt| !salt.is_empty());
        let mut extra = Vec::new();
        if let Some(keys) = &event.extra_keys {
            for (index, entry) in keys.iter().take(event.block_hashes.len()).enumerate() {
                let is_root = index == 0 && event.parent_block_hash.is_none();
                let entry = ExtraEntry::read(entry, event.lora_name, is_root);
                salt = salt.or(entry.salt);
                extra.push(entry.canonical());
            }
            if extra.iter().all(|entry| entry.is_empty()) {
                extra = Vec::new();
            }
        }
        Self {
            lora_name: event.lora_name,
            lora_id: event.lora_id,
            cache_salt: salt,
            extra,
        }
    }

    /// The seed of the namespace's first blocks.
    pub fn root(&self) -> u64 {
        content::root(Adapter::new(self.lora_name, self.lora_id), self.cache_salt)
    }

    /// The namespace, to be kept.
    pub fn namespace(&self) -> Namespace {
        Namespace {
            lora_name: self.lora_name.map(str::to_owned),
            lora_id: self.lora_id,
            cache_salt: self.cache_salt.map(str::to_owned),
        }
    }
}

/// The size of an entry of `extra_keys` that is over the limit, if there is one.
pub fn oversize(event: &Stored<'_>) -> Option<usize> {
    let mut sizes = event.extra_keys.as_ref()?.iter().map(|entry| entry.bytes().len());
    sizes.find(|&size| size > EXTRA_BYTES)
}

/// The kind of its group, where the store says it.
pub fn kind(event: &Stored<'_>) -> Option<Kind> {
    let name = event.kv_cache_spec_kind?;
    Some(Kind::read(name, event.kv_cache_spec_sliding_window))
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
