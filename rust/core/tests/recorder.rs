//! What a recorder gives out for what it was told.

use kvevents_core::hash::chain::{HashChain, Namespace, Scheme};
use kvevents_core::hash::sglang::EventFormat;
use kvevents_core::merge::Cap;
use kvevents_core::pages::Paging;
use kvevents_core::recorder::{Coalesce, Recorder, Refused, Remove, Settings, Store};
use kvevents_core::tokens::TokenSlice;
use kvevents_core::wire::{Dialect, Event, Limits, read_batch};

fn recorder(coalesce: Coalesce, cap: Cap) -> Recorder {
    Recorder::new(Settings {
        page_size: 2,
        coalesce,
        event_format: EventFormat::Default,
        cap,
    })
}

fn root(extra_key: Option<&str>) -> HashChain {
    let paging = Paging::new(2, false).expect("positive");
    HashChain::root(Namespace::new(Scheme::Sglang, paging, extra_key, None))
}

fn store(recorder: &Recorder, chain: &HashChain, tokens: &[u32]) {
    recorder
        .store(&Store {
            chain,
            tokens: TokenSlice::U32(tokens),
            medium: "GPU",
            session_id: None,
            registered: None,
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
        })
        .expect("pages of the recorder");
}

/// Events as (type, blocks).
fn shapes(recorder: &Recorder) -> Vec<(&'static str, usize)> {
    let data = recorder.take().encode(0.0, Some(0), &Dialect::SGLANG);
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
    let recorder = recorder(Coalesce::Adjacent, Cap::default());
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
        let recorder = recorder(Coalesce::Adjacent, cap);
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
    let recorder = recorder(Coalesce::Off, Cap::default());
    let chain = root(None).extend(TokenSlice::U32(&[1, 2])).expect("whole");
    remove(&recorder, &chain, None);
    remove(&recorder, &chain, None);
    assert_eq!(shapes(&recorder), [("removed", 1), ("removed", 1)]);
}

#[test]
fn sizes_are_those_of_the_batch_within_a_few_bytes() {
    let recorder = recorder(Coalesce::Adjacent, Cap::default());
    let tokens: Vec<u32> = (0..2000).map(|index| index * 97).collect();
    let chain = root(None).extend(TokenSlice::U32(&tokens)).expect("whole");
    store(&recorder, &chain, &tokens);
    remove(&recorder, &chain, None);
    let stats = recorder.stats();
    let real = recorder.take().encode(0.0, Some(0), &Dialect::SGLANG).len() as u64;
    assert!(stats.coalesced_bytes.abs_diff(real) < 40, "{stats:?} {real}");
}

#[test]
fn a_late_name_does_not_change_what_a_removal_names() {
    let recorder = recorder(Coalesce::Adjacent, Cap::default());
    let chain = root(Some("k")).extend(TokenSlice::U32(&[1, 2])).expect("whole");
    let unnamed: Vec<i64> = chain.ids().collect();
    store(&recorder, &chain, &[1, 2]);
    assert_eq!(recorder.announced(&chain, Some("late")), unnamed);
    remove(&recorder, &chain, Some("late"));
    assert_ne!(recorder.announced(&chain, Some("late")), unnamed);
}

#[test]
fn what_does_not_fit_is_refused_before_anything_changes() {
    let recorder = recorder(Coalesce::Adjacent, Cap::default());
    let chain = root(None).extend(TokenSlice::U32(&[1, 2])).expect("whole");
    let tokens = TokenSlice::U32(&[1, 2, 3, 4]);
    let refused = recorder.store(&Store {
        chain: &chain,
        tokens,
        medium: "GPU",
        session_id: None,
        registered: None,
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
