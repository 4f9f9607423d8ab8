use super::*;
use crate::tokens::TokenVec;
use proptest::prelude::*;

fn read(body: &str) -> Request {
    read_request(body.as_bytes()).expect("a body that can be read")
}

fn fault(body: &str) -> (Fault, usize) {
    let error = read_request(body.as_bytes()).expect_err("a body that cannot be read");
    (error.fault, error.offset)
}

fn ids(body: &str) -> Vec<u64> {
    read(body).tokens.as_slice().iter().collect()
}

#[test]
fn ids_come_from_every_field_in_every_layout() {
    for field in ["prompt", "token_ids", "input_ids", "prompt_token_ids", "input"] {
        for array in [
            "[0,12,345678901]",
            "[ 0 , 12 ,345678901 ]",
            "[0, 12, 345678901]",
            "[[0,12,345678901],[4]]",
        ] {
            let body = format!("{{\"{field}\": {array}, \"after\": 1}}");
            let request = read(&body);
            assert_eq!(request.tokens, TokenVec::U32(vec![0, 12, 345_678_901]), "{body}");
            assert_eq!(request.source, Source::Ids);
            assert_eq!(request.is_embedding, field == "input");
            assert_eq!(request.prompts, if array.starts_with("[[") { 2 } else { 1 });
        }
    }
}

#[test]
fn ids_of_every_length_are_read_up_to_the_highest() {
    let mut expected: Vec<u64> = (0..19).map(|power| 10_u64.pow(power)).collect();
    expected.extend([9, 99_999_999, 4_294_967_295, 4_294_967_296, MAX_ID]);
    let body = format!("{{\"prompt\": {expected:?}}}");
    assert_eq!(ids(&body), expected);
    assert_eq!(ids("{\"prompt\":[-0]}"), [0]);
}

#[test]
fn what_is_no_id_is_said_with_its_place() {
    for (id, what) in [
        ("-1", "a number below it"),
        ("1.0", "a number with a fraction or an exponent"),
        ("1e3", "a number with a fraction or an exponent"),
        ("9223372036854775808", "a number above it"),
        ("99999999999999999999999999", "a number above it"),
        ("true", "no number"),
        ("null", "no number"),
        ("NaN", "no number"),
        ("\"a\"", "a string"),
        ("[1]", "an array"),
        ("{}", "an object"),
    ] {
        let body = format!("{{\"prompt\": [123456, {id}, 1]}}");
        assert_eq!(fault(&body), (Fault::Id(what), 20), "{body}");
    }
    assert_eq!(fault("{\"prompt\": [01]}").1, 13);
    assert_eq!(fault("{\"prompt\": [1,]}").1, 14);
    assert_eq!(fault("{\"prompt\": [1 2]}").1, 14);
}

#[test]
fn the_last_of_equal_keys_counts() {
    assert_eq!(ids("{\"prompt\":[1,2],\"prompt\":[3]}"), [3]);
    assert_eq!(ids("{\"prompt\":[4294967296],\"pr\\u006fmpt\":[3]}"), [3]);
    let request = read("{\"prompt\":[1],\"token_ids\":[2],\"token_ids\":null,\"stream\":true,\"stream\":false}");
    assert_eq!((request.tokens, request.is_stream), (TokenVec::U32(vec![1]), false));
    let body = b"{\"model\":\"a\",\"model\":\"b\",\"messages\":[{}],\"messages\":null,\"prompt\":\"x\"}";
    let request = read_request(body).expect("JSON");
    assert_eq!(request.model(body).as_deref(), Some("b"));
    assert_eq!(request.source, Source::Text);
}

#[test]
fn what_routing_needs_is_found_wherever_it_stands() {
    let body = br#" {"x": [{"model": "no"}], "lora_path": ["l", null], "cache_salt": "s\u00e9", "user": "u",
        "prompt_cache_key": "", "stream": true, "stream_options": {"include_usage": true, "y": {}}, "max_tokens": 7,
        "sampling_params": {"max_new_tokens": 9}, "model": "m/\ud83d\ude00", "text": ["a\n\"\\\/\b\f\r\tb", "c"]} "#;
    let request = read_request(body).expect("JSON");
    assert_eq!(request.model(body).as_deref(), Some("m/\u{1f600}"));
    assert_eq!(request.lora_name(body).as_deref(), Some("l"));
    assert_eq!(request.cache_salt(body).as_deref(), Some("s\u{e9}"));
    assert_eq!(request.session(body).as_deref(), Some("u"));
    assert_eq!(
        (request.is_stream, request.wants_usage, request.max_tokens),
        (true, true, Some(7))
    );
    assert_eq!(request.text(body).as_deref(), Some("a\n\"\\/\u{8}\u{c}\r\tb"));
    assert_eq!((request.prompts, request.unread), (2, None));
}

#[test]
fn a_field_of_the_wrong_type_is_noted_and_left_out() {
    let request = read(r#"{"prompt": "a", "model": 3, "stream": "yes", "max_tokens": -1, "cache_salt": null}"#);
    let noted: Vec<_> = request
        .ignored
        .iter()
        .map(|field| (field.field, field.offset))
        .collect();
    assert_eq!(noted, [("model", 25), ("stream", 38), ("max_tokens", 59)]);
}

#[test]
fn why_there_is_no_prompt_is_said() {
    for (body, expected) in [
        ("{}", Unread::Missing),
        (r#"{"prompt": "a", "messages": [{}]}"#, Unread::Several),
        (r#"{"prompt": []}"#, Unread::Empty),
        (r#"{"prompt": ""}"#, Unread::Empty),
        (r#"{"prompt": [[]]}"#, Unread::Empty),
        (r#"{"messages": []}"#, Unread::Empty),
        (r#"{"prompt": {"a": 1}}"#, Unread::Form(11)),
        (r#"{"prompt": 3}"#, Unread::Form(11)),
        (r#"{"prompt": [["a"]]}"#, Unread::Form(12)),
        (r#"{"prompt": "a", "prompt_embeds": "b"}"#, Unread::Embeddings),
    ] {
        assert_eq!(read(body).unread, Some(expected), "{body}");
    }
}

#[test]
fn a_lone_surrogate_is_replaced_and_a_pair_is_not() {
    let text = |escaped: &str| {
        let body = format!("{{\"text\":\"{escaped}\"}}");
        read(&body).text(body.as_bytes()).expect("a text").into_owned()
    };
    assert_eq!(text(r"\ud83d\ude00"), "\u{1f600}");
    assert_eq!(text(r"\ud83dx"), "\u{fffd}x");
    assert_eq!(text(r"\ud83d\n"), "\u{fffd}\n");
    assert_eq!(text(r"\ude00\ud83d"), "\u{fffd}\u{fffd}");
    assert_eq!(text(r"\ud83d\u0041"), "\u{fffd}A");
}

#[test]
fn broken_json_is_said_with_its_place() {
    for (body, offset) in [
        ("", 0),
        ("{", 1),
        ("{}x", 2),
        ("{\"a\"}", 4),
        ("{\"a\":}", 5),
        ("{\"a\":1,}", 7),
        ("{a:1}", 1),
        ("{\"a\":\"", 6),
        ("{\"a\":\"\n\"}", 6),
        ("{\"a\":\"\\x\"}", 6),
        ("{\"a\":\"\\u12g4\"}", 6),
        ("{\"a\":[1}", 7),
        ("{\"a\":{]}", 6),
        ("{\"a\":01}", 6),
        ("{\"a\":1.}", 7),
        ("{\"a\":-}", 6),
        ("{\"a\":tru}", 5),
    ] {
        let (fault, at) = fault(body);
        assert!(matches!(fault, Fault::Syntax(_)), "{body}: {fault:?}");
        assert_eq!(at, offset, "{body}");
    }
    assert_eq!(fault("[1, 2]"), (Fault::NoObject, 0));
    let error = read_request(b"{\"a\":\"\xff\"}").expect_err("no UTF-8");
    assert_eq!((error.fault, error.offset), (Fault::Utf8, 6));
}

#[test]
fn values_are_nested_up_to_a_bound() {
    let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
    read(&nested(MAX_DEPTH - 1));
    assert_eq!(fault(&nested(MAX_DEPTH)).0, Fault::Depth(MAX_DEPTH));
    let mixed = "{\"a\":[".repeat(200) + "1" + &"]}".repeat(200);
    read(&mixed);
    read("\u{feff}{\"a\": [NaN, Infinity, -Infinity, -0.5e-7, 1E+2]}");
}

#[test]
fn images_are_told_apart_by_a_digest_of_their_bytes() {
    let image = |fill: &str| {
        let url = format!("data:image/png;base64,{}", fill.repeat(100));
        format!(
            r#"{{"messages":[{{"role":"user","content":[{{"type":"text","text":"{long}"}},
            {{"type":"image_url","image_url":{{"url":"{url}","detail":"low"}}}}]}}],"tools":[1],"tool_choice":null}}"#,
            long = "t".repeat(100)
        )
    };
    let chat = |body: &str| String::from_utf8(read(body).chat(body.as_bytes()).expect("a chat")).expect("text");
    let (one, other) = (chat(&image("A")), chat(&image("B")));
    assert!(
        one.len() < 400 && one.contains("xxh3:") && one.contains(&"t".repeat(100)),
        "{one}"
    );
    assert!(one.ends_with(r#","tools":[1]}"#), "{one}");
    assert_ne!(one, other);
    assert_eq!(one, chat(&image("A")));
    let attached = |data: &str| {
        let body = format!(r#"{{"text":"a","image_data":{data}}}"#);
        read(&body).attached(body.as_bytes())
    };
    assert_ne!(attached(r#""a""#), attached(r#""b""#));
    assert_eq!((attached("null"), attached("[]")), (None, None));
}

#[test]
fn what_stands_for_a_text_shares_beginnings_and_is_no_token() {
    let first = stand_in([&b"the same start, then this"[..]]);
    let second = stand_in([&b"the same start, then that"[..]]);
    assert_eq!(first[..5], second[..5]);
    assert_ne!(first, second);
    assert!(first.iter().chain(&second).all(|&id| (STAND_IN..=MAX_ID).contains(&id)));
    assert_ne!(
        stand_in([&b"a"[..]]),
        stand_in([&b"a\0"[..]]),
        "the rest has its length"
    );
}

/// JSON of any shape, from what is in requests.
fn json() -> impl Strategy<Value = serde_json::Value> {
    use serde_json::Value;
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_filter_map("finite", |number| number.is_finite().then(|| Value::from(number))),
        ".{0,40}".prop_map(Value::String),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
            prop::collection::btree_map(".{0,6}", inner, 0..6).prop_map(|map| map.into_iter().collect()),
        ]
    })
}

proptest! {
    #[test]
    fn whatever_is_json_is_passed_over(value in json(), ids in prop::collection::vec(any::<u32>(), 1..50)) {
        let body = serde_json::json!({"z": value, "prompt": ids, "text2": value}).to_string();
        let request = read(&body);
        prop_assert_eq!(&request.tokens, &TokenVec::U32(ids.clone()));
        let spaced = serde_json::to_string_pretty(&serde_json::json!({"a": value, "prompt": ids})).expect("JSON");
        prop_assert_eq!(&read(&spaced).tokens, &TokenVec::U32(ids));
    }

    #[test]
    fn a_text_is_what_was_put_in(text in ".{1,80}") {
        let body = serde_json::json!({"text": text}).to_string();
        prop_assert_eq!(read(&body).text(body.as_bytes()).expect("a text"), text);
    }

    #[test]
    fn a_body_that_is_cut_off_is_none(value in json(), cut in any::<prop::sample::Index>()) {
        let body = serde_json::json!({"a": value}).to_string();
        prop_assert!(read_request(&body.as_bytes()[..cut.index(body.len())]).is_err());
    }

    #[test]
    fn wide_ids_and_narrow_ones_are_read_alike(ids in prop::collection::vec(0..=MAX_ID, 1..20)) {
        let body = format!("{{\"prompt\":{ids:?}}}");
        let found: Vec<u64> = read(&body).tokens.as_slice().iter().collect();
        prop_assert_eq!(found, ids);
    }
}
