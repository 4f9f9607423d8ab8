//! Payloads that are nearly right.

use crate::dice::Dice;
use crate::tree::Tree;

const WORDS: [&[u8]; 16] = [
    b"BlockStored",
    b"BlockRemoved",
    b"AllBlocksCleared",
    b"BlockStoredWithMetadata",
    b"GPU",
    b"CPU",
    b"STORAGE",
    b"TAPE",
    b"REMOTE",
    b"block_hashes",
    b"extra_keys",
    b"full_attention",
    b"sliding_window",
    b"mamba",
    b"",
    b"\xff\xfe",
];

/// A payload made of another: a value or a few changed, or some of its bytes.
pub fn payload(data: &[u8], others: &[Vec<u8>], dice: &mut Dice) -> Vec<u8> {
    let Some(mut tree) = Tree::read(data) else {
        return bytes(data, dice);
    };
    for _ in 0..=dice.below(4) {
        change(&mut tree, others, dice);
    }
    let mut out = Vec::new();
    let mut forms = dice.once_in(2).then(|| Dice::new(dice.number()));
    tree.write(&mut out, &mut forms);
    if dice.once_in(10) { bytes(&out, dice) } else { out }
}

/// Change one value.
fn change(tree: &mut Tree, others: &[Vec<u8>], dice: &mut Dice) {
    let size = tree.size();
    let elsewhere = tree.nth(dice.below(size)).cloned().unwrap_or(Tree::Nil);
    let Some(value) = tree.nth(dice.below(size)) else {
        return;
    };
    match dice.below(8) {
        0 => *value = odd(dice),
        1 | 2 => *value = elsewhere,
        3 => *value = foreign(others, dice),
        4 => nudge(value, dice),
        _ => rearrange(value, elsewhere, dice),
    }
}

/// A value of another payload.
fn foreign(others: &[Vec<u8>], dice: &mut Dice) -> Tree {
    let mut other = Tree::read(&others[dice.below(others.len())]).unwrap_or(Tree::Nil);
    let size = other.size();
    other.nth(dice.below(size)).cloned().unwrap_or(Tree::Nil)
}

/// Something that a reader may not expect.
fn odd(dice: &mut Dice) -> Tree {
    match dice.below(10) {
        0 => Tree::Nil,
        1 => Tree::Bool(dice.once_in(2)),
        2 | 3 => Tree::Unsigned(dice.odd_number()),
        4 => Tree::Negative(-1 - (dice.odd_number() >> 1) as i64),
        5 => Tree::Float(f64::from_bits(dice.odd_number())),
        6 => Tree::Str(dice.one(&WORDS).to_vec()),
        7 => Tree::Bin(vec![dice.number() as u8; *dice.one(&[0, 1, 7, 8, 16, 32, 33])]),
        8 => Tree::Ext(dice.number() as i8, vec![0; dice.below(5)]),
        _ => (0..dice.below(40)).fold(Tree::Nil, |inner, _| Tree::Array(vec![inner])),
    }
}

/// Nearly the same value.
fn nudge(value: &mut Tree, dice: &mut Dice) {
    match value {
        Tree::Unsigned(number) => *number = number.wrapping_add(dice.odd_number()),
        Tree::Negative(number) => *value = Tree::Unsigned(number.cast_unsigned()),
        Tree::Str(text) => *value = Tree::Bin(std::mem::take(text)),
        Tree::Bin(bytes) => *value = Tree::Str(std::mem::take(bytes)),
        Tree::Array(elements) => *value = Tree::Map(std::mem::take(elements)),
        Tree::Map(elements) => *value = Tree::Array(std::mem::take(elements)),
        other => *other = odd(dice),
    }
}

/// The same elements, otherwise.
fn rearrange(value: &mut Tree, more: Tree, dice: &mut Dice) {
    let Some(elements) = value.children().filter(|elements| !elements.is_empty()) else {
        return nudge(value, dice);
    };
    let place = dice.below(elements.len());
    let other = dice.below(elements.len());
    match dice.below(6) {
        0 => drop(elements.remove(place)),
        1 => elements.truncate(place),
        2 => elements.insert(place, more),
        3 => elements.push(elements[place].clone()),
        4 => elements.swap(place, other),
        _ => {
            let copy = elements[place].clone();
            let room = 4096 / copy.size();
            elements.extend(std::iter::repeat_n(copy, room.min(1 << dice.below(10))));
        }
    }
}

/// Change some bytes, whatever they mean.
pub fn bytes(data: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut data = data.to_vec();
    for _ in 0..=dice.below(3) {
        let place = dice.below(data.len() + 1);
        let end = (place + *dice.one(&[1, 2, 4, 8, 12, 40])).min(data.len());
        match dice.below(6) {
            0 if place < data.len() => data[place] ^= 1 << dice.below(8),
            1 if place < data.len() => data[place] = dice.number() as u8,
            2 => data.truncate(place),
            3 => drop(data.drain(place..end)),
            4 => {
                let copy = data[place..end].to_vec();
                let place = dice.below(data.len() + 1);
                data.splice(place..place, copy);
            }
            _ => {
                let number = dice.odd_number();
                let word = if dice.once_in(2) {
                    number.to_le_bytes()
                } else {
                    number.to_be_bytes()
                };
                data.splice(place..end, word.into_iter().take(end - place));
            }
        }
    }
    data
}
