//! As much HTTP/1.1 as well-behaved neighbours on one machine need.

use memchr::memmem;

/// The end of a chunked body.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// How a message's body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// After so many bytes.
    Length(usize),
    /// After the chunk without bytes.
    Chunked,
}

/// A message's first line and headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The first line.
    pub line: String,
    /// Bytes up to the body.
    pub length: usize,
    /// How the body ends.
    pub body: Body,
}

impl Head {
    /// The head at the front of `data`; None while it is not complete.
    #[must_use]
    pub fn read(data: &[u8]) -> Option<Self> {
        let end = memmem::find(data, b"\r\n\r\n")?;
        let text = String::from_utf8_lossy(&data[..end]);
        let mut lines = text.split("\r\n");
        let line = lines.next().unwrap_or_default().to_owned();
        let mut body = Body::Length(0);
        for (name, value) in lines.filter_map(|header| header.split_once(':')) {
            if name.eq_ignore_ascii_case("content-length") {
                body = Body::Length(value.trim().parse().unwrap_or(0));
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                body = Body::Chunked;
            }
        }
        Some(Self {
            line,
            length: end + 4,
            body,
        })
    }

    /// The bytes of the whole message if all of it is in `data`.
    #[must_use]
    pub fn message_length(&self, data: &[u8]) -> Option<usize> {
        let length = match self.body {
            Body::Length(length) => self.length + length,
            Body::Chunked => self.length + memmem::find(&data[self.length..], LAST_CHUNK)? + LAST_CHUNK.len(),
        };
        (length <= data.len()).then_some(length)
    }
}

/// The whole number of a field `"name":` in JSON without nesting of that name, whatever its spacing.
#[must_use]
pub fn number(json: &[u8], name: &str) -> Option<u64> {
    let field = format!("\"{name}\":");
    let start = memmem::rfind(json, field.as_bytes())? + field.len();
    let digits = json[start..]
        .iter()
        .skip_while(|byte| **byte == b' ')
        .take_while(|byte| byte.is_ascii_digit());
    digits
        .map(|digit| u64::from(digit - b'0'))
        .reduce(|sum, digit| sum * 10 + digit)
}

#[cfg(test)]
mod tests {
    use super::{Body, Head, number};

    #[test]
    fn a_message_ends_where_its_length_says() {
        let data = b"POST /x HTTP/1.1\r\nContent-Length: 3\r\n\r\nabcGET";
        let head = Head::read(data).expect("a whole head");
        assert_eq!((head.line.as_str(), head.body), ("POST /x HTTP/1.1", Body::Length(3)));
        assert_eq!(head.message_length(data), Some(data.len() - 3));
        assert_eq!(head.message_length(&data[..data.len() - 4]), None);
    }

    #[test]
    fn a_message_ends_with_its_last_chunk() {
        let data = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n";
        let head = Head::read(data).expect("a whole head");
        assert_eq!(head.message_length(data), Some(data.len()));
        assert_eq!(head.message_length(&data[..data.len() - 1]), None);
        assert_eq!(Head::read(&data[..20]), None);
    }

    #[test]
    fn fields_are_found_whatever_their_spacing() {
        assert_eq!(number(b"{\"max_tokens\": 16,\"seed\":20000}", "max_tokens"), Some(16));
        assert_eq!(number(b"{\"max_tokens\": 16,\"seed\":20000}", "seed"), Some(20_000));
        assert_eq!(number(b"{\"seed\":null}", "seed"), None);
    }
}
