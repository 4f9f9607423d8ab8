//! The coalescing recorder: from token buffers to encoded batches.

mod naming;
mod pending;
mod spelling;

use parking_lot::Mutex;
use thiserror::Error;

use crate::coalesce::{Cap, Level, Waiting, Window};
use crate::hash::chain::HashChain;
use crate::hash::namespace::Scheme;
use crate::hash::sglang::EventFormat;
use crate::tokens::TokenSlice;
use crate::wire::{Dialect, NoPlace, Writer, begin_batch, end_batch};
use pending::{Engine, Head, Incoming, Pending, RemoveFields, StoreFields};

pub use naming::Namings;
pub use pending::Group;

/// How a recorder records.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Tokens (pairs, for bigrams) in a page.
    pub page_size: usize,
    /// How far events are merged.
    pub coalesce: Level,
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
    /// Announcements of a page that were left out of what was taken because they undo each other (level `compact`).
    pub cancelled_pages: u64,
}

/// Collects what a cache did and gives it out in batches. Thread-safe.
#[derive(Debug)]
pub struct Recorder {
    settings: Settings,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    window: Window<Pending>,
    namings: Namings,
    stats: Stats,
    /// Ids of the event that is being recorded.
    ids: Vec<u64>,
}

impl Recorder {
    /// A recorder with an empty queue, of a cache that is empty.
    pub fn new(settings: Settings) -> Self {
        let state = State {
            window: Window::new(settings.coalesce, settings.cap, true),
            namings: Namings::default(),
            stats: Stats::default(),
            ids: Vec::new(),
        };
        Self {
            settings,
            state: Mutex::new(state),
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
        let engine = engine_of(namespace.scheme);
        let name = match engine {
            Engine::Vllm => extra_key.map(Into::into),
            Engine::Sglang => state.namings.store(format, extra_key, pages, store.registered),
        };
        let wrapper = namespace.wrapper(format, name.is_some());
        let head = Head::Stored {
            parent: chain.parent_id().map(|id| wrapper.wrap(id).cast_unsigned()),
            fields: StoreFields {
                paging,
                engine,
                medium: store.medium,
                cache_salt: namespace.cache_salt.as_deref(),
                session_id: store.session_id,
                lora_name: name.as_deref(),
                group: store.group,
            },
        };
        state.stats.stored_pages += pages as u64;
        state.record(head, chain.ids().map(|id| wrapper.wrap(id)), tokens);
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
            engine: engine_of(namespace.scheme),
            medium: remove.medium,
            group_idx: remove.group_idx,
        });
        let ids = chain.ids().map(|id| wrapper.wrap(id));
        state.stats.removed_pages += chain.len() as u64;
        state.record(head, ids, TokenSlice::U32(&[]));
        Ok(())
    }

    /// Record that blocks are no longer held in a tier, one event a block before merging.
    pub fn remove_each(&self, remove: &RemoveEach<'_>) {
        let fields = RemoveFields {
            engine: engine_of(remove.scheme),
            medium: remove.medium,
            group_idx: remove.group_idx,
        };
        let mut state = self.state.lock();
        state.stats.removed_pages += remove.ids.len() as u64;
        for &id in remove.ids {
            let id = std::iter::once(id);
            state.record(Head::Removed(fields), id, TokenSlice::U32(&[]));
        }
    }

    /// Record that nothing is held any more, in any tier.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        state.namings.clear();
        state.record(Head::Cleared, std::iter::empty(), TokenSlice::U32(&[]));
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
        self.state.lock().take()
    }

    /// Put back what was taken last, before what was recorded since.
    pub fn put_back(&self, taken: Taken) {
        self.state.lock().window.put_back(taken.events);
    }

    /// Events in the queue.
    pub fn len(&self) -> usize {
        self.state.lock().window.len()
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
    fn record(&mut self, head: Head<'_>, ids: impl Iterator<Item = i64>, tokens: TokenSlice<'_>) {
        self.ids.clear();
        self.ids.extend(ids.map(i64::cast_unsigned));
        let before = self.window.size() as u64;
        let pushed = self.window.push(Incoming {
            head,
            ids: &self.ids,
            tokens,
        });
        let bytes = self.window.size() as u64 - before;
        let stats = &mut self.stats;
        stats.recorded_events += 1;
        stats.recorded_bytes += bytes;
        stats.coalesced_bytes += bytes;
        if pushed.folded {
            stats.recorded_bytes += self.window.growing()[pushed.place].frame() as u64;
        } else {
            stats.coalesced_events += 1;
        }
    }

    fn take(&mut self) -> Taken {
        let (waiting, before) = (self.window.len(), self.window.size());
        let (events, cancelled) = self.window.take();
        let size = events.iter().map(Waiting::size).sum();
        let stats = &mut self.stats;
        stats.coalesced_events -= (waiting - events.len()) as u64;
        stats.coalesced_bytes -= before.saturating_sub(size) as u64;
        stats.cancelled_pages += cancelled as u64;
        Taken { events, size }
    }
}

/// As whose blocks those of a chain are announced.
fn engine_of(scheme: Scheme) -> Engine {
    if scheme.is_unsigned() {
        Engine::Vllm
    } else {
        Engine::Sglang
    }
}

/// Events that were taken from a recorder.
#[derive(Debug)]
pub struct Taken {
    events: Vec<Pending>,
    /// Their bytes, within a few an event.
    size: usize,
}

impl Taken {
    /// Number of events.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Blocks in all of them.
    pub fn blocks(&self) -> usize {
        self.events.iter().map(|event| event.ids.len()).sum()
    }

    /// A batch of them. Maps have a place for every field.
    pub fn encode(&self, ts: f64, dp_rank: Option<i64>, dialect: &Dialect) -> Result<Vec<u8>, NoPlace> {
        let mut out = Writer::with_capacity(self.size + 16 * self.len() + 32);
        begin_batch(&mut out, ts, self.len());
        for event in &self.events {
            spelling::write(event, dialect, &mut out)?;
        }
        end_batch(&mut out, dp_rank);
        Ok(out.into_bytes())
    }
}
