//! The coalescing recorder: from token buffers to encoded batches.

mod naming;
mod pending;

use parking_lot::Mutex;
use thiserror::Error;

use crate::hash::chain::{HashChain, Scheme};
use crate::hash::sglang::EventFormat;
use crate::merge::Cap;
use crate::tokens::TokenSlice;
use crate::wire::{Dialect, NoPlace, Writer, begin_batch, end_batch};
use pending::{Head, Keys, Pending, RemoveFields, StoreFields};

pub use naming::Namings;
pub use pending::Group;

/// How far events are merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coalesce {
    /// Not at all.
    Off,
    /// With the event right before, by the merge rule.
    #[default]
    Adjacent,
}

/// How a recorder records.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Tokens (pairs, for bigrams) in a page.
    pub page_size: usize,
    /// How far events are merged.
    pub coalesce: Coalesce,
    /// How ids are announced.
    pub event_format: EventFormat,
    /// How large a merged event may become.
    pub cap: Cap,
}

/// Blocks that are now held.
#[derive(Clone, Copy, Debug)]
pub struct Store<'a> {
    /// The blocks.
    pub chain: &'a HashChain,
    /// Their tokens.
    pub tokens: TokenSlice<'a>,
    /// The tier.
    pub medium: &'a str,
    /// Attribution.
    pub session_id: Option<&'a str>,
    /// The name registered for the extra key's adapter (SGLang; in vLLM's schemes the extra key is the name).
    pub registered: Option<&'a str>,
    /// The cache group that announces, where groups are announced.
    pub group: Option<Group<'a>>,
}

/// Blocks that are no longer held in a tier.
#[derive(Clone, Copy, Debug)]
pub struct Remove<'a> {
    /// The blocks.
    pub chain: &'a HashChain,
    /// The tier.
    pub medium: &'a str,
    /// The name registered for the extra key's adapter.
    pub registered: Option<&'a str>,
    /// The cache group that announces, where groups are announced.
    pub group_idx: Option<u64>,
}

/// Blocks, each for itself, that are no longer held in a tier.
#[derive(Clone, Copy, Debug)]
pub struct RemoveEach<'a> {
    /// How they were hashed.
    pub scheme: Scheme,
    /// Their ids, as announced.
    pub ids: &'a [i64],
    /// The tier.
    pub medium: &'a str,
    /// The cache group that announces, where groups are announced.
    pub group_idx: Option<u64>,
}

/// What cannot be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// A chain of another page size.
    #[error("chain: expected pages of {expected}, as the recorder was made for, got pages of {got}")]
    PageSize {
        /// The recorder's page size.
        expected: usize,
        /// The chain's.
        got: usize,
    },
    /// More or fewer tokens than the chain has.
    #[error("tokens: expected {expected}, those of the chain's {pages} pages, got {got}")]
    Tokens {
        /// How many the chain's pages have.
        expected: usize,
        /// How many came.
        got: usize,
        /// Pages of the chain.
        pages: usize,
    },
}

/// What was recorded so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Pages announced as stored, each tier for itself.
    pub stored_pages: u64,
    /// Pages announced as removed.
    pub removed_pages: u64,
    /// Events before merging.
    pub recorded_events: u64,
    /// Their bytes on the wire (dialect `sglang`), within a few bytes an event.
    pub recorded_bytes: u64,
    /// Events after merging.
    pub coalesced_events: u64,
    /// Their bytes.
    pub coalesced_bytes: u64,
}

/// Collects what a cache did and gives it out in batches. Thread-safe.
#[derive(Debug)]
pub struct Recorder {
    settings: Settings,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    queue: Vec<Pending>,
    namings: Namings,
    stats: Stats,
}

impl Recorder {
    /// A recorder with an empty queue.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            state: Mutex::default(),
        }
    }

    /// What it was made with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Record that blocks are held now. An empty chain says nothing.
    pub fn store(&self, store: &Store<'_>) -> Result<(), Refused> {
        let Store { chain, tokens, .. } = *store;
        self.check(chain)?;
        let paging = chain.namespace().paging;
        let pages = chain.len();
        if (paging.count(tokens.len()), paging.left_over(tokens.len())) != (pages, 0) {
            return Err(Refused::Tokens {
                expected: pages * paging.page_size() + usize::from(paging.is_bigram()),
                got: tokens.len(),
                pages,
            });
        }
        if chain.is_empty() {
            return Ok(());
        }
        let namespace = chain.namespace();
        let extra_key = namespace.extra_key.as_deref();
        let mut state = self.state.lock();
        let format = self.settings.event_format;
        let (keys, name) = match namespace.scheme {
            Scheme::Vllm(_) => (Keys::EachBlock, extra_key.map(Into::into)),
            _ => (
                Keys::Fields,
                state.namings.store(format, extra_key, pages, store.registered),
            ),
        };
        let wrapper = namespace.wrapper(format, name.is_some());
        let head = Head::Stored {
            parent: chain.parent_id().map(|id| wrapper.wrap(id)),
            last: chain.ids().last().map(|id| wrapper.wrap(id)),
            fields: StoreFields {
                paging,
                keys,
                unsigned: namespace.scheme.is_unsigned(),
                medium: store.medium,
                cache_salt: namespace.cache_salt.as_deref(),
                session_id: store.session_id,
                lora_name: name.as_deref(),
                group: store.group,
            },
        };
        state.stats.stored_pages += pages as u64;
        state.record(&self.settings, head, chain.ids().map(|id| wrapper.wrap(id)), tokens);
        Ok(())
    }

    /// Record that blocks are no longer held in a tier. An empty chain says nothing.
    pub fn remove(&self, remove: &Remove<'_>) -> Result<(), Refused> {
        let chain = remove.chain;
        self.check(chain)?;
        if chain.is_empty() {
            return Ok(());
        }
        let namespace = chain.namespace();
        let mut state = self.state.lock();
        let name = state
            .namings
            .remove(namespace.extra_key.as_deref(), chain.len(), remove.registered);
        let wrapper = namespace.wrapper(self.settings.event_format, name.is_some());
        let head = Head::Removed(RemoveFields {
            medium: remove.medium,
            group_idx: remove.group_idx,
            unsigned: namespace.scheme.is_unsigned(),
        });
        let ids = chain.ids().map(|id| wrapper.wrap(id));
        state.stats.removed_pages += chain.len() as u64;
        state.record(&self.settings, head, ids, TokenSlice::U32(&[]));
        Ok(())
    }

    /// Record that blocks are no longer held in a tier, one event a block before merging.
    pub fn remove_each(&self, remove: &RemoveEach<'_>) {
        let fields = RemoveFields {
            medium: remove.medium,
            group_idx: remove.group_idx,
            unsigned: remove.scheme.is_unsigned(),
        };
        let mut state = self.state.lock();
        state.stats.removed_pages += remove.ids.len() as u64;
        for &id in remove.ids {
            let id = std::iter::once(id);
            state.record(&self.settings, Head::Removed(fields), id, TokenSlice::U32(&[]));
        }
    }

    /// Record that nothing is held any more, in any tier.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        state.namings.clear();
        state.record(&self.settings, Head::Cleared, std::iter::empty(), TokenSlice::U32(&[]));
    }

    /// The ids under which the blocks of a chain are announced now.
    pub fn announced(&self, chain: &HashChain, registered: Option<&str>) -> Vec<i64> {
        let namespace = chain.namespace();
        let name = self
            .state
            .lock()
            .namings
            .current(namespace.extra_key.as_deref(), registered);
        let wrapper = namespace.wrapper(self.settings.event_format, name.is_some());
        chain.ids().map(|id| wrapper.wrap(id)).collect()
    }

    /// Take everything in the queue.
    pub fn take(&self) -> Taken {
        Taken(std::mem::take(&mut self.state.lock().queue))
    }

    /// Put back what was taken last, before what was recorded since.
    pub fn put_back(&self, taken: Taken) {
        let queue = &mut self.state.lock().queue;
        let since = std::mem::replace(queue, taken.0);
        queue.extend(since);
    }

    /// Events in the queue.
    pub fn len(&self) -> usize {
        self.state.lock().queue.len()
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What was recorded so far.
    pub fn stats(&self) -> Stats {
        self.state.lock().stats
    }

    fn check(&self, chain: &HashChain) -> Result<(), Refused> {
        let (expected, got) = (self.settings.page_size, chain.namespace().paging.page_size());
        if expected == got {
            return Ok(());
        }
        Err(Refused::PageSize { expected, got })
    }
}

impl State {
    fn record(
        &mut self,
        settings: &Settings,
        head: Head<'_>,
        ids: impl ExactSizeIterator<Item = i64>,
        tokens: TokenSlice<'_>,
    ) {
        let merges = settings.coalesce == Coalesce::Adjacent
            && self
                .queue
                .last()
                .is_some_and(|tail| tail.takes(head) && tail.has_room(settings.cap, ids.len(), tokens));
        if !merges {
            self.queue.push(Pending::new(head));
        }
        let event = self.queue.last_mut().expect("one was pushed if there was none");
        let before = event.body();
        event.grow(ids, tokens);
        let (frame, body) = (event.frame() as u64, (event.body() - before) as u64);
        let stats = &mut self.stats;
        stats.recorded_events += 1;
        stats.recorded_bytes += frame + body;
        stats.coalesced_events += u64::from(!merges);
        stats.coalesced_bytes += body + if merges { 0 } else { frame };
    }
}

/// Events that were taken from a recorder.
#[derive(Debug)]
pub struct Taken(Vec<Pending>);

impl Taken {
    /// Number of events.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Blocks in all of them.
    pub fn blocks(&self) -> usize {
        self.0.iter().map(Pending::blocks).sum()
    }

    /// A batch of them. Maps have a place for every field.
    pub fn encode(&self, ts: f64, dp_rank: Option<i64>, dialect: &Dialect) -> Result<Vec<u8>, NoPlace> {
        let size: usize = self.0.iter().map(Pending::size).sum();
        let mut out = Writer::with_capacity(size + 16 * self.len() + 32);
        begin_batch(&mut out, ts, self.len());
        for event in &self.0 {
            event.write(&mut out, dialect)?;
        }
        end_batch(&mut out, dp_rank);
        Ok(out.into_bytes())
    }
}
