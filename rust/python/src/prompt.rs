//! `kvevents._core.prompt`.

use std::borrow::Cow;

use kvevents_core::prompt::{self, PromptError, Source, Unread};
use kvevents_core::tokens::TokenSlice;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::buffers::{uint32_view, uint64_view};
use crate::classes;
use crate::hashing::detach_if;

/// Bytes above which reading releases the GIL: so many take 200 us, and getting the GIL back may take 100.
const LONG_BODY: usize = 1 << 17;

/// What routing needs of a body.
#[pyclass(module = "kvevents._core.prompt", frozen)]
pub(crate) struct Request {
    body: PyBackedBytes,
    found: prompt::Request,
}

type Name<'a> = Option<Cow<'a, str>>;
type Ignored = Vec<(&'static str, &'static str, usize)>;
type Facts<'a> = (
    Name<'a>,
    Name<'a>,
    Name<'a>,
    bool,
    bool,
    Option<u64>,
    Name<'a>,
    &'static str,
    usize,
    Ignored,
    Option<String>,
    bool,
);

#[pymethods]
impl Request {
    #[getter]
    fn source(&self) -> &'static str {
        match self.found.source {
            _ if self.found.is_embedding => "embedding",
            Source::None => "none",
            Source::Ids => "ids",
            Source::Text => "text",
            Source::Chat => "chat",
        }
    }

    #[getter]
    fn tokens<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.found.tokens.as_slice() {
            TokenSlice::U32(ids) => uint32_view(py, ids.iter().copied()),
            TokenSlice::U64(ids) => uint64_view(py, ids.iter().copied()),
        }
    }

    #[getter]
    fn text(&self) -> Option<Cow<'_, str>> {
        self.found.text(&self.body)
    }

    #[getter]
    fn prompts(&self) -> usize {
        self.found.prompts
    }

    #[getter]
    fn unread(&self) -> Option<String> {
        Some(match self.found.unread? {
            Unread::Missing => "expected a prompt, as messages, prompt, text, token_ids or input_ids".to_owned(),
            Unread::Several => {
                "expected one of messages, prompt, text, token_ids and input_ids, got more than one".to_owned()
            }
            Unread::Empty => "expected a prompt, got an empty one".to_owned(),
            Unread::Form(offset) => {
                format!("expected a prompt of text or token ids, got another form at byte {offset}")
            }
            Unread::Embeddings => "expected text or token ids, got embeddings".to_owned(),
        })
    }

    /// (field, what it should be, offset) of each.
    #[getter]
    fn ignored(&self) -> Ignored {
        let ignored = self.found.ignored.iter();
        ignored
            .map(|field| (field.field, field.expected, field.offset))
            .collect()
    }

    #[getter]
    fn is_stream(&self) -> bool {
        self.found.is_stream
    }

    #[getter]
    fn wants_usage(&self) -> bool {
        self.found.wants_usage
    }

    #[getter]
    fn max_tokens(&self) -> Option<u64> {
        self.found.max_tokens
    }

    #[getter]
    fn add_special_tokens(&self) -> Option<bool> {
        self.found.add_special_tokens()
    }

    #[getter]
    fn model(&self) -> Option<Cow<'_, str>> {
        self.found.model(&self.body)
    }

    #[getter]
    fn lora_name(&self) -> Option<Cow<'_, str>> {
        self.found.lora_name(&self.body)
    }

    #[getter]
    fn cache_salt(&self) -> Option<Cow<'_, str>> {
        self.found.cache_salt(&self.body)
    }

    #[getter]
    fn session(&self) -> Option<Cow<'_, str>> {
        self.found.session(&self.body)
    }

    /// Most of it at once: model, adapter, salt, whether the answer streams and ends with the usage, the most tokens of
    /// it, session, source, prompts, what was ignored, why it is unread, whether it is a text.
    fn facts(&self) -> Facts<'_> {
        (
            self.model(),
            self.lora_name(),
            self.cache_salt(),
            self.found.is_stream,
            self.found.wants_usage,
            self.found.max_tokens,
            self.session(),
            self.source(),
            self.found.prompts,
            self.ignored(),
            self.unread(),
            self.found.has_text(),
        )
    }

    #[getter]
    fn attached(&self) -> Option<String> {
        self.found.attached(&self.body)
    }

    fn chat(&self) -> Option<Cow<'static, [u8]>> {
        self.found.chat(&self.body).map(Cow::Owned)
    }

    fn stand_in<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        uint64_view(py, self.found.stand_in(&self.body).into_iter())
    }

    fn __repr__(&self) -> String {
        format!("<Request: {} of {} bytes>", self.source(), self.body.len())
    }
}

#[pyfunction]
#[pyo3(signature = (body, /))]
fn read_request(py: Python<'_>, body: PyBackedBytes) -> PyResult<Request> {
    let found = detach_if(py, body.len() > LONG_BODY, || prompt::read_request(&body));
    match found {
        Ok(found) => Ok(Request { body, found }),
        Err(error) => Err(raise(py, error)),
    }
}

/// An id for each byte: the tokenizer of the simulated engine.
#[pyfunction]
#[pyo3(signature = (text, /))]
fn byte_ids<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyAny>> {
    uint32_view(py, text.bytes().map(u32::from))
}

fn raise(py: Python<'_>, error: PromptError) -> PyErr {
    if error.is_syntax() {
        classes::wire_fault(py, error.fault.to_string(), error.offset)
    } else {
        PyValueError::new_err(error.to_string())
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("STAND_IN", prompt::STAND_IN)?;
    module.add("MAX_ID", prompt::MAX_ID)?;
    module.add_class::<Request>()?;
    module.add_function(wrap_pyfunction!(byte_ids, module)?)?;
    module.add_function(wrap_pyfunction!(read_request, module)?)
}
