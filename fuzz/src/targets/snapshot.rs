//! The snapshot reader: it refuses what it is given, or takes it without contradictions.

use kvevents_core::index::PrefixIndex;
use xxhash_rust::xxh3::xxh3_64;

use super::{Target, case, index};
use crate::allocation::peak;
use crate::case::Case;
use crate::corpus::PAYLOADS;
use crate::dice::Dice;
use crate::mutation;

pub const TARGET: Target = Target {
    name: "snapshot",
    make,
    mutate: mutation::bytes,
    check,
};

/// Bytes that restoring may take beside those that it takes for each byte of a snapshot.
const MEMORY: (usize, usize) = (1 << 20, 512);

/// A snapshot without its checksum, mostly damaged.
fn make(dice: &mut Dice) -> Vec<u8> {
    let index = index::empty(dice);
    index::feed(&index, &Case::read(&case(dice)).payloads, dice);
    let mut snapshot = index.snapshot();
    snapshot.truncate(snapshot.len() - 8);
    if dice.once_in(20) {
        snapshot
    } else {
        mutation::bytes(&snapshot, dice)
    }
}

fn check(body: &[u8]) -> bool {
    let data = [body, &xxh3_64(body).to_le_bytes()].concat();
    let mut dice = Dice::new(0);
    let index = index::empty(&mut dice);
    index::feed(&index, &PAYLOADS[..3], &mut dice);
    let before = index.snapshot();
    let (restored, bytes) = peak(|| index.restore(&data));
    assert!(
        bytes <= MEMORY.0 + MEMORY.1 * data.len(),
        "{bytes} bytes for a snapshot of {}",
        data.len()
    );
    if let Err(error) = restored {
        assert!(!error.to_string().is_empty());
        assert!(index.snapshot() == before, "what is refused changes nothing");
        return false;
    }
    assert_eq!(index.check_integrity(), Vec::<String>::new());
    check_life(&index, &mut dice);
    true
}

/// An index that was restored is one like any other.
fn check_life(index: &PrefixIndex, dice: &mut Dice) {
    let again = PrefixIndex::new(*index.config()).expect("the settings are right");
    let snapshot = index.snapshot();
    again.restore(&snapshot).expect("its own snapshot");
    assert!(again.snapshot() == snapshot, "a snapshot restores what it was taken of");
    for worker in ["a", "b"] {
        index.holdings(worker);
        if let (Err(error), bytes) = peak(|| index.dump_events(worker)) {
            assert!(bytes < MEMORY.0, "{error} after {bytes} bytes");
        }
    }
    for payload in PAYLOADS.iter().take(6) {
        index::ask(index, payload);
    }
    index::feed(index, &PAYLOADS[3..6], dice);
    assert_eq!(index.check_integrity(), Vec::<String>::new());
}
