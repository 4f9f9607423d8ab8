//! The coalescer: batches in, one batch out, consumers none the wiser.

use kvevents_core::coalesce::{Cap, Coalescer, Level, Settings};
use kvevents_core::wire::{Dialect, Limits, read_batch};

use super::{Target, case, other_case};
use crate::case::Case;
use crate::consumer::Consumer;

pub const TARGET: Target = Target {
    name: "coalesce",
    make: case,
    mutate: other_case,
    check,
};

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
    let (mut raw, mut passed_on) = (Consumer::both(), Consumer::both());
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
                Consumer::all_hear(&mut raw, &batch.events);
            }
        }
        if case.seed >> 8 >> (number % 32) & 1 == 1 || number + 1 == case.payloads.len() {
            if let Some(taken) = coalescer.take(None) {
                let batch = read_batch(&taken, &limits).expect("what was written can be read");
                Consumer::all_hear(&mut passed_on, &batch.events);
            }
            assert!(coalescer.is_empty());
            for (passed_on, raw) in passed_on.iter().zip(&raw) {
                assert_eq!(passed_on.held(), raw.held(), "{level:?} in {}", dialect.name);
            }
        }
    }
    let stats = coalescer.stats();
    stats.coalesced_events < stats.events
}
