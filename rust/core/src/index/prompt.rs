//! A prompt to be matched: its tokens, its namespace, and its extra keys cut as each engine cuts them.

use super::geometry::Geometry;
use super::reading::{ExtraEntry, rewrite};
use crate::hash::content::{self, Adapter};
use crate::tokens::TokenSlice;
use crate::wire::{Raw, Value, Writer};

/// A prompt.
#[derive(Clone, Debug)]
pub struct Prompt<'a> {
    /// Its token ids.
    pub tokens: TokenSlice<'a>,
    /// Seed of its namespace.
    pub root: u64,
    /// Its extra keys, an entry for each block of the index's size; empty for none.
    extra: Vec<Vec<Item>>,
}

/// Something else that identifies a block.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Item {
    /// An image that starts so many tokens after (or before) the block's start.
    Image { id: Vec<u8>, offset: i64 },
    /// Anything else; it cannot be cut differently.
    Other(Vec<u8>),
}

/// Extra keys as one geometry sees them.
pub struct Cut {
    /// Canonical form, a block each; blocks after the last have none.
    pub extra: Vec<Box<[u8]>>,
    /// Blocks that can be known; those after them depend on what the entries do not say.
    pub blocks: usize,
}

impl<'a> Prompt<'a> {
    /// A prompt under a namespace. `extra_keys` is an array with nil or an array for each block, as on vLLM's wire
    /// (an adapter's name or a salt in it is understood but need not be there); None where it is anything else.
    pub fn new(
        tokens: TokenSlice<'a>,
        lora_name: Option<&str>,
        lora_id: Option<i64>,
        cache_salt: Option<&str>,
        extra_keys: Option<Raw<'_>>,
    ) -> Option<Self> {
        let mut salt = cache_salt.filter(|salt| !salt.is_empty());
        let mut extra = Vec::new();
        if let Some(keys) = extra_keys {
            let Value::Array(entries) = keys.value() else {
                return None;
            };
            for (index, entry) in entries.enumerate() {
                if !matches!(entry.value(), Value::Array(_) | Value::Nil) {
                    return None;
                }
                let entry = ExtraEntry::read(entry, lora_name, index == 0);
                salt = salt.or(entry.salt);
                extra.push(entry.items.into_iter().map(Item::read).collect::<Vec<_>>());
            }
        }
        while extra.last().is_some_and(Vec::is_empty) {
            extra.pop();
        }
        Some(Self {
            tokens,
            root: content::root(Adapter::new(lora_name, lora_id), salt),
            extra,
        })
    }

    /// The content hashes of its whole blocks of the index's size; of an index apart from all others if `apart`.
    pub fn chain(&self, index_block: u32, apart: bool) -> Vec<u64> {
        let size = index_block as usize;
        let mut last = if apart { !self.root } else { self.root };
        let extra: Vec<_> = self.extra.iter().map(|items| canonical(items)).collect();
        (0..)
            .map_while(|index| Some((index, content::window(self.tokens, index, size, false)?)))
            .map(|(index, ids)| {
                last = content::block(last, ids, extra.get(index).map(AsRef::as_ref));
                last
            })
            .collect()
    }

    /// The extra keys as an engine with another block size would send them.
    ///
    /// Larger blocks that are made of whole index blocks take over their images. For smaller or other blocks the
    /// entries do not say which of them an image reaches, so nothing is known from the first entry on.
    pub fn cut(&self, geometry: Geometry, index_block: u32) -> Cut {
        if self.extra.is_empty() {
            return Cut {
                extra: Vec::new(),
                blocks: usize::MAX,
            };
        }
        let (size, index_block) = (geometry.block_size as usize, index_block as usize);
        if size.is_multiple_of(index_block) {
            let merged = self.extra.chunks(size / index_block).map(|entries| {
                if size == index_block {
                    Some(entries[0].clone())
                } else {
                    merge(entries, index_block)
                }
            });
            let extra: Vec<_> = merged.map_while(|items| items.map(|items| canonical(&items))).collect();
            let whole = extra.len() == self.extra.len().div_ceil(size / index_block);
            let blocks = if whole { usize::MAX } else { extra.len() };
            return Cut { extra, blocks };
        }
        let plain = self.extra.iter().take_while(|items| items.is_empty()).count();
        Cut {
            extra: Vec::new(),
            blocks: plain * index_block / size,
        }
    }
}

impl Item {
    fn read(item: Raw<'_>) -> Self {
        if let Value::Array(mut parts) = item.value()
            && let (Some(id), Some(offset), None) = (parts.next(), parts.next(), parts.next())
            && let Some(offset) = integer(offset)
        {
            return Self::Image { id: packed(id), offset };
        }
        Self::Other(packed(item))
    }

    fn write(&self, writer: &mut Writer) {
        match self {
            Self::Image { id, offset } => {
                writer.array(2);
                writer.raw(id);
                writer.int(*offset);
            }
            Self::Other(bytes) => writer.raw(bytes),
        }
    }
}

/// The items of a block made of several index blocks; None where that cannot be said.
fn merge(entries: &[Vec<Item>], index_block: usize) -> Option<Vec<Item>> {
    let mut images: Vec<(i64, Vec<u8>)> = Vec::new();
    for (place, items) in entries.iter().enumerate() {
        for item in items {
            let Item::Image { id, offset } = item else { return None };
            let image = (offset.saturating_add((place * index_block) as i64), id.clone());
            if !images.contains(&image) {
                images.push(image);
            }
        }
    }
    images.sort_by_key(|(offset, _)| *offset);
    Some(
        images
            .into_iter()
            .map(|(offset, id)| Item::Image { id, offset })
            .collect(),
    )
}

fn canonical(items: &[Item]) -> Box<[u8]> {
    if items.is_empty() {
        return Box::default();
    }
    let mut writer = Writer::new();
    writer.array(items.len());
    for item in items {
        item.write(&mut writer);
    }
    writer.into_bytes().into()
}

fn packed(value: Raw<'_>) -> Vec<u8> {
    let mut writer = Writer::new();
    rewrite(value, &mut writer);
    writer.into_bytes()
}

fn integer(value: Raw<'_>) -> Option<i64> {
    match value.value() {
        Value::Unsigned(number) => i64::try_from(number).ok(),
        Value::Negative(number) => Some(number),
        _ => None,
    }
}
