//! The compacted log of one rank.

use super::erasure::erase;
use super::remains::Remains;
use crate::coalesce::{Cap, Carried, Level, Waiting, Window};
use crate::wire::{
    Cleared, Dialect, Event, Limits, WireError, Writer, begin_batch, end_batch, read_batch, write_event,
};

/// Events of a batch at most, below what readers take.
const MOST_EVENTS: usize = 1 << 16;

/// Batches in, and out the batches that are left of them: the same events with their tokens, without those that undo each
/// other. Whoever applies what is left, holding nothing, holds what they would hold after all of them.
#[derive(Clone, Debug, Default)]
pub struct CompactedLog {
    events: Vec<Carried>,
    /// Of the events, those that were looked at by the last compaction.
    compacted: usize,
    /// Of the batch added last.
    ts: f64,
    rank: Option<i64>,
    size: usize,
    /// Of what the last compaction left.
    compacted_size: usize,
    unread: u64,
}

impl CompactedLog {
    /// An empty log.
    pub fn new() -> Self {
        Self::default()
    }

    /// Add a batch. A clear empties the log. Events that cannot be read are left out and counted.
    pub fn add(&mut self, payload: &[u8]) -> Result<(), WireError> {
        let batch = read_batch(payload, &Limits::default())?;
        self.ts = batch.ts;
        self.rank = batch.dp_rank;
        self.unread += batch.skipped.len() as u64;
        for event in &batch.events {
            if let Event::Cleared(_) = event {
                self.clear();
            } else {
                let event = Carried::new(event);
                self.size += event.size();
                self.events.push(event);
            }
        }
        Ok(())
    }

    /// Nothing is held any more.
    pub fn clear(&mut self) {
        self.events.clear();
        self.compacted = 0;
        self.size = 0;
        self.compacted_size = 0;
    }

    /// Leave out what nobody needs any more. Takes time in proportion to all that is there.
    pub fn compact(&mut self) {
        if self.compacted == self.events.len() {
            return;
        }
        erase(&mut self.events);
        let mut window = Window::new(Level::Chain, Cap::DEFAULT, true);
        for event in self.events.drain(..) {
            window.push(event);
        }
        self.size = window.size();
        self.events = window.take().0;
        self.compacted = self.events.len();
        self.compacted_size = self.size;
    }

    /// What is left, as batches of about `max_bytes` (a single event may be larger). The first begins with a clear.
    pub fn batches(&self, dialect: &Dialect, max_bytes: usize) -> Vec<Vec<u8>> {
        let mut batches = Vec::new();
        let (mut start, mut size) = (0, 0);
        for (number, event) in self.events.iter().enumerate() {
            if number > start && (size + event.size() > max_bytes || number - start >= MOST_EVENTS) {
                batches.push(self.batch(dialect, start, number, size));
                (start, size) = (number, 0);
            }
            size += event.size();
        }
        batches.push(self.batch(dialect, start, self.events.len(), size));
        batches
    }

    fn batch(&self, dialect: &Dialect, start: usize, end: usize, size: usize) -> Vec<u8> {
        let clears = start == 0;
        let mut out = Writer::with_capacity(size + 64);
        begin_batch(&mut out, self.ts, end - start + usize::from(clears));
        if clears {
            let unknown = Vec::new();
            let cleared = Event::Cleared(Cleared { offset: 0, unknown });
            write_event(&mut out, dialect, &cleared).expect("a clear has no fields");
        }
        for event in &self.events[start..end] {
            // Readers take both shapes in one batch.
            if write_event(&mut out, dialect, event).is_err() {
                write_event(&mut out, &Dialect::VLLM, event).expect("maps have a place for everything");
            }
        }
        end_batch(&mut out, self.rank);
        out.into_bytes()
    }

    /// The blocks that are held, for when something after them is lost.
    pub fn remains(&self) -> Remains {
        Remains::new(self.events.clone())
    }

    /// Bytes of what is there, within a few an event.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The same right after the last compaction.
    pub fn compacted_size(&self) -> usize {
        self.compacted_size
    }

    /// Number of events.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Events that could not be read and were left out.
    pub fn unread(&self) -> u64 {
        self.unread
    }
}
