//! What a recorder gives out for what it was told.

use kvevents_core::coalesce::{Cap, Level};
use kvevents_core::hash::chain::HashChain;
use kvevents_core::hash::namespace::{Namespace, Scheme, Separation};
use kvevents_core::hash::sglang::EventFormat;
use kvevents_core::hash::vllm;
use kvevents_core::pages::Paging;
use kvevents_core::recorder::{Group, Recorder, Refused, Remove, RemoveEach, Settings, Store};
use kvevents_core::tokens::TokenSlice;
use kvevents_core::wire::{Dialect, EngineHash, Event, Limits, Raw, read_batch};

fn recorder(coalesce: Level, cap: Cap) -> Recorder {
    Recorder::new(Settings {
        page_size: 2,
        coalesce,
        event_format: EventFormat::Default,
        cap,
    })
}

fn root(extra_key: Option<&str>) -> HashChain {
    let paging = Paging::new(2, false).expect("positive");
    let by = Separation {
        extra_key,
        ..Separation::default()
    };
    HashChain::root(Namespace::new(Scheme::Sglang, paging, by).expect("no seed"))
}

fn store(recorder: &Recorder, chain: &HashChain, tokens: &[u32]) {
    recorder
        .store(&Store {
            chain,
            tokens: TokenSlice::U32(tokens),
            medium: "GPU",
            session_id: None,
            registered: None,
            group: None,
        })
        .expect("tokens of the chain");
}

fn remove(recorder: &Recorder, chain: &HashChain, registered: Option<&str>) {
    let medium = "GPU";
    recorder
        .remove(&Remove {
            chain,
            medium,
            registered,
            group_idx: None,
        })
        .expect("pages of the recorder");
}

/// Events as (type, blocks).
fn shapes(recorder: &Recorder) -> Vec<(&'static str, usize)> {
    let data = recorder
        .take()
        .encode(0.0, Some(0), &Dialect::SGLANG)
        .expect("maps take all");
    let batch = read_batch(&data, &Limits::default()).expect("own bytes");
    assert_eq!(batch.skipped, []);
    batch
        .events
        .iter()
        .map(|event| match event {
            Event::Stored(stored) => ("stored", stored.block_hashes.len()),
            Event::Removed(removed) => ("removed", removed.block_hashes.len()),
            Event::Cleared(_) => ("cleared", 0),
        })
        .collect()
}

#[test]
fn a_chain_stored_in_steps_is_one_event() {
    let recorder = recorder(Level::Adjacent, Cap::default());
    let first = root(None).extend(TokenSlice::U32(&[1, 2])).expect("whole");
    let second = first.extend(TokenSlice::U32(&[3, 4, 5, 6])).expect("whole");
    store(&recorder, &first, &[1, 2]);
    store(&recorder, &second, &[3, 4, 5, 6]);
    remove(&recorder, &second, None);
    remove(&recorder, &first, None);
    recorder.clear();
    recorder.clear();
    let stats = recorder.stats();
    assert_eq!((stats.recorded_events, stats.coalesced_events), (6, 4));
    assert!(stats.coalesced_bytes < stats.recorded_bytes);
    assert_eq!(
        shapes(&recorder),
        [("stored", 3), ("removed", 3), ("cleared", 0), ("cleared", 0)]
    );
    assert!(recorder.is_empty());
}

#[test]
fn a_merged_event_stays_under_the_cap_and_a_single_one_stays_whole() {
    let tokens: Vec<u32> = (0..16).collect();
    for (cap, expected) in [
        (
            Cap {
                blocks: 3,
                ..Cap::default()
            },
            vec![("stored", 3), ("stored", 2), ("stored", 3)],
        ),
        (
            Cap {
                bytes: 200,
                ..Cap::default()
            },
            vec![("stored", 5), ("stored", 3)],
        ),
    ] {
        let recorder = recorder(Level::Adjacent, cap);
        let mut chain = root(None);
        let mut at = 0;
        for pages in [3, 1, 1, 3] {
            let step = &tokens[at..at + 2 * pages];
            at += 2 * pages;
            chain = chain.extend(TokenSlice::U32(step)).expect("whole");
            store(&recorder, &chain, step);
        }
        assert_eq!(shapes(&recorder), expected, "{cap:?}");
    }
}

#[test]
fn level_off_merges_nothing() {
    let recorder = recorder(Level::Off, Cap::default());
    let chain = root(None).extend(TokenSlice::U32(&[1, 2])).expect("whole");
    remove(&recorder, &chain, None);
    remove(&recorder, &chain, None);
    assert_eq!(shapes(&recorder), [("removed", 1), ("removed", 1)]);
}

#[test]
fn sizes_are_those_of_the_batch_within_a_few_bytes() {
    let recorder = recorder(Level::Adjacent, Cap::default());
    let tokens: Vec<u32> = (0..2000).map(|index| index * 97).collect();
    let chain = root(None).extend(TokenSlice::U32(&tokens)).expect("whole");
    store(&recorder, &chain, &tokens);
    remove(&recorder, &chain, None);
    let stats = recorder.stats();
    let real = recorder.take().encode(0.0, Some(0), &Dialect::SGLANG);
    let real = real.expect("maps take all").len() as u64;
    assert!(stats.coalesced_bytes.abs_diff(real) < 40, "{stats:?} {real}");
}

#[test]
fn a_late_name_does_not_change_what_a_removal_names() {
    let recorder = recorder(Level::Adjacent, Cap::default());
    let chain = root(Some("k")).extend(TokenSlice::U32(&[1, 2])).expect("whole");
    let unnamed: Vec<i64> = chain.ids().collect();
    store(&recorder, &chain, &[1, 2]);
    assert_eq!(recorder.announced(&chain, Some("late")), unnamed);
    remove(&recorder, &chain, Some("late"));
    assert_ne!(recorder.announced(&chain, Some("late")), unnamed);
}

#[test]
fn what_does_not_fit_is_refused_before_anything_changes() {
    let recorder = recorder(Level::Adjacent, Cap::default());
    let chain = root(None).extend(TokenSlice::U32(&[1, 2])).expect("whole");
    let tokens = TokenSlice::U32(&[1, 2, 3, 4]);
    let refused = recorder.store(&Store {
        chain: &chain,
        tokens,
        medium: "GPU",
        session_id: None,
        registered: None,
        group: None,
    });
    assert_eq!(
        refused,
        Err(Refused::Tokens {
            expected: 2,
            got: 4,
            pages: 1
        })
    );
    assert!(recorder.is_empty());
}

/// vLLM's blocks, salted and under an adapter.
fn vllm_chain(tokens: &[u32]) -> HashChain {
    let by = Separation {
        extra_key: Some("ad"),
        cache_salt: Some("s"),
        ..Separation::default()
    };
    let paging = Paging::new(2, false).expect("positive");
    let namespace = Namespace::new(Scheme::Vllm(vllm::Scheme::Sha256Cbor), paging, by);
    let root = HashChain::root(namespace.expect("a default seed"));
    root.extend(TokenSlice::U32(tokens)).expect("whole pages")
}

fn store_in_group(recorder: &Recorder, chain: &HashChain, tokens: &[u32]) {
    recorder
        .store(&Store {
            chain,
            tokens: TokenSlice::U32(tokens),
            medium: "GPU",
            session_id: None,
            registered: None,
            group: Some(Group {
                index: 3,
                kind: "sliding_window",
                sliding_window: Some(64),
            }),
        })
        .expect("tokens of the chain");
}

#[test]
fn blocks_of_vllm_are_announced_as_vllm_does() {
    let recorder = recorder(Level::Adjacent, Cap::default());
    let chain = vllm_chain(&[1, 2, 3, 4, 5, 6]);
    let (head, tail) = chain.split(2).expect("three blocks");
    store_in_group(&recorder, &head, &[1, 2, 3, 4]);
    store_in_group(&recorder, &tail, &[5, 6]);
    let ids: Vec<i64> = chain.ids().collect();
    recorder.remove_each(&RemoveEach {
        scheme: chain.namespace().scheme,
        ids: &ids[1..],
        medium: "GPU",
        group_idx: Some(3),
    });
    let stats = recorder.stats();
    let taken = recorder.take();
    let data = taken.encode(0.0, Some(0), &Dialect::VLLM).expect("maps take all");
    assert!(
        stats.coalesced_bytes.abs_diff(data.len() as u64) < 40,
        "{stats:?} {}",
        data.len()
    );
    let batch = read_batch(&data, &Limits::default()).expect("own bytes");
    let [Event::Stored(stored), Event::Removed(removed)] = &batch.events[..] else {
        panic!("{batch:?}");
    };
    let unsigned: Vec<EngineHash<'_>> = ids.iter().map(|id| EngineHash::Unsigned(id.cast_unsigned())).collect();
    assert_eq!(stored.block_hashes.iter().collect::<Vec<_>>(), unsigned);
    assert_eq!(removed.block_hashes.iter().collect::<Vec<_>>(), unsigned[1..]);
    assert_eq!(removed.group_idx, Some(3));
    assert_eq!((stored.lora_name, stored.cache_salt), (Some("ad"), None));
    assert_eq!(
        (stored.group_idx, stored.kv_cache_spec_kind),
        (Some(3), Some("sliding_window"))
    );
    assert_eq!(stored.kv_cache_spec_sliding_window, Some(64));
    let keys = stored.extra_keys.as_ref().expect("one entry a block");
    let keys: Vec<&[u8]> = keys.iter().map(Raw::bytes).collect();
    assert_eq!(keys, [b"\x92\xa2ad\xa1s".as_slice(), b"\x91\xa2ad", b"\x91\xa2ad"]);
}

#[test]
fn what_a_dialect_has_no_place_for_can_be_put_back() {
    let recorder = recorder(Level::Off, Cap::default());
    store_in_group(&recorder, &vllm_chain(&[1, 2]), &[1, 2]);
    let taken = recorder.take();
    recorder.clear();
    let refused = taken.encode(0.0, None, &Dialect::SGLANG_ARRAY);
    assert_eq!(refused.map_err(|error| error.field), Err("extra_keys"));
    recorder.put_back(taken);
    assert_eq!(recorder.len(), 2);
    assert_eq!(shapes(&recorder), [("stored", 1), ("cleared", 0)]);
}

#[test]
fn what_was_put_back_is_counted_once() {
    let recorder = recorder(Level::Compact, Cap::default());
    let chain = root(None).extend(TokenSlice::U32(&[1, 2])).expect("whole");
    store(&recorder, &chain, &[1, 2]);
    recorder.put_back(recorder.take());
    remove(&recorder, &chain, None);
    assert_eq!(shapes(&recorder), [("stored", 1), ("removed", 1)]);
    store(&recorder, &chain, &[1, 2]);
    remove(&recorder, &chain, None);
    assert_eq!(shapes(&recorder), []);
    assert_eq!(recorder.stats().cancelled_pages, 2);
}
