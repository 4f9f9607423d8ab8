//! The wire codec: batches of events as msgpack, in the dialects of SGLang and vLLM.

mod cursor;
mod error;
mod event;
mod fields;
mod layout;
mod limits;
mod read;
mod values;
mod writer;

pub use error::{Fault, Found, WireError};
pub use event::{Batch, Cleared, Event, Metadata, Removed, Skipped, Stored};
pub use layout::{Dialect, Field, Layout, RANK_KEYS, Shape, TYPE, Tag};
pub use limits::Limits;
pub use read::read_batch;
pub use values::{Elements, EngineHash, ExtraKeys, HashList, Raw, TokenList, Value};
pub use writer::Writer;
