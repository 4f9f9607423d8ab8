//! The prefix index: which worker holds how much of a prompt.
//!
//! | file | what |
//! |---|---|
//! | `tier`, `group`, `residency`, `geometry` | where a block is held, and how engines cut |
//! | `table`, `blocks`, `holders` | blocks by hash, by number, and who holds them: what memory consists of |
//! | `forest`, `burial`, `forests`, `members` | all placed blocks, shared by the sources that name them alike |
//! | `record`, `room`, `waiting` | blocks that have no place yet |
//! | `source`, `membership`, `binding`, `cut`, `counters` | one rank of one worker: what events do to its blocks |
//! | `worker`, `state` | all of it under one lock |
//! | `reading`, `slice`, `ahead`, `applying`, `prompt` | what comes in: events off the wire, prompts to match |
//! | `trail`, `matching`, `report`, `stats`, `dump`, `integrity` | what goes out |
//! | `survey`, `explore` | the tree of prompts, to be looked at |
//! | `pack`, `image`, `planting`, `snapshot` | all of it as bytes and back |
//! | `rank_image`, `transplant` | one rank as bytes, and into an index that holds other things |
//!
//! Two locks. The *gate* is held by a batch from its first event to its last, together with other batches; alone by
//! whatever must not see half a batch (snapshots, figures) or changes workers. The *state* is held by one slice of a
//! batch while it is applied, and by each match for its look-ups; what can be read and hashed before is.

mod ahead;
mod applying;
mod binding;
mod blocks;
mod burial;
mod counters;
mod cut;
mod dump;
mod explore;
mod forest;
mod forests;
mod geometry;
mod group;
mod holders;
mod image;
mod integrity;
mod lock;
mod matching;
mod members;
mod membership;
mod pack;
mod planting;
mod prompt;
mod rank_image;
mod reading;
mod record;
mod report;
mod residency;
mod room;
mod slice;
mod snapshot;
mod source;
mod state;
mod stats;
mod survey;
mod table;
mod tier;
mod trail;
mod transplant;
mod waiting;
mod worker;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::RwLock;
use smallvec::SmallVec;
use thiserror::Error;

pub use counters::Counters;
pub use dump::{DumpEvent, RankDump};
pub use explore::{Outlook, Stretch, View};
pub use geometry::Geometry;
pub use group::{Group, Groups, Kind};
pub use matching::Match;
pub use pack::SnapshotError;
pub use prompt::Prompt;
pub(crate) use reading::{Identity, kind as kind_of};
pub use report::{Ignored, Report, SkippedEvent};
pub use room::Bounds;
pub use stats::{Holdings, SourceStats, Stats};
pub use tier::{Medium, Tier, Tiers};
pub use worker::{Handle, Target};

use geometry::LikelyGeometry;
use lock::BriefLock;
use source::Setup;
use state::State;
use trail::Chain;

use crate::wire::{self, Limits};

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
    /// More copies than a dump may tell one by one.
    #[error(
        "dump_events: expected at most {limit} copies beyond the first of each block, got {copies}; clear the worker"
    )]
    Copies {
        /// Beyond the first of each block.
        copies: usize,
        /// The limit.
        limit: usize,
    },
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
    gate: RwLock<()>,
    state: BriefLock<State>,
    likely: LikelyGeometry,
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
            gate: RwLock::new(()),
            state: BriefLock::default(),
            likely: LikelyGeometry::new(config.block_size),
        })
    }

    /// How it is set up.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Whether a batch may have to wait.
    pub fn is_busy(&self) -> bool {
        self.state.is_locked() || self.gate.is_locked_exclusive()
    }

    /// Add a worker, or give the handle of one that is there and set up alike (or holds nothing yet).
    pub fn add_worker(&self, id: &str, wanted: &WorkerSetup) -> Result<Handle, IndexError> {
        if let Some(block_size) = wanted.block_size {
            check_block_size(block_size)?;
        }
        if let Some(groups) = &wanted.groups
            && groups.len() > group::MAX_GROUPS
        {
            let (limit, found) = (group::MAX_GROUPS, groups.len());
            return Err(IndexError::Config(format!(
                "groups: expected at most {limit}, got {found}"
            )));
        }
        let _gate = self.gate.write();
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
                if state.ranks(worker).any(|(_, source)| source.blocks() > 0) {
                    return Err(IndexError::Config(format!(
                        "worker {id:?}: expected the settings it was added with, got others while it holds blocks; \
                         remove or clear it first"
                    )));
                }
                state.set_up(id, &setup);
                incarnation
            }
        };
        drop(state);
        self.sweep();
        Ok(Handle {
            index: self.number,
            id: id.into(),
            incarnation,
        })
    }

    /// Remove a worker with all its ranks; its handles are dead. False if it was not there.
    pub fn remove_worker(&self, id: &str) -> bool {
        let _gate = self.gate.write();
        let removed = self.state.write().remove(id);
        self.sweep();
        removed
    }

    /// Forget what a worker holds, in one rank or (None) in all, and its last sequence.
    pub fn clear_worker(&self, id: &str, dp_rank: Option<i64>) {
        let _gate = self.gate.write();
        self.state.write().clear(id, dp_rank);
        self.sweep();
    }

    /// Set the state that matches report for a rank, or (None) for all ranks of a worker. False for a removed id.
    pub fn set_state(&self, id: &str, dp_rank: Option<i64>, name: &str) -> Result<bool, IndexError> {
        let _gate = self.gate.write();
        let mut state = self.state.write();
        if state.workers.get(id).is_none() && !state.workers.is_removed(id) {
            self.check_room(&state)?;
        }
        let is_there = state.workers.resolve(Target::Id(id), &self.default_setup()).is_some();
        state.set_worker_state(id, dp_rank, name);
        Ok(is_there)
    }

    /// How much of a prompt each source holds: those that hold at least one block, best first.
    pub fn match_prompt(&self, prompt: &Prompt<'_>) -> Vec<Match> {
        self.follow(prompt, Self::answer)
    }

    /// Hash a prompt as far as the index knows it, and answer while that is so.
    ///
    /// The prompt is hashed outside of the lock, twice as far each time, until the index does not know how it goes on.
    fn follow<T>(&self, prompt: &Prompt<'_>, answer: impl FnOnce(&Self, &State, &[Chain]) -> T) -> T {
        let mut chains: SmallVec<[Chain; 1]> = SmallVec::new();
        // To wait for the lock is what takes long, so there is something to ask for when it comes.
        let mut likely = Chain::new(prompt, self.likely.get(), self.config.block_size);
        likely.extend(prompt);
        chains.push(likely);
        loop {
            let state = self.state.read();
            let mut short: SmallVec<[usize; 1]> = SmallVec::new();
            for (geometry, forest) in state.forests.iter() {
                let place = chains.iter().position(|chain| chain.geometry() == geometry);
                let place = place.unwrap_or_else(|| {
                    chains.push(Chain::new(prompt, geometry, self.config.block_size));
                    chains.len() - 1
                });
                if chains[place].is_short(forest) {
                    short.push(place);
                }
            }
            if short.is_empty() {
                if let Some((geometry, _)) = state.forests.iter().next() {
                    self.likely.set(geometry);
                }
                return answer(self, &state, &chains);
            }
            drop(state);
            short.iter().for_each(|&place| chains[place].extend(prompt));
        }
    }

    fn answer(&self, state: &State, chains: &[Chain]) -> Vec<Match> {
        let walks = chains.iter().filter_map(|chain| {
            let forest = state.forests.get(chain.geometry())?;
            Some(trail::walk(chain, forest, state, self.config.block_size))
        });
        let mut matches: Vec<Match> = walks.flatten().filter_map(matching::Walk::finish).collect();
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
