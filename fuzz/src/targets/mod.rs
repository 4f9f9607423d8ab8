//! The laws: a target is a part of the core, how inputs for it are made, and what must hold for each of them.

mod coalesce;
mod hash;
mod image;
mod index;
mod lint;
mod log;
mod prompt;
mod pseudonyms;
mod snapshot;
mod wire;

use crate::case::Case;
use crate::corpus::PAYLOADS;
use crate::dice::Dice;
use crate::{mutation, stream};

/// A part of the core under test.
#[derive(Debug)]
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// Makes an input.
    pub make: fn(&mut Dice) -> Vec<u8>,
    /// Makes an input of another one.
    pub mutate: fn(&[u8], &mut Dice) -> Vec<u8>,
    /// Panics if an input breaks a law; whether it was one that the core takes.
    pub check: fn(&[u8]) -> bool,
}

/// Every target.
pub const ALL: [Target; 10] = [
    wire::TARGET,
    coalesce::TARGET,
    index::TARGET,
    snapshot::TARGET,
    image::TARGET,
    log::TARGET,
    lint::TARGET,
    pseudonyms::TARGET,
    hash::TARGET,
    prompt::TARGET,
];

/// A recorded payload, mostly changed.
fn payload(dice: &mut Dice) -> Vec<u8> {
    let recorded = dice.one(&PAYLOADS).clone();
    if dice.once_in(8) {
        recorded
    } else {
        mutation::payload(&recorded, &PAYLOADS, dice)
    }
}

/// A few payloads that have to do with each other: they are about the same blocks, or made of the one before.
fn case(dice: &mut Dice) -> Vec<u8> {
    let is_stream = dice.once_in(2);
    let mut payloads: Vec<Vec<u8>> = Vec::new();
    for _ in 0..=dice.below(6) {
        let next = match payloads.last() {
            _ if is_stream && !dice.once_in(8) => stream::payload(dice),
            Some(last) if !dice.once_in(3) => mutation::payload(last, &PAYLOADS, dice),
            _ => payload(dice),
        };
        payloads.push(next);
    }
    let seed = dice.number();
    Case { seed, payloads }.write()
}

/// A case with one of its payloads changed, or with other settings.
fn other_case(data: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut case = Case::read(data);
    match dice.below(12) {
        0 => case.seed = dice.number(),
        1 => case.payloads.push(payload(dice)),
        2 | 3 => case.payloads.push(stream::payload(dice)),
        _ if case.payloads.is_empty() => case.payloads.push(payload(dice)),
        _ => {
            let place = dice.below(case.payloads.len());
            case.payloads[place] = mutation::payload(&case.payloads[place], &PAYLOADS, dice);
        }
    }
    case.write()
}
