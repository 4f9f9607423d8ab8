//! From Python events to a payload.

use kvevents_core::tokens::TokenSlice;
use kvevents_core::wire::{Field, Fields, NoPlace, TYPE, Tag, Writer, begin_batch, end_batch, write_event};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyInt, PyList, PyString, PyTuple};

use crate::buffers::TokenArgument;
use crate::classes;

/// Write a batch as one engine's payload, byte for byte as that engine writes it.
#[pyfunction]
#[pyo3(signature = (batch, /, *, dialect="sglang"))]
pub(super) fn encode_batch<'py>(batch: &Bound<'py, PyAny>, dialect: &str) -> PyResult<Bound<'py, PyBytes>> {
    let py = batch.py();
    let dialect = super::dialect(py, dialect)?;
    if !batch.is_instance(classes::EVENT_BATCH.get(py)?)? {
        return Err(wrong("batch", "a KVEventBatch", batch));
    }
    let ts = batch.getattr(intern!(py, "ts"))?;
    let events = batch.getattr(intern!(py, "events"))?;
    let rank = batch.getattr(intern!(py, "attn_dp_rank"))?;
    let mut out = Writer::new();
    begin_batch(
        &mut out,
        ts.extract().map_err(|_| wrong("ts", "a float", &ts))?,
        events.len()?,
    );
    for (index, event) in events.try_iter()?.enumerate() {
        PythonEvent::new(&event?)
            .and_then(|event| write_event(&mut out, &dialect, &event).map_err(|Failure(error)| error))
            .map_err(|error| in_event(py, index, error))?;
    }
    let integer = "an integer of 64 bits or None";
    end_batch(
        &mut out,
        rank.extract().map_err(|_| wrong("attn_dp_rank", integer, &rank))?,
    );
    Ok(PyBytes::new(py, out.as_bytes()))
}

/// The error for a value: of its type, or where its type is right, of the value itself.
fn wrong(place: &str, expected: &str, value: &Bound<'_, PyAny>) -> PyErr {
    if value.is_instance_of::<PyInt>() || is_sequence(value) || value.is_instance_of::<PyBytes>() {
        let shown = value
            .repr()
            .map(|text| text.to_string().chars().take(80).collect::<String>());
        return match shown {
            Ok(shown) => PyValueError::new_err(format!("{place}: expected {expected}, got {shown}")),
            Err(error) => error,
        };
    }
    PyTypeError::new_err(format!("{place}: expected {expected}, got {}", value.get_type()))
}

fn is_sequence(value: &Bound<'_, PyAny>) -> bool {
    value.is_instance_of::<PyTuple>() || value.is_instance_of::<PyList>()
}

/// Name the event in an error about one of its values.
fn in_event(py: Python<'_>, index: usize, error: PyErr) -> PyErr {
    let text = format!("events[{index}]: {}", error.value(py));
    if error.is_instance_of::<PyValueError>(py) {
        PyValueError::new_err(text)
    } else if error.is_instance_of::<PyTypeError>(py) {
        PyTypeError::new_err(text)
    } else {
        error
    }
}

/// The name of a field as Python keeps it.
fn field_name(py: Python<'_>, field: Field) -> &Bound<'_, PyString> {
    static NAMES: PyOnceLock<Vec<Py<PyString>>> = PyOnceLock::new();
    let intern = |field: &Field| PyString::intern(py, field.name()).unbind();
    NAMES.get_or_init(py, || Field::ALL.iter().map(intern).collect())[field as usize].bind(py)
}

/// What goes wrong while an event is written.
struct Failure(PyErr);

impl From<NoPlace> for Failure {
    fn from(error: NoPlace) -> Self {
        Self(PyValueError::new_err(error.to_string()))
    }
}

/// An event, its values fetched and not yet checked.
struct PythonEvent<'py> {
    tag: Tag,
    values: Vec<(Field, Bound<'py, PyAny>)>,
    unknown: Vec<(String, Bound<'py, PyAny>)>,
    /// Which of `cache_salt` and `metadata` say nothing that the other does not say.
    repeated: Vec<Field>,
}

impl<'py> PythonEvent<'py> {
    fn new(event: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = event.py();
        let tag = tag(event)?;
        let mut values = Vec::with_capacity(tag.fields().len());
        for field in tag
            .fields()
            .iter()
            .filter(|field| tag != Tag::BlockStored || **field != Field::Metadata)
        {
            let value = event.getattr(field_name(py, *field))?;
            if !value.is_none() {
                values.push((*field, value));
            }
        }
        let get = |wanted| {
            values
                .iter()
                .find(|(field, _)| *field == wanted)
                .map(|(_, value)| value)
        };
        let mut repeated = Vec::new();
        if let (Some(salt), Some(metadata)) = (get(Field::CacheSalt), get(Field::Metadata))
            && metadata.getattr(intern!(py, "cache_salt"))?.eq(salt)?
        {
            repeated.push(Field::CacheSalt);
            if unknown_fields(metadata)?.is_empty() {
                repeated.push(Field::Metadata);
            }
        }
        let tag = if get(Field::Metadata).is_some() {
            tag
        } else {
            tag.plain()
        };
        let unknown = unknown_fields(event)?;
        if let Some((name, _)) = unknown
            .iter()
            .find(|(name, _)| name == TYPE || tag.field(name).is_some())
        {
            let expected = "names that are no fields of the event";
            return Err(wrong(
                &format!("{}.unknown_fields", tag.name()),
                expected,
                PyString::new(py, name).as_any(),
            ));
        }
        Ok(Self {
            tag,
            values,
            unknown,
            repeated,
        })
    }

    fn get(&self, field: Field) -> Option<&Bound<'py, PyAny>> {
        self.values
            .iter()
            .find(|(known, _)| *known == field)
            .map(|(_, value)| value)
    }

    fn write_value(&self, field: Field, value: &Bound<'py, PyAny>, out: &mut Writer) -> PyResult<()> {
        let place = || format!("{}.{}", self.tag.name(), field.name());
        match field {
            Field::BlockHashes => write_hashes(place, value, out),
            Field::ParentBlockHash => write_hash(place, value, out),
            Field::TokenIds => write_tokens(place, value, out),
            Field::BlockSize | Field::GroupIdx | Field::KvCacheSpecSlidingWindow => {
                let number = value.extract();
                out.uint(number.map_err(|_| wrong(&place(), "an integer from 0 to 2^64-1", value))?);
                Ok(())
            }
            Field::LoraId => {
                out.int(
                    value
                        .extract()
                        .map_err(|_| wrong(&place(), "an integer of 64 bits", value))?,
                );
                Ok(())
            }
            Field::ExtraKeys => write_extra_keys(place, value, out),
            Field::Metadata => write_metadata(place, value, out),
            Field::Medium
            | Field::CacheSalt
            | Field::SessionId
            | Field::LoraName
            | Field::KvCacheSpecKind
            | Field::Locality
            | Field::Ownership => {
                out.str(&text(place, value)?);
                Ok(())
            }
        }
    }
}

impl Fields for PythonEvent<'_> {
    type Error = Failure;

    fn tag(&self) -> Tag {
        self.tag
    }

    fn has(&self, field: Field) -> bool {
        self.get(field).is_some()
    }

    fn write(&self, field: Field, out: &mut Writer) -> Result<(), Failure> {
        let Some(value) = self.get(field) else {
            out.nil();
            return Ok(());
        };
        self.write_value(field, value, out).map_err(Failure)
    }

    fn repeats(&self, field: Field) -> bool {
        self.repeated.contains(&field)
    }

    fn unknown_len(&self) -> usize {
        self.unknown.len()
    }

    fn write_unknown(&self, out: &mut Writer) -> Result<(), Failure> {
        self.unknown
            .iter()
            .try_for_each(|(name, value)| write_named(name, value, out))
            .map_err(Failure)
    }
}

fn tag(event: &Bound<'_, PyAny>) -> PyResult<Tag> {
    // The earlier form is a subclass of the plain store.
    for tag in [
        Tag::BlockStoredWithMetadata,
        Tag::BlockStored,
        Tag::BlockRemoved,
        Tag::AllBlocksCleared,
    ] {
        if event.is_instance(classes::event(tag).get(event.py())?)? {
            return Ok(tag);
        }
    }
    Err(PyTypeError::new_err(format!(
        "expected a KV cache event, got {}",
        event.get_type()
    )))
}

fn write_hash(place: impl Fn() -> String, value: &Bound<'_, PyAny>, out: &mut Writer) -> PyResult<()> {
    if let Ok(hash) = value.extract::<i64>() {
        out.int(hash);
    } else if let Ok(hash) = value.extract::<u64>() {
        out.uint(hash);
    } else if let Some(digest) = value
        .cast::<PyBytes>()
        .ok()
        .filter(|digest| !digest.as_bytes().is_empty())
    {
        out.bin(digest.as_bytes());
    } else {
        return Err(wrong(
            &place(),
            "an integer from -2^63 to 2^64-1 or bytes, at least one",
            value,
        ));
    }
    Ok(())
}

fn write_hashes(place: impl Fn() -> String, value: &Bound<'_, PyAny>, out: &mut Writer) -> PyResult<()> {
    let is_text = value.is_instance_of::<PyString>() || value.is_instance_of::<PyBytes>();
    let (false, Ok(length), Ok(hashes)) = (is_text, value.len(), value.try_iter()) else {
        return Err(wrong(&place(), "a list of hashes", value));
    };
    out.array(length);
    for (index, hash) in hashes.enumerate() {
        write_hash(|| format!("{}[{index}]", place()), &hash?, out)?;
    }
    Ok(())
}

fn write_tokens(place: impl Fn() -> String, value: &Bound<'_, PyAny>, out: &mut Writer) -> PyResult<()> {
    if !is_sequence(value) {
        let tokens: TokenArgument = value.extract()?;
        out.tokens(tokens.as_slice());
        return Ok(());
    }
    let is_pairs = value.get_item(0).is_ok_and(|first| is_sequence(&first));
    let expected = if is_pairs {
        "a pair of token ids from 0 to 2^64-1"
    } else {
        "a token id from 0 to 2^64-1"
    };
    out.array(value.len()?);
    for (index, element) in value.try_iter()?.enumerate() {
        let element = element?;
        let written = if is_pairs {
            element
                .extract::<[u64; 2]>()
                .map(|pair| out.tokens(TokenSlice::U64(&pair)))
        } else {
            element.extract().map(|id| out.uint(id))
        };
        written.map_err(|_| wrong(&format!("{}[{index}]", place()), expected, &element))?;
    }
    Ok(())
}

fn write_extra_keys(place: impl Fn() -> String, value: &Bound<'_, PyAny>, out: &mut Writer) -> PyResult<()> {
    if !is_sequence(value) {
        return Err(wrong(&place(), "a list of one entry a block", value));
    }
    for (index, entry) in value.try_iter()?.enumerate() {
        let entry = entry?;
        if !entry.is_none() && !is_sequence(&entry) {
            return Err(wrong(&format!("{}[{index}]", place()), "None or a list", &entry));
        }
    }
    write_any(value, out)
}

fn write_metadata(place: impl Fn() -> String, value: &Bound<'_, PyAny>, out: &mut Writer) -> PyResult<()> {
    let py = value.py();
    if !value.is_instance(classes::BLOCK_STORED_METADATA.get(py)?)? {
        return Err(wrong(&place(), "a BlockStoredMetadata", value));
    }
    let salt = value.getattr(intern!(py, "cache_salt"))?;
    let unknown = unknown_fields(value)?;
    out.map(usize::from(!salt.is_none()) + unknown.len());
    if !salt.is_none() {
        let name = Field::CacheSalt.name();
        out.str(name);
        out.str(&text(|| format!("{}.{name}", place()), &salt)?);
    }
    unknown
        .iter()
        .try_for_each(|(name, value)| write_named(name, value, out))
}

fn text(place: impl Fn() -> String, value: &Bound<'_, PyAny>) -> PyResult<String> {
    let text = value
        .cast::<PyString>()
        .map_err(|_| wrong(&place(), "a string", value))?;
    Ok(text.to_str()?.to_owned())
}

/// The dict `unknown_fields` of an event or of its metadata.
fn unknown_fields<'py>(owner: &Bound<'py, PyAny>) -> PyResult<Vec<(String, Bound<'py, PyAny>)>> {
    let fields = owner.getattr(intern!(owner.py(), "unknown_fields"))?;
    if fields.is_none() {
        return Ok(Vec::new());
    }
    let fields = fields
        .cast::<PyDict>()
        .map_err(|_| wrong("unknown_fields", "a dict or None", &fields))?;
    fields
        .iter()
        .map(|(name, value)| Ok((text(|| "unknown_fields".to_owned(), &name)?, value)))
        .collect()
}

fn write_named(name: &str, value: &Bound<'_, PyAny>, out: &mut Writer) -> PyResult<()> {
    out.str(name);
    write_any(value, out)
}

/// A value without a schema.
fn write_any(value: &Bound<'_, PyAny>, out: &mut Writer) -> PyResult<()> {
    static ENCODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let encoded = ENCODE
        .import(value.py(), "msgspec.msgpack", "encode")?
        .call1((value,))?;
    out.raw(encoded.cast::<PyBytes>()?.as_bytes());
    Ok(())
}
