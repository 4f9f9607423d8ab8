//! Where a block is held: four tiers, whatever the engine calls them.

/// A tier, fastest first.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// The engine's own GPU.
    Gpu,
    /// Host memory.
    Cpu,
    /// Local disk or file system.
    Disk,
    /// Object store, or any tier of another host.
    External,
}

impl Tier {
    /// All tiers, fastest first.
    pub const ALL: [Self; 4] = [Self::Gpu, Self::Cpu, Self::Disk, Self::External];

    /// The name in every answer, as SGLang writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpu => "GPU",
            Self::Cpu => "CPU_PINNED",
            Self::Disk => "DISK",
            Self::External => "EXTERNAL",
        }
    }
}

/// Names that engines use.
const NAMES: [(&str, Tier); 8] = [
    ("GPU", Tier::Gpu),
    ("CPU_PINNED", Tier::Cpu),
    ("CPU", Tier::Cpu),
    ("DISK", Tier::Disk),
    ("STORAGE", Tier::Disk),
    ("FS", Tier::Disk),
    ("EXTERNAL", Tier::External),
    ("OBJ", Tier::External),
];

/// What an event says about the tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// A tier that is known.
    Known(Tier),
    /// Nothing: formats older than tiers.
    Unstated,
    /// A name that is not known.
    Unknown,
}

impl Medium {
    /// Read an event's `medium` and `locality`, without regard to case. `locality: REMOTE` makes any tier `External`.
    pub fn read(medium: Option<&str>, locality: Option<&str>) -> Self {
        if locality.is_some_and(|locality| locality.eq_ignore_ascii_case("REMOTE")) {
            return Self::Known(Tier::External);
        }
        let Some(medium) = medium else { return Self::Unstated };
        NAMES
            .iter()
            .find(|(name, _)| medium.eq_ignore_ascii_case(name))
            .map_or(Self::Unknown, |&(_, tier)| Self::Known(tier))
    }
}

/// A set of tiers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tiers(u8);

impl Tiers {
    /// Every tier.
    pub const ALL: Self = Self(0b1111);

    /// Add a tier.
    pub fn insert(&mut self, tier: Tier) {
        self.0 |= 1 << tier as u8;
    }

    /// Whether the tier is in it.
    pub fn contains(self, tier: Tier) -> bool {
        self.0 & (1 << tier as u8) != 0
    }

    /// The fastest one.
    pub fn fastest(self) -> Option<Tier> {
        Tier::ALL.into_iter().find(|&tier| self.contains(tier))
    }

    /// Those in both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Those in either.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_without_case_and_a_remote_copy_is_external() {
        assert_eq!(Medium::read(Some("cpu"), None), Medium::Known(Tier::Cpu));
        assert_eq!(Medium::read(Some("CPU_PINNED"), None), Medium::Known(Tier::Cpu));
        assert_eq!(Medium::read(Some("Fs"), Some("LOCAL")), Medium::Known(Tier::Disk));
        assert_eq!(Medium::read(Some("obj"), None), Medium::Known(Tier::External));
        assert_eq!(Medium::read(Some("GPU"), Some("remote")), Medium::Known(Tier::External));
        assert_eq!(Medium::read(None, None), Medium::Unstated);
        assert_eq!(Medium::read(Some("TAPE"), None), Medium::Unknown);
        assert_eq!(Medium::read(Some(""), None), Medium::Unknown);
    }
}
