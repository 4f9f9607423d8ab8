//! From a payload to a batch, in one pass that leaves nothing unchecked.

use super::cursor::{Cursor, Header};
use super::draft::Draft;
use super::error::{Fault, WireError};
use super::event::{Batch, Event, Skipped};
use super::layout::{AFTER_MEDIUM, Dialect, Layout};
use super::limits::Limits;
use super::names::{Field, RANK_KEYS, TYPE, Tag};

/// Read a batch, in any dialect, without copying.
///
/// Broken msgpack anywhere, in skipped values and after the batch too, and a broken batch frame are an error for the
/// whole batch. An event that cannot be used is listed in `skipped`.
pub fn read_batch<'a>(data: &'a [u8], limits: &Limits) -> Result<Batch<'a>, WireError> {
    read(data, limits, None, None)
}

/// The same for a caller who wants the token ids: those that fit 32 bits are decoded into `ids`, event after event.
pub fn read_batch_with_ids<'a>(data: &'a [u8], limits: &Limits, ids: &mut Vec<u32>) -> Result<Batch<'a>, WireError> {
    ids.clear();
    read(data, limits, Some(ids), None)
}

/// The same for a caller who writes the events again as they came: in which order they have which fields.
pub fn read_batch_in_order<'a>(
    data: &'a [u8],
    limits: &Limits,
    ids: &mut Vec<u32>,
    order: &mut FieldOrder,
) -> Result<Batch<'a>, WireError> {
    ids.clear();
    order.fields.clear();
    order.ends.clear();
    read(data, limits, Some(ids), Some(order))
}

/// The rank that a batch names, without reading its events: they are only passed over.
pub fn read_rank(data: &[u8]) -> Result<Option<i64>, WireError> {
    let mut cursor = Cursor::new(data);
    match cursor.header()? {
        Header::Array(length) if length > 2 => {
            cursor.skip(0)?;
            cursor.skip(0)?;
            cursor.optional_i64(RANK_KEYS[0])
        }
        Header::Map(pairs) => {
            for _ in 0..pairs {
                let name = cursor.key()?;
                if name.is_some_and(|name| RANK_KEYS.contains(&name)) {
                    if let Some(rank) = cursor.optional_i64(RANK_KEYS[0])? {
                        return Ok(Some(rank));
                    }
                } else {
                    cursor.skip(0)?;
                }
            }
            Ok(None)
        }
        _ => Ok(None),
    }
}

/// The fields that each event of a batch came with, nil or not, in their order.
#[derive(Clone, Debug, Default)]
pub struct FieldOrder {
    fields: Vec<Field>,
    ends: Vec<usize>,
}

impl FieldOrder {
    /// Those of an event.
    pub fn of(&self, event: usize) -> &[Field] {
        let start = event.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.fields[start..self.ends[event]]
    }

    /// The event whose fields came last is to be used, or is not.
    fn close(&mut self, used: bool) {
        if used {
            self.ends.push(self.fields.len());
        } else {
            self.fields.truncate(self.ends.last().copied().unwrap_or(0));
        }
    }
}

fn read<'a>(
    data: &'a [u8],
    limits: &Limits,
    ids: Option<&mut Vec<u32>>,
    order: Option<&mut FieldOrder>,
) -> Result<Batch<'a>, WireError> {
    let limit = limits.message_bytes;
    if data.len() > limit {
        return Err(over_limit("bytes in a payload", limit, data.len()).at(limit));
    }
    let mut reader = Reader {
        cursor: Cursor::new(data),
        limits,
        ids,
        order,
        skipped: Vec::new(),
        unread_fields: 0,
    };
    let frame = reader.frame()?;
    if reader.cursor.left() > 0 {
        let count = reader.cursor.left();
        return Err(Fault::TrailingBytes { count }.at(reader.cursor.offset()));
    }
    Ok(Batch {
        ts: frame.ts.ok_or_else(|| missing("ts"))?,
        dp_rank: frame.dp_rank,
        events: frame.events.ok_or_else(|| missing("events"))?,
        skipped: reader.skipped,
        unread_fields: reader.unread_fields,
    })
}

fn missing(field: &'static str) -> WireError {
    Fault::MissingField { field }.at(0)
}

pub(super) fn over_limit(what: &'static str, limit: usize, found: usize) -> Fault {
    Fault::OverLimit {
        what,
        limit: limit as u64,
        found: found as u64,
    }
}

#[derive(Default)]
struct Frame<'a> {
    ts: Option<f64>,
    events: Option<Vec<Event<'a>>>,
    dp_rank: Option<i64>,
}

struct Reader<'a, 'l> {
    cursor: Cursor<'a>,
    limits: &'l Limits,
    ids: Option<&'l mut Vec<u32>>,
    order: Option<&'l mut FieldOrder>,
    skipped: Vec<Skipped>,
    unread_fields: u64,
}

impl<'a> Reader<'a, '_> {
    fn frame(&mut self) -> Result<Frame<'a>, WireError> {
        let start = self.cursor;
        let mut frame = Frame::default();
        match self.cursor.header()? {
            Header::Array(length) => {
                for slot in 0..length {
                    match slot {
                        0 => frame.ts = Some(self.ts()?),
                        1 => frame.events = Some(self.events()?),
                        2 => frame.dp_rank = self.rank()?,
                        _ => self.pass_over()?,
                    }
                }
            }
            Header::Map(pairs) => {
                for _ in 0..pairs {
                    let key = self.cursor;
                    match self.cursor.key()? {
                        Some("ts") => once(&mut frame.ts, "ts", self.ts()?, key)?,
                        Some("events") => once(&mut frame.events, "events", self.events()?, key)?,
                        Some(name) if RANK_KEYS.contains(&name) => {
                            if let Some(rank) = self.rank()? {
                                once(&mut frame.dp_rank, RANK_KEYS[0], rank, key)?;
                            }
                        }
                        _ => self.pass_over()?,
                    }
                }
            }
            _ => return Err(start.wrong_type("batch", "an array or a map")),
        }
        Ok(frame)
    }

    fn pass_over(&mut self) -> Result<(), WireError> {
        self.unread_fields += 1;
        self.cursor.skip(0)?;
        Ok(())
    }

    fn ts(&mut self) -> Result<f64, WireError> {
        let start = self.cursor;
        match self.cursor.header()? {
            Header::Float(ts) => Ok(ts),
            Header::Unsigned(ts) => Ok(ts as f64),
            Header::Negative(ts) => Ok(ts as f64),
            _ => Err(start.wrong_type("ts", "a number")),
        }
    }

    fn rank(&mut self) -> Result<Option<i64>, WireError> {
        self.cursor.optional_i64(RANK_KEYS[0])
    }

    fn events(&mut self) -> Result<Vec<Event<'a>>, WireError> {
        let start = self.cursor.offset();
        let count = self.cursor.array("events", "an array of events")?;
        if count > self.limits.events {
            return Err(over_limit("events in a batch", self.limits.events, count).at(start));
        }
        // The shortest event has 18 bytes.
        let mut events = Vec::with_capacity(count.min(self.cursor.left() / 18));
        for _ in 0..count {
            let (start, unread) = (self.cursor, self.unread_fields);
            let event = self.event();
            if let Some(order) = &mut self.order {
                order.close(event.is_ok());
            }
            match event {
                Ok(event) => events.push(event),
                Err(error) if error.fault.is_broken() => return Err(error),
                Err(error) => {
                    self.unread_fields = unread;
                    self.cursor = start;
                    self.cursor.skip(0)?;
                    self.skipped.push(Skipped {
                        code: error.fault.code(),
                        offset: start.offset(),
                        reason: error.to_string(),
                        error,
                    });
                }
            }
        }
        Ok(events)
    }

    fn event(&mut self) -> Result<Event<'a>, WireError> {
        let start = self.cursor;
        match self.cursor.header()? {
            Header::Array(0) => Err(Fault::MissingField { field: "type" }.at(start.offset())),
            Header::Array(length) => self.array_event(start.offset(), length - 1),
            Header::Map(pairs) => self.map_event(start.offset(), pairs),
            _ => Err(start.wrong_type("event", "an array or a map")),
        }
    }

    fn tag(&mut self) -> Result<Tag, WireError> {
        let start = self.cursor;
        let Header::Str(length) = self.cursor.header()? else {
            return Err(start.wrong_type("type", "a string"));
        };
        let name = self.cursor.text(length)?;
        Tag::from_name(name).ok_or_else(|| {
            let tag = name.chars().take(64).collect();
            Fault::UnknownTag { tag }.at(start.offset())
        })
    }

    fn array_event(&mut self, offset: usize, slots: usize) -> Result<Event<'a>, WireError> {
        let tag = self.tag()?;
        let mut draft = Draft::default();
        // Up to `medium` all dialects agree; of removals, vLLM's have all fields that SGLang's have.
        let mut order = Dialect::VLLM_ARRAY.layout(tag.plain()).fields_from(0);
        for slot in 0..slots {
            if slot == AFTER_MEDIUM && tag.plain() == Tag::BlockStored {
                order = self.stored_layout(tag, slots - slot)?.fields_from(slot);
            }
            match order.next() {
                Some(field) => self.read_field(&mut draft, field)?,
                None => self.pass_over()?,
            }
        }
        draft.into_event(tag, offset)
    }

    fn read_field(&mut self, draft: &mut Draft<'a>, field: Field) -> Result<(), WireError> {
        if let Some(order) = &mut self.order {
            order.fields.push(field);
        }
        draft.read(field, &mut self.cursor, self.limits, self.ids.as_deref_mut())
    }

    /// Which dialect's fields follow `medium`. The cursor stands at the first of them.
    fn stored_layout(&self, tag: Tag, left: usize) -> Result<Layout, WireError> {
        let next_is_map = matches!(self.cursor.clone().header()?, Header::Map(_));
        if next_is_map || tag == Tag::BlockStoredWithMetadata {
            return Ok(Dialect::SGLANG_ARRAY.layout(Tag::BlockStoredWithMetadata));
        }
        let sglang = Dialect::SGLANG_ARRAY.layout(Tag::BlockStored);
        if left == sglang.optional.len() && self.next_are_texts(left)? {
            return Ok(sglang);
        }
        Ok(Dialect::VLLM_ARRAY.layout(Tag::BlockStored))
    }

    /// Whether the next values are strings or nil, not all nil.
    fn next_are_texts(&self, count: usize) -> Result<bool, WireError> {
        let mut ahead = self.cursor;
        let mut any = false;
        for _ in 0..count {
            match ahead.header()? {
                Header::Nil => {}
                Header::Str(length) => {
                    ahead.text(length)?;
                    any = true;
                }
                _ => return Ok(false),
            }
        }
        Ok(any)
    }

    fn map_event(&mut self, offset: usize, pairs: usize) -> Result<Event<'a>, WireError> {
        let body = self.cursor;
        let tag = self.find_tag(offset, pairs)?;
        self.cursor = body;
        let mut draft = Draft::default();
        let mut tags = 0;
        for _ in 0..pairs {
            let start = self.cursor;
            let Some(key) = self.cursor.key()? else {
                return Err(start.wrong_type("event", "names of fields"));
            };
            if key == TYPE {
                tags += 1;
                if tags > 1 {
                    return Err(Fault::DuplicateField { field: TYPE }.at(start.offset()));
                }
                self.cursor.skip(0)?;
            } else if let Some(field) = tag.field(key) {
                self.read_field(&mut draft, field)?;
            } else {
                draft.keep(key, &mut self.cursor, self.limits)?;
            }
        }
        draft.into_event(tag, offset)
    }

    /// The tag of a map, which is its first field in every engine so far.
    fn find_tag(&mut self, offset: usize, pairs: usize) -> Result<Tag, WireError> {
        for _ in 0..pairs {
            if self.cursor.key()? == Some(TYPE) {
                return self.tag();
            }
            self.cursor.skip(0)?;
        }
        Err(Fault::MissingField { field: TYPE }.at(offset))
    }
}

/// A part of the frame that may come only once.
fn once<T>(slot: &mut Option<T>, field: &'static str, value: T, key: Cursor<'_>) -> Result<(), WireError> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(Fault::DuplicateField { field }.at(key.offset())),
    }
}
