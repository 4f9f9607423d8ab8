//! Values of fields under new names.

use super::names::Names;
use crate::index::{Kind, Medium};
use crate::wire::{Field, Raw, Value, Writer};

/// A string. What names a tier, a place or a kind stays if it is a name that is known.
pub(super) fn text(field: Field, text: &str, names: &Names, out: &mut Writer) {
    let is_known = match field {
        Field::Medium => matches!(Medium::read(Some(text), None), Medium::Known(_)),
        Field::Locality => ["LOCAL", "REMOTE"].iter().any(|known| text.eq_ignore_ascii_case(known)),
        Field::KvCacheSpecKind => Kind::read(text, None) != Kind::Unknown,
        _ => false,
    };
    if is_known {
        out.str(text);
    } else {
        out.str(&names.text(text));
    }
}

/// The map of SGLang's earlier form: its salt, if it has one.
pub(super) fn metadata(raw: Raw<'_>, names: &Names, out: &mut Writer) {
    let Value::Map(mut entries) = raw.value() else {
        return out.nil();
    };
    let mut salt = None;
    while let (Some(key), Some(value)) = (entries.next(), entries.next()) {
        if key.value() == Value::Str(Field::CacheSalt.name()) {
            salt = Some(value);
        }
    }
    out.map(usize::from(salt.is_some()));
    if let Some(salt) = salt {
        out.str(Field::CacheSalt.name());
        any(salt, names, out);
    }
}

/// A value of any structure, such as extra keys: every text, number and run of bytes in it is replaced, but for the
/// place in `[id, place]`, which says where in a block an image begins.
pub(super) fn any(raw: Raw<'_>, names: &Names, out: &mut Writer) {
    match raw.value() {
        Value::Nil | Value::Bool(_) => out.raw(raw.bytes()),
        Value::Unsigned(number) => out.uint(names.number(number.into())),
        Value::Negative(number) => out.uint(names.number(number.into())),
        Value::Float(number) => out.uint(names.number(number.to_bits().into())),
        Value::Str(text) => out.str(&names.text(text)),
        Value::Bin(bytes) | Value::Ext(_, bytes) => out.bin(&names.bytes(bytes)),
        Value::Array(mut elements) => {
            out.array(elements.len());
            let parts = elements.clone();
            if parts.len() == 2
                && let (Some(id), Some(place)) = (elements.next(), elements.next())
                && matches!(id.value(), Value::Str(_) | Value::Bin(_))
                && matches!(
                    place.value(),
                    Value::Unsigned(0..=MAX_PLACE) | Value::Negative(MIN_PLACE..=-1)
                )
            {
                any(id, names, out);
                out.raw(place.bytes());
                return;
            }
            parts.for_each(|part| any(part, names, out));
        }
        Value::Map(elements) => {
            out.map(elements.len() / 2);
            elements.for_each(|element| any(element, names, out));
        }
    }
}

/// Images begin at most so many tokens after a block's start, or before it.
const MAX_PLACE: u64 = 1 << 24;
const MIN_PLACE: i64 = -(1 << 24);
