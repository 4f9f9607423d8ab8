//! Batches in, one batch out, without Python.

use kvevents_core::coalesce::{Cap, Coalescer, Level, Refused, Settings};
use kvevents_core::wire::{Dialect, EngineHash, Event, Limits, Writer, read_batch};

fn settings(level: Level) -> Settings {
    Settings {
        level,
        dialect: Dialect::SGLANG,
        cap: Cap::default(),
        limits: Limits::default(),
        from_start: true,
    }
}

/// An event of blocks with one token each.
enum Said<'a> {
    Stored(Option<u64>, &'a [u64]),
    Removed(&'a [u64]),
    Cleared,
}

fn batch(rank: i64, events: &[Said<'_>]) -> Vec<u8> {
    let mut out = Writer::new();
    out.array(3);
    out.f64(1.0);
    out.array(events.len());
    let hashes = |out: &mut Writer, blocks: &[u64]| {
        out.array(blocks.len());
        for &block in blocks {
            out.hash(EngineHash::Unsigned(block));
        }
    };
    for event in events {
        match event {
            Said::Stored(parent, blocks) => {
                out.array(7);
                out.str("BlockStored");
                hashes(&mut out, blocks);
                match parent {
                    Some(parent) => out.uint(*parent),
                    None => out.nil(),
                }
                hashes(&mut out, blocks);
                out.uint(1);
                out.nil();
                out.str("GPU");
            }
            Said::Removed(blocks) => {
                out.array(3);
                out.str("BlockRemoved");
                hashes(&mut out, blocks);
                out.str("GPU");
            }
            Said::Cleared => {
                out.array(1);
                out.str("AllBlocksCleared");
            }
        }
    }
    out.int(rank);
    out.into_bytes()
}

/// Events as (type, blocks).
fn taken(coalescer: &mut Coalescer) -> Vec<(&'static str, Vec<u64>)> {
    let Some(data) = coalescer.take(None) else {
        return Vec::new();
    };
    let batch = read_batch(&data, &Limits::default()).expect("own bytes");
    assert_eq!(batch.skipped, []);
    batch
        .events
        .iter()
        .map(|event| match event {
            Event::Stored(stored) => ("S", stored.block_hashes.iter().map(EngineHash::key).collect()),
            Event::Removed(removed) => ("R", removed.block_hashes.iter().map(EngineHash::key).collect()),
            Event::Cleared(_) => ("C", Vec::new()),
        })
        .collect()
}

#[test]
fn each_level_merges_what_it_may() {
    use Said::{Removed, Stored};
    let first = batch(0, &[Stored(None, &[1]), Stored(None, &[7]), Stored(Some(1), &[2])]);
    let second = batch(0, &[Removed(&[7]), Stored(Some(2), &[3])]);
    let raw = vec![
        ("S", vec![1]),
        ("S", vec![7]),
        ("S", vec![2]),
        ("R", vec![7]),
        ("S", vec![3]),
    ];
    for (level, expected) in [
        (Level::Off, raw.clone()),
        (Level::Adjacent, raw),
        (Level::Chain, vec![("S", vec![1, 2, 3]), ("S", vec![7]), ("R", vec![7])]),
        (Level::Compact, vec![("S", vec![1, 2, 3])]),
    ] {
        let mut coalescer = Coalescer::new(settings(level));
        for payload in [&first, &second] {
            assert_eq!(coalescer.add(payload), Ok(Vec::new()));
        }
        assert_eq!(taken(&mut coalescer), expected, "{level:?}");
    }
}

#[test]
fn parsed_events_can_be_added_one_by_one() {
    let payload = batch(
        0,
        &[Said::Stored(None, &[1]), Said::Cleared, Said::Stored(Some(1), &[2])],
    );
    let parsed = read_batch(&payload, &Limits::default()).expect("a batch");
    let mut coalescer = Coalescer::new(settings(Level::Chain));
    for event in &parsed.events {
        coalescer.push(event).expect("maps have a place for every field");
    }
    let events = taken(&mut coalescer);
    assert_eq!(events, [("S", vec![1]), ("C", vec![]), ("S", vec![2])]);
    assert!(coalescer.is_empty());
}

#[test]
fn ranks_and_dialects_are_checked_before_anything_is_added() {
    let mut coalescer = Coalescer::new(settings(Level::Chain));
    coalescer.add(&batch(0, &[Said::Cleared])).expect("the first rank");
    let refused = coalescer.add(&batch(1, &[Said::Cleared]));
    assert_eq!(
        refused,
        Err(Refused::OtherRank {
            expected: Some(0),
            got: Some(1)
        })
    );
    assert!(matches!(coalescer.add(&[0xc1]), Err(Refused::Wire(_))));
    assert_eq!((coalescer.len(), coalescer.stats().batches), (1, 1));
}

#[test]
fn many_blocks_stored_and_removed_over_and_over_cancel_in_linear_time() {
    let blocks: Vec<u64> = (1..5_001).collect();
    let mut coalescer = Coalescer::new(settings(Level::Compact));
    let mut events = Vec::new();
    for _ in 0..10 {
        events.push(Said::Stored(None, &blocks));
        events.push(Said::Removed(&blocks));
    }
    coalescer.add(&batch(0, &events)).expect("a batch");
    assert_eq!(coalescer.take(None), None);
    assert_eq!(coalescer.stats().cancelled_blocks, 100_000);
}
