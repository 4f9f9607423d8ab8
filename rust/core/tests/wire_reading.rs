//! What the reader makes of payloads, built here value by value.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use kvevents_core::tokens::TokenVec;
use kvevents_core::wire::{Batch, EngineHash, Event, Fault, Limits, Stored, Value, WireError, Writer, read_batch};

fn read(data: &[u8]) -> Result<Batch<'_>, WireError> {
    read_batch(data, &Limits::default())
}

/// A batch of the array shape whose events `write` adds.
fn batch(events: usize, write: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut out = Writer::new();
    out.array(3);
    out.f64(1.5);
    out.array(events);
    write(&mut out);
    out.uint(0);
    out.into_bytes()
}

/// The slots up to `medium`: hash 7 under 5, tokens 1, 2.
fn common_slots(out: &mut Writer, tag: &str, more: usize) {
    out.array(7 + more);
    out.str(tag);
    out.array(1);
    out.uint(7);
    out.uint(5);
    out.array(2);
    out.uint(1);
    out.uint(2);
    out.uint(2);
    out.nil();
    out.str("GPU");
}

fn only_store<'a>(batch: &'a Batch<'a>) -> &'a Stored<'a> {
    assert_eq!(batch.skipped, []);
    match &batch.events[..] {
        [Event::Stored(stored)] => stored,
        other => panic!("expected one store, got {other:?}"),
    }
}

#[test]
fn a_golden_payload_of_sglang_reads_as_what_it_says() {
    let golden = b"\x93\xcb\0\0\0\0\0\0\0\0\x91\x87\xa4type\xabBlockStored\xacblock_hashes\x92\xd3\xba\xedd#9\x81j\xff\
        \xcf\x01AK\x05'\x06\xd9;\xb1parent_block_hash\xc0\xa9token_ids\x98\0\x01\x02\x03\x04\x05\x06\x07\
        \xaablock_size\x04\xa7lora_id\xc0\xa6medium\xa3GPU\0";
    let batch = read(golden).unwrap();
    assert_eq!((batch.ts, batch.dp_rank), (0.0, Some(0)));
    let stored = only_store(&batch);
    let hashes: Vec<_> = stored.block_hashes.iter().collect();
    assert_eq!(
        hashes,
        [
            EngineHash::Negative(0xbaed_6423_3981_6aff_u64 as i64),
            EngineHash::Unsigned(0x0141_4b05_2706_d93b)
        ]
    );
    assert_eq!(
        (stored.parent_block_hash, stored.block_size, stored.medium),
        (None, 4, Some("GPU"))
    );
    assert_eq!(
        stored.token_ids.members().collect::<Vec<_>>(),
        (0..8).collect::<Vec<_>>()
    );
}

#[test]
fn the_slot_after_medium_tells_the_dialect() {
    let sglang = batch(1, |out| {
        common_slots(out, "BlockStored", 3);
        out.str("salt");
        out.nil();
        out.str("adapter");
    });
    let batch_ = read(&sglang).unwrap();
    let stored = only_store(&batch_);
    assert_eq!(
        (stored.cache_salt, stored.session_id, stored.lora_name),
        (Some("salt"), None, Some("adapter"))
    );

    let vllm = batch(1, |out| {
        common_slots(out, "BlockStored", 3);
        out.str("adapter");
        out.array(1);
        out.array(1);
        out.str("adapter");
        out.uint(0);
    });
    let batch_ = read(&vllm).unwrap();
    let stored = only_store(&batch_);
    assert_eq!(
        (stored.cache_salt, stored.lora_name, stored.group_idx),
        (None, Some("adapter"), Some(0))
    );
    let entries: Vec<_> = stored.extra_keys.unwrap().iter().collect();
    let Value::Array(mut keys) = entries[0].value() else {
        panic!("expected an array")
    };
    assert_eq!(keys.next().unwrap().value(), Value::Str("adapter"));

    for tag in ["BlockStored", "BlockStoredWithMetadata"] {
        let earlier = batch(1, |out| {
            common_slots(out, tag, 1);
            out.map(1);
            out.str("cache_salt");
            out.str("salt");
        });
        let batch_ = read(&earlier).unwrap();
        let stored = only_store(&batch_);
        assert_eq!(stored.cache_salt, Some("salt"), "{tag}");
        assert!(stored.metadata.is_some_and(|metadata| metadata.is_only_salt), "{tag}");
    }
}

#[test]
fn one_hash_in_three_forms_has_one_key() {
    let digest: Vec<u8> = (0..24).chain([0xff, 1, 2, 3, 4, 5, 6, 7]).collect();
    let key = 0xff01_0203_0405_0607;
    assert_eq!(EngineHash::Bytes(&digest).key(), key);
    assert_eq!(EngineHash::Unsigned(key).key(), key);
    assert_eq!(EngineHash::Negative(key as i64).key(), key);
}

#[test]
fn pairs_are_the_sequence_they_overlap_to() {
    let data = batch(1, |out| {
        out.array(6);
        out.str("BlockStored");
        out.array(0);
        out.nil();
        out.array(3);
        for pair in [[1, 2], [2, 3], [3, 4]] {
            out.array(2);
            out.uint(pair[0]);
            out.uint(pair[1]);
        }
        out.uint(3);
        out.nil();
    });
    let batch = read(&data).unwrap();
    let stored = only_store(&batch);
    assert!(stored.token_ids.is_pairs());
    assert_eq!(stored.token_ids.len(), 3);
    let mut tokens = TokenVec::default();
    stored.token_ids.copy_into(&mut tokens);
    assert_eq!(tokens, TokenVec::U32(vec![1, 2, 3, 4]));
}

#[test]
fn a_length_that_the_bytes_do_not_back_is_refused_at_its_header() {
    // An array of 2^32-1 events in a payload of 15 bytes.
    let data = b"\x93\xcb\0\0\0\0\0\0\0\0\xdd\xff\xff\xff\xff";
    let error = read(data).unwrap_err();
    assert_eq!(error.offset, 10);
    assert!(
        matches!(
            error.fault,
            Fault::CutOff {
                needed: 0xffff_ffff,
                left: 0,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn deep_nesting_is_passed_over_without_recursion() {
    let mut deep = vec![0x91; 1 << 20];
    deep.push(0xc0);
    let unknown = batch(1, |out| {
        out.array(2);
        out.str("Unheard");
        out.raw(&deep);
    });
    assert_eq!(read(&unknown).unwrap().skipped[0].code, "unknown-tag");
    let kept = batch(1, |out| {
        out.map(2);
        out.str("type");
        out.str("AllBlocksCleared");
        out.str("unheard");
        out.raw(&deep);
    });
    let batch = read(&kept).unwrap();
    assert_eq!((batch.events.len(), batch.skipped[0].code), (0, "over-limit"));
}
