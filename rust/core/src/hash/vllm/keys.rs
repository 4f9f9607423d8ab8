//! What identifies a block beside its tokens, as it enters the hash.

use super::{Encode, Encoder};

/// How extra keys enter a hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyForm {
    /// As tuples that begin with what they are: since vLLM 0.31.
    #[default]
    Tagged,
    /// As they are: before 0.31.
    Bare,
}

impl KeyForm {
    /// Every form, by the name users know.
    pub const NAMES: [(&str, Self); 2] = [("tagged", Self::Tagged), ("bare", Self::Bare)];
}

/// What the tokens are run through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adapter<'a> {
    /// By name.
    Name {
        /// Its name.
        name: &'a str,
        /// Where it was loaded from; not on the wire, and not in the bare form.
        path: &'a str,
    },
    /// By number: vLLM before 0.11, bare in any form.
    Number(i64),
}

/// Another key of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtraKey<'a> {
    /// An image, or other input that is not text.
    Image {
        /// Its hash.
        id: &'a str,
        /// Where it begins, from the start of the block; early versions leave it out.
        offset: Option<i64>,
    },
    /// The digest of the block's prompt embeddings.
    Embeddings(&'a [u8]),
}

/// A block's own extra keys in the form that enters its hash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageKeys {
    pub(super) images: Vec<Item>,
    pub(super) embeddings: Vec<Item>,
}

impl PageKeys {
    pub(super) fn new(form: KeyForm, keys: &[ExtraKey<'_>]) -> Option<Self> {
        let mut page = Self::default();
        for key in keys {
            match *key {
                ExtraKey::Image { id, offset } => page.images.push(Item::image(form, id, offset)?),
                ExtraKey::Embeddings(digest) => page.embeddings.push(Item::embeddings(form, digest)),
            }
        }
        Some(page)
    }
}

/// A Python value inside of extra keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Item {
    Literal(&'static str),
    Text(Box<str>),
    Bytes(Box<[u8]>),
    Int(i64),
    Tuple(Vec<Item>),
}

impl Item {
    pub fn adapter(form: KeyForm, adapter: Adapter<'_>) -> Self {
        match (form, adapter) {
            (KeyForm::Tagged, Adapter::Name { name, path }) => Self::Tuple(vec![
                Self::Literal("lora"),
                Self::Text(name.into()),
                Self::Text(path.into()),
            ]),
            (KeyForm::Bare, Adapter::Name { name, .. }) => Self::Text(name.into()),
            (_, Adapter::Number(id)) => Self::Int(id),
        }
    }

    pub fn salt(form: KeyForm, salt: &str) -> Self {
        let salt = Self::Text(salt.into());
        match form {
            KeyForm::Tagged => Self::Tuple(vec![Self::Literal("cache_salt"), salt]),
            KeyForm::Bare => salt,
        }
    }

    fn image(form: KeyForm, id: &str, offset: Option<i64>) -> Option<Self> {
        let id = Self::Text(id.into());
        match (form, offset) {
            (KeyForm::Tagged, Some(offset)) => Some(Self::Tuple(vec![Self::Literal("mm"), id, Self::Int(offset)])),
            (KeyForm::Tagged, None) => None,
            (KeyForm::Bare, Some(offset)) => Some(Self::Tuple(vec![id, Self::Int(offset)])),
            (KeyForm::Bare, None) => Some(id),
        }
    }

    fn embeddings(form: KeyForm, digest: &[u8]) -> Self {
        let digest = Self::Bytes(digest.into());
        match form {
            KeyForm::Tagged => Self::Tuple(vec![Self::Literal("prompt_embeds"), digest]),
            KeyForm::Bare => digest,
        }
    }
}

impl Encode for Item {
    fn encode(&self, encoder: &mut impl Encoder) {
        match self {
            Self::Literal(text) => encoder.literal(text),
            Self::Text(text) => encoder.text(text),
            Self::Bytes(bytes) => encoder.bytes(bytes),
            Self::Int(value) => encoder.int(*value),
            Self::Tuple(items) => {
                encoder.open(items.len());
                for item in items {
                    item.encode(encoder);
                }
                encoder.close(items.len());
            }
        }
    }
}
