//! All that one lock guards: workers, their sources, and the forests of who holds what.

use std::sync::Arc;

use super::forests::Forests;
use super::geometry::Geometry;
use super::members::Members;
use super::report::Report;
use super::room::Terms;
use super::slice::Action;
use super::source::{Owner, Refusal, Setup, Source};
use super::worker::{Worker, Workers};

/// Workers, sources, forests.
#[derive(Debug, Default)]
pub struct State {
    /// Who holds what.
    pub forests: Forests,
    /// Which source each member of the forests is.
    pub members: Members,
    /// Sources by number; None where one was removed.
    pub sources: Vec<Option<Source>>,
    /// Workers by id.
    pub workers: Workers,
    /// Batches that came for removed workers.
    pub ignored_batches: u64,
}

impl State {
    /// The source of a worker's rank, if it is there.
    pub fn find(&self, worker: &Worker, dp_rank: Option<i64>) -> Option<&Source> {
        let number = worker.sources.get(&dp_rank)?;
        self.sources[*number as usize].as_ref()
    }

    /// A source by number.
    pub fn source_mut(&mut self, number: u32) -> &mut Source {
        let source = self.sources[number as usize].as_mut();
        source.expect("a number in use has a source")
    }

    /// A worker's sources with their ranks.
    pub fn ranks<'a>(&'a self, worker: &'a Worker) -> impl Iterator<Item = (Option<i64>, &'a Source)> {
        worker
            .sources
            .keys()
            .filter_map(|&rank| self.find(worker, rank).map(|source| (rank, source)))
    }

    /// Whose each source is, by number.
    pub fn owners(&self) -> Vec<Option<(&Worker, Option<i64>)>> {
        let mut owners = vec![None; self.sources.len()];
        for worker in self.workers.iter() {
            for (&rank, &number) in &worker.sources {
                owners[number as usize] = Some((worker, rank));
            }
        }
        owners
    }

    /// Set a worker up anew; none of its sources holds anything.
    pub fn set_up(&mut self, id: &str, setup: &Setup) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        worker.setup = setup.clone();
        for number in worker.sources.values().copied().collect::<Vec<_>>() {
            self.source_mut(number).setup = setup.clone();
            self.clear_source(number);
        }
    }

    /// Set the state of a worker's rank, or of all its ranks.
    pub fn set_worker_state(&mut self, id: &str, dp_rank: Option<i64>, name: &str) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        worker.set_state(dp_rank, name);
        for (&rank, &number) in &worker.sources {
            if let Some(source) = &mut self.sources[number as usize] {
                source.owner.state = Arc::clone(worker.state(rank));
            }
        }
    }

    /// Make a source for a rank of a worker that is there; its number.
    pub fn open(&mut self, id: &str, dp_rank: Option<i64>) -> u32 {
        let number = self.sources.iter().position(Option::is_none).unwrap_or_else(|| {
            self.sources.push(None);
            self.sources.len() - 1
        });
        let worker = self.workers.get_mut(id).expect("the worker is there");
        worker.sources.insert(dp_rank, number as u32);
        let owner = Owner {
            worker: Arc::clone(&worker.id),
            dp_rank,
            state: Arc::clone(worker.state(dp_rank)),
        };
        let member = self.members.enlist(Some(number as u32));
        self.sources[number] = Some(Source::new(owner, member, worker.setup.clone()));
        number as u32
    }

    /// Forget what a worker holds, in one rank or in all; how it was cut and numbered too.
    pub fn clear(&mut self, id: &str, dp_rank: Option<i64>) {
        let Some(worker) = self.workers.get(id) else { return };
        let cleared = |rank: &Option<i64>| dp_rank.is_none() || *rank == dp_rank;
        let ranks = worker.sources.iter().filter(|(rank, _)| cleared(rank));
        for number in ranks.map(|(_, &number)| number).collect::<Vec<_>>() {
            self.clear_source(number);
            self.source_mut(number).last_seq = None;
        }
    }

    /// Remove a worker with all its ranks. False if it was not there.
    pub fn remove(&mut self, id: &str) -> bool {
        self.clear(id, None);
        let Some(worker) = self.workers.remove(id) else {
            return false;
        };
        for number in worker.sources.into_values() {
            if let Some(source) = self.sources[number as usize].take() {
                self.members.free(source.member);
            }
        }
        true
    }

    /// A source holds nothing any more.
    pub(super) fn clear_source(&mut self, number: u32) {
        let source = self.sources[number as usize]
            .as_mut()
            .expect("a number in use has a source");
        let mut member = source.member;
        if let Some(geometry) = source.geometry
            && let Some(forest) = self.forests.get_mut(geometry)
        {
            if forest.records() == source.bound {
                // Nobody else holds anything in it.
                self.fell(geometry);
            } else if source.bound > 0 {
                forest.retire(member);
                self.members.retire(member);
                member = self.members.enlist(Some(number));
            }
        }
        self.source_mut(number).forget(member);
    }

    /// Take away a forest in which no source holds anything.
    fn fell(&mut self, geometry: Geometry) {
        if let Some(forest) = self.forests.remove(geometry) {
            forest.retired().iter().for_each(|&member| self.members.free(member));
        }
    }

    /// Apply one event to a source and say so in the report.
    pub fn apply(&mut self, number: u32, action: &Action<'_>, terms: &Terms, report: &mut Report) {
        let source = self.sources[number as usize]
            .as_mut()
            .expect("a number in use has a source");
        match action {
            Action::Store(store) => {
                let partial = source.counters.partial;
                if let Err(refusal) = source.store(&mut self.forests, store, terms) {
                    return refuse(source, refusal, store.offset, report);
                }
                report.stored += store.blocks.len();
                report.partial += (source.counters.partial - partial) as usize;
            }
            Action::Remove { blocks, medium, group } => {
                let removal = source.remove(&mut self.forests, blocks, *medium, *group);
                report.removed += removal.removed;
                report.removal_misses += removal.misses;
            }
            Action::Clear => {
                self.clear_source(number);
                report.cleared += 1;
            }
        }
        report.events += 1;
    }

    /// After some events: give back what a source's forest no longer needs.
    pub fn tidy(&mut self, number: u32) {
        let Some(geometry) = self.source_mut(number).geometry else {
            return;
        };
        let Some(forest) = self.forests.get_mut(geometry) else {
            return;
        };
        forest.sets.tidy();
        if forest.is_empty() {
            self.fell(geometry);
        }
    }

    /// Bury and sweep some more blocks. False when there is nothing left to do.
    pub fn sweep(&mut self) -> bool {
        let Self { forests, members, .. } = self;
        let Some((geometry, forest)) = forests.iter_mut().find(|(_, forest)| forest.is_littered()) else {
            return false;
        };
        forest.sweep().iter().for_each(|&member| members.free(member));
        forest.sets.tidy();
        if forest.is_empty() {
            self.fell(geometry);
        }
        true
    }

    /// Whether there is something to bury or to sweep.
    pub fn is_littered(&self) -> bool {
        self.forests.iter().any(|(_, forest)| forest.is_littered())
    }

    /// The same workers, holding nothing.
    pub fn without_blocks(&self) -> Self {
        let mut workers = self.workers.clone();
        workers.iter_mut().for_each(|worker| worker.sources.clear());
        Self {
            workers,
            ignored_batches: self.ignored_batches,
            ..Self::default()
        }
    }
}

/// A store that was not applied.
pub(super) fn refuse(source: &mut Source, refusal: Refusal, offset: usize, report: &mut Report) {
    match refusal {
        Refusal::Geometry { expected, got } => {
            let message = format!(
                "block size: expected {expected}, got {} of {}; the events are not applied. Register the engine's own \
                 block size, or clear the worker if its engine was started with another one",
                if got.pairs { "blocks of pairs" } else { "blocks" },
                got.block_size
            );
            source.counters.refused += 1;
            source.error = Some(message.clone());
            report.error = Some(message);
        }
        Refusal::Groups => {
            let limit = super::group::MAX_GROUPS;
            let reason = format!("group_idx: expected at most {limit} groups, got one more");
            report.skip("too-many-groups", offset, reason);
        }
        Refusal::Blocks => {
            let limit = super::blocks::MAX_BLOCKS;
            let reason = format!("block_hashes: expected at most {limit} distinct blocks in the index, got more");
            report.skip("too-many-blocks", offset, reason);
        }
    }
}
