//! Batches in, batches out: coalescing where events are passed on.

use hashbrown::HashMap;
use thiserror::Error;

use super::carried::Carried;
use super::{Cap, Level, Window};
use crate::wire::{
    Batch, Dialect, Event, Limits, NoPlace, Raw, Shape, Skipped, Value, WireError, Writer, begin_batch, end_batch,
    read_batch, write_event,
};

/// How batches are coalesced.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How far events are merged.
    pub level: Level,
    /// How events are written.
    pub dialect: Dialect,
    /// How large a merged event may become.
    pub cap: Cap,
    /// What a batch may ask for.
    pub limits: Limits,
    /// Consumers hold nothing yet. If not, `compact` is `chain` up to the first clear.
    pub from_start: bool,
}

/// A batch that cannot be added; nothing of it was.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// It is no batch.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The dialect to be written cannot say all that it says.
    #[error(transparent)]
    NoPlace(#[from] NoPlace),
    /// It is of another rank than those before.
    #[error("dp_rank: expected {}, as in the batches before, got {}", Rank(*.expected), Rank(*.got))]
    OtherRank {
        /// The rank of the batches before.
        expected: Option<i64>,
        /// Its own.
        got: Option<i64>,
    },
}

struct Rank(Option<i64>);

impl std::fmt::Display for Rank {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(rank) => write!(out, "rank {rank}"),
            None => write!(out, "no rank"),
        }
    }
}

/// What came and what goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Batches that were added.
    pub batches: u64,
    /// Their events.
    pub events: u64,
    /// Events among them that could not be read and go on as they came.
    pub unread_events: u64,
    /// Values that cannot go on: elements of arrays after the last field that is known.
    pub unread_fields: u64,
    /// Events after merging.
    pub coalesced_events: u64,
    /// Announcements of a block that were left out because they undo each other.
    pub cancelled_blocks: u64,
}

/// Merges the events of one source and rank over a window of batches.
#[derive(Debug)]
pub struct Coalescer {
    settings: Settings,
    window: Window<Carried>,
    /// Time and rank of the last batch.
    last: Option<(f64, Option<i64>)>,
    stats: Stats,
}

impl Coalescer {
    /// A coalescer with an empty window.
    pub fn new(settings: Settings) -> Self {
        Self {
            window: Window::new(settings.level, settings.cap, settings.from_start),
            settings,
            last: None,
            stats: Stats::default(),
        }
    }

    /// Add a batch to the window, and tell which of its events could not be read. Those go on as they came, in their
    /// place; nothing moves past them.
    pub fn add(&mut self, payload: &[u8]) -> Result<Vec<Skipped>, Refused> {
        let batch = read_batch(payload, &self.settings.limits)?;
        if let Some((_, expected)) = self.last
            && expected != batch.dp_rank
        {
            return Err(Refused::OtherRank {
                expected,
                got: batch.dp_rank,
            });
        }
        let mut scratch = Writer::new();
        for event in &batch.events {
            self.check_place(event, &mut scratch)?;
        }
        self.last = Some((batch.ts, batch.dp_rank));
        let events = batch.events.len() + batch.skipped.len();
        let unread = unread(payload, &batch);
        let mut skipped = batch.skipped.iter().zip(unread).peekable();
        for event in &batch.events {
            while let Some((skipped, bytes)) = skipped.next_if(|(skipped, _)| skipped.offset < event.offset()) {
                self.wait(Carried::unread(bytes, skipped.code == "unknown-tag"));
            }
            self.wait(Carried::new(event));
        }
        for (skipped, bytes) in skipped {
            self.wait(Carried::unread(bytes, skipped.code == "unknown-tag"));
        }
        self.stats.batches += 1;
        self.stats.events += events as u64;
        self.stats.unread_events += batch.skipped.len() as u64;
        self.stats.unread_fields += batch.unread_fields;
        Ok(batch.skipped)
    }

    /// Add an event that was read already.
    pub fn push(&mut self, event: &Event<'_>) -> Result<(), NoPlace> {
        self.check_place(event, &mut Writer::new())?;
        self.stats.events += 1;
        self.wait(Carried::new(event));
        Ok(())
    }

    /// Whether the dialect can say all that an event says.
    fn check_place(&self, event: &Event<'_>, scratch: &mut Writer) -> Result<(), NoPlace> {
        match self.settings.dialect.shape {
            Shape::Map => Ok(()),
            Shape::Array => write_event(scratch, &self.settings.dialect, event),
        }
    }

    fn wait(&mut self, event: Carried) {
        let pushed = self.window.push(event);
        self.stats.coalesced_events += u64::from(!pushed.folded);
    }

    /// Take what waits as one batch of the rank that was added; None if there is nothing. `ts`: its time, that of the
    /// last batch if None.
    pub fn take(&mut self, ts: Option<f64>) -> Option<Vec<u8>> {
        let (last_ts, dp_rank) = self.last.unwrap_or_default();
        let waiting = self.window.len();
        let size = self.window.size();
        let (events, cancelled) = self.window.take();
        self.stats.cancelled_blocks += cancelled as u64;
        self.stats.coalesced_events -= (waiting - events.len()) as u64;
        if events.is_empty() {
            return None;
        }
        let mut out = Writer::with_capacity(size + 32);
        begin_batch(&mut out, ts.unwrap_or(last_ts), events.len());
        for event in &events {
            match event.as_unread() {
                Some(bytes) => out.raw(bytes),
                None => write_event(&mut out, &self.settings.dialect, event)
                    .expect("what the dialect has no place for was refused"),
            }
        }
        end_batch(&mut out, dp_rank);
        Some(out.into_bytes())
    }

    /// Events that wait.
    pub fn len(&self) -> usize {
        self.window.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the batch that waits, within a few an event.
    pub fn size(&self) -> usize {
        self.window.size()
    }

    /// What came and what goes on.
    pub fn stats(&self) -> Stats {
        self.stats
    }
}

/// The bytes of the events that were skipped, in order.
fn unread<'a>(payload: &'a [u8], batch: &Batch<'a>) -> Vec<&'a [u8]> {
    if batch.skipped.is_empty() {
        return Vec::new();
    }
    let frame = Raw::read(payload).expect("a batch was read from it");
    let events = match frame.value() {
        Value::Array(mut fields) => fields.nth(1),
        Value::Map(mut fields) => loop {
            let (name, value) = (fields.next(), fields.next());
            if name.is_none_or(|name| name.value() == Value::Str("events")) {
                break value;
            }
        },
        _ => None,
    };
    let Some(Value::Array(events)) = events.map(Raw::value) else {
        unreachable!("a batch has events");
    };
    let bytes: HashMap<usize, &[u8]> = events.map(|event| (event.offset(), event.bytes())).collect();
    batch.skipped.iter().map(|skipped| bytes[&skipped.offset]).collect()
}
