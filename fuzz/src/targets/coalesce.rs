//! The coalescer: batches in, one batch out, consumers none the wiser.

use std::collections::BTreeSet;

use kvevents_core::coalesce::{Cap, Coalescer, Level, Settings};
use kvevents_core::index::{Medium, Tier};
use kvevents_core::wire::{Dialect, Event, HashList, Limits, read_batch};

use super::{Target, case, other_case};
use crate::case::Case;

pub const TARGET: Target = Target {
    name: "coalesce",
    make: case,
    mutate: other_case,
    check,
};

/// Blocks by what names their tier, and group: what a consumer holds that keeps a set.
type Held = BTreeSet<(String, u64, u64)>;

fn check(data: &[u8]) -> bool {
    let case = Case::read(data);
    let settings = Level::NAMES
        .iter()
        .flat_map(|(_, level)| Dialect::ALL.map(|dialect| (*level, dialect)));
    let merged: Vec<bool> = settings
        .map(|(level, dialect)| check_level(&case, level, dialect))
        .collect();
    merged.contains(&true)
}

/// Whether anything could be merged or left out.
fn check_level(case: &Case, level: Level, dialect: Dialect) -> bool {
    let limits = Limits::default();
    let blocks = 1 + (case.seed % 5) as usize;
    let mut coalescer = Coalescer::new(Settings {
        level,
        dialect,
        cap: if case.seed & 64 == 0 {
            Cap::DEFAULT
        } else {
            Cap { blocks, bytes: 400 }
        },
        limits,
        from_start: case.seed & 128 == 0,
    });
    let (mut raw, mut passed_on) = (Held::new(), Held::new());
    for (number, payload) in case.payloads.iter().enumerate() {
        let before = (coalescer.len(), coalescer.size());
        match coalescer.add(payload) {
            Err(_) => assert_eq!(
                (coalescer.len(), coalescer.size()),
                before,
                "what is refused adds nothing"
            ),
            Ok(skipped) => {
                let batch = read_batch(payload, &limits).expect("it was added");
                assert_eq!(skipped, batch.skipped);
                follow(&mut raw, &batch.events);
            }
        }
        if case.seed >> 8 >> (number % 32) & 1 == 1 || number + 1 == case.payloads.len() {
            if let Some(taken) = coalescer.take(None) {
                let batch = read_batch(&taken, &limits).expect("what was written can be read");
                follow(&mut passed_on, &batch.events);
            }
            assert!(coalescer.is_empty());
            assert_eq!(passed_on, raw, "{level:?} in {}", dialect.name);
        }
    }
    let stats = coalescer.stats();
    stats.coalesced_events < stats.events
}

fn follow(held: &mut Held, events: &[Event<'_>]) {
    for event in events {
        match event {
            Event::Stored(stored) => {
                let tier = match Medium::read(stored.medium, stored.locality) {
                    Medium::Known(tier) => tier.name(),
                    Medium::Unstated => Tier::Gpu.name(),
                    Medium::Unknown => continue,
                };
                let group = stored.group_idx.unwrap_or(0);
                held.extend(keys(&stored.block_hashes).map(|key| (tier.to_owned(), group, key)));
            }
            Event::Removed(removed) => {
                let group = removed.group_idx.unwrap_or(0);
                let gone: BTreeSet<u64> = keys(&removed.block_hashes).collect();
                match Medium::read(removed.medium, removed.locality) {
                    Medium::Known(tier) => {
                        held.retain(|(name, of, key)| name != tier.name() || *of != group || !gone.contains(key));
                    }
                    Medium::Unstated => held.retain(|(_, of, key)| *of != group || !gone.contains(key)),
                    Medium::Unknown => held.retain(|(_, _, key)| !gone.contains(key)),
                }
            }
            Event::Cleared(_) => held.clear(),
        }
    }
}

fn keys<'a>(hashes: &HashList<'a>) -> impl Iterator<Item = u64> + use<'a> {
    let mut keys = Vec::new();
    hashes.keys_into(&mut keys);
    keys.into_iter()
}
