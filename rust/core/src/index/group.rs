//! The KV cache groups of a hybrid model: which of them say what a prefix is worth.

/// Groups that one source may have; residency holds a bit for each.
pub const MAX_GROUPS: usize = 32;

/// What a group's blocks are needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Every block of the prefix is needed: these blocks count for `total`.
    Full,
    /// Only the last so many tokens are needed; None: a window whose length was never said.
    Window(Option<u64>),
    /// Only a checkpoint at the prefix's end is needed (state-space layers).
    State,
    /// Not known: never counts as full attention, and puts no limit on `usable`.
    Unknown,
}

impl Kind {
    /// Read the name of a kind, as vLLM or our own caches write it.
    pub fn read(name: &str, window: Option<u64>) -> Self {
        match name {
            "full_attention" | "mla_attention" | "sink_full_attention" | "full" => Self::Full,
            "sliding_window" | "sliding_window_mla" => Self::Window(window),
            "mamba" => Self::State,
            _ => Self::Unknown,
        }
    }

    /// One name that reads back as it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full_attention",
            Self::Window(_) => "sliding_window",
            Self::State => "mamba",
            Self::Unknown => "unknown",
        }
    }
}

/// A group as events number it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// `group_idx` on the wire, 0 where there is none.
    pub index: u64,
    /// The kind, once an event or the caller has said it.
    pub stated: Option<Kind>,
}

impl Group {
    /// The kind that counts: before any was stated, group 0 is full attention (engines without groups).
    pub fn kind(self) -> Kind {
        match self.stated {
            Some(kind) => kind,
            None if self.index == 0 => Kind::Full,
            None => Kind::Unknown,
        }
    }
}

/// What `usable` asks of a group besides full attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Dense number of the group.
    pub group: u8,
    /// Blocks before the prefix's end that the group must hold.
    pub blocks: usize,
}

/// The groups of one source, under dense numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups(Vec<Group>);

impl Groups {
    /// Groups that the caller declared.
    pub fn new(declared: Vec<Group>) -> Self {
        Self(declared)
    }

    /// All groups by dense number.
    pub fn all(&self) -> &[Group] {
        &self.0
    }

    /// The dense number of a group that is known.
    pub fn find(&self, index: u64) -> Option<u8> {
        self.0
            .iter()
            .position(|group| group.index == index)
            .map(|place| place as u8)
    }

    /// The dense number of a group, known from now on, and whether what counts as full attention has changed by it.
    /// None when there are too many groups.
    pub fn learn(&mut self, index: u64, stated: Option<Kind>) -> Option<(u8, bool)> {
        let place = match self.find(index) {
            Some(place) => place,
            None if self.0.len() == MAX_GROUPS => return None,
            None => {
                self.0.push(Group { index, stated: None });
                self.0.len() as u8 - 1
            }
        };
        let group = &mut self.0[usize::from(place)];
        let was_full = group.kind() == Kind::Full;
        group.stated = stated.or(group.stated);
        Some((place, was_full != (group.kind() == Kind::Full)))
    }

    /// The kind of a group.
    pub fn kind(&self, group: u8) -> Kind {
        self.0[usize::from(group)].kind()
    }

    /// Full-attention groups, a bit each.
    pub fn full(&self) -> u32 {
        self.0
            .iter()
            .enumerate()
            .filter(|(_, group)| group.kind() == Kind::Full)
            .fold(0, |bits, (place, _)| bits | 1 << place)
    }

    /// What the other groups need at a prefix's end, in blocks of `block_size` tokens.
    pub fn needs(&self, block_size: u64) -> Vec<Need> {
        let need = |group: Group| match group.kind() {
            Kind::Full | Kind::Unknown => None,
            Kind::State => Some(1),
            Kind::Window(None) => Some(usize::MAX),
            Kind::Window(Some(tokens)) => Some(tokens.saturating_sub(1).div_ceil(block_size) as usize),
        };
        (0..)
            .zip(&self.0)
            .filter_map(|(place, &group)| need(group).map(|blocks| Need { group: place, blocks }))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_zero_is_full_attention_until_a_kind_says_otherwise() {
        let mut groups = Groups::default();
        assert_eq!(groups.learn(0, None), Some((0, false)));
        assert_eq!(groups.learn(1, None), Some((1, false)));
        assert_eq!(groups.full(), 0b01);
        assert_eq!(groups.learn(0, Some(Kind::Window(Some(64)))), Some((0, true)));
        assert_eq!(groups.learn(1, Some(Kind::Full)), Some((1, true)));
        assert_eq!(groups.learn(1, None), Some((1, false)));
        assert_eq!(groups.full(), 0b10);
        assert_eq!(groups.needs(32), [Need { group: 0, blocks: 2 }]);
    }

    #[test]
    fn kinds_that_are_not_known_count_for_nothing() {
        assert_eq!(Kind::read("chunked_local_attention", None), Kind::Unknown);
        assert_eq!(Kind::read("mla_attention", None), Kind::Full);
        let groups = Groups::new(vec![Group {
            index: 3,
            stated: Some(Kind::Unknown),
        }]);
        assert_eq!((groups.full(), groups.needs(16).len()), (0, 0));
    }

    #[test]
    fn groups_are_bounded() {
        let mut groups = Groups::default();
        assert!((0..32).all(|index| groups.learn(index, None).is_some()));
        assert_eq!(groups.learn(32, None), None);
        assert!(groups.learn(31, None).is_some());
    }
}
