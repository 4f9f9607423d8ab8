//! All that one lock guards: workers, their sources, and the tables of who holds what.

use std::sync::Arc;
use std::time::Duration;

use super::record::Link;
use super::report::Report;
use super::source::{Refusal, Setup, Source};
use super::step::Step;
use super::table::Tables;
use super::worker::{Worker, Workers};

/// Workers, sources, tables.
#[derive(Debug, Default)]
pub struct State {
    /// Who holds which content.
    pub tables: Tables,
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
    pub fn source_mut(&mut self, number: u32) -> (&mut Source, &mut Tables) {
        let source = self.sources[number as usize].as_mut();
        (source.expect("a number in use has a source"), &mut self.tables)
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

    /// The state of a worker's rank: what the transport said, but `degraded` while the source has an error.
    pub fn state_name(&self, worker: &Worker, dp_rank: Option<i64>) -> Arc<str> {
        match self.find(worker, dp_rank) {
            Some(Source { error: Some(_), .. }) => "degraded".into(),
            _ => Arc::clone(worker.state(dp_rank)),
        }
    }

    /// Set a worker up anew; none of its sources holds anything.
    pub fn set_up(&mut self, id: &str, setup: &Setup) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        worker.setup = setup.clone();
        for &number in worker.sources.values() {
            if let Some(source) = &mut self.sources[number as usize] {
                source.setup = setup.clone();
                source.clear(&mut self.tables);
            }
        }
    }

    /// Make a source; its number.
    pub fn open(&mut self, setup: Setup) -> u32 {
        let number = self.sources.iter().position(Option::is_none).unwrap_or_else(|| {
            self.sources.push(None);
            self.sources.len() - 1
        });
        self.sources[number] = Some(Source::new(number as u32, setup));
        number as u32
    }

    /// Forget what a worker holds, in one rank or in all; how it was cut and numbered too.
    pub fn clear(&mut self, id: &str, dp_rank: Option<i64>) {
        let Some(worker) = self.workers.get(id) else { return };
        let cleared = |rank: &Option<i64>| dp_rank.is_none() || *rank == dp_rank;
        let numbers: Vec<_> = worker
            .sources
            .iter()
            .filter(|(rank, _)| cleared(rank))
            .map(|(_, &n)| n)
            .collect();
        for number in numbers {
            let (source, tables) = self.source_mut(number);
            source.clear(tables);
            source.last_seq = None;
        }
    }

    /// Remove a worker with all its ranks. False if it was not there.
    pub fn remove(&mut self, id: &str) -> bool {
        self.clear(id, None);
        let Some(worker) = self.workers.remove(id) else {
            return false;
        };
        for number in worker.sources.into_values() {
            self.sources[number as usize] = None;
        }
        true
    }

    /// Apply one event to a source and say so in the report.
    pub fn apply(&mut self, number: u32, step: &Step, now: Duration, report: &mut Report) {
        let (source, tables) = self.source_mut(number);
        match step {
            Step::Store { reading, tier, offset } => {
                let store = reading.store(*tier, source.setup.keep_tokens);
                match source.store(tables, &store, now) {
                    Ok(()) => report.stored += store.blocks.len(),
                    Err(refusal) => return refuse(source, refusal, *offset, report),
                }
            }
            Step::Remove { blocks, medium, group } => {
                let removal = source.remove(tables, blocks, *medium, *group);
                report.removed += removal.removed;
                report.removal_misses += removal.misses;
            }
            Step::Clear => {
                source.clear(tables);
                report.cleared += 1;
            }
        }
        report.events += 1;
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

    /// Enter every holder that the sources know into the tables, which are empty.
    pub fn fill_tables(&mut self) {
        for source in self.sources.iter().flatten() {
            for (&block, record) in &source.records {
                if matches!(record.link, Link::Bound { .. }) {
                    source.publish(&mut self.tables, block);
                }
            }
        }
    }
}

/// A store that was not applied.
fn refuse(source: &mut Source, refusal: Refusal, offset: usize, report: &mut Report) {
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
        Refusal::Groups => report.skip(
            "too-many-groups",
            offset,
            format!(
                "group_idx: expected at most {} groups, got one more",
                super::group::MAX_GROUPS
            ),
        ),
    }
}
