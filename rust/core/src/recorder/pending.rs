//! Events that wait to be taken and may still grow.

use crate::merge::{Cap, View};
use crate::pages::Paging;
use crate::tokens::TokenSlice;
use crate::wire::{Dialect, Field, Fields, NoPlace, Tag, Writer, write_event};

/// Bytes of a block's hash on the wire.
const HASH_BYTES: usize = 9;

/// An event that waits.
#[derive(Debug)]
pub(super) struct Pending {
    kind: Kind,
    medium: Box<str>,
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
    cache_salt: Option<Box<str>>,
    session_id: Option<Box<str>>,
    lora_name: Option<Box<str>>,
    parent: Option<i64>,
    tokens: Units,
}

/// What an event to be recorded says, hashes and tokens aside.
#[derive(Clone, Copy, Debug)]
pub(super) enum Head<'a> {
    Stored {
        parent: Option<i64>,
        last: Option<i64>,
        fields: StoreFields<'a>,
    },
    Removed {
        medium: &'a str,
    },
    Cleared,
}

/// What stores have in common that become one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StoreFields<'a> {
    pub paging: Paging,
    pub medium: &'a str,
    pub cache_salt: Option<&'a str>,
    pub session_id: Option<&'a str>,
    pub lora_name: Option<&'a str>,
}

/// The fields that the merge rule compares.
#[derive(PartialEq)]
pub(super) enum Compared<'a> {
    Stored(StoreFields<'a>),
    Removed(&'a str),
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
            Self::Removed { medium } => View::Removed {
                fields: Compared::Removed(medium),
            },
            Self::Cleared => View::Barrier,
        }
    }
}

impl Pending {
    /// An event without hashes and tokens.
    pub fn new(head: Head<'_>) -> Self {
        let (kind, medium) = match head {
            Head::Stored { parent, fields, .. } => {
                let stored = Stored {
                    paging: fields.paging,
                    cache_salt: fields.cache_salt.map(Into::into),
                    session_id: fields.session_id.map(Into::into),
                    lora_name: fields.lora_name.map(Into::into),
                    parent,
                    tokens: Units::default(),
                };
                (Kind::Stored(stored), fields.medium)
            }
            Head::Removed { medium } => (Kind::Removed, medium),
            Head::Cleared => (Kind::Cleared, ""),
        };
        let mut event = Self {
            kind,
            medium: medium.into(),
            ids: Vec::new(),
            frame: 0,
        };
        let mut frame = Writer::with_capacity(256);
        event.write(&mut frame, &Dialect::SGLANG);
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
                    medium: &self.medium,
                    cache_salt: stored.cache_salt.as_deref(),
                    session_id: stored.session_id.as_deref(),
                    lora_name: stored.lora_name.as_deref(),
                },
            },
            Kind::Removed => Head::Removed { medium: &self.medium },
            Kind::Cleared => Head::Cleared,
        }
    }

    /// Whether an event with this head may be folded into this one, by the merge rule.
    pub fn takes(&self, next: Head<'_>) -> bool {
        self.head().view().takes(&next.view())
    }

    /// Whether it stays under `cap` with so much more, whatever the ids are.
    pub fn has_room(&self, cap: Cap, blocks: usize, tokens: TokenSlice<'_>) -> bool {
        let units = match &self.kind {
            Kind::Stored(stored) => Units::most_bytes(tokens, stored.paging.is_bigram()),
            Kind::Removed | Kind::Cleared => 0,
        };
        self.blocks() + blocks <= cap.blocks && self.size() + HASH_BYTES * blocks + units <= cap.bytes
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
        let tokens = match &self.kind {
            Kind::Stored(stored) => stored.tokens.encoded.as_bytes().len(),
            Kind::Removed | Kind::Cleared => 0,
        };
        HASH_BYTES * self.ids.len() + tokens
    }

    /// Bytes on the wire without hashes and tokens.
    pub fn frame(&self) -> usize {
        self.frame
    }

    /// Append the event to a batch in one of SGLang's dialects.
    pub fn write(&self, out: &mut Writer, dialect: &Dialect) {
        write_event(out, dialect, self).expect("dialects of SGLang have a place for all that is recorded");
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
            (Kind::Removed, _) => false,
            (Kind::Stored(stored), Field::ParentBlockHash) => stored.parent.is_some(),
            (Kind::Stored(stored), field) => stored.text(field).is_some(),
        }
    }

    fn write(&self, field: Field, out: &mut Writer) -> Result<(), NoPlace> {
        match (&self.kind, field) {
            (_, Field::BlockHashes) => {
                out.array(self.ids.len());
                self.ids.iter().for_each(|&id| out.int(id));
            }
            (_, Field::Medium) => out.str(&self.medium),
            (Kind::Stored(stored), field) => stored.write(field, out),
            (Kind::Removed | Kind::Cleared, _) => out.nil(),
        }
        Ok(())
    }
}

impl Stored {
    fn text(&self, field: Field) -> Option<&str> {
        match field {
            Field::CacheSalt => self.cache_salt.as_deref(),
            Field::SessionId => self.session_id.as_deref(),
            Field::LoraName => self.lora_name.as_deref(),
            _ => None,
        }
    }

    fn write(&self, field: Field, out: &mut Writer) {
        match (field, self.parent, self.text(field)) {
            (Field::ParentBlockHash, Some(parent), _) => out.int(parent),
            (Field::TokenIds, ..) => {
                out.array(self.tokens.count);
                out.raw(self.tokens.encoded.as_bytes());
            }
            (Field::BlockSize, ..) => out.uint(self.paging.page_size() as u64),
            (.., Some(text)) => out.str(text),
            _ => out.nil(),
        }
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
