//! What is wrong with bytes that are not a batch of events.

use std::fmt;

use thiserror::Error;

/// A fault in a payload: what was expected, what came, and where. Cheap to make; the words come on display.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{fault} (at byte {offset})")]
pub struct WireError {
    /// What is wrong.
    pub fault: Fault,
    /// Where the faulty value begins, in bytes from the start of the payload.
    pub offset: usize,
}

/// The kinds of faults.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// A value that says it is longer than what is left of the payload.
    #[error("expected {needed} more bytes for {what}, found {left}: the payload is cut off")]
    CutOff {
        /// The value that is cut off.
        what: &'static str,
        /// Bytes it needs at least.
        needed: u64,
        /// Bytes that are left.
        left: usize,
    },
    /// The one byte that begins no msgpack value.
    #[error("expected a msgpack value, found the reserved byte 0xc1")]
    ReservedByte,
    /// A string that is not UTF-8.
    #[error("expected a UTF-8 string, found other bytes")]
    NotUtf8,
    /// Bytes after the batch.
    #[error("expected the end of the payload, found {count} more bytes")]
    TrailingBytes {
        /// How many.
        count: usize,
    },
    /// A value of another type.
    #[error("{}expected {expected}, found {found}", Named(.field))]
    WrongType {
        /// The field, or "" outside of one.
        field: &'static str,
        /// What belongs there.
        expected: &'static str,
        /// What came.
        found: Found,
    },
    /// A number outside of what the field can hold.
    #[error("{}expected {expected}, found {value}", Named(.field))]
    OutOfRange {
        /// The field.
        field: &'static str,
        /// What belongs there.
        expected: &'static str,
        /// What came.
        value: i128,
    },
    /// A field without which the value means nothing.
    #[error("expected the field {field}, found none")]
    MissingField {
        /// The field.
        field: &'static str,
    },
    /// A field that is there twice.
    #[error("expected the field {field} once, found it again")]
    DuplicateField {
        /// The field.
        field: &'static str,
    },
    /// More than a limit allows.
    #[error("expected at most {limit} {what}, found {found}")]
    OverLimit {
        /// What is limited.
        what: &'static str,
        /// The limit.
        limit: u64,
        /// What came.
        found: u64,
    },
    /// An event of a type that this version does not know.
    #[error("unknown event type {tag:?}")]
    UnknownTag {
        /// The type's name, cut to a readable length.
        tag: String,
    },
}

impl Fault {
    /// Whether this breaks msgpack itself, so that nothing after it can be trusted.
    pub fn is_broken(&self) -> bool {
        matches!(
            self,
            Self::CutOff { .. } | Self::ReservedByte | Self::NotUtf8 | Self::TrailingBytes { .. }
        )
    }

    /// A stable name for counters and reports.
    pub fn code(&self) -> &'static str {
        match self {
            Self::CutOff { .. } => "cut-off",
            Self::ReservedByte => "reserved-byte",
            Self::NotUtf8 => "not-utf8",
            Self::TrailingBytes { .. } => "trailing-bytes",
            Self::WrongType { .. } => "wrong-type",
            Self::OutOfRange { .. } => "out-of-range",
            Self::MissingField { .. } => "missing-field",
            Self::DuplicateField { .. } => "duplicate-field",
            Self::OverLimit { .. } => "over-limit",
            Self::UnknownTag { .. } => "unknown-tag",
        }
    }

    /// The fault at a place.
    #[must_use]
    pub fn at(self, offset: usize) -> WireError {
        WireError { fault: self, offset }
    }
}

/// The first byte of a value, shown as the name of its msgpack type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found(pub u8);

impl fmt::Display for Found {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self.0 {
            0x00..=0x7f | 0xcc..=0xcf => "an unsigned integer",
            0x80..=0x8f | 0xde | 0xdf => "a map",
            0x90..=0x9f | 0xdc | 0xdd => "an array",
            0xa0..=0xbf | 0xd9..=0xdb => "a string",
            0xc0 => "nil",
            0xc1 => "the reserved byte 0xc1",
            0xc2 | 0xc3 => "a boolean",
            0xc4..=0xc6 => "binary",
            0xc7..=0xc9 | 0xd4..=0xd8 => "an extension",
            0xca | 0xcb => "a float",
            0xd0..=0xd3 | 0xe0..=0xff => "a signed integer",
        })
    }
}

struct Named<'a>(&'a str);

impl fmt::Display for Named<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        write!(out, "{}: ", self.0)
    }
}
