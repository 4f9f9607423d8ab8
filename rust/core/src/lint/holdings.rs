//! Where each block is held, as far as a stream says.

use hashbrown::HashMap;

use crate::index::{Medium, Tier};

/// Tiers and groups that are told apart; a stream with more has them told together in the last.
const MAX_PLACES: usize = 32;

/// A tier of one group; a tier of an unknown name is none of the four.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub tier: Option<Tier>,
    pub group: u64,
}

/// Where a block is held: a bit a place, as long as nothing was cleared since.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    age: u32,
    places: u32,
}

/// What became of an announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// It is held there.
    Held,
    /// It was announced once and is not held there.
    Before,
    /// It was never announced.
    Never,
}

/// Blocks by engine hash, each kept for as long as the stream is read, up to a bound.
#[derive(Debug)]
pub(super) struct Holdings {
    blocks: HashMap<u64, Held>,
    /// Copies beyond the first, by block and place: GPUs have several.
    copies: HashMap<(u64, u8), u32>,
    places: Vec<Place>,
    counts: Vec<u64>,
    age: u32,
    capacity: usize,
    /// Blocks that there was no room for.
    pub forgotten: u64,
}

impl Holdings {
    pub fn new(capacity: usize) -> Self {
        Self {
            blocks: HashMap::new(),
            copies: HashMap::new(),
            places: Vec::new(),
            counts: Vec::new(),
            age: 0,
            capacity: capacity.max(1),
            forgotten: 0,
        }
    }

    /// The number of a place.
    pub fn place(&mut self, tier: Option<Tier>, group: u64) -> u8 {
        let place = Place { tier, group };
        let at = self.places.iter().position(|&known| known == place).unwrap_or_else(|| {
            if self.places.len() < MAX_PLACES {
                self.places.push(place);
                self.counts.push(0);
            }
            self.places.len() - 1
        });
        u8::try_from(at).expect("below MAX_PLACES")
    }

    /// The places that a removal means: one tier, or all of the group.
    pub fn removed_from(&mut self, medium: Medium, group: u64) -> u32 {
        match medium {
            Medium::Known(tier) => 1 << self.place(Some(tier), group),
            Medium::Unstated | Medium::Unknown => {
                let of_group = |&(_, place): &(usize, &Place)| place.group == group;
                self.places
                    .iter()
                    .enumerate()
                    .filter(of_group)
                    .fold(0, |mask, (at, _)| mask | 1 << at)
            }
        }
    }

    /// Whether a block is held anywhere.
    pub fn find(&self, block: u64) -> Known {
        match self.blocks.get(&block) {
            Some(held) if held.age == self.age && held.places != 0 => Known::Held,
            Some(_) => Known::Before,
            None => Known::Never,
        }
    }

    /// A block is held at a place from now on; whether it was.
    pub fn store(&mut self, block: u64, place: u8) -> bool {
        let has_room = self.blocks.len() < self.capacity;
        let held = match self.blocks.get_mut(&block) {
            Some(held) => held,
            None if has_room => self.blocks.entry(block).or_default(),
            None => {
                self.forgotten += 1;
                return false;
            }
        };
        if held.age != self.age {
            *held = Held {
                age: self.age,
                places: 0,
            };
        }
        let bit = 1 << place;
        if held.places & bit != 0 {
            if self.places[usize::from(place)].tier == Some(Tier::Gpu) {
                *self.copies.entry((block, place)).or_default() += 1;
            }
            return true;
        }
        held.places |= bit;
        self.counts[usize::from(place)] += 1;
        false
    }

    /// A copy of a block is held there no more; what was known of it.
    pub fn remove(&mut self, block: u64, places: u32) -> Known {
        let Some(held) = self.blocks.get_mut(&block) else {
            return Known::Never;
        };
        let there = held.places & places;
        if held.age != self.age || there == 0 {
            return Known::Before;
        }
        for place in (0..32u8).filter(|place| there & (1 << place) != 0) {
            if let Some(copies) = self.copies.get_mut(&(block, place)) {
                *copies -= 1;
                if *copies == 0 {
                    self.copies.remove(&(block, place));
                }
            } else {
                held.places &= !(1 << place);
                self.counts[usize::from(place)] -= 1;
            }
        }
        Known::Held
    }

    /// Nothing is held any more.
    pub fn clear(&mut self) {
        self.age += 1;
        self.copies.clear();
        self.counts.fill(0);
    }

    /// Nothing was ever announced.
    pub fn forget(&mut self) {
        self.clear();
        self.blocks.clear();
    }

    /// Blocks held in a tier, over its fullest group.
    pub fn count(&self, tier: Tier) -> u64 {
        let of_tier = self.places.iter().zip(&self.counts);
        let counts = of_tier
            .filter(|(place, _)| place.tier == Some(tier))
            .map(|(_, &count)| count);
        counts.max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_on_the_gpu_are_counted_and_elsewhere_they_are_a_set() {
        let mut holdings = Holdings::new(10);
        let gpu = holdings.place(Some(Tier::Gpu), 0);
        let cpu = holdings.place(Some(Tier::Cpu), 0);
        for place in [gpu, cpu] {
            assert!(!holdings.store(7, place));
            assert!(holdings.store(7, place));
        }
        assert_eq!(holdings.remove(7, 1 << gpu), Known::Held);
        assert_eq!(holdings.remove(7, 1 << gpu), Known::Held);
        assert_eq!(holdings.remove(7, 1 << gpu), Known::Before);
        assert_eq!(holdings.find(7), Known::Held);
        assert_eq!(holdings.remove(7, 1 << cpu), Known::Held);
        assert_eq!(holdings.find(7), Known::Before);
        assert_eq!(holdings.find(8), Known::Never);
    }

    #[test]
    fn a_clear_empties_every_place_and_what_was_there_stays_known() {
        let mut holdings = Holdings::new(10);
        let place = holdings.place(None, 3);
        holdings.store(7, place);
        holdings.clear();
        assert_eq!(holdings.find(7), Known::Before);
        assert!(!holdings.store(7, place));
    }

    #[test]
    fn what_there_is_no_room_for_is_counted() {
        let mut holdings = Holdings::new(2);
        let place = holdings.place(Some(Tier::Gpu), 0);
        for block in 0..5 {
            holdings.store(block, place);
        }
        assert_eq!(holdings.forgotten, 3);
        assert_eq!(holdings.count(Tier::Gpu), 2);
    }

    #[test]
    fn more_places_than_are_told_apart_share_the_last() {
        let mut holdings = Holdings::new(2);
        for group in 0..100 {
            holdings.place(Some(Tier::Gpu), group);
        }
        assert_eq!(holdings.place(Some(Tier::Cpu), 0), 31);
    }
}
