//! Events that wait to be taken, merged as they come.

use super::Level;
use super::cancel::cancel;
use super::holdings::Holdings;
use super::merge::Cap;
use super::order::{Names, Order};
use super::standing::Standing;

/// What an event does, as far as its order among others matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Blocks are held now, below this one.
    Store {
        /// Key of the block above the first.
        parent: Option<u64>,
    },
    /// Blocks are held no more.
    Removal {
        /// Equal in removals that may be folded into each other.
        kind: u64,
    },
    /// Nothing may move past it.
    Barrier(Barrier),
}

/// Events that nothing moves past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Barrier {
    /// Nothing is held any more.
    Clear,
    /// An event of a type that is not known; it says nothing about what is held.
    Foreign,
    /// An event that cannot be used: who can tell what consumers make of it?
    Unusable,
}

/// An event that is about to wait.
pub(crate) trait Next<E> {
    /// What it does.
    fn act(&self) -> Act;

    /// Keys of its blocks, in order.
    fn keys(&self) -> &[u64];

    /// Whether it may be folded into `tail`, were it right behind: by the merge rule, and under the cap.
    fn fits(&self, tail: &E, cap: Cap) -> bool;

    /// Fold it.
    fn fold(self, tail: &mut E);

    /// Let it wait by itself.
    fn begin(self) -> E;
}

/// An event that waits and may grow.
pub(crate) trait Waiting: Next<Self> + Sized {
    /// Bytes on the wire, within a few.
    fn size(&self) -> usize;

    /// What counting and cancelling need to know; only asked of stores and removals.
    fn standing(&self) -> Standing;

    /// Keep the blocks at these positions; of a store, they are the first so many.
    fn retain(&mut self, keep: &[bool]);
}

/// The queue of a recorder or of a relay.
#[derive(Debug)]
pub(crate) struct Window<E> {
    level: Level,
    cap: Cap,
    /// What was taken and put back.
    taken: Vec<E>,
    events: Vec<E>,
    /// Of all of them.
    size: usize,
    order: Order,
    holdings: Holdings,
}

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pushed {
    /// The place of the event that it is, or that it is now part of.
    pub place: usize,
    /// Whether it was folded.
    pub folded: bool,
}

impl<E: Waiting> Window<E> {
    /// An empty queue. `from_start`: consumers hold nothing yet (if not, `compact` is `chain` up to the first clear).
    pub fn new(level: Level, cap: Cap, from_start: bool) -> Self {
        Self {
            level,
            cap,
            taken: Vec::new(),
            events: Vec::new(),
            size: 0,
            order: Order::default(),
            holdings: Holdings::new(from_start),
        }
    }

    /// Let an event wait.
    pub fn push(&mut self, next: impl Next<E>) -> Pushed {
        let place = match self.level {
            Level::Off => self.events.len(),
            Level::Adjacent => self.place(&next, self.events.len().checked_sub(1)),
            Level::Chain | Level::Compact => {
                let names = names(&next);
                let place = self.place(&next, self.order.seat(names));
                self.order.note(names, place);
                place
            }
        };
        let folded = place < self.events.len();
        if folded {
            let tail = &mut self.events[place];
            self.size -= tail.size();
            next.fold(tail);
        } else {
            self.events.push(next.begin());
        }
        self.size += self.events[place].size();
        Pushed { place, folded }
    }

    /// Where an event goes: into the one at `seat` if that takes it, else behind all others.
    fn place(&self, next: &impl Next<E>, seat: Option<usize>) -> usize {
        seat.filter(|&seat| next.fits(&self.events[seat], self.cap))
            .unwrap_or(self.events.len())
    }

    /// Take what waits, and how many announcements of blocks were left out because they undo each other.
    pub fn take(&mut self) -> (Vec<E>, usize) {
        let mut cancelled = 0;
        if self.level == Level::Compact {
            cancelled = cancel(&mut self.events, &mut self.holdings);
        }
        if cancelled > 0 {
            // What is gone kept others apart.
            let left = std::mem::take(&mut self.events);
            self.order.reset();
            for event in left {
                self.push(event);
            }
        }
        self.order.reset();
        self.size = 0;
        let mut events = std::mem::take(&mut self.taken);
        if events.is_empty() {
            events = std::mem::take(&mut self.events);
        } else {
            events.append(&mut self.events);
        }
        (events, cancelled)
    }

    /// Put back what was taken last. It stands before what came since, and does not grow.
    pub fn put_back(&mut self, events: Vec<E>) {
        self.size += events.iter().map(E::size).sum::<usize>();
        self.taken = events;
    }

    /// Events that wait and may grow: the places of `push`.
    pub fn growing(&self) -> &[E] {
        &self.events
    }

    /// Events that wait.
    pub fn len(&self) -> usize {
        self.taken.len() + self.events.len()
    }

    /// Their bytes on the wire, within a few an event.
    pub fn size(&self) -> usize {
        self.size
    }
}

fn names<E>(next: &impl Next<E>) -> Names<'_> {
    match next.act() {
        Act::Store { parent } => Names::Store(parent, next.keys()),
        Act::Removal { kind } => Names::Removal(kind, next.keys()),
        Act::Barrier(_) => Names::Barrier,
    }
}
