//! Slots: the places of a KV cache, handed out and taken back by the page.

use thiserror::Error;

/// Why slots were refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SlotError {
    /// Not a whole number of pages.
    #[error("slots: expected whole pages of {page_size}, got {count} slots")]
    Partial {
        /// Slots in a page.
        page_size: usize,
        /// How many came.
        count: usize,
    },
    /// A slot that is not in the pool.
    #[error("slots: expected 0 to {last}, got {slot} at position {position}")]
    Unknown {
        /// Index in what was passed.
        position: usize,
        /// What is there.
        slot: i64,
        /// Highest slot of the pool.
        last: i64,
    },
    /// A page whose slots are not consecutive from its first one.
    #[error("slots: expected slot {expected} at position {position}, got {slot}; a page is consecutive slots")]
    Torn {
        /// Index in what was passed.
        position: usize,
        /// What is there.
        slot: i64,
        /// What would continue the page.
        expected: i64,
    },
    /// A page that is in another state than the call takes.
    #[error("slots: slot {slot} at position {position} is {state}")]
    State {
        /// Index in what was passed.
        position: usize,
        /// What is there.
        slot: i64,
        /// The state it is in.
        state: State,
    },
}

/// Who has a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nobody.
    Free,
    /// Whoever allocated it.
    Lent,
    /// The cache: it leaves by eviction.
    Cached,
}

impl std::fmt::Display for State {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::Free => "free already",
            Self::Lent => "not in the cache",
            Self::Cached => "in the cache, which frees it by eviction",
        })
    }
}

/// Pages of consecutive slots.
///
/// ```text
///            allocate            adopt
///   Free ---------------> Lent ---------> Cached
///    ^  ^------ free ------'                |
///    |  `------------- release -------------'
///    `--- adopt also takes pages that were never lent: the caller has slots of its own
/// ```
#[derive(Clone, Debug)]
pub struct PagePool {
    page_size: usize,
    pages: usize,
    available: usize,
    /// One bit a page.
    free: Vec<u64>,
    /// One bit a page.
    cached: Vec<u64>,
    /// The word of `free` where the next search begins.
    cursor: usize,
}

impl PagePool {
    /// `pages` free pages of `page_size` slots each.
    pub fn new(pages: usize, page_size: usize) -> Self {
        let mut pool = Self {
            page_size,
            pages,
            available: pages,
            free: vec![u64::MAX; pages.div_ceil(64)],
            cached: vec![0; pages.div_ceil(64)],
            cursor: 0,
        };
        if let (Some(last), 1..) = (pool.free.last_mut(), pages % 64) {
            *last = (1 << (pages % 64)) - 1;
        }
        pool
    }

    /// Slots in a page.
    pub fn page_size(&self) -> usize {
        self.page_size
    }

    /// Slots in the pool.
    pub fn capacity(&self) -> usize {
        self.pages * self.page_size
    }

    /// Slots that are free.
    pub fn available(&self) -> usize {
        self.available * self.page_size
    }

    /// Lend whole pages; `None`, and nothing taken, where there are too few.
    pub fn allocate(&mut self, pages: usize) -> Option<Vec<i64>> {
        self.available = self.available.checked_sub(pages)?;
        let mut slots = Vec::with_capacity(pages * self.page_size);
        for _ in 0..pages {
            while self.free[self.cursor] == 0 {
                self.cursor = (self.cursor + 1) % self.free.len();
            }
            let word = &mut self.free[self.cursor];
            let page = self.cursor * 64 + word.trailing_zeros() as usize;
            *word &= *word - 1;
            let first = (page * self.page_size) as i64;
            slots.extend(first..first + self.page_size as i64);
        }
        Some(slots)
    }

    /// The borrower gives whole pages back.
    pub fn free(&mut self, slots: &[i64]) -> Result<(), SlotError> {
        self.pass(slots, State::Free, |state| state == State::Lent)
    }

    /// The cache takes whole pages over, from the borrower or as slots that the caller chose by itself.
    pub fn adopt(&mut self, slots: &[i64]) -> Result<(), SlotError> {
        self.pass(slots, State::Cached, |state| state != State::Cached)
    }

    /// What `adopt` would say; nothing is changed.
    pub fn check(&mut self, slots: &[i64]) -> Result<(), SlotError> {
        let before = self.change(slots, State::Cached, |state| state != State::Cached)?;
        self.undo(before);
        Ok(())
    }

    /// The cache gives whole pages back.
    pub fn release(&mut self, slots: &[i64]) -> Result<(), SlotError> {
        self.pass(slots, State::Free, |state| state == State::Cached)
    }

    /// Who has the page of `slot`, which is in the pool.
    pub fn state(&self, slot: usize) -> State {
        let (word, bit) = place(slot / self.page_size);
        match (self.free[word] & bit != 0, self.cached[word] & bit != 0) {
            (true, _) => State::Free,
            (_, true) => State::Cached,
            _ => State::Lent,
        }
    }

    fn pass(&mut self, slots: &[i64], to: State, takes: impl Fn(State) -> bool) -> Result<(), SlotError> {
        self.change(slots, to, takes).map(drop)
    }

    /// Give all pages to another holder and say who had them, or change nothing.
    fn change(
        &mut self,
        slots: &[i64],
        to: State,
        takes: impl Fn(State) -> bool,
    ) -> Result<Vec<(usize, State)>, SlotError> {
        if !slots.len().is_multiple_of(self.page_size) {
            return Err(SlotError::Partial {
                page_size: self.page_size,
                count: slots.len(),
            });
        }
        let mut before = Vec::with_capacity(slots.len() / self.page_size);
        for (index, page) in slots.chunks_exact(self.page_size).enumerate() {
            let position = index * self.page_size;
            let refused = match self.page(page, position) {
                Err(error) => error,
                Ok(slot) => {
                    let state = self.state(slot);
                    if takes(state) {
                        before.push((slot, state));
                        self.set(slot, to);
                        continue;
                    }
                    SlotError::State {
                        position,
                        slot: page[0],
                        state,
                    }
                }
            };
            self.undo(before);
            return Err(refused);
        }
        Ok(before)
    }

    /// Backwards, so that a page that was passed twice ends where it was.
    fn undo(&mut self, before: Vec<(usize, State)>) {
        for (slot, state) in before.into_iter().rev() {
            self.set(slot, state);
        }
    }

    /// The first slot of a page that is consecutive and in the pool.
    fn page(&self, slots: &[i64], position: usize) -> Result<usize, SlotError> {
        let unknown = SlotError::Unknown {
            position,
            slot: slots[0],
            last: self.capacity() as i64 - 1,
        };
        let first = usize::try_from(slots[0]).map_err(|_| unknown)?;
        if first >= self.capacity() {
            return Err(unknown);
        }
        let begin = (first - first % self.page_size) as i64;
        match (begin..).zip(slots).position(|(expected, &slot)| slot != expected) {
            None => Ok(first),
            Some(offset) => Err(SlotError::Torn {
                position: position + offset,
                slot: slots[offset],
                expected: begin + offset as i64,
            }),
        }
    }

    fn set(&mut self, slot: usize, to: State) {
        let from = self.state(slot);
        let (word, bit) = place(slot / self.page_size);
        self.free[word] &= !bit;
        self.cached[word] &= !bit;
        match to {
            State::Free => self.free[word] |= bit,
            State::Cached => self.cached[word] |= bit,
            State::Lent => {}
        }
        self.available -= usize::from(from == State::Free);
        self.available += usize::from(to == State::Free);
    }
}

fn place(page: usize) -> (usize, u64) {
    (page / 64, 1 << (page % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pages_go_out_and_come_back() {
        let mut pool = PagePool::new(3, 2);
        assert_eq!(pool.allocate(2), Some(vec![0, 1, 2, 3]));
        assert_eq!(pool.allocate(2), None);
        pool.adopt(&[2, 3]).expect("lent");
        assert_eq!(pool.available(), 2);
        pool.release(&[2, 3]).expect("cached");
        pool.free(&[0, 1]).expect("lent");
        assert_eq!(pool.available(), 6);
        pool.adopt(&[4, 5]).expect("free");
        assert_eq!(pool.allocate(2), Some(vec![0, 1, 2, 3]));
    }

    #[test]
    fn what_is_refused_changes_nothing() {
        let mut pool = PagePool::new(3, 2);
        pool.allocate(2).expect("free pages");
        pool.check(&[2, 3]).expect("lent");
        pool.adopt(&[2, 3]).expect("lent");
        let state = |position, slot, state| SlotError::State { position, slot, state };
        for (freed, error) in [
            (vec![0], SlotError::Partial { page_size: 2, count: 1 }),
            (
                vec![0, 2],
                SlotError::Torn {
                    position: 1,
                    slot: 2,
                    expected: 1,
                },
            ),
            (
                vec![1, 2],
                SlotError::Torn {
                    position: 0,
                    slot: 1,
                    expected: 0,
                },
            ),
            (
                vec![0, 1, 6, 7],
                SlotError::Unknown {
                    position: 2,
                    slot: 6,
                    last: 5,
                },
            ),
            (
                vec![-2, -1],
                SlotError::Unknown {
                    position: 0,
                    slot: -2,
                    last: 5,
                },
            ),
            (vec![0, 1, 4, 5], state(2, 4, State::Free)),
            (vec![0, 1, 2, 3], state(2, 2, State::Cached)),
            (vec![0, 1, 0, 1], state(2, 0, State::Free)),
        ] {
            assert_eq!(pool.free(&freed), Err(error));
        }
        assert_eq!(pool.release(&[2, 3, 0, 1]), Err(state(2, 0, State::Lent)));
        assert_eq!(pool.adopt(&[4, 5, 4, 5]), Err(state(2, 4, State::Cached)));
        assert_eq!(pool.available(), 2);
        assert_eq!(
            [0, 2, 4].map(|slot| pool.state(slot)),
            [State::Lent, State::Cached, State::Free]
        );
    }

    proptest! {
        #[test]
        fn every_slot_is_lent_once(
            pages in 1usize..200,
            page_size in 1usize..4,
            steps in prop::collection::vec((0usize..40, any::<prop::sample::Index>()), 1..60),
        ) {
            let mut pool = PagePool::new(pages, page_size);
            let mut lent: Vec<Vec<i64>> = Vec::new();
            for (wanted, which) in steps {
                let free = pages - lent.iter().map(Vec::len).sum::<usize>() / page_size;
                prop_assert_eq!(pool.available(), free * page_size);
                if let Some(slots) = pool.allocate(wanted) {
                    prop_assert_eq!(slots.len(), wanted * page_size);
                    lent.push(slots);
                } else {
                    prop_assert!(wanted > free);
                    if !lent.is_empty() {
                        let back = lent.swap_remove(which.index(lent.len()));
                        prop_assert_eq!(pool.free(&back), Ok(()));
                    }
                }
                let mut all = lent.concat();
                all.sort_unstable();
                all.dedup();
                prop_assert_eq!(all.len(), lent.iter().map(Vec::len).sum::<usize>());
                prop_assert!(all.iter().all(|&slot| (slot as usize) < pool.capacity()));
            }
        }
    }
}
