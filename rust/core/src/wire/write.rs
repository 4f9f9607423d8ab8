//! From events to a payload, laid out as a dialect says.

use thiserror::Error;

use super::event::{Event, FieldValue, Stored};
use super::layout::{Dialect, Shape};
use super::names::{Field, TYPE, Tag};
use super::writer::Writer;

/// An event as the writer sees it: what it is, which fields it has, how each is written.
pub trait Fields {
    /// What can go wrong with a value.
    type Error: From<NoPlace>;

    /// Its type.
    fn tag(&self) -> Tag;

    /// Whether the field has a value other than nil.
    fn has(&self, field: Field) -> bool;

    /// Write the value of a field that it has.
    fn write(&self, field: Field, out: &mut Writer) -> Result<(), Self::Error>;

    /// Of `cache_salt` and `metadata`: whether the field says nothing that the other does not say.
    fn repeats(&self, _field: Field) -> bool {
        false
    }

    /// How many fields of unknown names it has.
    fn unknown_len(&self) -> usize {
        0
    }

    /// Write them: name, value, name, value.
    fn write_unknown(&self, _out: &mut Writer) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// A field with a value for which a dialect has no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{}.{field}: the dialect {dialect} has no place for it", .tag.name())]
pub struct NoPlace {
    /// The dialect's name.
    pub dialect: &'static str,
    /// The event's type.
    pub tag: Tag,
    /// The field's name.
    pub field: &'static str,
}

/// Write what stands before the events of a batch. After `events` of them, `end_batch` closes it.
pub fn begin_batch(out: &mut Writer, ts: f64, events: usize) {
    out.array(3);
    out.f64(ts);
    out.array(events);
}

/// Write what stands after the events of a batch.
pub fn end_batch(out: &mut Writer, dp_rank: Option<i64>) {
    match dp_rank {
        Some(rank) => out.int(rank),
        None => out.nil(),
    }
}

/// Write one event. A map also carries the fields that its dialect does not declare; an array has no place for them.
pub fn write_event<F: Fields>(out: &mut Writer, dialect: &Dialect, event: &F) -> Result<(), F::Error> {
    let tag = event.tag();
    let layout = dialect.layout(tag);
    // The salt is said once: in the map where the dialect has a place for it, else in the field.
    let unsaid = if layout.contains(Field::Metadata) {
        Field::CacheSalt
    } else {
        Field::Metadata
    };
    let has = |field: &Field| event.has(*field) && !(*field == unsaid && event.repeats(unsaid));
    let undeclared = tag
        .fields()
        .iter()
        .filter(|field| !layout.contains(**field) && has(field));
    match dialect.shape {
        Shape::Map => {
            let fields = || {
                let said = layout.optional.iter().filter(|field| has(field));
                layout.always.iter().chain(said).chain(undeclared.clone())
            };
            out.map(1 + fields().count() + event.unknown_len());
            out.str(TYPE);
            out.str(tag.wire_name());
            for field in fields() {
                out.str(field.name());
                write_value(out, event, *field)?;
            }
            event.write_unknown(out)
        }
        Shape::Array => {
            let mut undeclared = undeclared;
            let field = undeclared.next().map(|field| field.name());
            if let Some(field) = field.or((event.unknown_len() > 0).then_some("unknown_fields")) {
                let dialect = dialect.name;
                return Err(NoPlace { dialect, tag, field }.into());
            }
            let tail = if layout.optional.iter().any(has) {
                layout.optional
            } else {
                &[]
            };
            out.array(1 + layout.always.len() + tail.len());
            out.str(tag.wire_name());
            layout
                .always
                .iter()
                .chain(tail)
                .try_for_each(|field| write_value(out, event, *field))
        }
    }
}

fn write_value<F: Fields>(out: &mut Writer, event: &F, field: Field) -> Result<(), F::Error> {
    if event.has(field) {
        return event.write(field, out);
    }
    out.nil();
    Ok(())
}

impl Fields for Event<'_> {
    type Error = NoPlace;

    fn tag(&self) -> Tag {
        self.tag()
    }

    fn has(&self, field: Field) -> bool {
        self.value(field).is_some()
    }

    fn write(&self, field: Field, out: &mut Writer) -> Result<(), NoPlace> {
        match self.value(field) {
            None => out.nil(),
            Some(FieldValue::Hashes(hashes)) => {
                out.array(hashes.len());
                hashes.iter().for_each(|hash| out.hash(hash));
            }
            Some(FieldValue::Hash(hash)) => out.hash(hash),
            Some(FieldValue::Tokens(tokens)) => {
                out.array(tokens.len());
                for (index, id) in tokens.members().enumerate() {
                    if tokens.is_pairs() && index % 2 == 0 {
                        out.array(2);
                    }
                    out.uint(id);
                }
            }
            Some(FieldValue::Unsigned(value)) => out.uint(value),
            Some(FieldValue::Signed(value)) => out.int(value),
            Some(FieldValue::Text(text)) => out.str(text),
            Some(FieldValue::Raw(raw)) => out.raw(raw.bytes()),
        }
        Ok(())
    }

    fn repeats(&self, field: Field) -> bool {
        let Self::Stored(Stored {
            cache_salt: Some(salt),
            metadata: Some(metadata),
            ..
        }) = self
        else {
            return false;
        };
        metadata.cache_salt == Some(*salt) && (field == Field::CacheSalt || metadata.is_only_salt)
    }

    fn unknown_len(&self) -> usize {
        self.unknown().len()
    }

    fn write_unknown(&self, out: &mut Writer) -> Result<(), NoPlace> {
        for (name, value) in self.unknown() {
            out.str(name);
            out.raw(value.bytes());
        }
        Ok(())
    }
}
