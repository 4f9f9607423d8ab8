//! An event off the wire that waits to go on.

use super::frame::Frame;
use super::merge::{Cap, View};
use super::window::{Act, Barrier, Next, Waiting};
use super::{Encoded, Scope, Standing};
use crate::wire::{EngineHash, Event, Field, Fields, NoPlace, Raw, Stored, Tag, Value, Writer};

/// An event with all that it said. Hashes stay in the form they came in.
#[derive(Clone, Debug)]
pub(crate) struct Carried {
    kind: Kind,
    /// Keys of the blocks, the same for every form of a hash.
    keys: Vec<u64>,
    hashes: Encoded,
    /// Where the last hash begins among the bytes of all.
    last: usize,
}

#[derive(Clone, Debug)]
enum Kind {
    Stored(Box<Body>),
    Removed(Frame),
    Cleared(Frame),
    /// An event that was not read, as it came; `is_foreign`: its type is not known.
    Unread {
        bytes: Box<[u8]>,
        is_foreign: bool,
    },
}

/// What a store says of its blocks.
#[derive(Clone, Debug)]
struct Body {
    frame: Frame,
    parent: Option<(u64, Box<[u8]>)>,
    tokens: Encoded,
    extra_keys: Option<Encoded>,
    block_size: u64,
}

impl Carried {
    /// Keep an event.
    pub fn new(event: &Event<'_>) -> Self {
        let frame = Frame::new(event);
        let (kind, list) = match event {
            Event::Stored(stored) => (
                Kind::Stored(Box::new(Body::new(stored, frame))),
                Some(stored.block_hashes),
            ),
            Event::Removed(removed) => (Kind::Removed(frame), Some(removed.block_hashes)),
            Event::Cleared(_) => (Kind::Cleared(frame), None),
        };
        let mut carried = Self::of(kind);
        for hash in list.unwrap_or_default().iter() {
            carried.keys.push(hash.key());
            carried.last = carried.hashes.bytes().len();
            carried.hashes.extend(1, |out| out.hash(hash));
        }
        carried
    }

    /// Keep an event that was not read.
    pub fn unread(bytes: &[u8], is_foreign: bool) -> Self {
        let bytes = bytes.into();
        Self::of(Kind::Unread { bytes, is_foreign })
    }

    fn of(kind: Kind) -> Self {
        Self {
            kind,
            keys: Vec::new(),
            hashes: Encoded::default(),
            last: 0,
        }
    }

    /// The event as it came, if it was not read.
    pub fn as_unread(&self) -> Option<&[u8]> {
        match &self.kind {
            Kind::Unread { bytes, .. } => Some(bytes),
            _ => None,
        }
    }

    fn frame(&self) -> Option<&Frame> {
        match &self.kind {
            Kind::Stored(body) => Some(&body.frame),
            Kind::Removed(frame) | Kind::Cleared(frame) => Some(frame),
            Kind::Unread { .. } => None,
        }
    }

    fn is_aligned(&self, body: &Body) -> bool {
        let blocks = self.keys.len();
        let has_all_entries = body.extra_keys.as_ref().is_none_or(|entries| entries.len() == blocks);
        has_all_entries && body.covers(blocks)
    }

    /// Of a store: whether its group is one in which a prefix is of use only as a whole.
    pub fn is_of_full_attention(&self) -> bool {
        let Kind::Stored(body) = &self.kind else { return false };
        match body.frame.value(Field::KvCacheSpecKind).map(Raw::read) {
            None => body.frame.scope.place().is_some_and(|place| place.group == 0),
            Some(kind) => kind.is_ok_and(|kind| {
                matches!(kind.value(), Value::Str(name) if crate::index::Kind::read(name, None) == crate::index::Kind::Full)
            }),
        }
    }

    /// Of a store: whether it would be aligned if it named so many blocks.
    pub fn would_align(&self, blocks: usize) -> bool {
        match &self.kind {
            Kind::Stored(body) => body.covers(blocks),
            _ => false,
        }
    }

    /// Keep the blocks at positions that are true, and whatever tokens there are.
    fn retain_blocks(&mut self, keep: &[bool]) {
        let mut kept = keep.iter();
        self.keys.retain(|_| *kept.next().unwrap_or(&false));
        self.hashes.retain(keep);
        self.last = self.hashes.start_of_last();
    }

    /// Keep the blocks at these positions; of an aligned store, they are the first so many. Another store keeps all of its
    /// tokens.
    pub fn keep(&mut self, keep: &[bool]) {
        if self.standing().aligned {
            self.retain(keep);
        } else {
            self.retain_blocks(keep);
        }
    }

    /// The same store of some of its blocks, if it is aligned: those at positions from `from` up to and with `to`.
    pub fn part(&self, from: usize, to: usize) -> Self {
        let mut part = self.clone();
        let blocks = from..to + 1;
        if let Kind::Stored(body) = &mut part.kind {
            let size = body.block_size as usize;
            if from > 0 {
                let above = self.hashes.slice(from - 1..from);
                body.parent = Some((self.keys[from - 1], above.bytes().into()));
            }
            body.tokens = body.tokens.slice(from * size..(to + 1) * size);
            if let Some(entries) = &mut body.extra_keys {
                *entries = entries.slice(blocks.clone());
            }
        }
        part.keys = self.keys[blocks.clone()].to_vec();
        part.hashes = self.hashes.slice(blocks);
        part.last = part.hashes.start_of_last();
        part
    }

    fn view(&self) -> View<&[u8], &Frame> {
        match &self.kind {
            Kind::Stored(body) => View::Stored {
                aligned: self.is_aligned(body),
                parent: body.parent.as_ref().map(|(_, hash)| &hash[..]),
                last: (!self.keys.is_empty()).then(|| &self.hashes.bytes()[self.last..]),
                fields: &body.frame,
            },
            Kind::Removed(frame) => View::Removed { fields: frame },
            Kind::Cleared(_) | Kind::Unread { .. } => View::Barrier,
        }
    }
}

impl Body {
    /// Whether its tokens are those of so many whole blocks.
    fn covers(&self, blocks: usize) -> bool {
        (blocks as u64).checked_mul(self.block_size) == Some(self.tokens.len() as u64)
    }

    fn new(stored: &Stored<'_>, frame: Frame) -> Self {
        let mut tokens = Encoded::default();
        tokens.extend(stored.token_ids.len(), |out| out.raw(stored.token_ids.bytes()));
        let extra_keys = stored.extra_keys.map(|keys| {
            let mut entries = Encoded::default();
            keys.iter()
                .for_each(|entry| entries.extend(1, |out| out.raw(entry.bytes())));
            entries
        });
        Self {
            frame,
            parent: stored.parent_block_hash.map(|hash| (hash.key(), encoded(hash))),
            tokens,
            extra_keys,
            block_size: stored.block_size,
        }
    }
}

fn encoded(hash: EngineHash<'_>) -> Box<[u8]> {
    let mut out = Writer::new();
    out.hash(hash);
    out.into_bytes().into()
}

impl Next<Self> for Carried {
    fn act(&self) -> Act {
        match &self.kind {
            Kind::Stored(body) => Act::Store {
                parent: body.parent.as_ref().map(|&(key, _)| key),
            },
            Kind::Removed(frame) => Act::Removal { kind: frame.number },
            Kind::Cleared(_) => Act::Barrier(Barrier::Clear),
            Kind::Unread { is_foreign: true, .. } => Act::Barrier(Barrier::Foreign),
            Kind::Unread { .. } => Act::Barrier(Barrier::Unusable),
        }
    }

    fn keys(&self) -> &[u64] {
        &self.keys
    }

    fn fits(&self, tail: &Self, cap: Cap) -> bool {
        tail.view().takes(&self.view()) && cap.holds(tail.keys.len() + self.keys.len(), tail.size() + self.body_size())
    }

    fn fold(self, tail: &mut Self) {
        tail.last = tail.hashes.bytes().len() + self.last;
        tail.hashes.append(&self.hashes);
        tail.keys.extend(self.keys);
        if let (Kind::Stored(tail), Kind::Stored(next)) = (&mut tail.kind, self.kind) {
            tail.tokens.append(&next.tokens);
            if let (Some(tail), Some(next)) = (&mut tail.extra_keys, next.extra_keys) {
                tail.append(&next);
            }
        }
    }

    fn begin(self) -> Self {
        self
    }
}

impl Carried {
    /// Bytes of what grows.
    fn body_size(&self) -> usize {
        let of_blocks = match &self.kind {
            Kind::Stored(body) => {
                body.tokens.bytes().len() + body.extra_keys.as_ref().map_or(0, |entries| entries.bytes().len())
            }
            _ => 0,
        };
        self.hashes.bytes().len() + of_blocks
    }
}

impl Waiting for Carried {
    fn size(&self) -> usize {
        let around = match &self.kind {
            Kind::Unread { bytes, .. } => bytes.len(),
            Kind::Stored(body) => body.frame.size + body.parent.as_ref().map_or(1, |(_, hash)| hash.len()),
            Kind::Removed(frame) | Kind::Cleared(frame) => frame.size,
        };
        around + self.body_size()
    }

    fn standing(&self) -> Standing {
        let (aligned, has_tokens) = match &self.kind {
            Kind::Stored(body) => (self.is_aligned(body), body.tokens.len() > 0),
            _ => (true, false),
        };
        Standing {
            scope: self.frame().map_or(Scope::Unknown, |frame| frame.scope),
            aligned,
            has_tokens: aligned && has_tokens,
        }
    }

    fn retain(&mut self, keep: &[bool]) {
        self.retain_blocks(keep);
        if let Kind::Stored(body) = &mut self.kind {
            let blocks = self.keys.len();
            body.tokens.truncate(blocks * body.block_size as usize);
            if let Some(entries) = &mut body.extra_keys {
                entries.truncate(blocks);
            }
        }
    }
}

impl Fields for Carried {
    type Error = NoPlace;

    fn tag(&self) -> Tag {
        self.frame().map_or(Tag::AllBlocksCleared, |frame| frame.tag)
    }

    fn has(&self, field: Field) -> bool {
        match (&self.kind, field) {
            (Kind::Stored(_), Field::BlockHashes | Field::TokenIds) | (Kind::Removed(_), Field::BlockHashes) => true,
            (Kind::Stored(body), Field::ParentBlockHash) => body.parent.is_some(),
            (Kind::Stored(body), Field::ExtraKeys) => body.extra_keys.is_some(),
            _ => self.frame().is_some_and(|frame| frame.value(field).is_some()),
        }
    }

    fn write(&self, field: Field, out: &mut Writer) -> Result<(), NoPlace> {
        match (&self.kind, field) {
            (Kind::Stored(_) | Kind::Removed(_), Field::BlockHashes) => self.hashes.write(out),
            (Kind::Stored(body), Field::TokenIds) => body.tokens.write(out),
            (Kind::Stored(body), Field::ParentBlockHash) => match &body.parent {
                Some((_, hash)) => out.raw(hash),
                None => out.nil(),
            },
            (Kind::Stored(body), Field::ExtraKeys) => match &body.extra_keys {
                Some(entries) => entries.write(out),
                None => out.nil(),
            },
            _ => match self.frame().and_then(|frame| frame.value(field)) {
                Some(value) => out.raw(value),
                None => out.nil(),
            },
        }
        Ok(())
    }

    fn repeats(&self, field: Field) -> bool {
        self.frame().is_some_and(|frame| frame.repeats.contains(&field))
    }

    fn unknown_len(&self) -> usize {
        self.frame().map_or(0, |frame| frame.unknown_len)
    }

    fn write_unknown(&self, out: &mut Writer) -> Result<(), NoPlace> {
        if let Some(frame) = self.frame() {
            out.raw(frame.unknown());
        }
        Ok(())
    }
}
