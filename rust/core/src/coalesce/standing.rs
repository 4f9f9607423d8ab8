//! Where a store or a removal says that blocks are, for counting and cancelling.

use crate::index::{Medium, Tier};

/// A tier and a cache group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    /// The tier.
    pub tier: Tier,
    /// The group, 0 where there is none.
    pub group: u16,
}

/// Where an event says that blocks are, or are no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// In one tier.
    In(Place),
    /// In a group, and no tier is named: stores are on the GPU, removals are of one copy there and of whatever else
    /// consumers think.
    Unstated(u16),
    /// In a tier whose name is not known: consumers differ.
    Unknown,
}

impl Scope {
    /// Read an event's fields.
    pub fn read(medium: Option<&str>, locality: Option<&str>, group_idx: Option<u64>) -> Self {
        let Ok(group) = u16::try_from(group_idx.unwrap_or(0)) else {
            return Self::Unknown;
        };
        match Medium::read(medium, locality) {
            Medium::Known(tier) => Self::In(Place { tier, group }),
            Medium::Unstated => Self::Unstated(group),
            Medium::Unknown => Self::Unknown,
        }
    }

    /// The place that surely is meant, by a store as by a removal.
    pub fn place(self) -> Option<Place> {
        match self {
            Self::In(place) => Some(place),
            Self::Unstated(group) => Some(Place { tier: Tier::Gpu, group }),
            Self::Unknown => None,
        }
    }
}

/// What counting and cancelling need to know of a store or a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Where the blocks are, or are no more.
    pub scope: Scope,
    /// Of a store: each block has its tokens, so that it can be shortened.
    pub aligned: bool,
    /// Of a store: it says what the blocks hold.
    pub has_tokens: bool,
}
