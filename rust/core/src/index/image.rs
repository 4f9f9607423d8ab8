//! Workers and their sources in the form that snapshots have, with the blocks that have no place.

use std::time::Duration;

use super::geometry::Geometry;
use super::group::{Group, Groups, Kind, MAX_GROUPS};
use super::pack::{Pack, Reader, SnapshotError};
use super::record::{Kept, Link, Parked, Pending, RECORD_BYTES, Record};
use super::residency::{Hold, MAX_COPIES, Residency};
use super::source::{Setup, Source};
use super::tier::{Tier, Tiers};
use super::worker::Worker;

/// A worker in a snapshot.
#[derive(Debug)]
pub struct WorkerImage {
    /// Its id.
    pub id: String,
    block_size: Option<u32>,
    counted: bool,
    groups: Groups,
    /// Its ranks.
    pub sources: Vec<SourceImage>,
}

/// A source in a snapshot.
#[derive(Debug)]
pub struct SourceImage {
    /// Its rank.
    pub dp_rank: Option<i64>,
    last_seq: Option<u64>,
    /// How its engine cuts tokens, once known.
    pub geometry: Option<Geometry>,
    tried: Vec<u64>,
    groups: Groups,
    error: Option<String>,
    records: Vec<(u64, Record)>,
}

impl WorkerImage {
    /// The image of a worker and its ranks.
    pub fn of<'a>(worker: &Worker, ranks: impl Iterator<Item = (Option<i64>, &'a Source)>) -> Self {
        Self {
            id: worker.id.to_string(),
            block_size: worker.setup.block_size,
            counted: worker.setup.counted,
            groups: worker.setup.groups.clone(),
            sources: ranks.map(|(rank, source)| SourceImage::of(rank, source)).collect(),
        }
    }

    /// How it is set up.
    pub fn setup(&self) -> Setup {
        Setup {
            block_size: self.block_size,
            counted: self.counted,
            groups: self.groups.clone(),
            keep_tokens: false,
        }
    }
}

impl SourceImage {
    fn of(dp_rank: Option<i64>, source: &Source) -> Self {
        let mut records: Vec<_> = source
            .records
            .iter()
            .map(|(&block, record)| (block, record.clone()))
            .collect();
        records.sort_unstable_by_key(|(block, _)| *block);
        Self {
            dp_rank,
            last_seq: source.last_seq,
            geometry: source.geometry,
            tried: source.tried.clone(),
            groups: source.groups.clone(),
            error: source.error.clone(),
            records,
        }
    }

    /// Every group that a residency names must be one of the source's.
    pub fn check(&self, residency: &Residency, reader: &Reader<'_>) -> Result<(), SnapshotError> {
        let groups = self.groups.all().len();
        match residency.holds().iter().find(|hold| usize::from(hold.group) >= groups) {
            None => Ok(()),
            Some(hold) => Err(reader.error(format!(
                "expected one of {groups} groups before here, found {}",
                hold.group
            ))),
        }
    }

    /// Fill an empty source, but for the blocks that have a place.
    pub fn fill(&self, source: &mut Source, now: Duration) {
        source.last_seq = self.last_seq;
        source.geometry = self.geometry;
        source.tried.clone_from(&self.tried);
        source.groups = self.groups.clone();
        source.error.clone_from(&self.error);
        for (block, record) in &self.records {
            match &record.link {
                Link::Loose(None) | Link::Partial => {}
                Link::Loose(Some(guest)) => {
                    source.parked.enter_with(guest.ticket, *block, RECORD_BYTES, now);
                    source.unaligned += usize::from(guest.unaligned);
                }
                Link::Pending(pending) => {
                    let bytes = RECORD_BYTES + pending.kept.size_bytes();
                    let room = source.room(pending.parked);
                    room.enter_with(pending.ticket, *block, bytes, now);
                    source.waiting.entry(pending.parent).or_default().insert(*block);
                }
            }
            source.count(Tiers::default(), record.residency.tiers(source.groups.full()));
            source.records.insert(*block, record.clone());
        }
    }
}

impl Pack for WorkerImage {
    fn pack(&self, bytes: &mut Vec<u8>) {
        self.id.pack(bytes);
        self.block_size.pack(bytes);
        self.counted.pack(bytes);
        self.groups.pack(bytes);
        self.sources.pack(bytes);
    }

    fn unpack(reader: &mut Reader<'_>) -> Result<Self, SnapshotError> {
        Ok(Self {
            id: Pack::unpack(reader)?,
            block_size: Pack::unpack(reader)?,
            counted: Pack::unpack(reader)?,
            groups: Pack::unpack(reader)?,
            sources: Pack::unpack(reader)?,
        })
    }
}

impl Pack for SourceImage {
    fn pack(&self, bytes: &mut Vec<u8>) {
        self.dp_rank.pack(bytes);
        self.last_seq.pack(bytes);
        self.geometry.pack(bytes);
        self.tried.pack(bytes);
        self.groups.pack(bytes);
        self.error.pack(bytes);
        self.records.pack(bytes);
    }

    fn unpack(reader: &mut Reader<'_>) -> Result<Self, SnapshotError> {
        let image = Self {
            dp_rank: Pack::unpack(reader)?,
            last_seq: Pack::unpack(reader)?,
            geometry: Pack::unpack(reader)?,
            tried: Pack::unpack(reader)?,
            groups: Pack::unpack(reader)?,
            error: Pack::unpack(reader)?,
            records: Pack::unpack(reader)?,
        };
        let mut residencies = image.records.iter().map(|(_, record)| &record.residency);
        residencies.try_for_each(|residency| image.check(residency, reader))?;
        Ok(image)
    }
}

impl Pack for Geometry {
    fn pack(&self, bytes: &mut Vec<u8>) {
        self.block_size.pack(bytes);
        self.pairs.pack(bytes);
    }

    fn unpack(reader: &mut Reader<'_>) -> Result<Self, SnapshotError> {
        let (block_size, pairs) = <(u32, bool)>::unpack(reader)?;
        if block_size == 0 {
            return Err(reader.error("expected a block size of at least 1 before here, found 0"));
        }
        Ok(Self { block_size, pairs })
    }
}

impl Pack for Groups {
    fn pack(&self, bytes: &mut Vec<u8>) {
        let groups: Vec<_> = self.all().iter().map(|group| (group.index, group.stated)).collect();
        groups.pack(bytes);
    }

    fn unpack(reader: &mut Reader<'_>) -> Result<Self, SnapshotError> {
        let groups = Vec::<(u64, Option<Kind>)>::unpack(reader)?;
        if groups.len() > MAX_GROUPS {
            return Err(reader.error(format!(
                "expected at most {MAX_GROUPS} groups before here, found {}",
                groups.len()
            )));
        }
        let groups = groups.into_iter().map(|(index, stated)| Group { index, stated });
        Ok(Self::new(groups.collect()))
    }
}

impl Pack for Kind {
    fn pack(&self, bytes: &mut Vec<u8>) {
        let (tag, window) = match *self {
            Self::Full => (0_u8, None),
            Self::Window(window) => (1, window),
            Self::State => (2, None),
            Self::Unknown => (3, None),
        };
        (tag, window).pack(bytes);
    }

    fn unpack(reader: &mut Reader<'_>) -> Result<Self, SnapshotError> {
        match <(u8, Option<u64>)>::unpack(reader)? {
            (0, _) => Ok(Self::Full),
            (1, window) => Ok(Self::Window(window)),
            (2, _) => Ok(Self::State),
            (3, _) => Ok(Self::Unknown),
            (other, _) => Err(reader.error(format!("expected a kind of group before here, found {other}"))),
        }
    }
}

impl Pack for Hold {
    fn pack(&self, bytes: &mut Vec<u8>) {
        (self.tier as u8, self.group).pack(bytes);
        self.copies.pack(bytes);
    }

    fn unpack(reader: &mut Reader<'_>) -> Result<Self, SnapshotError> {
        let ((tier, group), copies) = <((u8, u8), u32)>::unpack(reader)?;
        match Tier::ALL.get(usize::from(tier)) {
            Some(&tier) if (1..=MAX_COPIES).contains(&copies) => Ok(Self { tier, group, copies }),
            _ => Err(reader.error(format!(
                "expected a tier and 1 to {MAX_COPIES} copies before here, found {tier} and {copies}"
            ))),
        }
    }
}

impl Pack for Residency {
    fn pack(&self, bytes: &mut Vec<u8>) {
        self.holds().to_vec().pack(bytes);
    }

    fn unpack(reader: &mut Reader<'_>) -> Result<Self, SnapshotError> {
        let residency = Self::new(Vec::unpack(reader)?);
        let place = |hold: &Hold| (hold.tier, hold.group);
        if residency.holds().windows(2).any(|two| place(&two[0]) == place(&two[1])) {
            return Err(reader.error("expected each tier and group once before here, found one twice"));
        }
        Ok(residency)
    }
}

/// Children are counted for each block, so a record's own count is all that is needed.
impl Pack for Record {
    fn pack(&self, bytes: &mut Vec<u8>) {
        self.residency.pack(bytes);
        self.children.pack(bytes);
        match &self.link {
            Link::Loose(None) => 0_u8.pack(bytes),
            Link::Loose(Some(guest)) => {
                1_u8.pack(bytes);
                (guest.ticket, guest.unaligned).pack(bytes);
            }
            Link::Pending(pending) => {
                2_u8.pack(bytes);
                (pending.parent, (pending.ticket, pending.parked)).pack(bytes);
                pending.kept.tokens.pack(bytes);
                pending.kept.extra.pack(bytes);
            }
            Link::Partial => 3_u8.pack(bytes),
        }
    }

    fn unpack(reader: &mut Reader<'_>) -> Result<Self, SnapshotError> {
        let residency = Residency::unpack(reader)?;
        let children = u32::unpack(reader)?;
        let link = match u8::unpack(reader)? {
            0 => Link::Loose(None),
            1 => {
                let ticket = unpack_ticket(reader)?;
                let unaligned = Pack::unpack(reader)?;
                Link::Loose(Some(Parked { ticket, unaligned }))
            }
            2 => {
                let parent = Pack::unpack(reader)?;
                let ticket = unpack_ticket(reader)?;
                let parked = Pack::unpack(reader)?;
                let (tokens, extra) = Pack::unpack(reader)?;
                Link::Pending(Box::new(Pending {
                    parent,
                    ticket,
                    parked,
                    kept: Kept {
                        namespace: None,
                        tokens,
                        extra,
                    },
                }))
            }
            3 => Link::Partial,
            other => return Err(reader.error(format!("expected a kind of link before here, found {other}"))),
        };
        Ok(Self {
            residency,
            link,
            children,
        })
    }
}

/// A ticket of a room, which has to have more after it.
fn unpack_ticket(reader: &mut Reader<'_>) -> Result<u64, SnapshotError> {
    let ticket = u64::unpack(reader)?;
    if ticket > u64::MAX / 2 {
        return Err(reader.error(format!("expected a ticket below 2^63 before here, found {ticket}")));
    }
    Ok(ticket)
}
