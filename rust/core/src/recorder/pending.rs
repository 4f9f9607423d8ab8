//! Events of a recorder that wait to be taken and may still grow.

use std::borrow::Cow;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::coalesce::merge::View;
use crate::coalesce::{Act, Barrier, Cap, Encoded, Next, Scope, Standing, Waiting, frame_bytes};
use crate::index::Tier;
use crate::pages::Paging;
use crate::tokens::TokenSlice;
use crate::wire::{Field, Tag};

/// Bytes of a block's id on the wire.
const ID_BYTES: usize = 9;

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
    pub kind: Kind,
    pub medium: Cow<'static, str>,
    pub group_idx: Option<u64>,
    pub engine: Engine,
    /// Announced ids of the blocks; signed or not is the dialect's affair.
    pub ids: Vec<u64>,
}

#[derive(Debug)]
pub(super) enum Kind {
    Stored(Stored),
    Removed,
    Cleared,
}

#[derive(Debug)]
pub(super) struct Stored {
    pub paging: Paging,
    pub cache_salt: Option<Box<str>>,
    pub session_id: Option<Box<str>>,
    pub lora_name: Option<Box<str>>,
    pub spec_kind: Option<Box<str>>,
    pub sliding_window: Option<u64>,
    pub parent: Option<u64>,
    /// Token ids, or pairs of them, as they go onto the wire.
    pub tokens: Encoded,
}

/// Whose blocks an event speaks of; a dialect of vLLM speaks of all as vLLM does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Engine {
    /// SGLang's: ids are signed, salt and adapter have fields of their own.
    #[default]
    Sglang,
    /// vLLM's: ids are unsigned, salt and adapter are extra keys of each block; the adapter also has its field.
    Vllm,
}

/// An event to be recorded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Incoming<'a> {
    pub head: Head<'a>,
    /// Announced ids of the blocks.
    pub ids: &'a [u64],
    /// Of a store: their tokens.
    pub tokens: TokenSlice<'a>,
}

/// What an event says, blocks and tokens aside.
#[derive(Clone, Copy, Debug)]
pub(super) enum Head<'a> {
    Stored {
        parent: Option<u64>,
        fields: StoreFields<'a>,
    },
    Removed(RemoveFields<'a>),
    Cleared,
}

/// What removals have in common that become one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RemoveFields<'a> {
    pub engine: Engine,
    pub medium: &'a str,
    pub group_idx: Option<u64>,
}

/// What stores have in common that become one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StoreFields<'a> {
    pub paging: Paging,
    pub engine: Engine,
    pub medium: &'a str,
    pub cache_salt: Option<&'a str>,
    pub session_id: Option<&'a str>,
    pub lora_name: Option<&'a str>,
    pub group: Option<Group<'a>>,
}

/// The fields that the merge rule compares.
#[derive(PartialEq)]
enum Compared<'a> {
    Stored(StoreFields<'a>),
    Removed(RemoveFields<'a>),
}

impl<'a> Head<'a> {
    fn view(self, ids: &[u64]) -> View<u64, Compared<'a>> {
        match self {
            // Chains hold whole pages and their tokens are counted before.
            Self::Stored { parent, fields } => View::Stored {
                aligned: true,
                parent,
                last: ids.last().copied(),
                fields: Compared::Stored(fields),
            },
            Self::Removed(fields) => View::Removed {
                fields: Compared::Removed(fields),
            },
            Self::Cleared => View::Barrier,
        }
    }

    fn act(self) -> Act {
        match self {
            Self::Stored { parent, .. } => Act::Store { parent },
            Self::Removed(fields) => Act::Removal {
                kind: xxh3_64_with_seed(fields.medium.as_bytes(), fields.group_idx.map_or(0, |group| group + 1)),
            },
            Self::Cleared => Act::Barrier(Barrier::Clear),
        }
    }
}

impl Next<Pending> for Incoming<'_> {
    fn act(&self) -> Act {
        self.head.act()
    }

    fn keys(&self) -> &[u64] {
        self.ids
    }

    fn fits(&self, tail: &Pending, cap: Cap) -> bool {
        let tokens = match self.head {
            Head::Stored { fields, .. } => most_bytes(self.tokens, fields.paging.is_bigram()),
            Head::Removed(_) | Head::Cleared => 0,
        };
        tail.takes(self.head, self.ids) && tail.has_room(cap, self.ids.len(), tokens)
    }

    fn fold(self, tail: &mut Pending) {
        tail.ids.extend_from_slice(self.ids);
        if let Kind::Stored(stored) = &mut tail.kind {
            stored.tokens.extend_tokens(self.tokens, stored.paging.is_bigram());
        }
    }

    fn begin(self) -> Pending {
        let mut event = Pending {
            kind: Kind::Cleared,
            medium: Cow::Borrowed(""),
            group_idx: None,
            engine: Engine::default(),
            ids: Vec::new(),
        };
        match self.head {
            Head::Stored { parent, fields } => {
                event.medium = kept(fields.medium);
                event.group_idx = fields.group.map(|group| group.index);
                event.engine = fields.engine;
                event.kind = Kind::Stored(Stored {
                    paging: fields.paging,
                    cache_salt: fields.cache_salt.map(Into::into),
                    session_id: fields.session_id.map(Into::into),
                    lora_name: fields.lora_name.map(Into::into),
                    spec_kind: fields.group.map(|group| group.kind.into()),
                    sliding_window: fields.group.and_then(|group| group.sliding_window),
                    parent,
                    tokens: Encoded::default(),
                });
            }
            Head::Removed(fields) => {
                event.medium = kept(fields.medium);
                event.group_idx = fields.group_idx;
                event.engine = fields.engine;
                event.kind = Kind::Removed;
            }
            Head::Cleared => {}
        }
        self.fold(&mut event);
        event
    }
}

/// A tier's name, without a copy of it where the name is a common one.
fn kept(medium: &str) -> Cow<'static, str> {
    let known = Tier::ALL.into_iter().map(Tier::name).find(|name| *name == medium);
    known.map_or_else(|| Cow::Owned(medium.to_owned()), Cow::Borrowed)
}

/// No more bytes than these are written for the tokens.
fn most_bytes(tokens: TokenSlice<'_>, bigram: bool) -> usize {
    let id = match tokens {
        TokenSlice::U32(_) => 5,
        TokenSlice::U64(_) => 9,
    };
    tokens.len() * if bigram { 1 + 2 * id } else { id }
}

impl Pending {
    fn head(&self) -> Head<'_> {
        match &self.kind {
            Kind::Stored(stored) => Head::Stored {
                parent: stored.parent,
                fields: StoreFields {
                    paging: stored.paging,
                    engine: self.engine,
                    medium: &self.medium,
                    cache_salt: stored.cache_salt.as_deref(),
                    session_id: stored.session_id.as_deref(),
                    lora_name: stored.lora_name.as_deref(),
                    group: self.group(stored),
                },
            },
            Kind::Removed => Head::Removed(RemoveFields {
                engine: self.engine,
                medium: &self.medium,
                group_idx: self.group_idx,
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

    /// By the merge rule.
    fn takes(&self, next: Head<'_>, ids: &[u64]) -> bool {
        self.head().view(&self.ids).takes(&next.view(ids))
    }

    /// Whether it stays under `cap` with so much more, whatever the ids are.
    fn has_room(&self, cap: Cap, blocks: usize, token_bytes: usize) -> bool {
        let more = blocks * self.block_bytes() + token_bytes;
        cap.holds(self.ids.len() + blocks, self.size() + more)
    }

    /// Bytes of the encoded tokens.
    fn token_bytes(&self) -> usize {
        match &self.kind {
            Kind::Stored(stored) => stored.tokens.bytes().len(),
            Kind::Removed | Kind::Cleared => 0,
        }
    }

    /// Bytes of a block on the wire, its tokens and a salt aside.
    fn block_bytes(&self) -> usize {
        ID_BYTES
            + match (&self.kind, self.engine) {
                (Kind::Stored(stored), Engine::Vllm) => stored.lora_name.as_ref().map_or(1, |name| 3 + name.len()),
                _ => 0,
            }
    }

    /// Bytes on the wire without blocks and tokens, within a few.
    pub fn frame(&self) -> usize {
        let named = |field: Field, value: usize| 1 + field.name().len() + value;
        let text = |field, text: &Option<Box<str>>| text.as_ref().map_or(0, |text| named(field, 1 + text.len()));
        let number = |field, number: Option<u64>| number.map_or(0, |number| named(field, uint_bytes(number)));
        let place = named(Field::Medium, 1 + self.medium.len()) + number(Field::GroupIdx, self.group_idx);
        match &self.kind {
            Kind::Stored(stored) => {
                let keys = match self.engine {
                    Engine::Sglang => text(Field::CacheSalt, &stored.cache_salt),
                    Engine::Vllm => named(Field::ExtraKeys, 3),
                };
                frame_bytes(Tag::BlockStored)
                    + named(Field::BlockSize, uint_bytes(stored.paging.page_size() as u64))
                    + stored.parent.map_or(0, |_| ID_BYTES)
                    + place
                    + keys
                    + text(Field::SessionId, &stored.session_id)
                    + text(Field::LoraName, &stored.lora_name)
                    + text(Field::KvCacheSpecKind, &stored.spec_kind)
                    + number(Field::KvCacheSpecSlidingWindow, stored.sliding_window)
            }
            Kind::Removed => frame_bytes(Tag::BlockRemoved) + place,
            Kind::Cleared => frame_bytes(Tag::AllBlocksCleared),
        }
    }
}

/// Bytes of an integer on the wire.
fn uint_bytes(value: u64) -> usize {
    match value {
        0..0x80 => 1,
        0x80..0x1_0000 => 3,
        0x1_0000..0x1_0000_0000 => 5,
        _ => 9,
    }
}

impl Next<Self> for Pending {
    fn act(&self) -> Act {
        self.head().act()
    }

    fn keys(&self) -> &[u64] {
        &self.ids
    }

    fn fits(&self, tail: &Self, cap: Cap) -> bool {
        tail.takes(self.head(), &self.ids) && tail.has_room(cap, self.ids.len(), self.token_bytes())
    }

    fn fold(self, tail: &mut Self) {
        tail.ids.extend(self.ids);
        if let (Kind::Stored(tail), Kind::Stored(next)) = (&mut tail.kind, self.kind) {
            tail.tokens.append(&next.tokens);
        }
    }

    fn begin(self) -> Self {
        self
    }
}

impl Waiting for Pending {
    fn size(&self) -> usize {
        self.frame() + self.block_bytes() * self.ids.len() + self.token_bytes()
    }

    fn standing(&self) -> Standing {
        let is_store = matches!(self.kind, Kind::Stored(_));
        Standing {
            scope: Scope::read(Some(&self.medium), None, self.group_idx),
            aligned: is_store,
            has_tokens: is_store,
        }
    }

    fn retain(&mut self, keep: &[bool]) {
        let mut kept = keep.iter();
        self.ids.retain(|_| *kept.next().expect("one answer a block"));
        if let Kind::Stored(stored) = &mut self.kind {
            stored.tokens.truncate(self.ids.len() * stored.paging.page_size());
        }
    }
}
