//! A msgpack value that can be changed.

use kvevents_core::wire::{Raw, Value, Writer};

use crate::dice::Dice;

/// A msgpack value.
#[derive(Clone, Debug, PartialEq)]
pub enum Tree {
    /// Nothing.
    Nil,
    /// True or false.
    Bool(bool),
    /// An integer from 0.
    Unsigned(u64),
    /// An integer below 0.
    Negative(i64),
    /// A float.
    Float(f64),
    /// Text, which need not be UTF-8.
    Str(Vec<u8>),
    /// Bytes.
    Bin(Vec<u8>),
    /// Elements.
    Array(Vec<Tree>),
    /// Keys and values in turn, which need not be even.
    Map(Vec<Tree>),
    /// An extension.
    Ext(i8, Vec<u8>),
}

impl Tree {
    /// The value that `bytes` are.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        Raw::read(bytes).ok().map(Self::of)
    }

    fn of(raw: Raw<'_>) -> Self {
        match raw.value() {
            Value::Nil => Self::Nil,
            Value::Bool(value) => Self::Bool(value),
            Value::Unsigned(value) => Self::Unsigned(value),
            Value::Negative(value) => Self::Negative(value),
            Value::Float(value) => Self::Float(value),
            Value::Str(text) => Self::Str(text.into()),
            Value::Bin(bytes) => Self::Bin(bytes.into()),
            Value::Array(elements) => Self::Array(elements.map(Self::of).collect()),
            Value::Map(elements) => Self::Map(elements.map(Self::of).collect()),
            Value::Ext(kind, body) => Self::Ext(kind, body.into()),
        }
    }

    /// The values right inside of it.
    pub fn children(&mut self) -> Option<&mut Vec<Self>> {
        match self {
            Self::Array(children) | Self::Map(children) => Some(children),
            _ => None,
        }
    }

    /// How many values it is made of, itself among them.
    pub fn size(&self) -> usize {
        match self {
            Self::Array(children) | Self::Map(children) => 1 + children.iter().map(Self::size).sum::<usize>(),
            _ => 1,
        }
    }

    /// A value in it by number, itself being 0.
    pub fn nth(&mut self, number: usize) -> Option<&mut Self> {
        if number == 0 {
            return Some(self);
        }
        let mut left = number - 1;
        for child in self.children()? {
            let size = child.size();
            if left < size {
                return child.nth(left);
            }
            left -= size;
        }
        None
    }

    /// Its bytes. With dice, integers and lengths come in any form that holds them, and now and then a length lies.
    pub fn write(&self, out: &mut Vec<u8>, dice: &mut Option<Dice>) {
        match self {
            Self::Nil => out.push(0xc0),
            Self::Bool(value) => out.push(0xc2 + u8::from(*value)),
            Self::Unsigned(value) if chance(dice, 4) => {
                out.push(0xcf);
                out.extend(value.to_be_bytes());
            }
            Self::Unsigned(value) => put(out, |writer| writer.uint(*value)),
            Self::Negative(value) => put(out, |writer| writer.int(*value)),
            Self::Float(value) => put(out, |writer| writer.f64(*value)),
            Self::Str(text) => sized(out, dice, [0xd9, 0xda, 0xdb], text),
            Self::Bin(bytes) => sized(out, dice, [0xc4, 0xc5, 0xc6], bytes),
            Self::Ext(kind, body) => sized(
                out,
                dice,
                [0xc7, 0xc8, 0xc9],
                &[&[kind.cast_unsigned()], &body[..]].concat(),
            ),
            Self::Array(elements) => {
                many(out, dice, [0x90, 0xdc, 0xdd], elements.len());
                for element in elements {
                    element.write(out, dice);
                }
            }
            Self::Map(elements) => {
                many(out, dice, [0x80, 0xde, 0xdf], elements.len() / 2);
                for element in elements {
                    element.write(out, dice);
                }
            }
        }
    }
}

fn put(out: &mut Vec<u8>, write: impl FnOnce(&mut Writer)) {
    let mut writer = Writer::new();
    write(&mut writer);
    out.extend(writer.into_bytes());
}

fn chance(dice: &mut Option<Dice>, times: usize) -> bool {
    dice.as_mut().is_some_and(|dice| dice.once_in(times))
}

/// A length, which now and then is another, and how many steps wider than it has to be it comes.
fn told(dice: &mut Option<Dice>, length: usize) -> (usize, usize) {
    let Some(dice) = dice else { return (length, 0) };
    let length = if dice.once_in(200) {
        dice.odd_number() as usize
    } else {
        length
    };
    (length, if dice.once_in(8) { dice.below(3) } else { 0 })
}

/// A length in 8, 16 or 32 bits, and what it is the length of. The length of an extension leaves out its type.
fn sized(out: &mut Vec<u8>, dice: &mut Option<Dice>, markers: [u8; 3], body: &[u8]) {
    match told(dice, body.len() - usize::from(markers[0] == 0xc7)) {
        (length @ 0..0x20, 0) if markers[0] == 0xd9 => out.push(0xa0 | length as u8),
        (length @ 0..0x100, 0) => out.extend([markers[0], length as u8]),
        (length @ 0..0x1_0000, 0 | 1) => {
            out.push(markers[1]);
            out.extend((length as u16).to_be_bytes());
        }
        (length, _) => {
            out.push(markers[2]);
            out.extend((length as u32).to_be_bytes());
        }
    }
    out.extend(body);
}

/// The header of so many elements.
fn many(out: &mut Vec<u8>, dice: &mut Option<Dice>, markers: [u8; 3], length: usize) {
    match told(dice, length) {
        (length @ 0..0x10, 0) => out.push(markers[0] | length as u8),
        (length @ 0..0x1_0000, 0 | 1) => {
            out.push(markers[1]);
            out.extend((length as u16).to_be_bytes());
        }
        (length, _) => {
            out.push(markers[2]);
            out.extend((length as u32).to_be_bytes());
        }
    }
}
