//! The reader of requests, beside another reader of JSON.

use std::borrow::Cow;

use kvevents_core::prompt::{Fault, MAX_DEPTH, MAX_ID, Request, STAND_IN, Source, read_request};
use serde_json::Value;

use super::Target;
use crate::allocation::peak;
use crate::dice::Dice;
use crate::mutation;

pub const TARGET: Target = Target {
    name: "prompt",
    make: body,
    mutate,
    check,
};

/// Bytes that reading may take beside those that it takes for each byte of a body.
const MEMORY: (usize, usize) = (4096, 32);

/// How deep the other reader goes.
const OTHER_DEPTH: usize = 126;

const FIELDS: [&str; 24] = [
    "prompt",
    "text",
    "token_ids",
    "input_ids",
    "prompt_token_ids",
    "input",
    "messages",
    "model",
    "lora_name",
    "lora_path",
    "cache_salt",
    "session_id",
    "prompt_cache_key",
    "user",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "sampling_params",
    "tools",
    "image_data",
    "prompt_embeds",
    "add_special_tokens",
    "x",
];
const PROMPTS: [&str; 5] = ["prompt", "text", "token_ids", "input_ids", "prompt_token_ids"];
const PIECES: [&str; 28] = [
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    "\"",
    "\\",
    "\\u00e9",
    "\\ud83d",
    "\\ude00",
    "\\n",
    "1",
    "0",
    "-1",
    "1.5",
    "1e3",
    " ",
    "\n",
    "true",
    "null",
    "NaN",
    "-Infinity",
    "4294967296",
    "9223372036854775808",
    "\"content\":[{\"image_url\":",
    "\"include_usage\":true",
    "\u{e9}",
];

fn body(dice: &mut Dice) -> Vec<u8> {
    let mut out = String::new();
    if dice.once_in(30) {
        out.push('\u{feff}');
    }
    space(&mut out, dice);
    out.push('{');
    for member in 0..dice.below(7) {
        if member > 0 {
            out.push(',');
            space(&mut out, dice);
        }
        key(&mut out, word(dice, &FIELDS));
        space(&mut out, dice);
        match dice.below(4) {
            0 => ids(&mut out, dice),
            _ => value(&mut out, dice, 0),
        }
    }
    out.push('}');
    space(&mut out, dice);
    out.into_bytes()
}

fn word<'a>(dice: &mut Dice, of: &[&'a str]) -> &'a str {
    of[dice.below(of.len())]
}

fn key(out: &mut String, name: &str) {
    for part in ["\"", name, "\":"] {
        out.push_str(part);
    }
}

fn space(out: &mut String, dice: &mut Dice) {
    if dice.once_in(3) {
        out.push_str(word(dice, &[" ", "\n", "\t ", "\r\n"]));
    }
}

fn ids(out: &mut String, dice: &mut Dice) {
    out.push('[');
    let separator = *dice.one(&[",", ", ", " ,", ",\n"]);
    for place in 0..dice.below(40) {
        if place > 0 {
            out.push_str(separator);
        }
        let id = match dice.below(12) {
            0 => dice.odd_number(),
            _ => dice.number() >> (32 + dice.below(32)),
        };
        out.push_str(&id.to_string());
    }
    out.push(']');
}

fn value(out: &mut String, dice: &mut Dice, depth: usize) {
    match dice.below(if depth > 5 { 6 } else { 9 }) {
        0 => out.push_str(word(
            dice,
            &["true", "false", "null", "0", "-0", "NaN", "1E+2", "-0.5e-7"],
        )),
        1 => out.push_str(&dice.odd_number().to_string()),
        2..6 => {
            out.push('"');
            for _ in 0..dice.below(12) {
                let pieces = [
                    "a",
                    "\\n",
                    "\\\"",
                    "\\u00e9",
                    "\\ud83d\\ude00",
                    "\\udc00",
                    "\u{4f60}",
                    "plain text ",
                ];
                out.push_str(word(dice, &pieces));
            }
            if dice.once_in(6) {
                out.push_str(&"A".repeat(dice.below(200)));
            }
            out.push('"');
        }
        6 => {
            out.push('[');
            for place in 0..dice.below(4) {
                if place > 0 {
                    out.push(',');
                }
                value(out, dice, depth + 1);
            }
            out.push(']');
        }
        _ => {
            out.push('{');
            for place in 0..dice.below(4) {
                let keys = [
                    "role",
                    "content",
                    "type",
                    "image_url",
                    "url",
                    "text",
                    "include_usage",
                    "max_new_tokens",
                ];
                let comma = if place > 0 { "," } else { "" };
                out.push_str(comma);
                key(out, word(dice, &keys));
                value(out, dice, depth + 1);
            }
            out.push('}');
        }
    }
}

fn mutate(data: &[u8], dice: &mut Dice) -> Vec<u8> {
    if dice.once_in(3) {
        return mutation::bytes(data, dice);
    }
    let mut made = data.to_vec();
    let at = dice.below(made.len() + 1);
    let end = (at + dice.below(4)).min(made.len());
    let piece = if dice.once_in(20) {
        "[".repeat(dice.below(2 * MAX_DEPTH))
    } else {
        (*dice.one(&PIECES)).to_owned()
    };
    made.splice(at..end, piece.into_bytes());
    made
}

fn check(data: &[u8]) -> bool {
    let mut dice = Dice::new(data.len() as u64);
    let changed;
    let data = if data.len().is_multiple_of(3) {
        changed = mutate(data, &mut dice);
        &changed
    } else {
        data
    };
    let (read, bytes) = peak(|| read_request(data));
    assert!(
        bytes <= MEMORY.0 + MEMORY.1 * data.len(),
        "{bytes} bytes for a body of {}",
        data.len()
    );
    let json = data.strip_prefix("\u{feff}".as_bytes()).unwrap_or(data);
    let other: Result<Value, _> = serde_json::from_slice(json);
    match (&read, &other) {
        (Ok(request), Ok(Value::Object(fields))) => {
            walk(request, data);
            compare(request, data, fields);
        }
        (Ok(request), Err(error)) => {
            walk(request, data);
            assert!(is_pythons_own(json), "taken, and the other says: {error}");
        }
        (Ok(_), Ok(other)) => panic!("no request: {other}"),
        (Err(error), Ok(_)) => {
            assert!(!matches!(error.fault, Fault::Syntax(_) | Fault::Utf8), "{error}");
            assert!(!matches!(error.fault, Fault::Depth(_)), "the other is less deep");
        }
        (Err(error), Err(_)) => assert!(error.offset <= data.len() && !error.to_string().is_empty()),
    }
    read.is_ok_and(|request| request.unread.is_none())
}

/// Whether a body has what `json.loads` takes and others do not: numbers that are none, or too large for them;
/// surrogates that stand alone; depth.
fn is_pythons_own(json: &[u8]) -> bool {
    let text = String::from_utf8_lossy(json);
    let depth = json.iter().filter(|byte| matches!(byte, b'[' | b'{')).count();
    let long_number = text
        .split(|letter: char| !letter.is_ascii_digit())
        .any(|digits| digits.len() > 300);
    depth > OTHER_DEPTH
        || long_number
        || ["NaN", "Infinity", "\\u", "e", "E"]
            .iter()
            .any(|own| text.contains(own))
}

/// Look at everything that is made only when somebody looks.
fn walk(request: &Request, body: &[u8]) {
    let texts = [
        request.model(body),
        request.lora_name(body),
        request.cache_salt(body),
        request.session(body),
    ];
    assert!(texts.iter().flatten().all(|text| text.len() <= 3 * body.len()));
    assert!(
        request
            .stand_in(body)
            .iter()
            .all(|&id| (STAND_IN..=MAX_ID).contains(&id))
    );
    assert!(request.tokens.as_slice().iter().all(|id| id <= MAX_ID));
    assert!(request.source != Source::Chat || request.chat(body).is_some());
    let _ = request.attached(body);
}

fn compare(request: &Request, body: &[u8], fields: &serde_json::Map<String, Value>) {
    let text = |name: &str| fields.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    assert_eq!(
        request.model(body),
        fields.get("model").and_then(Value::as_str).map(Cow::from)
    );
    assert_eq!(request.cache_salt(body), text("cache_salt").map(Cow::from));
    let session = ["session_id", "prompt_cache_key", "user"].into_iter().find_map(text);
    assert_eq!(request.session(body), session.map(Cow::from));
    assert_eq!(request.is_stream, fields.get("stream") == Some(&Value::Bool(true)));
    let options = fields
        .get("stream_options")
        .and_then(|options| options.get("include_usage"));
    assert_eq!(request.wants_usage, options == Some(&Value::Bool(true)));
    if let Some(chat) = request.chat(body) {
        let chat: Value = serde_json::from_slice(&chat).expect("JSON");
        let messages = fields.get("messages").and_then(Value::as_array).expect("messages");
        assert_eq!(chat["messages"].as_array().map(Vec::len), Some(messages.len()));
    }
    let given: Vec<&Value> = PROMPTS
        .iter()
        .filter_map(|name| fields.get(*name))
        .filter(|one| !one.is_null())
        .collect();
    if let ([Value::Array(elements)], None | Some(Value::Null)) = (&given[..], fields.get("messages"))
        && request.source == Source::Ids
    {
        let nested = elements.first().and_then(Value::as_array);
        let minus_zero = |id: &Value| (id.as_f64() == Some(0.0)).then_some(0); // an integer in Python
        let id = |id: &Value| id.as_u64().or_else(|| minus_zero(id));
        let ids: Vec<u64> = nested.unwrap_or(elements).iter().filter_map(id).collect();
        assert_eq!(request.tokens.as_slice().iter().collect::<Vec<_>>(), ids);
        assert_eq!(request.prompts, nested.map_or(1, |_| elements.len()));
    }
    if let ([Value::String(prompt)], None) = (&given[..], fields.get("messages")) {
        assert_eq!(
            request.text(body),
            Some(Cow::from(prompt)).filter(|_| request.source == Source::Text)
        );
    }
}
