//! The index, fed with whatever comes.

use std::time::Duration;

use kvevents_core::index::{Bounds, Config, PrefixIndex, Prompt, Target as Worker};
use kvevents_core::tokens::{TokenSlice, TokenVec};
use kvevents_core::wire::{Event, Limits, read_batch};

use super::{Target, case, other_case};
use crate::case::Case;
use crate::dice::Dice;

pub const TARGET: Target = Target {
    name: "index",
    make: case,
    mutate: other_case,
    check,
};

/// An index that has room for as much as the dice say.
pub fn empty(dice: &mut Dice) -> PrefixIndex {
    let mut bounds = || Bounds {
        blocks: if dice.once_in(2) { 3 } else { 10_000 },
        bytes: if dice.once_in(4) { 2_000 } else { 1 << 24 },
        age: Duration::MAX,
    };
    PrefixIndex::new(Config {
        pending: bounds(),
        parked: bounds(),
        block_size: 1 + dice.below(4) as u32,
        keep_tokens: dice.once_in(2),
        sources: 8,
        wire: Limits::default(),
    })
    .expect("the settings are right")
}

/// Feed an index, with workers that come and go.
pub fn feed(index: &PrefixIndex, payloads: &[Vec<u8>], dice: &mut Dice) {
    for payload in payloads {
        let worker = *dice.one(&["a", "a", "a", "b"]);
        let rank = dice.once_in(3).then(|| dice.below(2) as i64);
        let report = index.apply(Worker::Id(worker), payload, None, rank);
        if let Ok(report) = report {
            assert!(report.events + report.skipped.len() <= payload.len());
        }
        match dice.below(12) {
            0 => index.clear_worker(worker, rank),
            1 => {
                index.remove_worker(worker);
                index
                    .add_worker(worker, &kvevents_core::index::WorkerSetup::default())
                    .expect("there is room");
            }
            _ => {}
        }
    }
}

fn check(data: &[u8]) -> bool {
    let case = Case::read(data);
    let mut dice = Dice::new(case.seed);
    let index = empty(&mut dice);
    let mut is_hit = false;
    for payload in &case.payloads {
        feed(&index, std::slice::from_ref(payload), &mut dice);
        assert_eq!(index.check_integrity(), Vec::<String>::new());
        is_hit |= ask(&index, payload);
    }
    let snapshot = index.snapshot();
    let copy = PrefixIndex::new(*index.config()).expect("the settings are right");
    copy.restore(&snapshot).expect("its own snapshot");
    assert_eq!(copy.check_integrity(), Vec::<String>::new());
    assert!(copy.snapshot() == snapshot, "a snapshot restores what it was taken of");
    for worker in ["a", "b"] {
        let dump = index.dump_events(worker).expect("nothing is held that often");
        assert_eq!(index.holdings(worker).is_some(), dump.is_some());
        index.clear_worker(worker, None);
    }
    assert_eq!(index.stats().blocks, 0, "nothing is left");
    assert_eq!(index.check_integrity(), Vec::<String>::new());
    is_hit
}

/// Ask for the prompts that a payload's stores may be part of; every answer adds up. Whether there was one.
pub fn ask(index: &PrefixIndex, payload: &[u8]) -> bool {
    let Ok(batch) = read_batch(payload, &Limits::default()) else {
        return false;
    };
    let mut is_hit = false;
    let mut all = TokenVec::default();
    for event in &batch.events {
        let Event::Stored(stored) = event else { continue };
        let mut tokens = TokenVec::default();
        stored.token_ids.copy_into(&mut tokens);
        all.extend(tokens.as_slice());
        is_hit |= answer(
            index,
            tokens.as_slice(),
            stored.lora_name,
            stored.lora_id,
            stored.cache_salt,
        );
    }
    answer(index, all.as_slice(), None, None, None) || is_hit
}

fn answer(
    index: &PrefixIndex,
    tokens: TokenSlice<'_>,
    name: Option<&str>,
    id: Option<i64>,
    salt: Option<&str>,
) -> bool {
    let prompt = Prompt::new(tokens, name, id, salt, None).expect("there are no extra keys");
    let matches = index.match_prompt(&prompt);
    for found in &matches {
        assert!(0 < found.total && found.total <= tokens.len(), "{found:?}");
        assert!(found.usable <= found.total, "{found:?}");
        assert_eq!(found.fastest.iter().sum::<usize>(), found.total, "{found:?}");
        assert!(found.tiers.iter().all(|&tier| tier <= found.total), "{found:?}");
    }
    !matches.is_empty()
}
