//! Writers, readers and those who look at everything, at once. Each event is seen whole or not at all.
//!
//! Under ThreadSanitizer, with a nightly toolchain:
//!
//! ```text
//! TSAN_OPTIONS=suppressions=$PWD/rust/core/tests/tsan-suppressions.txt \
//! RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer" \
//!     cargo +nightly test --target x86_64-unknown-linux-gnu -p kvevents-core --test index_threads
//! ```
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use kvevents_core::index::{Bounds, Config, Match, PrefixIndex, Prompt, Target, WorkerSetup};
use kvevents_core::tokens::TokenSlice;
use kvevents_core::wire::{Limits, Writer};

/// More than a slice of a batch, and more than is buried at a time, so that a torn event would show.
const BLOCKS: usize = 600;
const ROUNDS: usize = 40;

fn index() -> PrefixIndex {
    let bounds = Bounds {
        blocks: 10_000,
        bytes: 1 << 24,
        age: Duration::MAX,
    };
    PrefixIndex::new(Config {
        block_size: 1,
        keep_tokens: false,
        pending: bounds,
        parked: bounds,
        sources: 64,
        wire: Limits::default(),
    })
    .unwrap()
}

fn tokens() -> Vec<u32> {
    (0..BLOCKS as u32).collect()
}

/// A batch of events.
fn batch(events: &[&dyn Fn(&mut Writer)]) -> Vec<u8> {
    let mut out = Writer::new();
    out.array(2);
    out.f64(0.0);
    out.array(events.len());
    for write in events {
        write(&mut out);
    }
    out.into_bytes()
}

/// A store of the blocks `from..to` of the prompt, as an engine calls them whose names begin at `name`.
fn store(name: usize, from: usize, to: usize) -> impl Fn(&mut Writer) {
    move |out| {
        out.array(5);
        out.str("BlockStored");
        out.array(to - from);
        (from..to).for_each(|block| out.uint((name + block) as u64));
        if from == 0 {
            out.nil();
        } else {
            out.uint((name + from - 1) as u64);
        }
        out.tokens(TokenSlice::U32(&tokens()[from..to]));
        out.uint(1);
    }
}

fn remove(name: usize, from: usize, to: usize) -> impl Fn(&mut Writer) {
    move |out| {
        out.array(3);
        out.str("BlockRemoved");
        out.array(to - from);
        (from..to).for_each(|block| out.uint((name + block) as u64));
        out.str("GPU");
    }
}

fn clear(out: &mut Writer) {
    out.array(1);
    out.str("AllBlocksCleared");
}

fn ask(index: &PrefixIndex) -> Vec<Match> {
    let tokens = tokens();
    let prompt = Prompt::new(TokenSlice::U32(&tokens), None, None, None, None).unwrap();
    index.match_prompt(&prompt)
}

/// Run the writers to their end, and the others over and over until then.
fn run(writers: &[&(dyn Fn() + Sync)], others: &[&(dyn Fn() + Sync)]) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let repeat = |other: &(dyn Fn() + Sync)| {
            while !done.load(Ordering::Relaxed) {
                other();
            }
        };
        let others: Vec<_> = others.iter().map(|&other| scope.spawn(move || repeat(other))).collect();
        let writers: Vec<_> = writers.iter().map(|&write| scope.spawn(write)).collect();
        let mut ends: Vec<_> = writers.into_iter().map(ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        ends.extend(others.into_iter().map(ScopedJoinHandle::join));
        assert!(ends.iter().all(Result::is_ok));
    });
}

#[test]
fn every_event_is_seen_whole() {
    let index = index();
    let half = BLOCKS / 2;
    // Names shared, names of its own, two events that make the prompt together, and a clear.
    let whole = |worker: &'static str, name: usize| {
        let (stored, removed) = (batch(&[&store(name, 0, BLOCKS)]), batch(&[&remove(name, 0, BLOCKS)]));
        let index = &index;
        move || {
            for _ in 0..ROUNDS {
                index.apply(Target::Id(worker), &stored, None, None).unwrap();
                index.apply(Target::Id(worker), &removed, None, None).unwrap();
            }
        }
    };
    let (shared, also_shared, other) = (whole("shared", 0), whole("also shared", 0), whole("other", 5000));
    let in_two = || {
        let data = batch(&[
            &store(0, 0, half),
            &store(0, half, BLOCKS),
            &remove(0, half, BLOCKS),
            &remove(0, 0, half),
        ]);
        for _ in 0..ROUNDS {
            index.apply(Target::Id("in two"), &data, None, None).unwrap();
        }
    };
    let cleared = || {
        let data = batch(&[&store(0, 0, BLOCKS), &clear, &store(9000, 0, half), &clear]);
        for _ in 0..ROUNDS {
            index.apply(Target::Id("cleared"), &data, None, None).unwrap();
        }
    };
    let look = || {
        for found in ask(&index) {
            let expected: &[usize] = match &*found.worker {
                "in two" | "cleared" => &[half, BLOCKS],
                _ => &[BLOCKS],
            };
            assert!(expected.contains(&found.total), "{found:?}");
            assert_eq!((found.tiers[0], found.usable), (found.total, found.total));
        }
    };
    run(&[&shared, &also_shared, &other, &in_two, &cleared], &[&look, &look]);
    assert!(ask(&index).is_empty());
    assert_eq!(index.check_integrity(), [""; 0]);
    assert_eq!(index.stats().blocks, 0);
}

#[test]
fn workers_come_and_go_while_everything_is_looked_at() {
    let index = index();
    let stored = batch(&[&store(0, 0, BLOCKS)]);
    let removed = batch(&[&remove(0, 0, BLOCKS)]);
    let write = || {
        for seq in 0..ROUNDS as u64 {
            index
                .apply(Target::Id("stays"), &stored, Some(2 * seq), Some(0))
                .unwrap();
            index
                .apply(Target::Id("stays"), &removed, Some(2 * seq + 1), Some(0))
                .unwrap();
        }
        index
            .apply(Target::Id("stays"), &stored, Some(1 << 40), Some(0))
            .unwrap();
    };
    let come_and_go = || {
        for _ in 0..ROUNDS {
            let guest = index.add_worker("guest", &WorkerSetup::default()).unwrap();
            index.apply(Target::Handle(&guest), &stored, None, None).unwrap();
            index.set_state("guest", None, "degraded").unwrap();
            index.clear_worker("guest", None);
            index.apply(Target::Handle(&guest), &stored, None, None).unwrap();
            assert!(index.remove_worker("guest"));
            let report = index.apply(Target::Handle(&guest), &stored, None, None).unwrap();
            assert!(report.ignored.is_some());
        }
    };
    let look = || {
        assert_eq!(index.check_integrity(), [""; 0]);
        let copy = self::index();
        copy.restore(&index.snapshot()).unwrap();
        assert_eq!(copy.check_integrity(), [""; 0]);
        // A snapshot never holds half a batch: what it holds goes with the last sequence.
        for source in copy.stats().sources.iter().filter(|source| &*source.worker == "stays") {
            let expected = if source.last_seq.unwrap().is_multiple_of(2) {
                BLOCKS
            } else {
                0
            };
            assert_eq!(source.tiers[0], expected);
        }
        assert!([0, BLOCKS].contains(&index.stats().blocks));
        index.holdings("stays");
        assert!(index.dump_events("guest").is_ok());
    };
    let read = || assert!(ask(&index).iter().all(|found| found.total == BLOCKS));
    run(&[&write, &come_and_go], &[&look, &read]);
    let found: Vec<_> = ask(&index)
        .into_iter()
        .map(|found| (found.worker.to_string(), found.total))
        .collect();
    assert_eq!(found, [("stays".to_owned(), BLOCKS)]);
    assert_eq!(index.check_integrity(), [""; 0]);
}
