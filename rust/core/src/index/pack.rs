//! Values as bytes for snapshots: little-endian, lengths before what they count.

use thiserror::Error;

use crate::tokens::TokenVec;

/// Bytes that are not a snapshot: what was expected and where.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{reason} (at byte {offset})")]
pub struct SnapshotError {
    /// What was expected and what came.
    pub reason: String,
    /// Position in the bytes.
    pub offset: usize,
}

/// Reads values one after the other.
pub struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Reader<'a> {
    /// A reader that stands at `offset`.
    pub fn new(bytes: &'a [u8], offset: usize) -> Self {
        Self { bytes, offset }
    }

    /// Bytes that are left.
    pub fn left(&self) -> usize {
        self.bytes.len() - self.offset
    }

    /// An error here.
    pub fn error(&self, reason: impl Into<String>) -> SnapshotError {
        SnapshotError {
            reason: reason.into(),
            offset: self.offset,
        }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], SnapshotError> {
        let Some(taken) = self.bytes[self.offset..].get(..count) else {
            return Err(self.error(format!("expected {count} more bytes, found {}", self.left())));
        };
        self.offset += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], SnapshotError> {
        self.take(N).map(|bytes| bytes.try_into().expect("N bytes were taken"))
    }

    /// A length of something whose items take at least `least` bytes each.
    fn length(&mut self, least: usize) -> Result<usize, SnapshotError> {
        let length = usize::unpack(self)?;
        if length.checked_mul(least).is_none_or(|bytes| bytes > self.left()) {
            return Err(self.error(format!(
                "expected at most {} bytes, found a length of {length}",
                self.left()
            )));
        }
        Ok(length)
    }
}

/// A value that has a form in bytes.
pub trait Pack: Sized {
    /// Append it.
    fn pack(&self, bytes: &mut Vec<u8>);
    /// Read it.
    fn unpack(reader: &mut Reader<'_>) -> Result<Self, SnapshotError>;
}

macro_rules! pack_integers {
    ($($integer:ty),*) => {$(
        impl Pack for $integer {
            fn pack(&self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_le_bytes());
            }
            fn unpack(reader: &mut Reader<'_>) -> Result<Self, SnapshotError> {
                reader.array().map(Self::from_le_bytes)
            }
        }
    )*};
}

pack_integers!(u8, u32, u64, i64);

impl Pack for usize {
    fn pack(&self, bytes: &mut Vec<u8>) {
        (*self as u64).pack(bytes);
    }

    fn unpack(reader: &mut Reader<'_>) -> Result<Self, SnapshotError> {
        u64::unpack(reader).map(|value| value as Self)
    }
}

impl Pack for bool {
    fn pack(&self, bytes: &mut Vec<u8>) {
        u8::from(*self).pack(bytes);
    }

    fn unpack(reader: &mut Reader<'_>) -> Result<Self, SnapshotError> {
        match u8::unpack(reader)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(reader.error(format!("expected 0 or 1, found {other}"))),
        }
    }
}

impl<T: Pack> Pack for Option<T> {
    fn pack(&self, bytes: &mut Vec<u8>) {
        self.is_some().pack(bytes);
        if let Some(value) = self {
            value.pack(bytes);
        }
    }

    fn unpack(reader: &mut Reader<'_>) -> Result<Self, SnapshotError> {
        bool::unpack(reader)?.then(|| T::unpack(reader)).transpose()
    }
}

impl<T: Pack> Pack for Vec<T> {
    fn pack(&self, bytes: &mut Vec<u8>) {
        self.len().pack(bytes);
        for value in self {
            value.pack(bytes);
        }
    }

    fn unpack(reader: &mut Reader<'_>) -> Result<Self, SnapshotError> {
        let length = reader.length(1)?;
        (0..length).map(|_| T::unpack(reader)).collect()
    }
}

impl<A: Pack, B: Pack> Pack for (A, B) {
    fn pack(&self, bytes: &mut Vec<u8>) {
        self.0.pack(bytes);
        self.1.pack(bytes);
    }

    fn unpack(reader: &mut Reader<'_>) -> Result<Self, SnapshotError> {
        Ok((A::unpack(reader)?, B::unpack(reader)?))
    }
}

impl Pack for Box<[u8]> {
    fn pack(&self, bytes: &mut Vec<u8>) {
        self.len().pack(bytes);
        bytes.extend_from_slice(self);
    }

    fn unpack(reader: &mut Reader<'_>) -> Result<Self, SnapshotError> {
        let length = reader.length(1)?;
        reader.take(length).map(Into::into)
    }
}

impl Pack for String {
    fn pack(&self, bytes: &mut Vec<u8>) {
        self.len().pack(bytes);
        bytes.extend_from_slice(self.as_bytes());
    }

    fn unpack(reader: &mut Reader<'_>) -> Result<Self, SnapshotError> {
        let text = Box::<[u8]>::unpack(reader)?.into_vec();
        Self::from_utf8(text).map_err(|_| reader.error("expected UTF-8 before here, found other bytes"))
    }
}

impl Pack for TokenVec {
    fn pack(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::U32(ids) => {
                false.pack(bytes);
                ids.pack(bytes);
            }
            Self::U64(ids) => {
                true.pack(bytes);
                ids.pack(bytes);
            }
        }
    }

    fn unpack(reader: &mut Reader<'_>) -> Result<Self, SnapshotError> {
        Ok(if bool::unpack(reader)? {
            Self::U64(Vec::unpack(reader)?)
        } else {
            Self::U32(Vec::unpack(reader)?)
        })
    }
}
