//! The prefix index: which worker holds how much of a prompt.
//!
//! | file | what |
//! |---|---|
//! | `tier`, `group`, `residency` | where a block is held, and how often |
//! | `record`, `binding`, `room`, `source` | one rank of one worker: its blocks, their places, those that wait for one |
//! | `table`, `worker`, `state` | all sources together: who holds which content |
//! | `step`, `reading`, `prompt` | what comes in: events off the wire, prompts to match |
//! | `matching`, `report`, `stats`, `dump`, `integrity` | what goes out |
//! | `pack`, `image`, `snapshot` | all of it as bytes and back |

mod binding;
mod dump;
mod group;
mod image;
mod integrity;
mod matching;
mod pack;
mod prompt;
mod reading;
mod record;
mod report;
mod residency;
mod room;
mod snapshot;
mod source;
mod state;
mod stats;
mod step;
mod table;
mod tier;
mod worker;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use thiserror::Error;

pub use dump::{DumpEvent, RankDump};
pub use group::{Group, Groups, Kind};
pub use matching::Match;
pub use pack::SnapshotError;
pub use prompt::Prompt;
pub use report::{Ignored, Report, SkippedEvent};
pub use room::Bounds;
pub use source::Counters;
pub use stats::{Holdings, SourceStats, Stats};
pub use table::Geometry;
pub use tier::{Medium, Tier};
pub use worker::{Handle, Target};

use source::Setup;
use state::State;
use step::next_slice;

use crate::wire::{self, Limits, read_batch};

/// How an index is set up.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Tokens in a block of the answers.
    pub block_size: u32,
    /// Blocks keep their tokens, so that a dump can rebuild them.
    pub keep_tokens: bool,
    /// Bounds of the blocks that wait for their parent, per source.
    pub pending: Bounds,
    /// Bounds of the held blocks without a place, per source.
    pub parked: Bounds,
    /// Sources (ranks of workers) at most.
    pub sources: usize,
    /// What one payload may ask for.
    pub wire: Limits,
}

/// Why a call was refused; nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum IndexError {
    /// Bytes that are not a batch.
    #[error(transparent)]
    Wire(#[from] wire::WireError),
    /// Bytes that are not a snapshot.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// A setting that is wrong, or contradicts what is known.
    #[error("{0}")]
    Config(String),
    /// No room for one more source.
    #[error(
        "workers: expected at most {limit} sources (ranks of workers), got one more; remove workers that are gone or raise the limit"
    )]
    Capacity {
        /// The limit.
        limit: usize,
    },
}

/// How a worker is to be set up; None where the caller has no opinion.
#[derive(Clone, Debug, Default)]
pub struct WorkerSetup {
    /// The engine's block size.
    pub block_size: Option<u32>,
    /// Whether GPU copies are counted.
    pub counted: bool,
    /// The groups of its model.
    pub groups: Option<Vec<Group>>,
}

/// The index. Any number of threads may read and write at once; the events of one source must come in order.
#[derive(Debug)]
pub struct PrefixIndex {
    config: Config,
    number: u64,
    started: Instant,
    /// Held by whoever changes anything, from the first of its steps to the last.
    writer: Mutex<()>,
    state: RwLock<State>,
}

impl PrefixIndex {
    /// An empty index.
    pub fn new(config: Config) -> Result<Self, IndexError> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        check_block_size(config.block_size)?;
        Ok(Self {
            config,
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            started: Instant::now(),
            writer: Mutex::new(()),
            state: RwLock::new(State::default()),
        })
    }

    /// How it is set up.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Whether someone is at work, so that a call may have to wait.
    pub fn is_busy(&self) -> bool {
        self.writer.is_locked() || self.state.is_locked()
    }

    /// Add a worker, or give the handle of one that is there and set up alike (or holds nothing yet).
    pub fn add_worker(&self, id: &str, wanted: &WorkerSetup) -> Result<Handle, IndexError> {
        if let Some(block_size) = wanted.block_size {
            check_block_size(block_size)?;
        }
        let _writer = self.writer.lock();
        let mut state = self.state.write();
        let known = state.workers.get(id);
        let mut setup = known.map_or_else(|| self.default_setup(), |worker| worker.setup.clone());
        setup.counted = wanted.counted;
        setup.block_size = wanted.block_size.or(setup.block_size);
        if let Some(groups) = &wanted.groups {
            setup.groups = Groups::new(groups.clone());
        }
        let incarnation = match known {
            None => {
                self.check_room(&state)?;
                state.workers.add(id, setup).incarnation
            }
            Some(worker) if worker.setup == setup => worker.incarnation,
            Some(worker) => {
                let incarnation = worker.incarnation;
                if state.ranks(worker).any(|(_, source)| !source.records.is_empty()) {
                    return Err(IndexError::Config(format!(
                        "worker {id:?}: expected the settings it was added with, got others while it holds blocks; \
                         remove or clear it first"
                    )));
                }
                state.set_up(id, &setup);
                incarnation
            }
        };
        Ok(Handle {
            index: self.number,
            id: id.into(),
            incarnation,
        })
    }

    /// Remove a worker with all its ranks; its handles are dead. False if it was not there.
    pub fn remove_worker(&self, id: &str) -> bool {
        let _writer = self.writer.lock();
        self.state.write().remove(id)
    }

    /// Forget what a worker holds, in one rank or (None) in all, and its last sequence.
    pub fn clear_worker(&self, id: &str, dp_rank: Option<i64>) {
        let _writer = self.writer.lock();
        self.state.write().clear(id, dp_rank);
    }

    /// Set the state that matches report for a rank, or (None) for all ranks of a worker. False for a removed id.
    pub fn set_state(&self, id: &str, dp_rank: Option<i64>, name: &str) -> Result<bool, IndexError> {
        let _writer = self.writer.lock();
        let mut state = self.state.write();
        if state.workers.get(id).is_none() && !state.workers.is_removed(id) {
            self.check_room(&state)?;
        }
        let worker = state.workers.resolve(Target::Id(id), &self.default_setup());
        Ok(worker.map(|worker| worker.set_state(dp_rank, name)).is_some())
    }

    /// Apply a batch as it came off the wire. The rank in the batch beats `dp_rank`.
    pub fn apply(
        &self,
        target: Target<'_>,
        data: &[u8],
        seq: Option<u64>,
        dp_rank: Option<i64>,
    ) -> Result<Report, IndexError> {
        self.apply_at(target, data, seq, dp_rank, self.started.elapsed())
    }

    /// `apply` at a time of the index's clock.
    fn apply_at(
        &self,
        target: Target<'_>,
        data: &[u8],
        seq: Option<u64>,
        dp_rank: Option<i64>,
        now: Duration,
    ) -> Result<Report, IndexError> {
        if let Target::Handle(handle) = target
            && handle.index != self.number
        {
            return Err(IndexError::Config(format!(
                "worker {:?}: the handle belongs to another index",
                handle.id
            )));
        }
        let batch = read_batch(data, &self.config.wire)?;
        let mut report = Report::new(batch.dp_rank.or(dp_rank), &batch.skipped);
        let _writer = self.writer.lock();
        let number = match self.open(target, seq, report.dp_rank)? {
            Ok(number) => number,
            Err(ignored) => {
                return Ok(Report {
                    ignored: Some(ignored),
                    ..report
                });
            }
        };
        let mut events = batch.events.iter();
        loop {
            let slice = next_slice(&mut events, &mut report);
            let mut state = self.state.write();
            for step in &slice {
                state.apply(number, step, now, &mut report);
            }
            let (source, _) = state.source_mut(number);
            report.dropped += source.expire(self.config.pending, self.config.parked, now);
            if events.len() == 0 {
                source.close_batch(seq, &mut report);
                return Ok(report);
            }
        }
    }

    /// The source a batch is for, made on first sight, or why the batch is to be ignored.
    fn open(
        &self,
        target: Target<'_>,
        seq: Option<u64>,
        dp_rank: Option<i64>,
    ) -> Result<Result<u32, Ignored>, IndexError> {
        let mut state = self.state.write();
        let id = match target {
            Target::Handle(handle) => &*handle.id,
            Target::Id(id) => id,
        };
        let grows = match state.workers.get(id) {
            None => !state.workers.is_removed(id),
            Some(worker) => !worker.sources.is_empty() && !worker.sources.contains_key(&dp_rank),
        };
        if grows {
            self.check_room(&state)?;
        }
        let setup = self.default_setup();
        let Some(worker) = state.workers.resolve(target, &setup) else {
            state.ignored_batches += 1;
            return Ok(Err(Ignored::WorkerRemoved));
        };
        let (number, setup) = (worker.sources.get(&dp_rank).copied(), worker.setup.clone());
        let Some(number) = number else {
            let number = state.open(setup);
            let worker = state.workers.get_mut(id).expect("just resolved");
            worker.sources.insert(dp_rank, number);
            return Ok(Ok(number));
        };
        let (source, _) = state.source_mut(number);
        if seq.is_some() && seq <= source.last_seq {
            source.counters.duplicates += 1;
            return Ok(Err(Ignored::Duplicate));
        }
        Ok(Ok(number))
    }

    /// How much of a prompt each source holds: those that hold at least one block, best first.
    pub fn match_prompt(&self, prompt: &Prompt<'_>) -> Vec<Match> {
        let state = self.state.read();
        let block = self.config.block_size;
        let walks: Vec<_> = state
            .tables
            .iter()
            .flat_map(|(geometry, table)| matching::walk(prompt, geometry, table, &state.sources, block))
            .collect();
        if walks.is_empty() {
            return Vec::new();
        }
        let owners = state.owners();
        let mut matches: Vec<Match> = walks
            .into_iter()
            .filter_map(|walk| {
                let (worker, rank) = owners[walk.source as usize]?;
                Some(walk.finish(Arc::clone(&worker.id), rank, state.state_name(worker, rank)))
            })
            .filter(|found| found.total > 0)
            .collect();
        matching::sort(&mut matches);
        matches
    }

    fn default_setup(&self) -> Setup {
        Setup {
            block_size: None,
            counted: true,
            groups: Groups::default(),
            keep_tokens: self.config.keep_tokens,
        }
    }

    fn check_room(&self, state: &State) -> Result<(), IndexError> {
        let limit = self.config.sources;
        if state.workers.source_count() >= limit {
            Err(IndexError::Capacity { limit })
        } else {
            Ok(())
        }
    }
}

fn check_block_size(block_size: u32) -> Result<(), IndexError> {
    if block_size == 0 {
        return Err(IndexError::Config(
            "block_size: expected at least 1 token, got 0".into(),
        ));
    }
    Ok(())
}
