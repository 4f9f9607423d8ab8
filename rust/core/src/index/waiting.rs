//! Blocks without a place: changed, waiting no more, dropped, let go.

use hashbrown::HashMap;

use super::record::{Link, Record};
use super::residency::Change;
use super::source::Source;

impl Source {
    /// Change where a block is held that has no place, known from now on. False when there was nothing to take.
    pub(super) fn change_loose(&mut self, block: u64, change: Change) -> bool {
        let full = self.groups.full();
        let residency = &mut self.records.entry(block).or_default().residency;
        let before = residency.tiers(full);
        let done = residency.apply(change);
        let after = residency.tiers(full);
        self.count(before, after);
        done
    }

    /// A removal of a block that has no place. False when there was nothing to take.
    pub(super) fn take_loose(&mut self, block: u64, change: Change) -> bool {
        if !self.records.contains_key(&block) || !self.change_loose(block, change) {
            return false;
        }
        if self.record(block).residency.is_empty() {
            self.unpark(block);
            self.release(block);
        }
        true
    }

    /// A pending block waits no more: it is loose.
    pub(super) fn unpend(&mut self, block: u64) {
        let Some(record) = self.records.get_mut(&block) else {
            return;
        };
        match std::mem::replace(&mut record.link, Link::Loose(None)) {
            Link::Pending(pending) => {
                self.room(pending.parked).leave(pending.ticket);
                self.stop_waiting(block, pending.parent);
                self.loosened.push(pending.parent);
            }
            other => record.link = other,
        }
    }

    /// At the end of an event: let go what others stopped to wait for.
    pub(super) fn release_loosened(&mut self) {
        while let Some(parent) = self.loosened.pop() {
            self.release(parent);
        }
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
        self.change_loose(block, Change::Clear);
        self.release(block);
        self.release_loosened();
    }

    /// Let a record go if nothing needs it, then the one it waited for, and so on upwards.
    fn release(&mut self, block: u64) {
        let mut next = Some(block);
        while let Some(block) = next.filter(|block| self.records.get(block).is_some_and(Record::is_idle)) {
            let record = self.records.remove(&block).expect("just looked up");
            next = None;
            if let Link::Pending(pending) = record.link {
                self.room(pending.parked).leave(pending.ticket);
                self.stop_waiting(block, pending.parent);
                next = Some(pending.parent);
            }
        }
        if self.records.is_empty() {
            // It gives its memory back.
            self.records = HashMap::default();
            self.waiting = HashMap::default();
        }
    }

    fn stop_waiting(&mut self, block: u64, parent: u64) {
        self.record(parent).children -= 1;
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
