//! The wire reader and writer.

use kvevents_core::wire::{
    Batch, Dialect, EngineHash, Event, Limits, NoPlace, Raw, Value, Writer, begin_batch, end_batch, read_batch,
    read_batch_with_ids, read_rank, write_event,
};

use super::{Target, payload};
use crate::allocation::peak;
use crate::corpus::PAYLOADS;
use crate::mutation;

pub const TARGET: Target = Target {
    name: "wire",
    make: payload,
    mutate: |data, dice| mutation::payload(data, &PAYLOADS, dice),
    check,
};

/// Bytes that reading may take beside those that it takes for each byte of a payload.
const MEMORY: (usize, usize) = (4096, 512);

/// A payload may ask for little.
const TIGHT: Limits = Limits {
    message_bytes: 600,
    events: 3,
    blocks: 4,
    nesting: 4,
    unknown_fields: 1,
};

fn check(data: &[u8]) -> bool {
    let mut ids = Vec::new();
    let (read, bytes) = peak(|| read_batch_with_ids(data, &Limits::default(), &mut ids));
    assert!(
        bytes <= MEMORY.0 + MEMORY.1 * data.len(),
        "{bytes} bytes for a payload of {}",
        data.len()
    );
    let _ = read_rank(data);
    let with_ids = read.as_ref().map(|batch| says(batch));
    let read = read_batch(data, &Limits::default());
    assert_eq!(
        with_ids,
        read.as_ref().map(|batch| says(batch)),
        "decoding ids changes nothing"
    );
    let tight = read_batch(data, &TIGHT);
    match &read {
        Err(error) => {
            assert!(error.offset <= data.len());
            assert!(!error.to_string().is_empty());
            assert!(tight.is_err(), "what is broken is broken under any limits");
        }
        Ok(batch) => {
            assert_eq!(read_rank(data), Ok(batch.dp_rank), "the rank can be read alone");
            check_batch(batch);
            if let Ok(tight) = &tight {
                assert!(tight.events.len() <= batch.events.len());
                check_batch(tight);
            }
        }
    }
    read.is_ok_and(|batch| !batch.events.is_empty())
}

/// A batch in SGLang's maps, which say everything; and what was skipped.
fn says(batch: &Batch<'_>) -> (Vec<u8>, String) {
    let written = written(batch, &Dialect::SGLANG).expect("maps have a place for everything");
    (written, format!("{:?} {}", batch.skipped, batch.unread_fields))
}

fn written(batch: &Batch<'_>, dialect: &Dialect) -> Result<Vec<u8>, NoPlace> {
    let mut out = Writer::new();
    begin_batch(&mut out, batch.ts, batch.events.len());
    for event in &batch.events {
        write_event(&mut out, dialect, event)?;
    }
    end_batch(&mut out, batch.dp_rank);
    Ok(out.into_bytes())
}

fn check_batch(batch: &Batch<'_>) {
    batch.events.iter().for_each(walk);
    let (all, _) = says(batch);
    for dialect in Dialect::ALL {
        let Ok(written) = written(batch, &dialect) else {
            continue;
        };
        let again = read_batch(&written, &Limits::default()).expect("what was written can be read");
        assert_eq!(again.skipped, [], "{}", dialect.name);
        assert_eq!(again.unread_fields, 0, "{}", dialect.name);
        assert_eq!(says(&again).0, all, "{} says the same", dialect.name);
    }
}

/// Look at everything that is decoded only when somebody looks.
fn walk(event: &Event<'_>) {
    match event {
        Event::Stored(stored) => {
            let hashes = &stored.block_hashes;
            let keys: Vec<u64> = hashes.iter().map(EngineHash::key).collect();
            let mut again = Vec::new();
            hashes.keys_into(&mut again);
            assert_eq!((keys.len(), &keys), (hashes.len(), &again));
            let members = stored.token_ids.members().count();
            assert_eq!(
                members,
                stored.token_ids.len() * if stored.token_ids.is_pairs() { 2 } else { 1 }
            );
            let mut tokens = kvevents_core::tokens::TokenVec::default();
            stored.token_ids.copy_into(&mut tokens);
            let pairs = usize::from(stored.token_ids.is_pairs() && !stored.token_ids.is_empty());
            assert_eq!(tokens.as_slice().len(), stored.token_ids.len() + pairs);
            if let Some(keys) = &stored.extra_keys {
                keys.iter().for_each(walk_value);
            }
        }
        Event::Removed(removed) => assert_eq!(removed.block_hashes.iter().count(), removed.block_hashes.len()),
        Event::Cleared(_) => {}
    }
}

fn walk_value(raw: Raw<'_>) {
    if let Value::Array(elements) | Value::Map(elements) = raw.value() {
        elements.for_each(walk_value);
    }
}
