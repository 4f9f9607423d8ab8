//! What a relay keeps of the streams it passes on.
//!
//! | file | what |
//! |---|---|
//! | `log` | the compacted log of one rank: batches in, the batches that are left of them out |
//! | `erasure` | which announcements of a log nobody needs |
//! | `remains` | what a rank held before something of its stream was lost, given back as later events name it |
//! | `copies` | what all kinds of consumers hold of one block |

mod copies;
mod erasure;
mod log;
mod remains;

pub use log::CompactedLog;
pub use remains::{Confirmed, Remains};
