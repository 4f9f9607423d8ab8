//! What the stand-in engines and the load generator share: a socket with its buffers, and as much HTTP as both need.

pub mod connection;
pub mod http;
