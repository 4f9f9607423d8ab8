//! Images and the like: what is told apart by its bytes, and is too long to be carried along.

use std::borrow::Cow;

use xxhash_rust::xxh3::Xxh3;

use super::error::PromptError;
use super::scanner::{Scanner, Span};

/// Parts of a message that hold media, by their key.
const MEDIA: [&[u8]; 10] = [
    b"image_url",
    b"image",
    b"input_image",
    b"image_embeds",
    b"input_audio",
    b"audio_url",
    b"audio",
    b"video_url",
    b"video",
    b"file",
];

/// A text of that many bytes is replaced by its digest, which is shorter.
const LONG: usize = 64;

/// How deep the value of a media key is in a body.
const DEPTH: usize = 6;

impl Scanner<'_> {
    /// Go past the messages that begin here; the texts of media in them, long ones only, go into `media`.
    pub(super) fn messages(&mut self, media: &mut Vec<Span>) -> Result<usize, PromptError> {
        let mut count = 0;
        self.array(|scanner| {
            count += 1;
            if scanner.peek() != b'{' {
                return scanner.skip(2).map(drop);
            }
            scanner.object(|scanner, key| {
                if &scanner.data[key] != b"content" || scanner.peek() != b'[' {
                    return scanner.skip(3).map(drop);
                }
                scanner.array(|scanner| {
                    if scanner.peek() != b'{' {
                        return scanner.skip(4).map(drop);
                    }
                    scanner.object(|scanner, key| {
                        if MEDIA.contains(&&scanner.data[key]) {
                            scanner.media(media)
                        } else {
                            scanner.skip(5).map(drop)
                        }
                    })
                })
            })
        })?;
        Ok(count)
    }

    fn media(&mut self, media: &mut Vec<Span>) -> Result<(), PromptError> {
        match self.peek() {
            b'"' => self.long_text(media),
            b'{' => self.object(|scanner, _| match scanner.peek() {
                b'"' => scanner.long_text(media),
                _ => scanner.skip(DEPTH).map(drop),
            }),
            _ => self.skip(DEPTH - 1).map(drop),
        }
    }

    fn long_text(&mut self, media: &mut Vec<Span>) -> Result<(), PromptError> {
        let text = self.string()?;
        if text.len() >= LONG {
            media.push(text);
        }
        Ok(())
    }
}

/// Part of a body, with the texts of media in it replaced by digests.
pub(super) fn lean<'a>(body: &'a [u8], part: &Span, media: &[Span]) -> Cow<'a, [u8]> {
    if media.is_empty() {
        return Cow::Borrowed(&body[part.clone()]);
    }
    let mut out = Vec::with_capacity(part.len().min(1 << 16));
    let mut at = part.start;
    for text in media {
        out.extend_from_slice(&body[at..text.start]);
        out.extend_from_slice(digest(&[&body[text.clone()]]).as_bytes());
        at = text.end;
    }
    out.extend_from_slice(&body[at..part.end]);
    Cow::Owned(out)
}

/// What tells bytes apart: XXH3 of 128 bits, in hexadecimal digits after a word that says so.
pub(super) fn digest(parts: &[&[u8]]) -> String {
    let mut hash = Xxh3::new();
    for part in parts {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    format!("xxh3:{:032x}", hash.digest128())
}
