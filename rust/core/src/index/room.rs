//! A waiting room: blocks that do not count yet, oldest first, bounded in number and age.

use std::collections::BTreeMap;
use std::time::Duration;

/// How many blocks may wait, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Blocks, per source.
    pub blocks: usize,
    /// Age of the oldest one.
    pub age: Duration,
}

/// The block that a ticket stands for, and since when it waits.
#[derive(Clone, Copy, Debug)]
struct Guest {
    block: u64,
    since: Duration,
}

/// Blocks that wait. Each has a ticket; lower tickets came earlier.
#[derive(Clone, Debug, Default)]
pub struct Room {
    guests: BTreeMap<u64, Guest>,
    next: u64,
}

impl Room {
    /// Blocks that wait.
    pub fn len(&self) -> usize {
        self.guests.len()
    }

    /// Let a block in; the ticket gets it out again.
    pub fn enter(&mut self, block: u64, now: Duration) -> u64 {
        let ticket = self.next;
        self.enter_with(ticket, block, now);
        ticket
    }

    /// Let a block in under a ticket it already had.
    pub fn enter_with(&mut self, ticket: u64, block: u64, now: Duration) {
        self.guests.insert(ticket, Guest { block, since: now });
        self.next = self.next.max(ticket.saturating_add(1));
    }

    /// The block leaves.
    pub fn leave(&mut self, ticket: u64) {
        self.guests.remove(&ticket);
    }

    /// The block under a ticket.
    pub fn get(&self, ticket: u64) -> Option<u64> {
        self.guests.get(&ticket).map(|guest| guest.block)
    }

    /// The oldest block, if there are too many or it is too old.
    pub fn overdue(&self, bounds: Bounds, now: Duration) -> Option<u64> {
        let (_, oldest) = self.guests.first_key_value()?;
        let overdue = self.len() > bounds.blocks || now.saturating_sub(oldest.since) > bounds.age;
        overdue.then_some(oldest.block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_overdue_by_number_or_by_age() {
        let second = Duration::from_secs(1);
        let bounds = Bounds { blocks: 1, age: second };
        let mut room = Room::default();
        let ticket = room.enter(7, Duration::ZERO);
        assert_eq!(room.overdue(bounds, second), None);
        assert_eq!(room.overdue(bounds, second * 2), Some(7));
        room.enter(8, Duration::ZERO);
        assert_eq!(room.overdue(bounds, second), Some(7));
        room.leave(ticket);
        assert_eq!((room.overdue(bounds, second), room.len()), (None, 1));
    }
}
