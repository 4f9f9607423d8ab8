//! The pass over a body.

use super::error::{Fault, PromptError};
use super::request::{CHAT_FIELDS, Ignored, Request, Source, Unread};
use super::scanner::{Scanner, Span};
use super::text::unescape;
use crate::tokens::TokenVec;

/// Fields that may hold the prompt. `input`, the last, is asked only where no other has one.
const PROMPTS: [&[u8]; 6] = [
    b"prompt",
    b"text",
    b"token_ids",
    b"input_ids",
    b"prompt_token_ids",
    b"input",
];

/// Fields with images and the like beside a prompt of text or ids, as SGLang and vLLM have them.
const ATTACHED: [&[u8]; 4] = [b"image_data", b"video_data", b"audio_data", b"multi_modal_data"];

/// Fields with embeddings in place of tokens.
const EMBEDDINGS: [&[u8]; 2] = [b"input_embeds", b"prompt_embeds"];

/// Read a body: the whole of it is checked, and what routing does not need is not looked at.
///
/// # Errors
/// What no engine could take: no JSON in UTF-8, no object, or an array that begins as one of token ids and has others
/// in it. A field of another type than engines take is listed in `ignored`.
pub fn read_request(body: &[u8]) -> Result<Request, PromptError> {
    if let Err(error) = std::str::from_utf8(body) {
        return Err(PromptError {
            fault: Fault::Utf8,
            offset: error.valid_up_to(),
        });
    }
    let mut scanner = Scanner::new(body);
    if body.starts_with("\u{feff}".as_bytes()) {
        scanner.at = 3;
    }
    scanner.space();
    let start = scanner.at;
    let mut reading = Reading::default();
    let is_object = scanner.peek() == b'{';
    if is_object {
        scanner.object(|scanner, key| reading.member(scanner, key))?;
    } else {
        scanner.skip(0)?;
    }
    scanner.space();
    if scanner.at != body.len() {
        return Err(scanner.expected("nothing after the body's value"));
    }
    if !is_object {
        return Err(PromptError {
            fault: Fault::NoObject,
            offset: start,
        });
    }
    Ok(reading.finish())
}

#[derive(Default)]
struct Reading {
    request: Request,
    prompts: [Field; PROMPTS.len()],
    messages: Option<usize>,
    has_embeddings: [bool; EMBEDDINGS.len()],
    limits: [Option<u64>; 3],
}

/// A field that may hold a prompt.
#[derive(Default)]
struct Field {
    form: Form,
    ids: TokenVec,
    prompts: usize,
}

#[derive(Default)]
enum Form {
    #[default]
    Absent,
    Ids,
    Text(Span),
    Empty,
    Other(Span),
}

impl Reading {
    fn member(&mut self, scanner: &mut Scanner<'_>, key: Span) -> Result<(), PromptError> {
        let raw = &scanner.data[key];
        let unescaped;
        let key = if raw.contains(&b'\\') {
            unescaped = unescape(std::str::from_utf8(raw).expect("the body was checked"));
            unescaped.as_bytes()
        } else {
            raw
        };
        let names = &mut self.request.names;
        let (name, field) = match key {
            b"model" => (&mut names.model, "model"),
            b"lora_name" => (&mut names.lora_name, "lora_name"),
            b"lora_path" if scanner.peek() == b'[' => return first_text(scanner, &mut names.lora_path),
            b"lora_path" => (&mut names.lora_path, "lora_path"),
            b"cache_salt" => (&mut names.cache_salt, "cache_salt"),
            b"session_id" => (&mut names.session_id, "session_id"),
            b"prompt_cache_key" => (&mut names.prompt_cache_key, "prompt_cache_key"),
            b"user" => (&mut names.user, "user"),
            b"messages" => return self.messages(scanner),
            b"stream" => return self.flag(scanner, "stream", |request| &mut request.is_stream),
            b"stream_options" => {
                self.request.wants_usage = false;
                return self.nested(scanner, |reading, scanner, key| match key {
                    b"include_usage" => reading.flag(scanner, "include_usage", |request| &mut request.wants_usage),
                    _ => scanner.skip(2).map(drop),
                });
            }
            b"max_completion_tokens" => return self.limit(scanner, 0, "max_completion_tokens"),
            b"max_tokens" => return self.limit(scanner, 1, "max_tokens"),
            b"sampling_params" => {
                self.limits[2] = None;
                return self.nested(scanner, |reading, scanner, key| match key {
                    b"max_new_tokens" => reading.limit(scanner, 2, "max_new_tokens"),
                    _ => scanner.skip(2).map(drop),
                });
            }
            _ => return self.rare(scanner, key),
        };
        *name = None;
        let offset = scanner.at;
        if scanner.peek() == b'"' {
            *name = Some(scanner.string()?);
            return Ok(());
        }
        let value = scanner.skip(1)?;
        self.ignore(scanner, &value, offset, field, "a string");
        Ok(())
    }

    /// Fields that are looked up in tables.
    fn rare(&mut self, scanner: &mut Scanner<'_>, key: &[u8]) -> Result<(), PromptError> {
        let place = |names: &[&[u8]]| names.iter().position(|&name| name == key);
        if let Some(place) = place(&PROMPTS) {
            return self.prompts[place].read(scanner);
        }
        let value = scanner.skip(1)?;
        let word = &scanner.data[value.clone()];
        let given = (word != b"null").then_some(value);
        if let Some(place) = CHAT_FIELDS.iter().position(|name| name.as_bytes() == key) {
            self.request.chat[place] = given;
        } else if let Some(place) = place(&ATTACHED) {
            self.request.attached.resize(ATTACHED.len(), None);
            self.request.attached[place] = given.filter(|_| word != b"[]" && word != b"{}");
        } else if let Some(place) = place(&EMBEDDINGS) {
            self.has_embeddings[place] = given.is_some();
        } else if key == b"add_special_tokens" {
            self.request.add_special_tokens = given.map(|_| word == b"true");
        }
        Ok(())
    }

    fn messages(&mut self, scanner: &mut Scanner<'_>) -> Result<(), PromptError> {
        let start = scanner.at;
        self.request.media.clear();
        self.request.messages = None;
        self.messages = None;
        if scanner.peek() == b'[' {
            self.messages = Some(scanner.messages(&mut self.request.media)?);
            self.request.messages = Some(start..scanner.at);
            return Ok(());
        }
        let value = scanner.skip(1)?;
        self.ignore(scanner, &value, start, "messages", "an array");
        Ok(())
    }

    /// Go through the members of an object in a field; another value is passed over.
    fn nested(
        &mut self,
        scanner: &mut Scanner<'_>,
        mut member: impl FnMut(&mut Self, &mut Scanner<'_>, &[u8]) -> Result<(), PromptError>,
    ) -> Result<(), PromptError> {
        if scanner.peek() != b'{' {
            return scanner.skip(1).map(drop);
        }
        scanner.object(|scanner, key| {
            let key = unescape(std::str::from_utf8(&scanner.data[key]).expect("the body was checked"));
            member(self, scanner, key.as_bytes())
        })
    }

    fn flag(
        &mut self,
        scanner: &mut Scanner<'_>,
        field: &'static str,
        flag: impl FnOnce(&mut Request) -> &mut bool,
    ) -> Result<(), PromptError> {
        let offset = scanner.at;
        let value = scanner.skip(2)?;
        let word = &scanner.data[value.clone()];
        *flag(&mut self.request) = word == b"true";
        if word != b"true" && word != b"false" {
            self.ignore(scanner, &value, offset, field, "true or false");
        }
        Ok(())
    }

    fn limit(&mut self, scanner: &mut Scanner<'_>, place: usize, field: &'static str) -> Result<(), PromptError> {
        let offset = scanner.at;
        let value = scanner.skip(2)?;
        let word = std::str::from_utf8(&scanner.data[value.clone()]).expect("the body was checked");
        self.limits[place] = word.parse().ok();
        if self.limits[place].is_none() {
            self.ignore(scanner, &value, offset, field, "a count of tokens");
        }
        Ok(())
    }

    /// Note a value of the wrong type; null is as good as none.
    fn ignore(
        &mut self,
        scanner: &Scanner<'_>,
        value: &Span,
        offset: usize,
        field: &'static str,
        expected: &'static str,
    ) {
        /// More of them say nothing new.
        const MOST: usize = 16;
        if &scanner.data[value.clone()] != b"null" && self.request.ignored.len() < MOST {
            self.request.ignored.push(Ignored {
                field,
                expected,
                offset,
            });
        }
    }

    fn finish(mut self) -> Request {
        let [prompts @ .., input] = &mut self.prompts;
        let has_messages = self.messages.is_some();
        let given = prompts.iter().filter(|field| field.is_given()).count() + usize::from(has_messages);
        let field = match given {
            0 => Some(input).filter(|input| input.is_given()),
            _ => prompts.iter_mut().find(|field| field.is_given()),
        };
        let request = &mut self.request;
        request.is_embedding = given == 0 && field.is_some();
        request.max_tokens = self.limits.into_iter().flatten().next();
        request.prompts = 1;
        if given > 1 {
            request.unread = Some(Unread::Several);
        } else if self.has_embeddings.contains(&true) {
            request.unread = Some(Unread::Embeddings);
        } else if has_messages {
            request.source = Source::Chat;
            request.unread = (self.messages == Some(0)).then_some(Unread::Empty);
        } else if let Some(field) = field {
            request.prompts = field.prompts;
            match &field.form {
                Form::Ids => {
                    request.source = Source::Ids;
                    request.tokens = std::mem::take(&mut field.ids);
                }
                Form::Text(text) => {
                    request.source = Source::Text;
                    request.unread = text.is_empty().then_some(Unread::Empty);
                    request.text = Some(text.clone());
                }
                Form::Empty => request.unread = Some(Unread::Empty),
                Form::Other(value) => {
                    request.unread = Some(Unread::Form(value.start));
                    request.other = Some(value.clone());
                }
                Form::Absent => {}
            }
        } else {
            request.unread = Some(Unread::Missing);
        }
        self.request
    }
}

impl Field {
    fn is_given(&self) -> bool {
        !matches!(self.form, Form::Absent)
    }

    /// One prompt or several: text, or ids.
    fn read(&mut self, scanner: &mut Scanner<'_>) -> Result<(), PromptError> {
        self.prompts = 1;
        self.form = match scanner.peek() {
            b'"' => Form::Text(scanner.string()?),
            b'[' => match after_bracket(scanner) {
                b'"' | b'[' => return self.several(scanner),
                b']' => {
                    scanner.skip(1)?;
                    Form::Empty
                }
                b'{' => Form::Other(scanner.skip(1)?),
                _ => {
                    scanner.ids(&mut self.ids)?;
                    Form::Ids
                }
            },
            _ => {
                let value = scanner.skip(1)?;
                match &scanner.data[value.clone()] {
                    b"null" => Form::Absent,
                    _ => Form::Other(value),
                }
            }
        };
        Ok(())
    }

    /// Several prompts: the first is the one to go by, the others are counted.
    fn several(&mut self, scanner: &mut Scanner<'_>) -> Result<(), PromptError> {
        let mut prompts = 0;
        let mut form = Form::Empty;
        scanner.array(|scanner| {
            prompts += 1;
            if prompts > 1 {
                return scanner.skip(2).map(drop);
            }
            form = match scanner.peek() {
                b'"' => Form::Text(scanner.string()?),
                _ => match after_bracket(scanner) {
                    b']' => {
                        scanner.skip(2)?;
                        Form::Empty
                    }
                    b'"' | b'{' | b'[' => Form::Other(scanner.skip(2)?),
                    _ => {
                        scanner.ids(&mut self.ids)?;
                        Form::Ids
                    }
                },
            };
            Ok(())
        })?;
        self.prompts = prompts;
        self.form = form;
        Ok(())
    }
}

/// The first byte of the first element of the array that begins here.
fn after_bracket(scanner: &Scanner<'_>) -> u8 {
    let mut inside = Scanner {
        data: scanner.data,
        at: scanner.at + 1,
    };
    inside.space();
    inside.peek()
}

/// The first text of an array, as SGLang takes adapters for several prompts.
fn first_text(scanner: &mut Scanner<'_>, text: &mut Option<Span>) -> Result<(), PromptError> {
    *text = None;
    let mut is_first = true;
    scanner.array(|scanner| {
        if std::mem::take(&mut is_first) && scanner.peek() == b'"' {
            *text = Some(scanner.string()?);
            return Ok(());
        }
        scanner.skip(2).map(drop)
    })
}
