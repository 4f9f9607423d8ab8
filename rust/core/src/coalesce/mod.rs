//! Coalescing: fewer events that leave every consumer with the same blocks.
//!
//! | file | what |
//! |---|---|
//! | `merge` | the merge rule: when an event may be folded into another that is right before it |
//! | `order` | how far back an event may move without being seen to |
//! | `standing`, `holdings`, `cancel` | what consumers hold, and which announcements of a batch undo each other |
//! | `window` | events that wait, at any level |
//! | `carried`, `frame`, `encoded`, `coalescer` | batches in, batches out, without a recorder |
//!
//! The contract of every level: after each batch, the blocks held in each tier and group are those held without
//! coalescing, for consumers that keep sets, that count copies, and that drop stores whose parent they do not know (as
//! long as they hold none of the blocks of a store that they drop: the merge rule itself assumes that).

mod cancel;
mod carried;
mod coalescer;
mod encoded;
mod frame;
mod holdings;
pub mod merge;
mod order;
mod standing;
mod window;

pub(crate) use carried::Carried;
pub use coalescer::{Coalescer, Refused, Settings, Stats};
pub(crate) use encoded::{Encoded, frame_bytes};
pub use merge::Cap;
#[cfg(test)]
pub(crate) use standing::Place;
pub(crate) use standing::{Scope, Standing};
pub(crate) use window::{Act, Barrier, Next, Waiting, Window};

/// How far events are merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// Not at all.
    Off,
    /// With the event right before, by the merge rule.
    #[default]
    Adjacent,
    /// With any earlier event of the batch that it could be right behind: past events that name none of its blocks, nor
    /// its parent, as block or as parent.
    Chain,
    /// The same, without stores and removals that undo each other.
    Compact,
}

impl Level {
    /// Every level, by the name users know.
    pub const NAMES: [(&str, Self); 4] = [
        ("off", Self::Off),
        ("adjacent", Self::Adjacent),
        ("chain", Self::Chain),
        ("compact", Self::Compact),
    ];
}
