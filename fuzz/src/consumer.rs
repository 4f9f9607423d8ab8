//! What consumers of a stream hold.

use std::collections::{BTreeMap, BTreeSet};

use kvevents_core::index::{Medium, Tier};
use kvevents_core::wire::{Event, HashList};

/// Block, tier and group.
type Place = (u64, &'static str, u64);

/// A consumer that keeps sets, or one that counts copies on the GPU.
#[derive(Clone, Debug)]
pub struct Consumer {
    counts: bool,
    copies: BTreeMap<Place, u64>,
}

impl Consumer {
    /// One of each kind, holding nothing.
    pub fn both() -> [Self; 2] {
        [false, true].map(|counts| Self {
            counts,
            copies: BTreeMap::new(),
        })
    }

    /// Where each block is held.
    pub fn held(&self) -> BTreeSet<Place> {
        self.copies.keys().copied().collect()
    }

    /// All of them hear some events.
    pub fn all_hear(consumers: &mut [Self], events: &[Event<'_>]) {
        for consumer in consumers {
            consumer.hear(events);
        }
    }

    fn hear(&mut self, events: &[Event<'_>]) {
        for event in events {
            match event {
                Event::Stored(stored) => {
                    let tier = match Medium::read(stored.medium, stored.locality) {
                        Medium::Known(tier) => tier,
                        Medium::Unstated => Tier::Gpu,
                        Medium::Unknown => continue,
                    };
                    for key in keys(&stored.block_hashes) {
                        let place = (key, tier.name(), stored.group_idx.unwrap_or(0));
                        let copies = self.copies.entry(place).or_default();
                        *copies = if self.counts && tier == Tier::Gpu {
                            *copies + 1
                        } else {
                            1
                        };
                    }
                }
                Event::Removed(removed) => {
                    let medium = Medium::read(removed.medium, removed.locality);
                    let group = removed.group_idx.unwrap_or(0);
                    keys(&removed.block_hashes).for_each(|key| self.remove(key, medium, group));
                }
                Event::Cleared(_) => self.copies.clear(),
            }
        }
    }

    fn remove(&mut self, block: u64, medium: Medium, group: u64) {
        let places = self
            .copies
            .range((block, "", 0)..)
            .take_while(|((key, ..), _)| *key == block);
        let meant = places.map(|(&place, _)| place).filter(|&(_, tier, of)| match medium {
            Medium::Known(known) => known.name() == tier && of == group,
            Medium::Unstated => of == group,
            Medium::Unknown => true,
        });
        for place in meant.collect::<Vec<_>>() {
            match self.copies.get_mut(&place) {
                Some(copies) if *copies > 1 && medium != Medium::Unknown => *copies -= 1,
                _ => drop(self.copies.remove(&place)),
            }
        }
    }
}

fn keys<'a>(hashes: &HashList<'a>) -> impl Iterator<Item = u64> + use<'a> {
    let mut keys = Vec::new();
    hashes.keys_into(&mut keys);
    keys.into_iter()
}
