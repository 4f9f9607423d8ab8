//! The linter: it refuses what is no batch, counts what a batch has, and stays
//! within its bounds.

use kvevents_core::index::Tier;
use kvevents_core::lint::{Kind, Linter};
use kvevents_core::wire::{Event, Limits, read_batch};

use super::{Target, case, other_case};
use crate::allocation::peak;
use crate::case::Case;

pub const TARGET: Target = Target {
    name: "lint",
    make: case,
    mutate: other_case,
    check,
};

/// Bytes that a check may take beside those that it takes for each byte of a payload.
const MEMORY: (usize, usize) = (1 << 20, 2048);
const REMEMBERED: usize = 4096;

fn check(data: &[u8]) -> bool {
    let case = Case::read(data);
    let mut linter = Linter::new(REMEMBERED, None, true);
    let mut is_read = false;
    for payload in &case.payloads {
        let (linted, bytes) = peak(|| linter.check(payload));
        assert!(
            bytes <= MEMORY.0 + MEMORY.1 * payload.len(),
            "{bytes} bytes for {}",
            payload.len()
        );
        let (Ok(batch), Ok(linted)) = (read_batch(payload, &Limits::default()), &linted) else {
            assert!(linted.is_err(), "what cannot be read is refused");
            continue;
        };
        let (mut stored, mut removed, mut clears) = (0, 0, 0);
        for event in &batch.events {
            match event {
                Event::Stored(event) => stored += event.block_hashes.len() as u64,
                Event::Removed(event) => removed += event.block_hashes.len() as u64,
                Event::Cleared(_) => clears += 1,
            }
        }
        assert_eq!((linted.stored, linted.removed), (stored, removed));
        let of = |kind| linted.findings.iter().find(|finding| finding.kind == kind);
        assert_eq!(of(Kind::Cleared).map_or(0, |finding| finding.events), clears);
        let unusable = [Kind::UnknownTag, Kind::UnusableEvent].map(|kind| of(kind).map_or(0, |finding| finding.events));
        assert_eq!(unusable.iter().sum::<u64>(), batch.skipped.len() as u64);
        for finding in &linted.findings {
            assert!(finding.offset < payload.len());
        }
        is_read |= !batch.events.is_empty();
    }
    linter.begin();
    assert_eq!(Tier::ALL.map(|tier| linter.held(tier)), [0; 4]);
    is_read
}
