//! What the consumers of a stream hold, as far as all kinds of them agree.

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use smallvec::SmallVec;

use super::standing::{Place, Scope, Standing};
use crate::index::Tier;

/// Blocks (each tier and group for itself) that are counted at most, and groups. A stream that holds more is not
/// followed until its next clear.
const MOST_HOLDS: usize = 1 << 24;
const MAX_GROUPS: usize = 32;

/// What was held of a block in one place before an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// No consumer held it.
    Absent,
    /// Every consumer held it, those that count hold one copy, and its tokens were said.
    Sole,
    /// Consumers differ, or nobody knows.
    Other,
}

/// Copies of a block in one place.
#[derive(Clone, Copy, Debug)]
struct Hold {
    /// No consumer counts more.
    copies: u32,
    /// Whether every kind of consumer holds it: those that keep sets, those that count, those that drop stores whose
    /// parent they do not know.
    certain: bool,
    has_tokens: bool,
}

/// Counts for each block, tier and group, from the start of a stream or from a clear on.
#[derive(Debug)]
pub(super) struct Holdings {
    /// None: the stream is not followed.
    holds: Option<HashMap<(u64, Place), Hold>>,
    /// Groups that were named since the last clear.
    groups: SmallVec<[u16; 4]>,
}

impl Holdings {
    /// Nothing is held, or (not `from_start`) nobody knows what is.
    pub fn new(from_start: bool) -> Self {
        Self {
            holds: from_start.then(HashMap::new),
            groups: SmallVec::new(),
        }
    }

    /// Nothing is held any more, and that is known.
    pub fn clear(&mut self) {
        *self = Self::new(true);
    }

    /// Nobody knows what is held.
    pub fn lose_track(&mut self) {
        *self = Self::new(false);
    }

    /// Whether counts are known.
    pub fn is_tracking(&self) -> bool {
        self.holds.is_some()
    }

    /// Whether every consumer takes a store in that scope with this parent.
    pub fn takes(&self, parent: Option<u64>, scope: Scope) -> bool {
        let (Some(place), Some(holds)) = (scope.place(), &self.holds) else {
            return false;
        };
        // In the same place: some consumers keep tiers or groups apart.
        parent.is_none_or(|parent| holds.get(&(parent, place)).is_some_and(|hold| hold.certain))
    }

    /// A block is stored; `is_taken`: by every consumer.
    pub fn store(&mut self, block: u64, standing: Standing, is_taken: bool) -> Before {
        let (Some(place), Some(holds)) = (standing.scope.place(), &mut self.holds) else {
            return Before::Other;
        };
        if !self.groups.contains(&place.group) {
            self.groups.push(place.group);
        }
        if holds.len() >= MOST_HOLDS || self.groups.len() > MAX_GROUPS {
            self.lose_track();
            return Before::Other;
        }
        match holds.entry((block, place)) {
            Entry::Occupied(mut hold) => {
                let hold = hold.get_mut();
                let before = hold.before();
                hold.copies = hold.copies.saturating_add(1);
                hold.certain |= is_taken;
                hold.has_tokens |= standing.has_tokens;
                before
            }
            Entry::Vacant(hold) => {
                hold.insert(Hold {
                    copies: 1,
                    certain: is_taken,
                    has_tokens: standing.has_tokens,
                });
                Before::Absent
            }
        }
    }

    /// A block is removed.
    pub fn remove(&mut self, block: u64, scope: Scope) -> Before {
        let Some(holds) = &mut self.holds else {
            return Before::Other;
        };
        if !matches!(scope, Scope::In(_)) {
            // Whatever is removed besides one copy on the GPU, consumers differ about it.
            for &group in &self.groups {
                for tier in Tier::ALL {
                    if let Some(hold) = holds.get_mut(&(block, Place { tier, group })) {
                        hold.certain = false;
                    }
                }
            }
        }
        let Some(place) = scope.place() else {
            return Before::Other;
        };
        let Entry::Occupied(mut entry) = holds.entry((block, place)) else {
            return Before::Absent;
        };
        let hold = entry.get_mut();
        let before = hold.before();
        hold.copies -= 1;
        // Consumers that keep sets hold it no more.
        hold.certain = false;
        if hold.copies == 0 {
            entry.remove();
        }
        before
    }
}

impl Hold {
    fn before(self) -> Before {
        if self.copies == 1 && self.certain && self.has_tokens {
            Before::Sole
        } else {
            Before::Other
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: Scope = Scope::In(Place {
        tier: Tier::Gpu,
        group: 0,
    });
    const CPU: Scope = Scope::In(Place {
        tier: Tier::Cpu,
        group: 0,
    });

    fn told(scope: Scope) -> Standing {
        Standing {
            scope,
            aligned: true,
            has_tokens: true,
        }
    }

    #[test]
    fn a_second_copy_makes_consumers_differ_until_both_are_gone() {
        let mut holdings = Holdings::new(true);
        assert_eq!(holdings.store(1, told(GPU), true), Before::Absent);
        assert_eq!(holdings.store(1, told(GPU), true), Before::Sole);
        assert_eq!(holdings.remove(1, GPU), Before::Other);
        // A set has lost it, a count has one left.
        assert_eq!(holdings.remove(1, GPU), Before::Other);
        assert_eq!(holdings.remove(1, GPU), Before::Absent);
    }

    #[test]
    fn a_child_counts_only_where_its_parent_is_certain() {
        let mut holdings = Holdings::new(true);
        assert!(holdings.takes(None, GPU));
        assert!(!holdings.takes(Some(1), GPU));
        holdings.store(1, told(GPU), true);
        assert!(holdings.takes(Some(1), GPU));
        assert!(!holdings.takes(Some(1), CPU));
        assert_eq!(holdings.store(2, told(GPU), false), Before::Absent);
        assert!(!holdings.takes(Some(2), GPU));
        assert_eq!(holdings.remove(2, GPU), Before::Other);
        assert_eq!(holdings.store(2, told(GPU), true), Before::Absent);
    }

    #[test]
    fn what_is_held_without_tokens_is_worth_announcing_again() {
        let mut holdings = Holdings::new(true);
        let untold = Standing {
            has_tokens: false,
            ..told(CPU)
        };
        holdings.store(1, untold, true);
        assert_eq!(holdings.remove(1, CPU), Before::Other);
    }

    #[test]
    fn a_removal_without_a_tier_leaves_nothing_certain() {
        for (scope, gpu) in [(Scope::Unstated(0), Before::Absent), (Scope::Unknown, Before::Other)] {
            let mut holdings = Holdings::new(true);
            holdings.store(1, told(GPU), true);
            holdings.store(1, told(CPU), true);
            holdings.remove(1, scope);
            assert_eq!(holdings.remove(1, GPU), gpu);
            assert_eq!(holdings.remove(1, CPU), Before::Other);
        }
    }

    #[test]
    fn nothing_is_known_before_a_clear_of_a_stream_joined_late() {
        let mut holdings = Holdings::new(false);
        assert_eq!(holdings.store(1, told(GPU), true), Before::Other);
        assert!(!holdings.takes(None, GPU));
        holdings.clear();
        assert_eq!(holdings.remove(1, GPU), Before::Absent);
        assert_eq!(holdings.store(1, told(GPU), true), Before::Absent);
        holdings.lose_track();
        assert_eq!(holdings.remove(1, GPU), Before::Other);
    }
}
