//! Why a body cannot be read.

use thiserror::Error;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// No JSON.
    #[error("expected {0}")]
    Syntax(&'static str),
    /// Bytes that are no UTF-8.
    #[error("expected UTF-8")]
    Utf8,
    /// Arrays and objects in each other.
    #[error("expected values nested at most {0} deep")]
    Depth(usize),
    /// JSON, but no request.
    #[error("expected an object with the fields of a request")]
    NoObject,
    /// Not a token id.
    #[error("expected a token id from 0 to 2^63-1, got {0}")]
    Id(&'static str),
}

/// A body that no engine can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{fault} at byte {offset}")]
pub struct PromptError {
    /// What is wrong.
    pub fault: Fault,
    /// Where, in bytes from the body's start.
    pub offset: usize,
}

impl PromptError {
    /// Whether the body is no JSON at all.
    pub fn is_syntax(&self) -> bool {
        matches!(self.fault, Fault::Syntax(_) | Fault::Utf8 | Fault::Depth(_))
    }
}
