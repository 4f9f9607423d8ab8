//! The rewriter of captures: the same events under other names, and nothing of what they said of prompts and tenants.

use kvevents_core::pseudonyms::{KEY_BYTES, Keep, Names, Rewriter};
use kvevents_core::wire::{EngineHash, Event, HashList, Limits, Stored, read_batch};

use super::{Target, case, other_case};
use crate::allocation::peak;
use crate::case::Case;

pub const TARGET: Target = Target {
    name: "pseudonyms",
    make: case,
    mutate: other_case,
    check,
};

/// Bytes that rewriting may take beside those that it takes for each byte of a payload.
const MEMORY: (usize, usize) = (1 << 20, 2048);
/// A text this long is in the output by no accident.
const SECRET: usize = 8;

fn check(data: &[u8]) -> bool {
    let case = Case::read(data);
    let names = Names::new([case.seed as u8; KEY_BYTES]);
    let mut rewriter = Rewriter::new(names.clone(), Keep::default(), 16);
    let mut is_rewritten = false;
    for payload in &case.payloads {
        let (rewritten, bytes) = peak(|| rewriter.rewrite(payload));
        assert!(
            bytes <= MEMORY.0 + MEMORY.1 * payload.len(),
            "{bytes} bytes for a payload of {}",
            payload.len()
        );
        let before = read_batch(payload, &Limits::default());
        let (Ok(before), Ok(rewritten)) = (&before, &rewritten) else {
            assert_eq!(before.is_ok(), rewritten.is_ok(), "what cannot be read is refused");
            continue;
        };
        let after = read_batch(&rewritten.payload, &Limits::default()).expect("what was written can be read");
        assert_eq!(
            (after.ts.to_bits(), after.dp_rank),
            (before.ts.to_bits(), before.dp_rank)
        );
        assert_eq!(after.events.len(), before.events.len());
        assert_eq!(after.skipped.len(), before.skipped.len());
        for (before, after) in before.events.iter().zip(&after.events) {
            check_event(before, after, &names);
            if let Event::Stored(stored) = before {
                check_secrets(stored, &rewritten.payload);
            }
        }
        is_rewritten |= !before.events.is_empty();
    }
    is_rewritten
}

fn check_event(before: &Event<'_>, after: &Event<'_>, names: &Names) {
    match (before, after) {
        (Event::Stored(before), Event::Stored(after)) => {
            check_hashes(&before.block_hashes, &after.block_hashes, names);
            let parents = [before, after].map(|stored| stored.parent_block_hash.map(EngineHash::key));
            assert_eq!(parents[1], parents[0].map(|parent| names.hash_key(parent)));
            let shapes = [before, after].map(|stored| {
                let tokens = &stored.token_ids;
                let pairs = tokens.is_pairs() && !tokens.is_empty();
                (
                    tokens.len(),
                    pairs,
                    stored.block_size,
                    stored.group_idx,
                    stored.kv_cache_spec_sliding_window,
                )
            });
            assert_eq!(shapes[0], shapes[1]);
        }
        (Event::Removed(before), Event::Removed(after)) => {
            check_hashes(&before.block_hashes, &after.block_hashes, names);
            assert_eq!(before.group_idx, after.group_idx);
        }
        (Event::Cleared(_), Event::Cleared(_)) => {}
        _ => panic!("another kind of event"),
    }
}

fn check_hashes(before: &HashList<'_>, after: &HashList<'_>, names: &Names) {
    let renamed: Vec<u64> = before.iter().map(|hash| names.hash_key(hash.key())).collect();
    assert_eq!(after.iter().map(EngineHash::key).collect::<Vec<_>>(), renamed);
}

/// Nothing of who asked is in the output; names that every payload may have are no secret.
fn check_secrets(stored: &Stored<'_>, output: &[u8]) {
    let texts = [stored.cache_salt, stored.session_id, stored.lora_name, stored.ownership];
    for text in texts.into_iter().flatten().filter(|text| text.len() >= SECRET) {
        let is_word = text.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'_');
        let is_there = output.windows(text.len()).any(|window| window == text.as_bytes());
        assert!(is_word || !is_there, "{text:?} is in the output");
    }
}
