//! What all kinds of consumers hold of one block.

use smallvec::SmallVec;

use crate::coalesce::{Scope, Standing};
use crate::index::Tier;

/// Copies that are told apart. Who stores a block more often, and never removes it, does not grow the log.
const MOST_COPIES: u8 = 16;

/// A tier and a group.
pub(super) type Place = u32;

/// A tier whose name is not known.
const UNKNOWN: Place = 0xff;

/// Consumers differ in three ways: they keep a set or count copies; and they take every store, or only those whose parent
/// they hold, anywhere or in the place of the store.
const KINDS: usize = 6;

fn counts(kind: usize) -> bool {
    kind % 2 == 1
}

/// Which kinds take a store, one bit each.
pub(super) type Kinds = u8;

/// All of them.
pub(super) const ALL: Kinds = (1 << KINDS) - 1;

/// The place of a store.
pub(super) fn place(scope: Scope) -> Place {
    scope
        .place()
        .map_or(UNKNOWN, |place| place.tier as u32 | u32::from(place.group) << 8)
}

/// Copies of a block by place and kind of consumer, and whether its tokens were said since somebody holds it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Copies {
    places: SmallVec<[(Place, [u8; KINDS]); 1]>,
    is_told: bool,
}

impl Copies {
    /// A block is stored, for the kinds that take it.
    pub fn store(&mut self, standing: Standing, kinds: Kinds) {
        let place = place(standing.scope);
        let at = match self.places.binary_search_by_key(&place, |&(known, _)| known) {
            Ok(at) => at,
            Err(at) => {
                self.places.insert(at, (place, [0; KINDS]));
                at
            }
        };
        for (kind, copies) in self.places[at].1.iter_mut().enumerate() {
            if kinds & (1 << kind) != 0 {
                *copies = if counts(kind) { MOST_COPIES.min(*copies + 1) } else { 1 };
            }
        }
        self.is_told |= standing.has_tokens;
        self.tidy();
    }

    /// A block is removed.
    pub fn remove(&mut self, scope: Scope) {
        match scope {
            Scope::In(_) => self.take(place(scope)),
            // A copy on the GPU, and whatever is in the tiers below.
            Scope::Unstated(group) => {
                self.take(place(scope));
                let is_below = |place: Place| {
                    place != UNKNOWN && place >> 8 == u32::from(group) && place & 0xff != Tier::Gpu as u32
                };
                self.places.retain(|(place, _)| !is_below(*place));
            }
            Scope::Unknown => self.places.clear(),
        }
        self.tidy();
    }

    fn take(&mut self, place: Place) {
        for (known, copies) in &mut self.places {
            if *known == place {
                for copies in copies {
                    *copies = copies.saturating_sub(1);
                }
            }
        }
    }

    fn tidy(&mut self) {
        self.places
            .retain(|(_, copies)| copies.iter().any(|&copies| copies > 0));
        self.is_told &= !self.places.is_empty();
    }

    /// Which kinds take a store at `place` below this block.
    pub fn takers(&self, place: Place) -> Kinds {
        let mut takers = 0b11;
        for (known, copies) in &self.places {
            for (kind, &copies) in copies.iter().enumerate().skip(2) {
                let is_here = kind < 4 || *known == place;
                takers |= Kinds::from(is_here && copies > 0) << kind;
            }
        }
        takers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coalesce::Place as Seat;

    const GPU: Scope = Scope::In(Seat {
        tier: Tier::Gpu,
        group: 0,
    });
    const CPU: Scope = Scope::In(Seat {
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
    fn a_second_copy_is_seen_by_those_who_count() {
        let mut copies = Copies::default();
        copies.store(told(GPU), ALL);
        let one = copies.clone();
        copies.store(told(GPU), ALL);
        assert_ne!(copies, one);
        copies.remove(GPU);
        assert_ne!(copies, one);
        copies.remove(GPU);
        assert_eq!(copies, Copies::default());
    }

    #[test]
    fn who_drops_orphans_looks_anywhere_or_in_the_place() {
        let mut copies = Copies::default();
        assert_eq!(copies.takers(place(GPU)), 0b11);
        copies.store(told(CPU), ALL);
        assert_eq!(copies.takers(place(GPU)), 0b1111);
        assert_eq!(copies.takers(place(CPU)), ALL);
    }

    #[test]
    fn a_removal_without_a_tier_empties_those_below() {
        let mut copies = Copies::default();
        copies.store(told(CPU), ALL);
        copies.store(told(GPU), ALL);
        copies.store(told(GPU), ALL);
        copies.remove(Scope::Unstated(0));
        let mut one = Copies::default();
        one.store(told(GPU), ALL);
        assert_ne!(copies, one); // those who keep sets hold nothing
        copies.remove(Scope::Unstated(0));
        assert_eq!(copies, Copies::default());
        copies.store(told(CPU), ALL);
        copies.remove(Scope::Unknown);
        assert_eq!(copies, Copies::default());
    }
}
