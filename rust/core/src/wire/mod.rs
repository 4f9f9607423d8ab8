//! The wire codec: batches of events as msgpack, in the dialects of SGLang and vLLM.

mod cursor;
mod draft;
mod error;
mod event;
mod layout;
mod limits;
mod names;
mod narrow;
mod read;
mod units;
#[cfg(target_arch = "x86_64")]
mod units_x86;
mod values;
mod write;
mod writer;

pub(crate) use cursor::{Cursor, Header};
pub use error::{Fault, Found, WireError};
pub use event::{Batch, Cleared, Event, FieldValue, Metadata, Removed, Skipped, Stored};
pub use layout::{Dialect, Layout, Shape};
pub use limits::Limits;
pub use names::{Field, RANK_KEYS, TYPE, Tag};
pub use read::{FieldOrder, read_batch, read_batch_in_order, read_batch_with_ids, read_rank};
pub use values::{Elements, EngineHash, ExtraKeys, HashList, Raw, TokenList, Value};
pub use write::{Fields, NoPlace, begin_batch, end_batch, write_event};
pub use writer::Writer;
