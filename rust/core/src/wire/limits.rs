//! How much a payload may ask for.

/// Bounds on what one payload may hold. The defaults are far above what engines send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes in a payload.
    pub message_bytes: usize,
    /// Events in a batch.
    pub events: usize,
    /// Block hashes in an event. An index applies an event whole, and while it does nobody is answered: by default, a
    /// prompt of a million tokens in blocks of one, which takes it a third of a second.
    pub blocks: usize,
    /// Levels of arrays and maps inside an event, the event itself being the first.
    pub nesting: usize,
    /// Unknown fields in an event.
    pub unknown_fields: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message_bytes: 64 << 20,
            events: 1 << 17,
            blocks: 1 << 20,
            nesting: 32,
            unknown_fields: 64,
        }
    }
}
