//! Snapshots: the whole index as bytes, versioned and checksummed.
//!
//! ```text
//! "KVEINDEX" | version u32 | workers with what waits | removed ids | placed blocks by geometry | XXH3-64 of all before
//! ```
//!
//! Blocks are written from where they are held and read to where they are to be held, without a form in between.
//! There are tokens in it only for blocks that still wait for their parent, which could not be placed without them;
//! salts and adapters are never in it. States are not: they are the transport's to say.

use hashbrown::HashMap;
use xxhash_rust::xxh3::xxh3_64;

use super::holders::Member;
use super::image::{SourceImage, WorkerImage};
use super::pack::{Pack, Reader, SnapshotError};
use super::planting;
use super::source::Setup;
use super::state::State;
use super::tier::Tiers;
use super::{IndexError, PrefixIndex};

const MAGIC: &[u8; 8] = b"KVEINDEX";
const VERSION: u32 = 3;
const HEADER: usize = MAGIC.len() + size_of::<u32>();
const CHECKSUM: usize = size_of::<u64>();

impl PrefixIndex {
    /// Everything the index holds, consistent, with the last sequence of every source.
    pub fn snapshot(&self) -> Vec<u8> {
        let _gate = self.gate.write();
        let state = self.state.read();
        let mut bytes = MAGIC.to_vec();
        VERSION.pack(&mut bytes);
        state.pack(&mut bytes);
        xxh3_64(&bytes).pack(&mut bytes);
        bytes
    }

    /// Replace what the index holds by a snapshot.
    ///
    /// Workers that are there stay, empty where the snapshot has nothing of them, and their handles live on; ids that
    /// were removed stay removed. Bytes that are not a snapshot change nothing.
    pub fn restore(&self, bytes: &[u8]) -> Result<(), IndexError> {
        let mut reader = open(bytes)?;
        let _gate = self.gate.write();
        let state = self.rebuild(&mut reader)?;
        let before = std::mem::replace(&mut *self.state.write(), state);
        drop(before);
        Ok(())
    }

    fn rebuild(&self, reader: &mut Reader<'_>) -> Result<State, IndexError> {
        let now = self.started.elapsed();
        let images = Vec::<WorkerImage>::unpack(reader)?;
        let removed = Vec::<String>::unpack(reader)?;
        let limit = self.config.sources;
        if images.iter().map(|image| image.sources.len()).sum::<usize>() > limit {
            return Err(IndexError::Capacity { limit });
        }
        let mut state = self.state.read().without_blocks();
        let mut sources: Vec<(&SourceImage, Member)> = Vec::new();
        let mut retired: Vec<Member> = Vec::new();
        for image in &images {
            if state.workers.is_removed(&image.id) {
                // Its blocks are read all the same: other blocks are numbered after them.
                for source in &image.sources {
                    let member = state.members.enlist(None);
                    retired.push(member);
                    sources.push((source, member));
                }
                continue;
            }
            let setup = Setup {
                keep_tokens: self.config.keep_tokens,
                ..image.setup()
            };
            match state.workers.get_mut(&image.id) {
                Some(worker) => worker.setup = setup,
                None => _ = state.workers.add(&image.id, setup),
            }
            for source in &image.sources {
                let number = state.open(&image.id, source.dp_rank);
                let place = state.source_mut(number);
                source.fill(place, now);
                sources.push((source, place.member));
            }
        }
        for id in removed {
            if state.workers.get(&id).is_none() && !state.workers.is_removed(&id) {
                state.workers.remember_removed(id.into());
            }
        }
        if state.workers.source_count() > limit {
            return Err(IndexError::Capacity { limit });
        }
        for _ in 0..usize::unpack(reader)? {
            let (geometry, forest) = planting::unpack(reader, &sources)?;
            if sources.iter().all(|(image, _)| image.geometry != Some(geometry)) {
                return Err(reader
                    .error("expected blocks of some source before here, found those of none")
                    .into());
            }
            if !state.forests.add(geometry, forest) {
                return Err(reader
                    .error("expected each geometry once before here, found one twice")
                    .into());
            }
        }
        if reader.left() > 0 {
            let left = reader.left();
            return Err(reader
                .error(format!("expected the checksum, found {left} more bytes"))
                .into());
        }
        state.settle(&retired);
        match state.faults().into_iter().next() {
            None => Ok(state),
            Some(fault) => {
                let reason = format!("expected a snapshot without contradictions, found one: {fault}");
                Err(SnapshotError { reason, offset: HEADER }.into())
            }
        }
    }
}

impl State {
    fn pack(&self, bytes: &mut Vec<u8>) {
        let mut workers: Vec<_> = self.workers.iter().collect();
        workers.sort_by_key(|worker| &worker.id);
        let members = workers
            .iter()
            .flat_map(|worker| self.ranks(worker))
            .map(|(_, source)| source.member);
        let numbers: HashMap<Member, u32> = members.zip(0..).collect();
        let images: Vec<_> = workers
            .iter()
            .map(|worker| WorkerImage::of(worker, self.ranks(worker)))
            .collect();
        let removed: Vec<_> = self.workers.removed().map(str::to_owned).collect();
        (images, removed).pack(bytes);
        let mut forests: Vec<_> = self.forests.iter().collect();
        forests.sort_by_key(|(geometry, _)| (geometry.block_size, geometry.pairs));
        forests.len().pack(bytes);
        for (geometry, forest) in forests {
            planting::pack(geometry, forest, &numbers, bytes);
        }
    }

    /// After the forests were planted: tell the sources what they hold, and let go what the retired ones held.
    fn settle(&mut self, retired: &[Member]) {
        for (geometry, forest) in self.forests.iter_mut() {
            for block in forest.blocks.iter() {
                for holder in forest.sets.holders(forest.link(block).holders) {
                    let source = self
                        .members
                        .source(holder.member)
                        .map(|number| &mut self.sources[number as usize]);
                    if let Some(Some(source)) = source
                        && source.geometry == Some(geometry)
                    {
                        source.count_in(forest, block);
                        let tiers = forest.sets.residency(holder.residency).tiers(source.groups.full());
                        source.count(Tiers::default(), tiers);
                    }
                }
            }
            for &member in retired {
                forest.retire(member);
            }
        }
        for source in self.sources.iter_mut().flatten() {
            let forest = source.geometry.and_then(|geometry| self.forests.get(geometry));
            source.check_tried(forest);
        }
        while self.sweep() {}
    }
}

/// Check the frame; a reader of what is in it.
fn open(bytes: &[u8]) -> Result<Reader<'_>, SnapshotError> {
    let mut reader = Reader::new(bytes, 0);
    if !bytes.starts_with(MAGIC) || bytes.len() < HEADER + CHECKSUM {
        let found = bytes.len();
        return Err(reader.error(format!("expected a snapshot of an index, found {found} other bytes")));
    }
    let (body, checksum) = bytes.split_at(bytes.len() - CHECKSUM);
    let mut end = Reader::new(checksum, 0);
    reader = Reader::new(body, MAGIC.len());
    let version = u32::unpack(&mut reader)?;
    if version != VERSION {
        let reason = format!("expected snapshot version {VERSION}, found {version}: made by another kvevents");
        return Err(SnapshotError {
            reason,
            offset: MAGIC.len(),
        });
    }
    if u64::unpack(&mut end)? != xxh3_64(body) {
        let reason = "expected the checksum of the bytes before it, found another: the snapshot is damaged";
        return Err(SnapshotError {
            reason: reason.into(),
            offset: body.len(),
        });
    }
    Ok(reader)
}
