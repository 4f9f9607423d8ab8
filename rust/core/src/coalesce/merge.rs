//! The merge rule: when an event may be folded into another that is right before it.

/// What the rule looks at in an event.
///
/// `F` is all that has to be equal: the event's type and every field (unknown ones included) but its hashes, tokens and
/// the values of per-block extra keys. `H` is a block hash in one form, so that hashes of different forms differ.
#[derive(Clone, Debug)]
pub enum View<H, F> {
    /// Blocks are held now.
    Stored {
        /// Tokens are hashes times block size.
        aligned: bool,
        /// The block above the first.
        parent: Option<H>,
        /// The last block, if there is one.
        last: Option<H>,
        /// What has to be equal.
        fields: F,
    },
    /// Blocks are held no more.
    Removed {
        /// What has to be equal, medium and group among it.
        fields: F,
    },
    /// Nothing is held any more, or an event of another kind: a barrier.
    Barrier,
}

impl<H: PartialEq, F: PartialEq> View<H, F> {
    /// Whether `next` may be folded into this event, which is right before it: hashes, tokens and extra keys of `next`
    /// behind its own.
    pub fn takes(&self, next: &Self) -> bool {
        match (self, next) {
            (Self::Removed { fields: tail }, Self::Removed { fields: next }) => tail == next,
            (
                Self::Stored {
                    aligned: true,
                    last: Some(last),
                    fields: tail,
                    ..
                },
                Self::Stored {
                    aligned: true,
                    parent: Some(parent),
                    fields: next,
                    ..
                },
            ) => last == parent && tail == next,
            _ => false,
        }
    }
}

/// How large a merged event may become; a single event that is larger stays whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cap {
    /// Blocks in the event.
    pub blocks: usize,
    /// Bytes of the event on the wire.
    pub bytes: usize,
}

impl Cap {
    /// What consumers take in their stride.
    pub const DEFAULT: Self = Self {
        blocks: 16_384,
        bytes: 1 << 20,
    };

    /// Whether an event of that size may be made by merging.
    pub fn holds(self, blocks: usize, bytes: usize) -> bool {
        blocks <= self.blocks && bytes <= self.bytes
    }
}

impl Default for Cap {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Event = View<u64, &'static str>;

    fn stored(parent: Option<u64>, last: Option<u64>) -> Event {
        View::Stored {
            aligned: true,
            parent,
            last,
            fields: "GPU",
        }
    }

    fn unaligned(mut event: Event) -> Event {
        if let View::Stored { aligned, .. } = &mut event {
            *aligned = false;
        }
        event
    }

    #[test]
    fn a_store_takes_its_continuation_only() {
        let tail = stored(None, Some(2));
        assert!(tail.takes(&stored(Some(2), Some(3))));
        assert!(!tail.takes(&stored(Some(1), Some(3))));
        assert!(!tail.takes(&stored(None, Some(3))));
        assert!(!stored(None, None).takes(&stored(None, Some(3))));
        assert!(!tail.takes(&View::Removed { fields: "GPU" }));
    }

    #[test]
    fn unaligned_stores_take_nothing_and_are_taken_by_nothing() {
        let (tail, next) = (stored(None, Some(2)), stored(Some(2), Some(3)));
        assert!(!unaligned(tail.clone()).takes(&next));
        assert!(!tail.takes(&unaligned(next)));
    }

    #[test]
    fn removals_of_one_tier_merge_and_a_barrier_takes_nothing() {
        let removed = |fields| Event::Removed { fields };
        assert!(removed("GPU").takes(&removed("GPU")));
        assert!(!removed("GPU").takes(&removed("CPU_PINNED")));
        assert!(!View::Barrier.takes(&removed("GPU")));
        assert!(!removed("GPU").takes(&View::Barrier));
        assert!(!Event::Barrier.takes(&View::Barrier));
    }
}
