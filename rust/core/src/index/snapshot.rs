//! Snapshots: the whole index as bytes, versioned and checksummed.
//!
//! ```text
//! "KVEINDEX" | version u32 | workers | removed ids | XXH3-64 of all before
//! ```
//!
//! There are tokens in it only for blocks that still wait for their parent, which could not be placed without them;
//! salts and adapters are never in it. States are not: they are the transport's to say.

use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use super::image::WorkerImage;
use super::pack::{Pack, Reader, SnapshotError};
use super::source::Setup;
use super::state::State;
use super::{IndexError, PrefixIndex};

const MAGIC: &[u8; 8] = b"KVEINDEX";
const VERSION: u32 = 1;
const HEADER: usize = MAGIC.len() + size_of::<u32>();
const CHECKSUM: usize = size_of::<u64>();

/// A snapshot, read: every worker, and the ids of removed ones.
type Contents = (Vec<WorkerImage>, Vec<String>);

impl PrefixIndex {
    /// Everything the index holds, consistent, with the last sequence of every source.
    pub fn snapshot(&self) -> Vec<u8> {
        let _writer = self.writer.lock();
        let state = self.state.read();
        let mut bytes = MAGIC.to_vec();
        VERSION.pack(&mut bytes);
        let mut workers: Vec<_> = state.workers.iter().collect();
        workers.sort_by_key(|worker| &worker.id);
        let images: Vec<_> = workers
            .into_iter()
            .map(|worker| WorkerImage::of(worker, state.ranks(worker)))
            .collect();
        let removed: Vec<_> = state.workers.removed().map(str::to_owned).collect();
        (images, removed).pack(&mut bytes);
        xxh3_64(&bytes).pack(&mut bytes);
        bytes
    }

    /// Replace what the index holds by a snapshot.
    ///
    /// Workers that are there stay, empty where the snapshot has nothing of them, and their handles live on; ids that
    /// were removed stay removed. Bytes that are not a snapshot change nothing.
    pub fn restore(&self, bytes: &[u8]) -> Result<(), IndexError> {
        let contents = read(bytes)?;
        let _writer = self.writer.lock();
        let state = self.rebuild(contents, self.started.elapsed())?;
        let before = std::mem::replace(&mut *self.state.write(), state);
        drop(before);
        Ok(())
    }

    fn rebuild(&self, (images, removed): Contents, now: Duration) -> Result<State, IndexError> {
        let mut state = self.state.read().without_blocks();
        for image in &images {
            if state.workers.is_removed(&image.id) {
                continue;
            }
            let setup = Setup {
                keep_tokens: self.config.keep_tokens,
                ..image.setup()
            };
            let worker = match state.workers.get_mut(&image.id) {
                Some(worker) => worker,
                None => state.workers.add(&image.id, setup.clone()),
            };
            worker.setup = setup.clone();
            for source in &image.sources {
                let number = state.open(setup.clone());
                let (place, _) = state.source_mut(number);
                source.fill(place, now);
                if let Some(worker) = state.workers.get_mut(&image.id) {
                    worker.sources.insert(source.dp_rank, number);
                }
            }
        }
        for id in removed {
            if state.workers.get(&id).is_none() && !state.workers.is_removed(&id) {
                state.workers.remember_removed(id.into());
            }
        }
        state.fill_tables();
        let limit = self.config.sources;
        if state.workers.source_count() > limit {
            return Err(IndexError::Capacity { limit });
        }
        match state.faults().into_iter().next() {
            None => Ok(state),
            Some(fault) => {
                let reason = format!("expected a snapshot without contradictions, found one: {fault}");
                Err(SnapshotError { reason, offset: HEADER }.into())
            }
        }
    }
}

/// Check the frame and read everything in it.
fn read(bytes: &[u8]) -> Result<Contents, SnapshotError> {
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
    let contents = Contents::unpack(&mut reader)?;
    if reader.left() > 0 {
        return Err(reader.error(format!("expected the checksum, found {} more bytes", reader.left())));
    }
    Ok(contents)
}
