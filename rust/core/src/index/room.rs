//! A waiting room: blocks that do not count yet, oldest first, bounded in number, bytes and age.

use std::collections::BTreeMap;
use std::time::Duration;

/// How many blocks may wait, how large, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Blocks, per source.
    pub blocks: usize,
    /// Bytes that they take, with what is kept to place them, per source.
    pub bytes: usize,
    /// Age of the oldest one.
    pub age: Duration,
}

/// On what terms blocks may wait.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Bounds of the blocks that wait for their parent.
    pub pending: Bounds,
    /// Bounds of the held blocks without a place.
    pub parked: Bounds,
    /// The time.
    pub now: Duration,
}

/// What one event may still bring into a room: what would be dropped at once is not made first.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    blocks: usize,
    bytes: usize,
}

impl Allowance {
    /// As much as the whole room holds.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            blocks: bounds.blocks,
            bytes: bounds.bytes,
        }
    }

    /// Whether one more block of so many bytes may come in.
    pub fn admit(&mut self, bytes: usize) -> bool {
        let may = self.blocks > 0 && self.bytes >= bytes;
        if may {
            self.blocks -= 1;
            self.bytes -= bytes;
        }
        may
    }
}

/// The block that a ticket stands for, what it takes, and since when it waits.
#[derive(Clone, Copy, Debug)]
struct Guest {
    block: u64,
    bytes: usize,
    since: Duration,
}

/// Blocks that wait. Each has a ticket; lower tickets came earlier.
#[derive(Clone, Debug, Default)]
pub struct Room {
    guests: BTreeMap<u64, Guest>,
    next: u64,
    bytes: usize,
}

impl Room {
    /// Blocks that wait.
    pub fn len(&self) -> usize {
        self.guests.len()
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Let a block in that takes so many bytes; the ticket gets it out again.
    pub fn enter(&mut self, block: u64, bytes: usize, now: Duration) -> u64 {
        let ticket = self.next;
        self.enter_with(ticket, block, bytes, now);
        ticket
    }

    /// Let a block in under a ticket it already had.
    pub fn enter_with(&mut self, ticket: u64, block: u64, bytes: usize, now: Duration) {
        self.bytes += bytes;
        let guest = Guest {
            block,
            bytes,
            since: now,
        };
        if let Some(before) = self.guests.insert(ticket, guest) {
            self.bytes -= before.bytes;
        }
        self.next = self.next.max(ticket.saturating_add(1));
    }

    /// The block leaves.
    pub fn leave(&mut self, ticket: u64) {
        if let Some(guest) = self.guests.remove(&ticket) {
            self.bytes -= guest.bytes;
        }
    }

    /// The block under a ticket.
    pub fn get(&self, ticket: u64) -> Option<u64> {
        self.guests.get(&ticket).map(|guest| guest.block)
    }

    /// The oldest block, if there are too many, they take too much, or it is too old.
    pub fn overdue(&self, bounds: Bounds, now: Duration) -> Option<u64> {
        let (_, oldest) = self.guests.first_key_value()?;
        let too_much = self.len() > bounds.blocks || self.bytes > bounds.bytes;
        (too_much || now.saturating_sub(oldest.since) > bounds.age).then_some(oldest.block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_overdue_by_number_by_bytes_or_by_age() {
        let second = Duration::from_secs(1);
        let bounds = Bounds {
            blocks: 2,
            bytes: 10,
            age: second,
        };
        let mut room = Room::default();
        let ticket = room.enter(7, 2, Duration::ZERO);
        assert_eq!(room.overdue(bounds, second), None);
        assert_eq!(room.overdue(bounds, second * 2), Some(7));
        room.enter(8, 8, Duration::ZERO);
        assert_eq!(room.overdue(bounds, second), None);
        let third = room.enter(9, 0, Duration::ZERO);
        assert_eq!(room.overdue(bounds, second), Some(7));
        room.leave(third);
        let large = room.enter(9, 1, Duration::ZERO);
        room.leave(ticket);
        assert_eq!((room.overdue(bounds, second), room.bytes()), (None, 9));
        room.leave(large);
        assert_eq!((room.overdue(bounds, second), room.len()), (None, 1));
    }
}
