//! Payloads about a few blocks, over and over: stored, removed, stored again, in chains and out of order.

use crate::dice::Dice;
use crate::tree::Tree;

/// So many different blocks.
const BLOCKS: u64 = 7;
const MEDIA: [&str; 6] = ["GPU", "GPU", "GPU", "GPU", "CPU", "TAPE"];

/// A batch of some events, each block with one token.
pub fn payload(dice: &mut Dice) -> Vec<u8> {
    let events = (0..=dice.below(6)).map(|_| event(dice)).collect();
    let batch = Tree::Array(vec![Tree::Float(0.0), Tree::Array(events), Tree::Nil]);
    let mut out = Vec::new();
    batch.write(&mut out, &mut None);
    out
}

fn event(dice: &mut Dice) -> Tree {
    match dice.below(20) {
        0 => map("AllBlocksCleared", Vec::new()),
        1..8 => removal(dice),
        _ => store(dice),
    }
}

fn store(dice: &mut Dice) -> Tree {
    let first = dice.below(BLOCKS as usize) as u64;
    let count = 1 + dice.below(3) as u64;
    let blocks: Vec<_> = (first..first + count)
        .map(|block| Tree::Unsigned(block % BLOCKS))
        .collect();
    let parent = match dice.below(8) {
        0 => Tree::Unsigned(dice.below(BLOCKS as usize) as u64),
        _ if first == 0 => Tree::Nil,
        _ => Tree::Unsigned(first - 1),
    };
    let tokens = if dice.once_in(10) { Vec::new() } else { blocks.clone() };
    let mut fields = vec![
        ("block_hashes", Tree::Array(blocks)),
        ("parent_block_hash", parent),
        ("token_ids", Tree::Array(tokens)),
        ("block_size", Tree::Unsigned(1)),
    ];
    fields.extend(place(dice));
    map("BlockStored", fields)
}

fn removal(dice: &mut Dice) -> Tree {
    let blocks = (0..=dice.below(3)).map(|_| Tree::Unsigned(dice.below(BLOCKS as usize) as u64));
    let mut fields = vec![("block_hashes", Tree::Array(blocks.collect()))];
    fields.extend(place(dice));
    map("BlockRemoved", fields)
}

/// Medium and group, where there is one.
fn place(dice: &mut Dice) -> Vec<(&'static str, Tree)> {
    let mut fields = Vec::new();
    if !dice.once_in(12) {
        fields.push(("medium", text(MEDIA[dice.below(MEDIA.len())])));
    }
    if dice.once_in(12) {
        fields.push(("group_idx", Tree::Unsigned(dice.below(2) as u64)));
    }
    fields
}

fn text(text: &str) -> Tree {
    Tree::Str(text.into())
}

fn map(tag: &str, fields: Vec<(&str, Tree)>) -> Tree {
    let fields = fields.into_iter().flat_map(|(name, value)| [text(name), value]);
    Tree::Map([text("type"), text(tag)].into_iter().chain(fields).collect())
}
