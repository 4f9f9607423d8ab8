//! Laws of the codec over payloads that nobody wrote by hand.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use kvevents_core::wire::{
    Batch, Dialect, EngineHash, Event, Field, Fields, Limits, NoPlace, Tag, Writer, begin_batch, end_batch, read_batch,
    read_batch_with_ids, write_event,
};
use proptest::prelude::*;

/// An event made of msgpack values by field.
#[derive(Clone, Debug)]
struct Made {
    tag: Tag,
    fields: Vec<(Field, Vec<u8>)>,
}

impl Fields for Made {
    type Error = NoPlace;

    fn tag(&self) -> Tag {
        self.tag
    }

    fn has(&self, field: Field) -> bool {
        self.fields.iter().any(|(known, _)| *known == field)
    }

    fn write(&self, field: Field, out: &mut Writer) -> Result<(), NoPlace> {
        let value = self.fields.iter().find(|(known, _)| *known == field);
        out.raw(&value.unwrap().1);
        Ok(())
    }
}

fn msgpack(write: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut out = Writer::new();
    write(&mut out);
    out.into_bytes()
}

fn hash() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        any::<u64>().prop_map(|value| msgpack(|out| out.uint(value))),
        any::<i64>().prop_map(|value| msgpack(|out| out.int(value))),
        prop::collection::vec(any::<u8>(), 1..40).prop_map(|bytes| msgpack(|out| out.bin(&bytes))),
    ]
}

/// An unsigned integer in any form that holds it, the smallest or not.
fn any_form(value: u64, choice: prop::sample::Index) -> Vec<u8> {
    let wide = value.to_be_bytes();
    let mut forms = vec![msgpack(|out| out.uint(value)), [&[0xcf], &wide[..]].concat()];
    let sized = [
        (0xcc, 7, u64::from(u8::MAX)),
        (0xcd, 6, u64::from(u16::MAX)),
        (0xce, 4, u64::from(u32::MAX)),
    ];
    let signed = [
        (0xd0, 7, 0x7f),
        (0xd1, 6, 0x7fff),
        (0xd2, 4, 0x7fff_ffff),
        (0xd3, 0, i64::MAX as u64),
    ];
    for (marker, start, limit) in sized.into_iter().chain(signed) {
        if value <= limit {
            forms.push([&[marker], &wide[start..]].concat());
        }
    }
    choice.get(&forms).clone()
}

fn array(item: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(item, 0..40).prop_map(|items| {
        msgpack(|out| {
            out.array(items.len());
            for item in &items {
                out.raw(item);
            }
        })
    })
}

fn number() -> impl Strategy<Value = Vec<u8>> {
    any::<u64>().prop_map(|value| msgpack(|out| out.uint(value)))
}

fn text() -> impl Strategy<Value = Vec<u8>> {
    ".{0,40}".prop_map(|value| msgpack(|out| out.str(&value)))
}

fn value(field: Field) -> BoxedStrategy<Vec<u8>> {
    match field {
        Field::BlockHashes => array(hash()).boxed(),
        Field::ParentBlockHash => hash().boxed(),
        Field::TokenIds => prop_oneof![
            array(number()),
            array((number(), number()).prop_map(|(first, second)| [vec![0x92], first, second].concat())),
        ]
        .boxed(),
        Field::BlockSize | Field::GroupIdx | Field::KvCacheSpecSlidingWindow => number().boxed(),
        Field::LoraId => any::<i64>().prop_map(|value| msgpack(|out| out.int(value))).boxed(),
        Field::ExtraKeys => array(prop_oneof![Just(vec![0xc0]), array(text())]).boxed(),
        Field::Metadata => text()
            .prop_map(|salt| {
                msgpack(|out| {
                    out.map(1);
                    out.str("cache_salt");
                    out.raw(&salt);
                })
            })
            .boxed(),
        _ => text().boxed(),
    }
}

/// Events with fields that the dialect can say.
fn event(dialect: Dialect) -> impl Strategy<Value = Made> {
    prop::sample::select(Tag::ALL.to_vec()).prop_flat_map(move |tag| {
        let required = [Field::BlockHashes, Field::TokenIds, Field::BlockSize, Field::Metadata];
        let fields: Vec<_> = dialect
            .layout(tag)
            .fields_from(0)
            .map(|field| {
                let said = value(field).prop_map(move |value| Some((field, value)));
                if required.contains(&field) {
                    return said.boxed();
                }
                prop_oneof![Just(None), said].boxed()
            })
            .collect();
        fields.prop_map(move |fields| Made {
            tag,
            fields: fields.into_iter().flatten().collect(),
        })
    })
}

fn payload(dialect: &Dialect, events: &[Made], rank: Option<i64>) -> Vec<u8> {
    msgpack(|out| {
        begin_batch(out, 2.5, events.len());
        for event in events {
            write_event(out, dialect, event).unwrap();
        }
        end_batch(out, rank);
    })
}

fn rewritten(dialect: &Dialect, batch: &Batch<'_>) -> Vec<u8> {
    msgpack(|out| {
        begin_batch(out, batch.ts, batch.events.len());
        batch
            .events
            .iter()
            .for_each(|event| write_event(out, dialect, event).unwrap());
        end_batch(out, batch.dp_rank);
    })
}

fn dialect_and_events() -> impl Strategy<Value = (Dialect, Vec<Made>)> {
    prop::sample::select(Dialect::ALL.to_vec())
        .prop_flat_map(|dialect| (Just(dialect), prop::collection::vec(event(dialect), 0..5)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_written_reads_and_writes_back_to_the_same_bytes(
        (dialect, events) in dialect_and_events(),
        rank in any::<Option<i64>>(),
    ) {
        let data = payload(&dialect, &events, rank);
        let batch = read_batch(&data, &Limits::default()).unwrap();
        prop_assert_eq!(&batch.skipped, &[]);
        prop_assert_eq!((batch.events.len(), batch.dp_rank, batch.unread_fields), (events.len(), rank, 0));
        prop_assert_eq!(rewritten(&dialect, &batch), data);
    }

    #[test]
    fn the_form_of_an_integer_says_nothing(
        values in prop::collection::vec((prop_oneof![0..300_000_u64, any::<u64>()], any::<prop::sample::Index>()), 2..40),
        pairs in any::<bool>(),
    ) {
        let values = &values[..values.len() / 2 * 2];
        let expected: Vec<u64> = values.iter().map(|(value, _)| *value).collect();
        let forms: Vec<Vec<u8>> = values.iter().map(|(value, choice)| any_form(*value, *choice)).collect();
        let tokens = msgpack(|out| {
            out.array(if pairs { forms.len() / 2 } else { forms.len() });
            for (index, form) in forms.iter().enumerate() {
                if pairs && index % 2 == 0 {
                    out.array(2);
                }
                out.raw(form);
            }
        });
        let hashes = [msgpack(|out| out.array(forms.len())), forms.concat()].concat();
        let fields = vec![
            (Field::BlockHashes, hashes),
            (Field::ParentBlockHash, forms[0].clone()),
            (Field::TokenIds, tokens),
            (Field::BlockSize, forms[1].clone()),
        ];
        let data = payload(&Dialect::SGLANG, &[Made { tag: Tag::BlockStored, fields }], None);
        let batch = read_batch(&data, &Limits::default()).unwrap();
        let [Event::Stored(stored)] = &batch.events[..] else { panic!("expected one store") };
        prop_assert_eq!(stored.token_ids.members().collect::<Vec<_>>(), &expected[..]);
        let mut ids = vec![7];
        let again = read_batch_with_ids(&data, &Limits::default(), &mut ids).unwrap();
        let [Event::Stored(again)] = &again.events[..] else { panic!("expected one store") };
        // Decoded at once where all are narrow, of one piece and in usual forms.
        if let Some(decoded) = again.token_ids.decoded(&ids) {
            prop_assert!(!pairs && decoded.iter().map(|&id| u64::from(id)).eq(expected.iter().copied()));
        }
        prop_assert_eq!(again.token_ids.members().collect::<Vec<_>>(), &expected[..]);
        prop_assert_eq!(stored.block_hashes.iter().map(EngineHash::key).collect::<Vec<_>>(), &expected[..]);
        let mut keys = vec![7];
        stored.block_hashes.keys_into(&mut keys);
        prop_assert_eq!(&keys[1..], &expected[..]);
        prop_assert_eq!(stored.parent_block_hash, Some(EngineHash::Unsigned(expected[0])));
        prop_assert_eq!(stored.block_size, expected[1]);
    }

    #[test]
    fn every_cut_is_refused(
        (dialect, events) in dialect_and_events(),
        place in any::<prop::sample::Index>(),
    ) {
        let data = payload(&dialect, &events, Some(0));
        let end = place.index(data.len());
        let error = read_batch(&data[..end], &Limits::default()).unwrap_err();
        prop_assert!(error.fault.is_broken() && error.offset <= end, "{}", error);
    }

    #[test]
    fn no_change_of_a_byte_panics_and_what_is_left_can_be_walked(
        (dialect, events) in dialect_and_events(),
        place in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut data = payload(&dialect, &events, Some(0));
        let index = place.index(data.len());
        data[index] = byte;
        let mut ids = Vec::new();
        let with_ids = read_batch_with_ids(&data, &Limits::default(), &mut ids).map(|batch| batch.skipped);
        prop_assert_eq!(with_ids, read_batch(&data, &Limits::default()).map(|batch| batch.skipped));
        if let Ok(batch) = read_batch(&data, &Limits::default()) {
            // SGLang's maps say everything, so every value that was read is walked once more.
            rewritten(&Dialect::SGLANG, &batch);
        }
    }

    #[test]
    fn noise_never_panics(data in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = read_batch(&data, &Limits::default());
    }
}
