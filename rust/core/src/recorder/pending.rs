//! Events that wait to be taken and may still grow.

use crate::merge::{Cap, View};
use crate::pages::Paging;
use crate::tokens::TokenSlice;
use crate::wire::{Dialect, Field, Fields, NoPlace, Tag, Writer, write_event};

/// Bytes of a block's hash on the wire.
const HASH_BYTES: usize = 9;

/// A cache group of a hybrid model, as vLLM's events name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group<'a> {
    /// Its number.
    pub index: u64,
    /// Its kind, `full_attention` for instance.
    pub kind: &'a str,
    /// Its window in tokens, where it has one.
    pub sliding_window: Option<u64>,
}

/// An event that waits.
#[derive(Debug)]
pub(super) struct Pending {
    kind: Kind,
    medium: Box<str>,
    group_idx: Option<u64>,
    /// Ids go out as unsigned integers.
    unsigned: bool,
    ids: Vec<i64>,
    /// Bytes on the wire without hashes and tokens.
    frame: usize,
}

#[derive(Debug)]
enum Kind {
    Stored(Stored),
    Removed,
    Cleared,
}

#[derive(Debug)]
struct Stored {
    paging: Paging,
    keys: Keys,
    cache_salt: Option<Box<str>>,
    session_id: Option<Box<str>>,
    lora_name: Option<Box<str>>,
    spec_kind: Option<Box<str>>,
    sliding_window: Option<u64>,
    parent: Option<i64>,
    tokens: Units,
}

/// Where an event says its salt and its adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keys {
    /// In fields of their own, as SGLang does.
    Fields,
    /// In the extra keys of each block, as vLLM does; the adapter also in its field.
    EachBlock,
}

/// What an event to be recorded says, hashes and tokens aside.
#[derive(Clone, Copy, Debug)]
pub(super) enum Head<'a> {
    Stored {
        parent: Option<i64>,
        last: Option<i64>,
        fields: StoreFields<'a>,
    },
    Removed(RemoveFields<'a>),
    Cleared,
}

/// What removals have in common that become one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RemoveFields<'a> {
    pub medium: &'a str,
    pub group_idx: Option<u64>,
    pub unsigned: bool,
}

/// What stores have in common that become one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StoreFields<'a> {
    pub paging: Paging,
    pub keys: Keys,
    pub unsigned: bool,
    pub medium: &'a str,
    pub cache_salt: Option<&'a str>,
    pub session_id: Option<&'a str>,
    pub lora_name: Option<&'a str>,
    pub group: Option<Group<'a>>,
}

/// The fields that the merge rule compares.
#[derive(PartialEq)]
pub(super) enum Compared<'a> {
    Stored(StoreFields<'a>),
    Removed(RemoveFields<'a>),
}

impl<'a> Head<'a> {
    fn view(self) -> View<i64, Compared<'a>> {
        match self {
            // Chains hold whole pages and their tokens are counted before.
            Self::Stored { parent, last, fields } => View::Stored {
                aligned: true,
                parent,
                last,
                fields: Compared::Stored(fields),
            },
            Self::Removed(fields) => View::Removed {
                fields: Compared::Removed(fields),
            },
            Self::Cleared => View::Barrier,
        }
    }
}

impl Pending {
    /// An event without hashes and tokens.
    pub fn new(head: Head<'_>) -> Self {
        let mut event = Self {
            kind: Kind::Cleared,
            medium: "".into(),
            group_idx: None,
            unsigned: false,
            ids: Vec::new(),
            frame: 0,
        };
        match head {
            Head::Stored { parent, fields, .. } => {
                event.medium = fields.medium.into();
                event.group_idx = fields.group.map(|group| group.index);
                event.unsigned = fields.unsigned;
                event.kind = Kind::Stored(Stored {
                    paging: fields.paging,
                    keys: fields.keys,
                    cache_salt: fields.cache_salt.map(Into::into),
                    session_id: fields.session_id.map(Into::into),
                    lora_name: fields.lora_name.map(Into::into),
                    spec_kind: fields.group.map(|group| group.kind.into()),
                    sliding_window: fields.group.and_then(|group| group.sliding_window),
                    parent,
                    tokens: Units::default(),
                });
            }
            Head::Removed(fields) => {
                event.medium = fields.medium.into();
                event.group_idx = fields.group_idx;
                event.unsigned = fields.unsigned;
                event.kind = Kind::Removed;
            }
            Head::Cleared => {}
        }
        let mut frame = Writer::with_capacity(256);
        event
            .write(&mut frame, &Dialect::SGLANG)
            .expect("maps have a place for every field");
        event.frame = frame.as_bytes().len();
        event
    }

    fn head(&self) -> Head<'_> {
        match &self.kind {
            Kind::Stored(stored) => Head::Stored {
                parent: stored.parent,
                last: self.ids.last().copied(),
                fields: StoreFields {
                    paging: stored.paging,
                    keys: stored.keys,
                    unsigned: self.unsigned,
                    medium: &self.medium,
                    cache_salt: stored.cache_salt.as_deref(),
                    session_id: stored.session_id.as_deref(),
                    lora_name: stored.lora_name.as_deref(),
                    group: self.group(stored),
                },
            },
            Kind::Removed => Head::Removed(RemoveFields {
                medium: &self.medium,
                group_idx: self.group_idx,
                unsigned: self.unsigned,
            }),
            Kind::Cleared => Head::Cleared,
        }
    }

    fn group<'a>(&self, stored: &'a Stored) -> Option<Group<'a>> {
        Some(Group {
            index: self.group_idx?,
            kind: stored.spec_kind.as_deref()?,
            sliding_window: stored.sliding_window,
        })
    }

    /// Whether an event with this head may be folded into this one, by the merge rule.
    pub fn takes(&self, next: Head<'_>) -> bool {
        self.head().view().takes(&next.view())
    }

    /// Whether it stays under `cap` with so much more, whatever the ids are.
    pub fn has_room(&self, cap: Cap, blocks: usize, tokens: TokenSlice<'_>) -> bool {
        let more = match &self.kind {
            Kind::Stored(stored) => {
                Units::most_bytes(tokens, stored.paging.is_bigram()) + blocks * stored.extra_key_bytes()
            }
            Kind::Removed | Kind::Cleared => 0,
        };
        self.blocks() + blocks <= cap.blocks && self.size() + HASH_BYTES * blocks + more <= cap.bytes
    }

    /// Add blocks and, to a store, their tokens.
    pub fn grow(&mut self, ids: impl Iterator<Item = i64>, tokens: TokenSlice<'_>) {
        self.ids.extend(ids);
        if let Kind::Stored(stored) = &mut self.kind {
            stored.tokens.extend(tokens, stored.paging.is_bigram());
        }
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.ids.len()
    }

    /// Bytes on the wire, within a few.
    pub fn size(&self) -> usize {
        self.frame + self.body()
    }

    /// Bytes of hashes and tokens on the wire.
    pub fn body(&self) -> usize {
        let rest = match &self.kind {
            Kind::Stored(stored) => stored.tokens.encoded.as_bytes().len() + self.ids.len() * stored.extra_key_bytes(),
            Kind::Removed | Kind::Cleared => 0,
        };
        HASH_BYTES * self.ids.len() + rest
    }

    /// Bytes on the wire without hashes and tokens.
    pub fn frame(&self) -> usize {
        self.frame
    }

    /// Append the event to a batch.
    pub fn write(&self, out: &mut Writer, dialect: &Dialect) -> Result<(), NoPlace> {
        write_event(out, dialect, self)
    }

    fn write_id(&self, out: &mut Writer, id: i64) {
        if self.unsigned {
            out.uint(id.cast_unsigned());
        } else {
            out.int(id);
        }
    }
}

impl Fields for Pending {
    type Error = NoPlace;

    fn tag(&self) -> Tag {
        match self.kind {
            Kind::Stored(_) => Tag::BlockStored,
            Kind::Removed => Tag::BlockRemoved,
            Kind::Cleared => Tag::AllBlocksCleared,
        }
    }

    fn has(&self, field: Field) -> bool {
        match (&self.kind, field) {
            (Kind::Cleared, _) => false,
            (_, Field::BlockHashes | Field::Medium) | (Kind::Stored(_), Field::TokenIds | Field::BlockSize) => true,
            (_, Field::GroupIdx) => self.group_idx.is_some(),
            (Kind::Removed, _) => false,
            (Kind::Stored(stored), Field::ParentBlockHash) => stored.parent.is_some(),
            (Kind::Stored(stored), Field::ExtraKeys) => stored.keys == Keys::EachBlock,
            (Kind::Stored(stored), Field::KvCacheSpecSlidingWindow) => stored.sliding_window.is_some(),
            (Kind::Stored(stored), field) => stored.text(field).is_some(),
        }
    }

    fn write(&self, field: Field, out: &mut Writer) -> Result<(), NoPlace> {
        match (&self.kind, field) {
            (_, Field::BlockHashes) => {
                out.array(self.ids.len());
                self.ids.iter().for_each(|&id| self.write_id(out, id));
            }
            (_, Field::Medium) => out.str(&self.medium),
            (_, Field::GroupIdx) => number(out, self.group_idx),
            (Kind::Stored(stored), Field::ParentBlockHash) => match stored.parent {
                Some(parent) => self.write_id(out, parent),
                None => out.nil(),
            },
            (Kind::Stored(stored), Field::ExtraKeys) => stored.write_extra_keys(self.ids.len(), out),
            (Kind::Stored(stored), field) => stored.write(field, out),
            (Kind::Removed | Kind::Cleared, _) => out.nil(),
        }
        Ok(())
    }
}

impl Stored {
    fn text(&self, field: Field) -> Option<&str> {
        match field {
            Field::CacheSalt if self.keys == Keys::Fields => self.cache_salt.as_deref(),
            Field::SessionId => self.session_id.as_deref(),
            Field::LoraName => self.lora_name.as_deref(),
            Field::KvCacheSpecKind => self.spec_kind.as_deref(),
            _ => None,
        }
    }

    fn write(&self, field: Field, out: &mut Writer) {
        match (field, self.text(field)) {
            (Field::TokenIds, _) => {
                out.array(self.tokens.count);
                out.raw(self.tokens.encoded.as_bytes());
            }
            (Field::BlockSize, _) => out.uint(self.paging.page_size() as u64),
            (Field::KvCacheSpecSlidingWindow, _) => number(out, self.sliding_window),
            (_, Some(text)) => out.str(text),
            _ => out.nil(),
        }
    }

    /// One entry a block: the adapter, and in the first block of a prompt the salt.
    fn write_extra_keys(&self, blocks: usize, out: &mut Writer) {
        out.array(blocks);
        let adapter = self.lora_name.as_deref();
        for block in 0..blocks {
            let is_first = block == 0 && self.parent.is_none();
            let salt = self.cache_salt.as_deref().filter(|_| is_first);
            match [adapter, salt] {
                [None, None] => out.nil(),
                keys => {
                    out.array(keys.iter().flatten().count());
                    keys.iter().flatten().for_each(|key| out.str(key));
                }
            }
        }
    }

    /// Bytes of a block's extra keys on the wire, a salt aside.
    fn extra_key_bytes(&self) -> usize {
        match (self.keys, &self.lora_name) {
            (Keys::Fields, _) => 0,
            (Keys::EachBlock, None) => 1,
            (Keys::EachBlock, Some(name)) => 3 + name.len(),
        }
    }
}

fn number(out: &mut Writer, value: Option<u64>) {
    match value {
        Some(value) => out.uint(value),
        None => out.nil(),
    }
}

/// Units (token ids, or pairs of them) as they go onto the wire: encoded once, when they are recorded.
#[derive(Debug, Default)]
struct Units {
    encoded: Writer,
    count: usize,
}

impl Units {
    /// No more bytes than these are written for the tokens.
    fn most_bytes(tokens: TokenSlice<'_>, bigram: bool) -> usize {
        let id = match tokens {
            TokenSlice::U32(_) => 5,
            TokenSlice::U64(_) => 9,
        };
        tokens.len() * if bigram { 1 + 2 * id } else { id }
    }

    fn extend(&mut self, tokens: TokenSlice<'_>, bigram: bool) {
        if bigram {
            self.count += tokens.len().saturating_sub(1);
            self.encoded.pairs(tokens);
        } else {
            self.count += tokens.len();
            self.encoded.ids(tokens);
        }
    }
}
