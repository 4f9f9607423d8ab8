//! Names on the wire: the fields of events, their types, the keys of frames.

macro_rules! fields {
    ($($(#[$doc:meta])* $field:ident = $name:literal,)*) => {
        /// A field of an event.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Field {
            $($(#[$doc])* $field,)*
        }

        impl Field {
            /// All of them, in the order of the Python class.
            pub const ALL: &[Self] = &[$(Self::$field,)*];

            /// Its name on the wire and in Python.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$field => $name,)*
                }
            }

            /// The field of that name.
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$field),)*
                    _ => None,
                }
            }
        }
    };
}

fields! {
    /// Hashes of the blocks.
    BlockHashes = "block_hashes",
    /// Hash of the block above the first.
    ParentBlockHash = "parent_block_hash",
    /// Tokens of the blocks.
    TokenIds = "token_ids",
    /// Tokens in a block.
    BlockSize = "block_size",
    /// Number of the adapter.
    LoraId = "lora_id",
    /// Tier.
    Medium = "medium",
    /// Salt of the tenant, in SGLang.
    CacheSalt = "cache_salt",
    /// Attribution.
    SessionId = "session_id",
    /// Name of the adapter.
    LoraName = "lora_name",
    /// What else enters each block's hash, in vLLM.
    ExtraKeys = "extra_keys",
    /// Cache group of a hybrid model.
    GroupIdx = "group_idx",
    /// Kind of that group.
    KvCacheSpecKind = "kv_cache_spec_kind",
    /// Its window in tokens.
    KvCacheSpecSlidingWindow = "kv_cache_spec_sliding_window",
    /// Whether the block is on this host.
    Locality = "locality",
    /// Who owns the copy.
    Ownership = "ownership",
    /// The map with the salt in SGLang's earlier form.
    Metadata = "metadata",
}

/// The key of the tag in events of the map shape.
pub const TYPE: &str = "type";

/// Under which name batches of the map shape carry the rank: SGLang, vLLM, other publishers.
pub const RANK_KEYS: [&str; 3] = ["attn_dp_rank", "data_parallel_rank", "dp_rank"];

/// The type of an event, as its tag says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tag {
    /// Blocks are held now.
    BlockStored,
    /// The same in SGLang's earlier form, whose class has this name; on the wire it is tagged `BlockStored`.
    BlockStoredWithMetadata,
    /// Blocks are held no more.
    BlockRemoved,
    /// Nothing is held any more.
    AllBlocksCleared,
}

impl Tag {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::BlockStored,
        Self::BlockStoredWithMetadata,
        Self::BlockRemoved,
        Self::AllBlocksCleared,
    ];

    /// Its name in Python.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BlockStored => "BlockStored",
            Self::BlockStoredWithMetadata => "BlockStoredWithMetadata",
            Self::BlockRemoved => "BlockRemoved",
            Self::AllBlocksCleared => "AllBlocksCleared",
        }
    }

    /// Its name on the wire.
    pub const fn wire_name(self) -> &'static str {
        self.plain().name()
    }

    /// The tag of that name; the class name of the earlier form is understood too.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tag| tag.name() == name)
    }

    /// The tag without SGLang's earlier form.
    #[must_use]
    pub const fn plain(self) -> Self {
        match self {
            Self::BlockStoredWithMetadata => Self::BlockStored,
            other => other,
        }
    }

    /// Every field that an event of this type can have in any dialect, in the order of the Python class.
    pub const fn fields(self) -> &'static [Field] {
        match self {
            Self::BlockStored | Self::BlockStoredWithMetadata => Field::ALL,
            Self::BlockRemoved => &[
                Field::BlockHashes,
                Field::Medium,
                Field::GroupIdx,
                Field::Locality,
                Field::Ownership,
            ],
            Self::AllBlocksCleared => &[],
        }
    }

    /// The field of that name, if an event of this type can have it.
    pub fn field(self, name: &str) -> Option<Field> {
        Field::from_name(name).filter(|field| self.fields().contains(field))
    }
}
