//! How a recorded event is said in each dialect.

use super::pending::{Engine, Kind, Pending, Stored};
use crate::wire::{Dialect, Field, Fields, NoPlace, Tag, Writer, write_event};

/// An event in the words of one engine.
struct Spelled<'a> {
    event: &'a Pending,
    engine: Engine,
}

/// Append an event to a batch.
pub(super) fn write(event: &Pending, dialect: &Dialect, out: &mut Writer) -> Result<(), NoPlace> {
    let engine = if dialect.layout(Tag::BlockStored).contains(Field::ExtraKeys) {
        Engine::Vllm
    } else {
        event.engine
    };
    write_event(out, dialect, &Spelled { event, engine })
}

impl Fields for Spelled<'_> {
    type Error = NoPlace;

    fn tag(&self) -> Tag {
        match self.event.kind {
            Kind::Stored(_) => Tag::BlockStored,
            Kind::Removed => Tag::BlockRemoved,
            Kind::Cleared => Tag::AllBlocksCleared,
        }
    }

    fn has(&self, field: Field) -> bool {
        match (&self.event.kind, field) {
            (Kind::Cleared, _) => false,
            (_, Field::BlockHashes | Field::Medium) | (Kind::Stored(_), Field::TokenIds | Field::BlockSize) => true,
            (_, Field::GroupIdx) => self.event.group_idx.is_some(),
            (Kind::Removed, _) => false,
            (Kind::Stored(_), Field::ExtraKeys) => self.engine == Engine::Vllm,
            (Kind::Stored(stored), Field::KvCacheSpecSlidingWindow) => stored.sliding_window.is_some(),
            (Kind::Stored(stored), Field::ParentBlockHash) => stored.parent.is_some(),
            (Kind::Stored(stored), field) => self.text(stored, field).is_some(),
        }
    }

    fn write(&self, field: Field, out: &mut Writer) -> Result<(), NoPlace> {
        let event = self.event;
        match (&event.kind, field) {
            (_, Field::BlockHashes) => {
                out.array(event.ids.len());
                for &id in &event.ids {
                    self.id(id, out);
                }
            }
            (_, Field::Medium) => out.str(&event.medium),
            (_, Field::GroupIdx) => number(event.group_idx, out),
            (Kind::Stored(stored), Field::TokenIds) => stored.tokens.write(out),
            (Kind::Stored(stored), Field::BlockSize) => out.uint(stored.paging.page_size() as u64),
            (Kind::Stored(stored), Field::ExtraKeys) => extra_keys(stored, event.ids.len(), out),
            (Kind::Stored(stored), Field::KvCacheSpecSlidingWindow) => number(stored.sliding_window, out),
            (Kind::Stored(stored), Field::ParentBlockHash) => match stored.parent {
                Some(parent) => self.id(parent, out),
                None => out.nil(),
            },
            (Kind::Stored(stored), field) => match self.text(stored, field) {
                Some(text) => out.str(text),
                None => out.nil(),
            },
            (Kind::Removed | Kind::Cleared, _) => out.nil(),
        }
        Ok(())
    }
}

impl Spelled<'_> {
    fn id(&self, id: u64, out: &mut Writer) {
        let signed = id.cast_signed();
        let (is_long, mark) = match self.engine {
            // No branch on the sign: it is as good as random.
            Engine::Sglang => (signed >> 32 != 0 && signed >> 31 != -1, 0xcf + 4 * u8::from(signed < 0)),
            Engine::Vllm => (id >> 32 != 0, 0xcf),
        };
        if is_long {
            let mut bytes = [mark; 9];
            bytes[1..].copy_from_slice(&id.to_be_bytes());
            out.raw(&bytes);
        } else {
            out.int(signed);
        }
    }

    fn text<'a>(&self, stored: &'a Stored, field: Field) -> Option<&'a str> {
        match field {
            Field::CacheSalt if self.engine == Engine::Sglang => stored.cache_salt.as_deref(),
            Field::SessionId => stored.session_id.as_deref(),
            Field::LoraName => stored.lora_name.as_deref(),
            Field::KvCacheSpecKind => stored.spec_kind.as_deref(),
            _ => None,
        }
    }
}

fn number(value: Option<u64>, out: &mut Writer) {
    match value {
        Some(value) => out.uint(value),
        None => out.nil(),
    }
}

/// One entry a block: the adapter, then in the first block of a prompt the salt; nil where there is neither.
fn extra_keys(stored: &Stored, blocks: usize, out: &mut Writer) {
    out.array(blocks);
    for block in 0..blocks {
        let is_first = block == 0 && stored.parent.is_none();
        let salt = stored.cache_salt.as_deref().filter(|_| is_first);
        let keys = || stored.lora_name.as_deref().into_iter().chain(salt);
        match keys().count() {
            0 => out.nil(),
            count => {
                out.array(count);
                keys().for_each(|key| out.str(key));
            }
        }
    }
}
