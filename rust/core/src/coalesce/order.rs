//! How far back an event may move without being seen to.

use hashbrown::HashMap;

/// Which waiting event was the last to name a block, in any role, tier or group.
///
/// An event may move back past events that name none of its blocks (nor, for a store, its parent). So of all events it
/// could be folded into, only one needs a look: a store's is the last to name its parent, a removal's is the last
/// removal of its kind. Events are told by their place in the queue; nothing moves past a barrier.
#[derive(Debug, Default)]
pub(super) struct Order {
    named: HashMap<u64, usize>,
    removals: HashMap<u64, usize>,
    barrier: usize,
}

/// Names of one event.
#[derive(Clone, Copy, Debug)]
pub(super) enum Names<'a> {
    /// Of a store: its parent, its blocks.
    Store(Option<u64>, &'a [u64]),
    /// Of a removal: what is equal in removals that may be folded into each other, as one number; its blocks.
    Removal(u64, &'a [u64]),
    /// Everything.
    Barrier,
}

impl Order {
    /// The one event that such an event may have moved back to, if it may be folded into it.
    pub fn seat(&self, names: Names<'_>) -> Option<usize> {
        let (seat, blocks) = match names {
            Names::Store(parent, blocks) => (self.named.get(&parent?), blocks),
            Names::Removal(kind, blocks) => (self.removals.get(&kind), blocks),
            Names::Barrier => return None,
        };
        let &seat = seat?;
        let is_free = |block: &u64| self.named.get(block).is_none_or(|&last| last <= seat);
        (seat >= self.barrier && blocks.iter().all(is_free)).then_some(seat)
    }

    /// An event with these names is in that place now, or was folded into the one there.
    pub fn note(&mut self, names: Names<'_>, place: usize) {
        let blocks = match names {
            Names::Store(parent, blocks) => {
                if let Some(parent) = parent {
                    self.named.insert(parent, place);
                }
                blocks
            }
            Names::Removal(kind, blocks) => {
                self.removals.insert(kind, place);
                blocks
            }
            Names::Barrier => {
                self.barrier = place + 1;
                &[]
            }
        };
        for &block in blocks {
            self.named.insert(block, place);
        }
    }

    /// The queue is empty again.
    pub fn reset(&mut self) {
        // To clear a table costs its capacity: one that a large batch left behind is not kept for small ones.
        if self.named.capacity() > 64 + 4 * self.named.len() {
            self.named = HashMap::new();
        }
        self.named.clear();
        self.removals.clear();
        self.barrier = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_moves_back_to_its_parent_and_no_further() {
        let mut order = Order::default();
        order.note(Names::Store(None, &[1, 2]), 0);
        order.note(Names::Store(None, &[7, 8]), 1);
        assert_eq!(order.seat(Names::Store(Some(2), &[3])), Some(0));
        assert_eq!(order.seat(Names::Store(Some(8), &[9])), Some(1));
        assert_eq!(order.seat(Names::Store(Some(5), &[6])), None);
        assert_eq!(order.seat(Names::Store(None, &[6])), None);
        // A child of block 2 in another event: block 2 is named there.
        order.note(Names::Store(Some(2), &[5]), 2);
        assert_eq!(order.seat(Names::Store(Some(2), &[3])), Some(2));
    }

    #[test]
    fn nothing_moves_past_an_event_that_names_one_of_its_blocks() {
        let mut order = Order::default();
        order.note(Names::Store(None, &[1]), 0);
        order.note(Names::Removal(0, &[3]), 1);
        assert_eq!(order.seat(Names::Store(Some(1), &[2])), Some(0));
        assert_eq!(order.seat(Names::Store(Some(1), &[2, 3])), None);
        order.note(Names::Store(Some(4), &[9]), 2);
        assert_eq!(order.seat(Names::Removal(0, &[5])), Some(1));
        assert_eq!(order.seat(Names::Removal(0, &[4])), None);
        assert_eq!(order.seat(Names::Removal(1, &[5])), None);
    }

    #[test]
    fn nothing_moves_past_a_barrier() {
        let mut order = Order::default();
        order.note(Names::Store(None, &[1]), 0);
        order.note(Names::Removal(0, &[5]), 1);
        order.note(Names::Barrier, 2);
        assert_eq!(order.seat(Names::Store(Some(1), &[2])), None);
        assert_eq!(order.seat(Names::Removal(0, &[6])), None);
        order.reset();
        order.note(Names::Removal(0, &[6]), 0);
        assert_eq!(order.seat(Names::Removal(0, &[7])), Some(0));
    }
}
