//! What was found in a batch: one finding a kind, with its first place and how often.

/// What does not hold. The names are what the Python side knows each by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// An event of a type that is not known.
    UnknownTag,
    /// An event that cannot be used: wrong types, missing fields, over a limit.
    UnusableEvent,
    /// Values that are not known: fields of maps, elements of arrays behind the last known one.
    UnknownField,
    /// A store or removal that names no block.
    NoBlocks,
    /// A parent that was never announced, in a stream that was seen from its beginning.
    OrphanParent,
    /// The same in a stream that was not: it may have been announced before.
    UnseenParent,
    /// A parent that was announced, and is not held any more.
    ParentGone,
    /// A parent that is announced later in the same batch.
    ParentLater,
    /// A removal of a block that was never announced, in a stream that was seen from its beginning.
    RemovedUnknown,
    /// The same in a stream that was not.
    RemovedUnseen,
    /// A removal of a block that is not held there any more.
    RemovedAgain,
    /// A store of a block that is held there.
    StoredAgain,
    /// Tokens that are not as many as the blocks take.
    TokenCount,
    /// A last block with fewer tokens than a block takes.
    PartialBlock,
    /// More tokens than the blocks take, in a group that keeps some blocks of a range only.
    MaskedStore,
    /// A store on the GPU without tokens.
    NoTokens,
    /// A store in a lower tier without tokens.
    NoTokensBelow,
    /// A block size other than before, or than the engine said.
    BlockSize,
    /// A store of a group whose kind no event has said.
    GroupWithoutKind,
    /// A tier of an unknown name.
    UnknownTier,
    /// Everything is gone.
    Cleared,
}

impl Kind {
    /// Its stable name.
    pub fn name(self) -> &'static str {
        match self {
            Self::UnknownTag => "unknown-tag",
            Self::UnusableEvent => "unusable-event",
            Self::UnknownField => "unknown-field",
            Self::NoBlocks => "no-blocks",
            Self::OrphanParent => "orphan-parent",
            Self::UnseenParent => "unseen-parent",
            Self::ParentGone => "parent-gone",
            Self::ParentLater => "parent-later",
            Self::RemovedUnknown => "removed-unknown",
            Self::RemovedUnseen => "removed-unseen",
            Self::RemovedAgain => "removed-again",
            Self::StoredAgain => "stored-again",
            Self::TokenCount => "token-count",
            Self::PartialBlock => "partial-block",
            Self::MaskedStore => "masked-store",
            Self::NoTokens => "no-tokens",
            Self::NoTokensBelow => "no-tokens-below",
            Self::BlockSize => "block-size",
            Self::GroupWithoutKind => "group-without-kind",
            Self::UnknownTier => "unknown-tier",
            Self::Cleared => "cleared",
        }
    }
}

/// All of one kind in one batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What does not hold.
    pub kind: Kind,
    /// Where the first event with it begins in the payload.
    pub offset: usize,
    /// Events with it.
    pub events: u64,
    /// Blocks (or values, for fields) that are concerned.
    pub blocks: u64,
    /// One of those blocks.
    pub block: Option<u64>,
    /// What was expected and what came, in the first event.
    pub detail: Option<String>,
}

/// The findings of a batch, by kind.
#[derive(Debug, Default)]
pub(super) struct Findings(Vec<Finding>);

impl Findings {
    /// Note that an event has it.
    pub fn note(&mut self, kind: Kind, offset: usize, blocks: u64, block: Option<u64>) -> &mut Finding {
        let at = self.0.iter().position(|finding| finding.kind == kind);
        let at = at.unwrap_or_else(|| {
            self.0.push(Finding {
                kind,
                offset,
                events: 0,
                blocks: 0,
                block,
                detail: None,
            });
            self.0.len() - 1
        });
        let finding = &mut self.0[at];
        finding.events += 1;
        finding.blocks += blocks;
        finding
    }

    /// The same with words for the first.
    pub fn explain(&mut self, kind: Kind, offset: usize, blocks: u64, detail: impl FnOnce() -> String) {
        let finding = self.note(kind, offset, blocks, None);
        if finding.events == 1 {
            finding.detail = Some(detail());
        }
    }

    /// Take them, by kind.
    pub fn take(&mut self) -> Vec<Finding> {
        self.0.sort_by_key(|finding| finding.kind);
        std::mem::take(&mut self.0)
    }
}
