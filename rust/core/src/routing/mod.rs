//! Which worker a prompt goes to: the table of ranks with what is in flight on each, and how they are judged.
//!
//! `kvevents.routing` says what the figures mean and decides what is not arithmetic: who is a candidate, sessions,
//! temperature, policies of other people's.

mod judging;
mod rank;
mod table;

pub use judging::{Asked, Judged, Law, Settings};
pub use rank::{Rank, Reported};
pub use table::{Placing, Slot, Table};
