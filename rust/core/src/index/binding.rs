//! Binding: how an engine's block hash gets its place in the prompt it belongs to.
//!
//! ```text
//!             unknown parent            parent bound
//!   Loose ────────────────▶ Pending ────────────────▶ Bound
//!     └───────────── root, or parent bound ─────────────▲
//! ```
//!
//! A record goes only to the right until nothing needs it; then it is gone. (A store on the GPU, which alone names
//! salts and images, first takes its blocks back to the left: what it says goes before what waits.)

use std::time::Duration;

use super::record::{Kept, Link, Namespace, Record};
use super::residency::Residency;
use super::room::Room;
use super::source::{Source, Store};
use super::table::{Geometry, Tables};
use crate::hash::content;
use crate::tokens::{TokenSlice, TokenVec};

/// What stands above a block.
#[derive(Clone, Copy, Debug)]
pub(super) enum Above {
    /// Nothing: the seed of its namespace.
    Root(u64),
    /// A block that is bound.
    Bound { parent: u64, content: u64 },
    /// A block that is not.
    Unknown { parent: u64 },
    /// Nothing, in a namespace that the store cannot name.
    Nameless,
}

/// Where and since when a block waits if it has to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) parked: bool,
    pub(super) now: Duration,
}

/// What a block is computed from, borrowed from a store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Input<'a> {
    tokens: TokenSlice<'a>,
    extra: &'a [u8],
    namespace: Option<&'a Namespace>,
}

impl<'a> Input<'a> {
    /// What block `index` of an aligned store is computed from.
    pub(super) fn of(store: &Store<'a>, index: usize) -> Self {
        let Geometry { block_size, pairs } = store.geometry;
        Self {
            tokens: content::window(store.tokens, index, block_size as usize, pairs)
                .expect("an aligned store covers its blocks"),
            extra: store.extra.get(index).map_or(&[], |extra| extra),
            namespace: store.namespace.filter(|_| index == 0 && store.parent.is_none()),
        }
    }

    fn content(self, above: u64) -> u64 {
        content::block(above, self.tokens, Some(self.extra))
    }

    fn keep(self) -> Kept {
        let mut tokens = TokenVec::default();
        tokens.extend(self.tokens);
        Kept {
            namespace: self.namespace.cloned(),
            tokens,
            extra: self.extra.into(),
        }
    }
}

impl Source {
    /// What stands above the first block of a store. Only a store that `names_namespace` can begin a prompt.
    pub(super) fn above(&self, store: &Store<'_>, names_namespace: bool) -> Above {
        let Some(parent) = store.parent else {
            return if names_namespace {
                Above::Root(store.root)
            } else {
                Above::Nameless
            };
        };
        match self.records.get(&parent).map(|record| &record.link) {
            Some(&Link::Bound { content, .. }) => Above::Bound { parent, content },
            _ => Above::Unknown { parent },
        }
    }

    /// Bind a block below what stands above it, or let it wait. Gives what stands above the next one.
    pub(super) fn place(
        &mut self,
        tables: &mut Tables,
        block: u64,
        above: Above,
        input: Input<'_>,
        wait: Wait,
    ) -> Above {
        let content = match (&self.record(block).link, above) {
            (&Link::Bound { content, .. }, above) => {
                self.keep_again(block, content, above, input);
                content
            }
            (_, Above::Root(seed)) => self.bind(tables, block, None, seed, input),
            (_, Above::Bound { parent, content }) => self.bind(tables, block, Some(parent), content, input),
            (link, Above::Unknown { parent }) => {
                if matches!(link, Link::Loose(_)) && parent != block {
                    self.pend(block, parent, input, wait);
                }
                return Above::Unknown { parent: block };
            }
            (_, Above::Nameless) => return Above::Unknown { parent: block },
        };
        Above::Bound { parent: block, content }
    }

    /// A bound block whose tokens a snapshot left out has them again.
    fn keep_again(&mut self, block: u64, content: u64, above: Above, input: Input<'_>) {
        let (Above::Root(seed) | Above::Bound { content: seed, .. }) = above else {
            return;
        };
        if self.setup.keep_tokens && self.record(block).kept.is_none() && input.content(seed) == content {
            self.record(block).kept = Some(Box::new(input.keep()));
        }
    }

    /// Bind a block (the caller tells the table), and every block that waited for it.
    fn bind(&mut self, tables: &mut Tables, block: u64, parent: Option<u64>, above: u64, input: Input<'_>) -> u64 {
        if let Some(parent) = parent {
            self.record(parent).children += 1;
        }
        self.unpend(block);
        self.unpark(block);
        let content = input.content(above);
        let keep = self.setup.keep_tokens;
        let record = self.record(block);
        record.link = Link::Bound { parent, content };
        record.kept = keep.then(|| Box::new(input.keep()));
        self.bind_waiting(tables, block, content);
        content
    }

    /// Bind the blocks that waited for `block`, those that waited for them, and so on.
    fn bind_waiting(&mut self, tables: &mut Tables, block: u64, content: u64) {
        let mut bound = vec![(block, content)];
        while let Some((parent, above)) = bound.pop() {
            for child in self.waiting.remove(&parent).unwrap_or_default() {
                let keep = self.setup.keep_tokens;
                let record = self.record(child);
                let kept = record.kept.take().expect("a pending block keeps its tokens");
                let content = content::block(above, kept.tokens.as_slice(), Some(&kept.extra));
                record.kept = keep.then_some(kept);
                let Link::Pending { ticket, parked, .. } = record.link else {
                    unreachable!("only pending blocks wait")
                };
                record.link = Link::Bound {
                    parent: Some(parent),
                    content,
                };
                self.room(parked).leave(ticket);
                self.publish(tables, child);
                bound.push((child, content));
            }
        }
    }

    /// Let a loose block wait for its parent.
    fn pend(&mut self, block: u64, parent: u64, input: Input<'_>, Wait { parked, now }: Wait) {
        self.unpark(block);
        self.records.entry(parent).or_default().children += 1;
        self.waiting.entry(parent).or_default().insert(block);
        let ticket = self.room(parked).enter(block, now);
        let record = self.record(block);
        record.link = Link::Pending { parent, ticket, parked };
        record.kept = Some(Box::new(input.keep()));
    }

    /// A pending block waits no more: it is loose.
    pub(super) fn unpend(&mut self, block: u64) {
        let Some(record) = self.records.get_mut(&block) else {
            return;
        };
        let Link::Pending { parent, ticket, parked } = record.link else {
            return;
        };
        record.link = Link::Loose(None);
        record.kept = None;
        self.room(parked).leave(ticket);
        self.stop_waiting(block, parent);
        self.record(parent).children -= 1;
        self.loosened.push(parent);
    }

    /// At the end of an event: let go what others stopped to wait for.
    pub(super) fn release_loosened(&mut self) {
        while let Some(parent) = self.loosened.pop() {
            self.release(parent);
        }
    }

    fn room(&mut self, parked: bool) -> &mut Room {
        if parked { &mut self.parked } else { &mut self.pending }
    }

    /// A parked block leaves the room.
    pub(super) fn unpark(&mut self, block: u64) {
        if let Link::Loose(parked) = &mut self.record(block).link
            && let Some(guest) = parked.take()
        {
            self.parked.leave(guest.ticket);
            self.unaligned -= usize::from(guest.unaligned);
        }
    }

    /// Drop a pending or parked block though it is held.
    pub(super) fn drop(&mut self, block: u64) {
        self.unpend(block);
        self.unpark(block);
        self.change(block, Residency::clear);
        self.release(block);
        self.release_loosened();
    }

    /// Let a record go if nothing needs it, then the one it hung on, and so on upwards.
    pub(super) fn release(&mut self, block: u64) {
        let mut next = Some(block);
        while let Some(block) = next {
            if !self.records.get(&block).is_some_and(Record::is_idle) {
                return;
            }
            let record = self.records.remove(&block).expect("just looked up");
            next = match record.link {
                Link::Loose(_) => None,
                Link::Bound { parent, .. } => parent,
                Link::Pending { parent, ticket, parked } => {
                    self.room(parked).leave(ticket);
                    self.stop_waiting(block, parent);
                    Some(parent)
                }
            };
            if let Some(parent) = next {
                self.record(parent).children -= 1;
            }
        }
    }

    fn stop_waiting(&mut self, block: u64, parent: u64) {
        if let Some(blocks) = self.waiting.get_mut(&parent) {
            blocks.remove(&block);
            if blocks.is_empty() {
                self.waiting.remove(&parent);
            }
        }
    }

    fn record(&mut self, block: u64) -> &mut Record {
        self.records
            .get_mut(&block)
            .expect("a record that another one names is there")
    }
}
