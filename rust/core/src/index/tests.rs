//! The index from bytes, with a clock of its own.

use std::time::Duration;

use super::*;
use crate::tokens::TokenSlice;
use crate::wire::Writer;

const SECOND: Duration = Duration::from_secs(1);

pub(super) fn index() -> PrefixIndex {
    keeping(false)
}

fn keeping(keep_tokens: bool) -> PrefixIndex {
    let bounds = Bounds {
        blocks: 10,
        bytes: 1 << 20,
        age: SECOND,
    };
    PrefixIndex::new(Config {
        block_size: 2,
        keep_tokens,
        pending: bounds,
        parked: bounds,
        sources: 4,
        wire: Limits::default(),
    })
    .expect("the settings are right")
}

/// A batch with one store on the GPU, blocks of two tokens.
pub(super) fn store(blocks: &[u64], parent: Option<u64>, tokens: &[u32]) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.array(2);
    writer.f64(0.0);
    writer.array(1);
    writer.array(5);
    writer.str("BlockStored");
    writer.array(blocks.len());
    for &block in blocks {
        writer.uint(block);
    }
    match parent {
        None => writer.nil(),
        Some(parent) => writer.uint(parent),
    }
    writer.tokens(TokenSlice::U32(tokens));
    writer.uint(2);
    writer.into_bytes()
}

/// A batch with the removal of one block from the GPU.
pub(super) fn remove(block: u64) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.array(2);
    writer.f64(0.0);
    writer.array(1);
    writer.array(2);
    writer.str("BlockRemoved");
    writer.array(1);
    writer.uint(block);
    writer.into_bytes()
}

fn total(index: &PrefixIndex, tokens: &[u32]) -> usize {
    let prompt = Prompt::new(TokenSlice::U32(tokens), None, None, None, None).expect("no extra keys");
    index.match_prompt(&prompt).first().map_or(0, |found| found.total)
}

#[test]
fn what_is_stored_is_matched() {
    let index = index();
    let worker = Target::Id("w");
    let report = index.apply(worker, &store(&[7, 8], None, &[1, 2, 3, 4]), Some(0), None);
    assert_eq!(report.expect("a good batch").stored, 2);
    assert_eq!(total(&index, &[1, 2, 3, 4, 5]), 2);
    assert_eq!(total(&index, &[3, 4]), 0);
    assert!(index.check_integrity().is_empty());
}

#[test]
fn a_block_waits_for_its_parent_only_so_long() {
    for (parent_comes, expected) in [(SECOND, 2), (SECOND * 2 + SECOND / 2, 1)] {
        let index = index();
        let apply = |data: &[u8], now| {
            let report = index.apply_at(Target::Id("w"), data, None, None, now);
            report.expect("a good batch").dropped
        };
        assert_eq!(apply(&store(&[8], Some(7), &[3, 4]), SECOND), 0);
        // Time passes with whatever comes next.
        let dropped = apply(&store(&[9], None, &[9, 9]), parent_comes);
        assert_eq!(dropped, 2 - expected);
        apply(&store(&[7], None, &[1, 2]), parent_comes);
        assert_eq!(total(&index, &[1, 2, 3, 4]), expected);
        assert!(index.check_integrity().is_empty());
    }
}

#[test]
fn a_snapshot_with_a_right_checksum_and_wrong_contents_is_refused() {
    let index = index();
    index
        .apply(Target::Id("w"), &store(&[7, 8], None, &[1, 2, 3, 4]), None, None)
        .expect("a good batch");
    let good = index.snapshot();
    let body = good.len() - size_of::<u64>();
    let mut refused = 0;
    for at in 12..body {
        let mut bad = good.clone();
        bad[at] ^= 0x41;
        let checksum = xxhash_rust::xxh3::xxh3_64(&bad[..body]).to_le_bytes();
        bad[body..].copy_from_slice(&checksum);
        // Some changes make another right snapshot (an id, a hash); none may break the index.
        let other = self::index();
        refused += usize::from(other.restore(&bad).is_err());
        assert!(other.check_integrity().is_empty());
    }
    assert!(refused > 50, "only {refused} were refused");
    index.restore(&good).expect("a good snapshot");
    assert_eq!(index.snapshot(), good);
}

#[test]
fn tokens_are_not_kept_for_a_block_that_an_image_put_elsewhere() {
    let batches = [store(&[7, 8], None, &[1, 2, 3, 4]), store(&[9], Some(7), &[5, 6])];
    let tell = |index: &PrefixIndex| {
        for batch in &batches {
            index.apply(Target::Id("w"), batch, None, None).expect("a good batch");
        }
    };
    let source = keeping(true);
    tell(&source);
    let good = source.snapshot_worker("w", None).expect("it is there").remove(0);
    let body = good.len() - size_of::<u64>();
    let mut believed = 0;
    for at in 12..body {
        let mut bad = good.clone();
        bad[at] ^= 1;
        let checksum = xxhash_rust::xxh3::xxh3_64(&bad[..body]).to_le_bytes();
        bad[body..].copy_from_slice(&checksum);
        let index = keeping(true);
        believed += usize::from(index.restore_worker("w", &bad, None, None).is_ok());
        tell(&index);
        assert_eq!(index.check_integrity(), Vec::<String>::new(), "byte {at}");
    }
    assert!(believed > 50, "only {believed} were images");
}
