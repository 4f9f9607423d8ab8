//! One rank of one worker in the form of bytes.
//!
//! ```text
//! "KVERANK\0" | version u32 | rank, sequence, geometry, what it was learned from, groups, error | residencies | blocks
//!   | runs: length, block above the first, residency; then content and engine hash of each block
//!   | blocks without a place | XXH3-64 of all before
//! ```
//!
//! Blocks are numbered in the order in which they come, parents before their children. Blocks that wait for their
//! parent carry their tokens, without which they could not be placed; nothing else does.

use hashbrown::HashMap;
use xxhash_rust::xxh3::xxh3_64;

use super::blocks::BlockNumber;
use super::forest::Forest;
use super::geometry::Geometry;
use super::group::Groups;
use super::pack::{Pack, Reader, SnapshotError};
use super::record::{Kept, Link};
use super::residency::Residency;
use super::source::Source;
use super::state::State;
use crate::tokens::TokenVec;

const MAGIC: &[u8; 8] = b"KVERANK\0";
const VERSION: u32 = 2;
const HEADER: usize = MAGIC.len() + size_of::<u32>();
const CHECKSUM: usize = size_of::<u64>();
const NO_PARENT: u32 = u32::MAX;

/// A block under its place, in an image that was read.
#[derive(Clone, Copy, Debug)]
pub struct Planted {
    /// Content hash.
    pub content: u64,
    /// Engine hash.
    pub engine: u64,
    /// Position of the block above.
    pub parent: Option<u32>,
    /// Number of its residency.
    pub residency: u32,
}

/// A block without a place.
#[derive(Debug)]
pub struct Unplaced {
    /// Engine hash.
    pub engine: u64,
    /// Where it is held.
    pub residency: Residency,
    /// It came by an unaligned store.
    pub unaligned: bool,
    /// It is a partial page.
    pub partial: bool,
    /// What it waits for, and whether it does so in the parked room.
    pub waits: Option<(u64, bool, Kept)>,
}

/// What was read.
#[derive(Debug)]
pub struct Image {
    /// The rank; None where the engine does not say.
    pub dp_rank: Option<i64>,
    /// Sequence of the last batch.
    pub last_seq: Option<u64>,
    /// How its engine cuts tokens.
    pub geometry: Option<Geometry>,
    /// The blocks that this was learned from, where it is not certain.
    pub tried: Vec<u64>,
    /// Its groups.
    pub groups: Groups,
    /// What is wrong with it.
    pub error: Option<String>,
    /// Residencies by number.
    pub residencies: Vec<Residency>,
    /// Blocks with a place, parents first.
    pub placed: Vec<Planted>,
    /// Blocks without.
    pub unplaced: Vec<Unplaced>,
}

impl Source {
    /// The image of a rank.
    pub(super) fn image(&self, dp_rank: Option<i64>, state: &State) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        VERSION.pack(&mut bytes);
        dp_rank.pack(&mut bytes);
        self.last_seq.pack(&mut bytes);
        self.geometry.pack(&mut bytes);
        self.tried.pack(&mut bytes);
        self.groups.pack(&mut bytes);
        self.error.pack(&mut bytes);
        self.pack_placed(state, &mut bytes);
        self.pack_unplaced(&mut bytes);
        xxh3_64(&bytes).pack(&mut bytes);
        bytes
    }

    fn pack_placed(&self, state: &State, bytes: &mut Vec<u8>) {
        let mut known: HashMap<&Residency, u32> = HashMap::new();
        let mut residencies: Vec<Residency> = Vec::new();
        let placed: Vec<(BlockNumber, u32)> = self
            .placed(&state.forests)
            .map(|(block, residency)| {
                let number = *known.entry(residency).or_insert_with(|| {
                    residencies.push(residency.clone());
                    residencies.len() as u32 - 1
                });
                (block, number)
            })
            .collect();
        residencies.pack(bytes);
        placed.len().pack(bytes);
        let Some(forest) = self.geometry.and_then(|geometry| state.forests.get(geometry)) else {
            return;
        };
        bytes.reserve(placed.len() * 2 * size_of::<u64>());
        let mut runs = Runs::new(bytes);
        for (place, parent) in top_down(forest, &placed) {
            let (block, residency) = placed[place];
            runs.add(parent, residency, forest.content(block), forest.blocks.engine(block));
        }
        runs.flush();
    }

    fn pack_unplaced(&self, bytes: &mut Vec<u8>) {
        let mut held: Vec<_> = self
            .records
            .iter()
            .filter(|(_, record)| !record.residency.is_empty() || matches!(record.link, Link::Pending(_)))
            .collect();
        held.sort_unstable_by_key(|(block, _)| **block);
        held.len().pack(bytes);
        for (block, record) in held {
            (*block).pack(bytes);
            record.residency.pack(bytes);
            let unaligned = matches!(&record.link, Link::Loose(Some(parked)) if parked.unaligned);
            (unaligned, record.link == Link::Partial).pack(bytes);
            let pending = match &record.link {
                Link::Pending(pending) => Some(pending),
                Link::Loose(_) | Link::Partial => None,
            };
            pending.is_some().pack(bytes);
            if let Some(pending) = pending {
                (pending.parent, pending.parked).pack(bytes);
                pending.kept.tokens.pack(bytes);
                pending.kept.extra.pack(bytes);
            }
        }
    }
}

/// Places of `placed` (ascending by number) with the position of the block above each, parents before their children.
fn top_down(forest: &Forest, placed: &[(BlockNumber, u32)]) -> Vec<(usize, u32)> {
    const OPEN: u32 = u32::MAX;
    let place_of = |block: BlockNumber, below: usize| match below.checked_sub(1) {
        Some(before) if placed[before].0 == block => before,
        _ => placed
            .binary_search_by_key(&block, |(number, _)| *number)
            .expect("whoever is a member of a block is one of all above it"),
    };
    let mut positions = vec![OPEN; placed.len()];
    let mut order = Vec::with_capacity(placed.len());
    let mut path: Vec<(usize, Option<usize>)> = Vec::new();
    for start in 0..placed.len() {
        let mut next = Some(start);
        while let Some(place) = next.filter(|&place| positions[place] == OPEN) {
            let above = forest
                .link(placed[place].0)
                .parent()
                .map(|parent| place_of(parent, place));
            path.push((place, above));
            next = above;
        }
        while let Some((place, above)) = path.pop() {
            positions[place] = order.len() as u32;
            order.push((place, above.map_or(NO_PARENT, |above| positions[above])));
        }
    }
    order
}

/// Writes blocks that follow each other, with one residency, as one run.
struct Runs<'a> {
    bytes: &'a mut Vec<u8>,
    run: Vec<u8>,
    length: u32,
    written: u32,
    residency: u32,
}

impl<'a> Runs<'a> {
    fn new(bytes: &'a mut Vec<u8>) -> Self {
        Self {
            bytes,
            run: Vec::new(),
            length: 0,
            written: 0,
            residency: 0,
        }
    }

    fn add(&mut self, parent: u32, residency: u32, content: u64, engine: u64) {
        let goes_on = self.length > 0 && parent == self.written - 1 && residency == self.residency;
        if !goes_on {
            self.flush();
            (parent, residency).pack(&mut self.run);
            self.residency = residency;
        }
        (content, engine).pack(&mut self.run);
        self.length += 1;
        self.written += 1;
    }

    fn flush(&mut self) {
        if self.length > 0 {
            self.length.pack(self.bytes);
            self.bytes.append(&mut self.run);
            self.length = 0;
        }
    }
}

impl Image {
    /// Read an image.
    pub fn read(bytes: &[u8]) -> Result<Self, SnapshotError> {
        let mut reader = open(bytes)?;
        let mut image = Self {
            dp_rank: Pack::unpack(&mut reader)?,
            last_seq: Pack::unpack(&mut reader)?,
            geometry: Pack::unpack(&mut reader)?,
            tried: Pack::unpack(&mut reader)?,
            groups: Pack::unpack(&mut reader)?,
            error: Pack::unpack(&mut reader)?,
            residencies: Pack::unpack(&mut reader)?,
            placed: Vec::new(),
            unplaced: Vec::new(),
        };
        for residency in &image.residencies {
            image.check(residency, &reader)?;
        }
        image.read_placed(&mut reader)?;
        image.read_unplaced(&mut reader)?;
        if reader.left() > 0 {
            let left = reader.left();
            return Err(reader.error(format!("expected the checksum, found {left} more bytes")));
        }
        Ok(image)
    }

    fn read_placed(&mut self, reader: &mut Reader<'_>) -> Result<(), SnapshotError> {
        let count = usize::unpack(reader)?;
        if count > reader.left() / (2 * size_of::<u64>()) || (count > 0 && self.geometry.is_none()) {
            return Err(reader.error(format!("expected as many blocks as follow, found a count of {count}")));
        }
        self.placed.reserve(count);
        let mut is_leaf = vec![true; count];
        while self.placed.len() < count {
            let (length, (parent, residency)) = <(u32, (u32, u32))>::unpack(reader)?;
            let (first, left) = (self.placed.len() as u32, count - self.placed.len());
            let is_right = length > 0
                && length as usize <= left
                && (parent == NO_PARENT || parent < first)
                && (residency as usize) < self.residencies.len();
            if !is_right {
                return Err(reader.error(format!(
                    "expected a run of 1 to {left} blocks below one of {first} before here, found {length} below \
                     {parent}, held as {residency}"
                )));
            }
            let mut above = (parent != NO_PARENT).then_some(parent);
            for _ in 0..length {
                let (content, engine) = Pack::unpack(reader)?;
                if let Some(above) = above {
                    is_leaf[above as usize] = false;
                }
                let block = Planted {
                    content,
                    engine,
                    parent: above,
                    residency,
                };
                above = Some(self.placed.len() as u32);
                self.placed.push(block);
            }
        }
        let mut engines: Vec<u64> = self.placed.iter().map(|block| block.engine).collect();
        engines.sort_unstable();
        if let Some(twice) = engines.windows(2).find(|two| two[0] == two[1]) {
            let block = twice[0];
            return Err(reader.error(format!("expected each block once before here, found {block:#x} twice")));
        }
        let held = |block: &Planted| !self.residencies[block.residency as usize].is_empty();
        match self
            .placed
            .iter()
            .zip(is_leaf)
            .find(|(block, leaf)| *leaf && !held(block))
        {
            None => Ok(()),
            Some((block, _)) => Err(reader.error(format!(
                "expected every block or one below it to be held before here, found {:#x}",
                block.engine
            ))),
        }
    }

    fn read_unplaced(&mut self, reader: &mut Reader<'_>) -> Result<(), SnapshotError> {
        for _ in 0..usize::unpack(reader)? {
            let (engine, residency) = Pack::unpack(reader)?;
            self.check(&residency, reader)?;
            let (unaligned, (partial, is_pending)) = Pack::unpack(reader)?;
            let mut waits = None;
            if is_pending {
                let (parent, parked) = Pack::unpack(reader)?;
                let kept = Kept {
                    namespace: None,
                    tokens: TokenVec::unpack(reader)?,
                    extra: Pack::unpack(reader)?,
                };
                waits = Some((parent, parked, kept));
            }
            self.unplaced.push(Unplaced {
                engine,
                residency,
                unaligned,
                partial,
                waits,
            });
        }
        Ok(())
    }

    fn check(&self, residency: &Residency, reader: &Reader<'_>) -> Result<(), SnapshotError> {
        let groups = self.groups.all().len();
        match residency.holds().iter().find(|hold| usize::from(hold.group) >= groups) {
            None => Ok(()),
            Some(hold) => {
                let group = hold.group;
                Err(reader.error(format!("expected one of {groups} groups before here, found {group}")))
            }
        }
    }
}

/// Check the frame; a reader of what is in it.
fn open(bytes: &[u8]) -> Result<Reader<'_>, SnapshotError> {
    let start = Reader::new(bytes, 0);
    if !bytes.starts_with(MAGIC) || bytes.len() < HEADER + CHECKSUM {
        let found = bytes.len();
        return Err(start.error(format!(
            "expected the image of a worker's rank, found {found} other bytes"
        )));
    }
    let (body, checksum) = bytes.split_at(bytes.len() - CHECKSUM);
    let mut reader = Reader::new(body, MAGIC.len());
    let version = u32::unpack(&mut reader)?;
    if version != VERSION {
        return Err(start.error(format!(
            "expected version {VERSION} of the image of a worker's rank, found {version}: made by another kvevents"
        )));
    }
    if u64::unpack(&mut Reader::new(checksum, 0))? != xxh3_64(body) {
        let reason = "expected the checksum of the bytes before it, found another: the image is damaged";
        return Err(SnapshotError {
            reason: reason.into(),
            offset: body.len(),
        });
    }
    Ok(reader)
}
