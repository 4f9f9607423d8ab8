//! The relay's compacted log: who hears what is left of a stream holds what the stream left.

use kvevents_core::relay::CompactedLog;
use kvevents_core::wire::{Dialect, Event, Limits, read_batch};

use super::{Target, case, other_case};
use crate::case::Case;
use crate::consumer::Consumer;

pub const TARGET: Target = Target {
    name: "log",
    make: case,
    mutate: other_case,
    check,
};

fn check(data: &[u8]) -> bool {
    let case = Case::read(data);
    let mut log = CompactedLog::new();
    let mut raw = Consumer::both();
    for (number, payload) in case.payloads.iter().enumerate() {
        let batch = read_batch(payload, &Limits::default());
        if batch.as_ref().is_ok_and(|batch| batch.events.iter().any(is_beyond)) {
            return false;
        }
        assert_eq!(log.add(payload).is_ok(), batch.is_ok());
        if let Ok(batch) = batch {
            Consumer::all_hear(&mut raw, &batch.events);
        }
        if case.seed >> (number % 32) & 1 == 1 {
            log.compact();
            assert_eq!(log.size(), log.compacted_size());
        }
        for dialect in Dialect::ALL {
            check_replay(&log, &dialect, &raw, 1 << (case.seed >> 32 & 15));
        }
    }
    !log.is_empty()
}

/// Whether an event is of a group that the log cannot tell from others: none of an engine is above 16 bits.
fn is_beyond(event: &Event<'_>) -> bool {
    let group = match event {
        Event::Stored(stored) => stored.group_idx,
        Event::Removed(removed) => removed.group_idx,
        Event::Cleared(_) => None,
    };
    group.is_some_and(|group| group > u16::MAX.into())
}

fn check_replay(log: &CompactedLog, dialect: &Dialect, raw: &[Consumer], max_bytes: usize) {
    let mut late = Consumer::both();
    for data in log.batches(dialect, max_bytes) {
        let batch = read_batch(&data, &Limits::default()).expect("what was written can be read");
        assert_eq!(batch.skipped, []);
        Consumer::all_hear(&mut late, &batch.events);
    }
    for (late, raw) in late.iter().zip(raw) {
        assert_eq!(late.held(), raw.held(), "{}", dialect.name);
    }
}
