//! What was found in a body.

use std::borrow::Cow;

use super::media::{digest, lean};
use super::scanner::Span;
use super::stand_in::stand_in;
use super::text::unescape;
use crate::tokens::TokenVec;

/// What a prompt was given as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// There is none.
    #[default]
    None,
    /// Token ids.
    Ids,
    /// Text.
    Text,
    /// Messages.
    Chat,
}

/// Why there is no prompt to go by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// No field has one.
    Missing,
    /// More than one field has one.
    Several,
    /// It has no tokens, no text or no messages.
    Empty,
    /// It is neither text nor token ids; at that byte.
    Form(usize),
    /// It is, or continues, embeddings.
    Embeddings,
}

/// A field whose value is of another type than engines take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ignored {
    /// Its name.
    pub field: &'static str,
    /// What it should be.
    pub expected: &'static str,
    /// Where its value is, in bytes from the body's start.
    pub offset: usize,
}

/// Fields of a chat that change what its template makes of it, besides the messages.
pub(super) const CHAT_FIELDS: [&str; 8] = [
    "tools",
    "tool_choice",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "add_generation_prompt",
    "continue_final_message",
];

/// A request; texts are places in its body, which every method that looks at them is given again.
#[derive(Debug, Default)]
pub struct Request {
    /// What the prompt was given as.
    pub source: Source,
    /// Whether it was given as the input of embeddings.
    pub is_embedding: bool,
    /// The first prompt's ids, where ids were given.
    pub tokens: TokenVec,
    /// How many prompts there are.
    pub prompts: usize,
    /// Why the prompt cannot be gone by.
    pub unread: Option<Unread>,
    /// Whether the answer is to be streamed.
    pub is_stream: bool,
    /// Whether a stream is to end with the usage.
    pub wants_usage: bool,
    /// Tokens that the answer may have.
    pub max_tokens: Option<u64>,
    /// Fields that are left out of account.
    pub ignored: Vec<Ignored>,
    pub(super) text: Option<Span>,
    /// A prompt of another form.
    pub(super) other: Option<Span>,
    pub(super) messages: Option<Span>,
    pub(super) media: Vec<Span>,
    pub(super) attached: Vec<Option<Span>>,
    pub(super) chat: [Option<Span>; CHAT_FIELDS.len()],
    pub(super) add_special_tokens: Option<bool>,
    pub(super) names: Names,
}

/// Strings that are kept as they are.
#[derive(Debug, Default)]
pub(super) struct Names {
    pub model: Option<Span>,
    pub lora_name: Option<Span>,
    pub lora_path: Option<Span>,
    pub cache_salt: Option<Span>,
    pub session_id: Option<Span>,
    pub prompt_cache_key: Option<Span>,
    pub user: Option<Span>,
}

impl Request {
    /// The model asked for.
    pub fn model<'a>(&self, body: &'a [u8]) -> Option<Cow<'a, str>> {
        self.names.model.as_ref().map(|span| text(body, span))
    }

    /// The adapter asked for: `lora_name`, or SGLang's `lora_path`.
    pub fn lora_name<'a>(&self, body: &'a [u8]) -> Option<Cow<'a, str>> {
        let spans = [&self.names.lora_name, &self.names.lora_path];
        first(body, spans)
    }

    /// The tenant's salt.
    pub fn cache_salt<'a>(&self, body: &'a [u8]) -> Option<Cow<'a, str>> {
        first(body, [&self.names.cache_salt])
    }

    /// What keeps the requests of one conversation together.
    pub fn session<'a>(&self, body: &'a [u8]) -> Option<Cow<'a, str>> {
        let names = &self.names;
        first(body, [&names.session_id, &names.prompt_cache_key, &names.user])
    }

    /// The prompt, where it was given as text.
    pub fn text<'a>(&self, body: &'a [u8]) -> Option<Cow<'a, str>> {
        self.text.as_ref().map(|span| text(body, span))
    }

    /// Whether the prompt was given as text.
    pub fn has_text(&self) -> bool {
        self.text.is_some()
    }

    /// Whether special tokens are to be put before a text; None where the request does not say.
    pub fn add_special_tokens(&self) -> Option<bool> {
        self.add_special_tokens
    }

    /// What a template needs of a chat, as JSON. Images and the like are replaced by digests of their bytes.
    pub fn chat(&self, body: &[u8]) -> Option<Vec<u8>> {
        let messages = lean(body, self.messages.as_ref()?, &self.media);
        let mut json = b"{\"messages\":".to_vec();
        json.extend_from_slice(&messages);
        for (name, span) in CHAT_FIELDS.iter().zip(&self.chat) {
            if let Some(span) = span {
                json.extend_from_slice(b",\"");
                json.extend_from_slice(name.as_bytes());
                json.extend_from_slice(b"\":");
                json.extend_from_slice(&body[span.clone()]);
            }
        }
        json.push(b'}');
        Some(json)
    }

    /// A digest of what is attached to a prompt of text or ids: images and the like.
    pub fn attached(&self, body: &[u8]) -> Option<String> {
        let spans: Vec<&[u8]> = self.attached.iter().flatten().map(|span| &body[span.clone()]).collect();
        (!spans.is_empty()).then(|| digest(&spans))
    }

    /// Ids that stand for the prompt's text, as long as its tokens are not known.
    pub fn stand_in(&self, body: &[u8]) -> Vec<u64> {
        if let Some(messages) = &self.messages {
            let messages = lean(body, messages, &self.media);
            let tools = self.chat[0].clone().unwrap_or_default();
            return stand_in([&body[tools], &messages]);
        }
        if let Some(other) = &self.other {
            return stand_in([&body[other.clone()]]);
        }
        stand_in([self.text(body).unwrap_or_default().as_bytes()])
    }
}

/// The first text that is there and is not empty.
fn first<'a, const N: usize>(body: &'a [u8], spans: [&Option<Span>; N]) -> Option<Cow<'a, str>> {
    let mut texts = spans.into_iter().flatten().map(|span| text(body, span));
    texts.find(|text| !text.is_empty())
}

fn text<'a>(body: &'a [u8], span: &Span) -> Cow<'a, str> {
    unescape(std::str::from_utf8(&body[span.clone()]).expect("the body was checked"))
}
