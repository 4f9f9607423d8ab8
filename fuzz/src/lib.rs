//! Inputs that nobody would send, for the parts of the core that read what others wrote.
//!
//! | file | what |
//! |---|---|
//! | `dice` | random choices from a seed |
//! | `tree`, `mutation` | msgpack taken apart, and put together otherwise |
//! | `stream` | payloads about a few blocks, over and over |
//! | `corpus`, `case` | recorded payloads, and sequences of payloads as one input |
//! | `consumer` | what those hold who hear events |
//! | `allocation` | what a call allocates |
//! | `targets` | the laws, a file for each part |
//! | `campaign` | a number of inputs from a seed; what broke a law is kept in a file |
//!
//! `cargo test` runs a short campaign on any toolchain. With the feature `coverage` the binary is a libFuzzer target that
//! mutates the same way, guided by what it reaches.

pub mod allocation;
pub mod campaign;
pub mod case;
pub mod consumer;
pub mod corpus;
pub mod dice;
pub mod mutation;
pub mod stream;
pub mod targets;
pub mod tree;
