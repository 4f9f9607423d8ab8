//! One rank of one worker out of an index, and into another one that holds other things too.
//!
//! What is read goes in as events do, block by block, so that no bytes can bring an index out of order.

use super::blocks::BlockNumber;
use super::forest::{Forest, Found};
use super::holders::HolderSet;
use super::rank_image::{Image, Planted, Unplaced};
use super::record::{Link, RECORD_BYTES, Record};
use super::report::Report;
use super::residency::{Hold, Residency};
use super::room::{Allowance, Terms};
use super::source::{Refusal, Source};
use super::state::{State, refuse};
use super::tier::Tiers;
use super::worker::Target;
use super::{IndexError, PrefixIndex};

/// Blocks that are planted under one hold of the lock.
const PLANTED: usize = 256;

impl PrefixIndex {
    /// What a worker holds, in one rank or (None) in all, an image for each rank; None where the worker is not there.
    pub fn snapshot_worker(&self, id: &str, dp_rank: Option<i64>) -> Option<Vec<Vec<u8>>> {
        let _gate = self.gate.write();
        let state = self.state.read();
        let worker = state.workers.get(id)?;
        let ranks = state
            .ranks(worker)
            .filter(|(rank, _)| dp_rank.is_none() || *rank == dp_rank);
        Some(ranks.map(|(rank, source)| source.image(rank, &state)).collect())
    }

    /// Let a worker's rank hold what an image says and nothing else. The rank in the image beats `dp_rank`.
    ///
    /// `seq` is the last sequence that counts as applied; None: the image's. Bytes that are not an image change nothing.
    pub fn restore_worker(
        &self,
        id: &str,
        bytes: &[u8],
        seq: Option<u64>,
        dp_rank: Option<i64>,
    ) -> Result<Report, IndexError> {
        let mut image = Image::read(bytes)?;
        let terms = self.terms(self.started.elapsed());
        let mut report = Report::new(image.dp_rank.or(dp_rank), &[]);
        let _gate = self.gate.write();
        let number = match self.open(Target::Id(id), None, report.dp_rank)? {
            Ok(number) => number,
            Err(ignored) => {
                report.ignored = Some(ignored);
                return Ok(report);
            }
        };
        let is_fit = self.state.write().make_room(number, &mut image, seq, &mut report);
        self.sweep();
        if is_fit {
            let mut numbers = Vec::with_capacity(image.placed.len());
            for blocks in image.placed.chunks(PLANTED) {
                let mut state = self.state.write();
                state.plant(number, &image, blocks, &mut numbers);
            }
            report.stored = image.placed.len() + image.unplaced.len();
            let mut state = self.state.write();
            let State { sources, forests, .. } = &mut *state;
            let source = sources[number as usize].as_mut().expect("just opened");
            let forest = source.geometry.and_then(|geometry| forests.get(geometry));
            source.check_tried(forest);
            let mut rooms = [terms.pending, terms.parked].map(Allowance::new);
            for block in image.unplaced {
                source.keep_unplaced(forest, block, &terms, &mut rooms);
            }
            source.release_loosened();
            report.dropped = source.expire(&terms);
            state.tidy(number);
            state.source_mut(number).close_batch(&mut report);
        }
        self.sweep();
        Ok(report)
    }
}

impl State {
    /// Empty a source and set it up for an image. False where it does not fit, which is then in the report.
    fn make_room(&mut self, number: u32, image: &mut Image, seq: Option<u64>, report: &mut Report) -> bool {
        self.clear_source(number);
        let room = image.geometry.and_then(|geometry| self.forests.get(geometry));
        let is_full = room.is_some_and(|forest| forest.room() < image.placed.len() + image.unplaced.len());
        let source = self.source_mut(number);
        source.last_seq = seq.or(image.last_seq);
        for declared in source.setup.groups.all() {
            let known = image.groups.find(declared.index);
            let stated = known.and_then(|group| image.groups.all()[usize::from(group)].stated);
            image.groups.learn(declared.index, stated.or(declared.stated));
        }
        let refusal = if is_full {
            Err(Refusal::Blocks)
        } else {
            image.geometry.map_or(Ok(()), |geometry| source.check_size(geometry))
        };
        if let Err(refusal) = refusal {
            refuse(source, refusal, 0, report);
            return false;
        }
        source.geometry = image.geometry;
        source.tried.clone_from(&image.tried);
        source.groups = image.groups.clone();
        source.error.clone_from(&image.error);
        if !source.setup.counted {
            let all = image.residencies.iter_mut();
            let unplaced = image.unplaced.iter_mut().map(|block| &mut block.residency);
            all.chain(unplaced).for_each(|residency| *residency = once(residency));
        }
        true
    }

    /// Place some blocks of an image; `numbers` are those of the blocks before them, by position.
    fn plant(&mut self, number: u32, image: &Image, blocks: &[Planted], numbers: &mut Vec<BlockNumber>) {
        let Self { sources, forests, .. } = self;
        let source = sources[number as usize].as_mut().expect("just opened");
        let Some(geometry) = image.geometry else { return };
        let forest = forests.open(geometry);
        let full = source.groups.full();
        // What adding the source to a set of holders comes to, from the block before: mostly the same again.
        let mut known: Option<(HolderSet, u32, HolderSet)> = None;
        for block in blocks {
            let parent = block.parent.map(|parent| numbers[parent as usize]);
            let residency = &image.residencies[block.residency as usize];
            let place = match forest.seek(source.member, block.engine, block.content, parent) {
                Found::Alike(place) => place,
                Found::Nothing => forest.add(block.engine, block.content, parent),
                Found::Mine(_) => unreachable!("the source was emptied, and each block comes once"),
            };
            let from = forest.link(place).holders;
            let to = match known {
                Some((set, number, to)) if (set, number) == (from, block.residency) => to,
                _ => forest.sets.with(from, source.member, Some(residency.clone())),
            };
            known = Some((from, block.residency, to));
            forest.set_holders(place, to);
            source.count_in(forest, place);
            source.count(Tiers::default(), residency.tiers(full));
            numbers.push(place);
        }
    }
}

impl Source {
    /// Hold a block that an image has no place for, unless it has one.
    ///
    /// As many may wait as there is room for, in the pending and in the parked room.
    fn keep_unplaced(
        &mut self,
        forest: Option<&Forest>,
        block: Unplaced,
        terms: &Terms,
        [pending, parked]: &mut [Allowance; 2],
    ) {
        let Unplaced {
            engine,
            residency,
            unaligned,
            partial,
            waits,
        } = block;
        let is_placed = |block| forest.is_some_and(|forest| forest.find(self.member, block).is_some());
        let is_known = |record: &Record| !record.residency.is_empty() || matches!(record.link, Link::Pending(_));
        if is_placed(engine) || self.records.get(&engine).is_some_and(is_known) {
            return;
        }
        let waits = waits.filter(|(parent, ..)| *parent != engine && !is_placed(*parent));
        let may_wait = match &waits {
            Some((_, false, kept)) => pending.admit(RECORD_BYTES + kept.size_bytes()),
            Some((_, true, kept)) => parked.admit(RECORD_BYTES + kept.size_bytes()),
            None => partial || parked.admit(RECORD_BYTES),
        };
        if !may_wait {
            self.turned_away += 1;
            return;
        }
        self.count(Tiers::default(), residency.tiers(self.groups.full()));
        let is_held = !residency.is_empty();
        self.records.entry(engine).or_default().residency = residency;
        match waits {
            Some((parent, parked, kept)) => self.pend(engine, parent, kept, parked, terms.now),
            None if partial => self.part(engine),
            None if is_held => self.park(engine, unaligned, terms.now),
            None => {}
        }
        if !is_held {
            self.loosened.push(engine); // it stays only if others turn out to wait for it
        }
    }
}

/// A residency without more than one copy of anything.
fn once(residency: &Residency) -> Residency {
    let holds = residency.holds().iter().map(|hold| Hold { copies: 1, ..*hold });
    Residency::new(holds.collect())
}
