//! A string of JSON as text.

use std::borrow::Cow;

/// What the inside of a checked string says. A surrogate that stands alone becomes U+FFFD.
pub(super) fn unescape(raw: &str) -> Cow<'_, str> {
    let Some(mut at) = raw.find('\\') else {
        return Cow::Borrowed(raw);
    };
    let mut text = String::with_capacity(raw.len());
    let mut rest = raw;
    loop {
        text.push_str(&rest[..at]);
        let escape = rest.as_bytes()[at + 1];
        rest = &rest[at + 2..];
        match escape {
            b'b' => text.push('\u{8}'),
            b'f' => text.push('\u{c}'),
            b'n' => text.push('\n'),
            b'r' => text.push('\r'),
            b't' => text.push('\t'),
            b'u' => {
                let first = unit(rest);
                rest = &rest[4..];
                let second = rest.strip_prefix("\\u").map(unit);
                let pair = second.and_then(|second| char::decode_utf16([first, second]).next()?.ok());
                if (0xd800..0xdc00).contains(&first)
                    && let Some(pair) = pair
                {
                    text.push(pair);
                    rest = &rest[6..];
                } else {
                    text.push(char::from_u32(first.into()).unwrap_or(char::REPLACEMENT_CHARACTER));
                }
            }
            same => text.push(char::from(same)),
        }
        let Some(next) = rest.find('\\') else { break };
        at = next;
    }
    text.push_str(rest);
    Cow::Owned(text)
}

/// The UTF-16 unit that four hexadecimal digits say.
fn unit(digits: &str) -> u16 {
    u16::from_str_radix(&digits[..4], 16).expect("digits were checked")
}
