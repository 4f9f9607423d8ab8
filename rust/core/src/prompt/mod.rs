//! A request's body: what routing needs of it in one pass, without a value built for the rest.
//!
//! The JSON that is taken is Python's (`json.loads` of UTF-8): the last of equal keys wins, `NaN` and `Infinity` are
//! numbers, an escaped surrogate may stand alone. The engines behind decide about the rest.

mod error;
mod ids;
mod media;
mod reading;
mod request;
mod scanner;
mod stand_in;
#[cfg(test)]
mod tests;
mod text;

pub use error::{Fault, PromptError};
pub use ids::MAX_ID;
pub use reading::read_request;
pub use request::{Request, Source, Unread};
pub use scanner::MAX_DEPTH;
pub use stand_in::{STAND_IN, stand_in};
