//! Applying a batch: read, hashed, and committed a slice at a time.

use std::time::Duration;

use super::report::{Ignored, Report, Run};
use super::room::Terms;
use super::slice::Slice;
use super::worker::Target;
use super::{IndexError, PrefixIndex};
use crate::wire::read_batch_with_ids;

impl PrefixIndex {
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

    /// Apply batches of one source in order, up to the first about which there is something to say: that one is the last
    /// that is applied. One that cannot be applied is left to `apply`, which says why.
    pub fn apply_run<'a>(
        &self,
        target: Target<'_>,
        batches: impl IntoIterator<Item = (u64, &'a [u8])>,
        dp_rank: Option<i64>,
    ) -> Run {
        let mut run = Run::default();
        for (seq, data) in batches {
            let Ok(report) = self.apply(target, data, Some(seq), dp_rank) else {
                break;
            };
            run.taken += 1;
            if let Some(rank) = report.dp_rank
                && !run.ranks.contains(&rank)
            {
                run.ranks.push(rank);
            }
            if !report.is_plain() {
                run.report = Some(report);
                break;
            }
        }
        run
    }

    /// `apply` at a time of the index's clock.
    pub(super) fn apply_at(
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
        let mut ids = Vec::new();
        let batch = read_batch_with_ids(data, &self.config.wire, &mut ids)?;
        let mut report = Report::new(batch.dp_rank.or(dp_rank), &batch.skipped);
        let _gate = self.gate.read();
        let number = match self.open(target, seq, report.dp_rank)? {
            Ok(number) => number,
            Err(ignored) => {
                return Ok(Report {
                    ignored: Some(ignored),
                    ..report
                });
            }
        };
        let terms = self.terms(now);
        let mut events = batch.events.iter();
        let mut slice = Slice::new(&ids);
        loop {
            slice.read(&mut events, &mut report);
            self.prepare(number, &mut slice);
            let mut state = self.state.write();
            for action in slice.actions() {
                state.apply(number, &action, &terms, &mut report);
            }
            let source = state.source_mut(number);
            report.dropped += source.expire(&terms);
            state.tidy(number);
            let (is_last, is_littered) = (events.len() == 0, state.is_littered());
            if is_last {
                state.source_mut(number).close_batch(&mut report);
            }
            drop(state);
            if is_littered {
                self.sweep();
            }
            if is_last {
                return Ok(report);
            }
        }
    }

    /// On what terms blocks may wait.
    pub(super) fn terms(&self, now: Duration) -> Terms {
        Terms {
            pending: self.config.pending,
            parked: self.config.parked,
            now,
        }
    }

    /// Bury and sweep what was removed and cleared, some blocks at a time.
    pub(super) fn sweep(&self) {
        while self.state.write().sweep() {}
    }

    /// The source a batch is for, made on first sight, or why the batch is to be ignored.
    pub(super) fn open(
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
        let number = worker.sources.get(&dp_rank).copied();
        let number = number.unwrap_or_else(|| state.open(id, dp_rank));
        let source = state.source_mut(number);
        if seq.is_some() && seq <= source.last_seq {
            source.counters.duplicates += 1;
            return Ok(Err(Ignored::Duplicate));
        }
        source.last_seq = seq.or(source.last_seq);
        Ok(Ok(number))
    }
}
