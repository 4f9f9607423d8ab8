//! A short campaign for each target, the same inputs every time.

use kvevents_fuzz::campaign::{run, target};

#[test]
fn wire() {
    run(target("wire"));
}

#[test]
fn coalesce() {
    run(target("coalesce"));
}

#[test]
fn index() {
    run(target("index"));
}

#[test]
fn snapshot() {
    run(target("snapshot"));
}

#[test]
fn hash() {
    run(target("hash"));
}

#[test]
fn image() {
    run(target("image"));
}

#[test]
fn log() {
    run(target("log"));
}

#[test]
fn pseudonyms() {
    run(target("pseudonyms"));
}

#[test]
fn lint() {
    run(target("lint"));
}

#[test]
fn prompt() {
    run(target("prompt"));
}
