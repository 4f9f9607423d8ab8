//! The ranks, and the books: which requests are open, and what they cost where.

use std::sync::Arc;

use hashbrown::HashMap;

use super::judging::{Asked, Judged, Law, Means, Settings};
use super::rank::Rank;
use crate::index::Match;
use crate::learned::Learned;

/// The place of a rank in the table. One that was removed is never given again.
pub type Slot = u64;

/// A request that is placed on a rank.
#[derive(Clone, Copy, Debug)]
pub struct Placing {
    /// Tokens that it computes there; None where its prompt is computed elsewhere.
    pub prefill: Option<i64>,
    /// Tokens that its answer may have.
    pub output_tokens: u64,
}

/// One open request: what its end has to take back.
#[derive(Debug)]
struct Open {
    slot: Slot,
    prefill: i64,
    held: i64,
    is_prefilled: bool,
}

/// Every rank of every worker, and the requests open on them.
#[derive(Debug)]
pub struct Table {
    settings: Settings,
    ranks: HashMap<Slot, Rank>,
    slots: HashMap<(Arc<str>, i64), Slot>,
    next: Slot,
    open: HashMap<u64, Open>,
    turn: u64,
    /// Half-lives of work that have passed.
    age: f64,
    means: Means,
}

impl Table {
    /// Nobody yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            ranks: HashMap::new(),
            slots: HashMap::new(),
            next: 0,
            open: HashMap::new(),
            turn: 0,
            age: 0.0,
            means: Means::default(),
        }
    }

    /// Half-lives of work that have passed.
    pub fn age(&self) -> f64 {
        self.age
    }

    /// Add a rank; another of its name is found no more.
    pub fn add(&mut self, rank: Rank) -> Slot {
        let slot = self.next;
        self.next += 1;
        self.slots.insert((Arc::clone(&rank.worker), rank.dp_rank), slot);
        self.ranks.insert(slot, rank);
        slot
    }

    /// Take a rank out; requests open on it count no more.
    pub fn remove(&mut self, slot: Slot) {
        if let Some(rank) = self.ranks.remove(&slot) {
            for number in rank.opened.keys() {
                self.open.remove(number);
            }
            let name = (rank.worker, rank.dp_rank);
            if self.slots.get(&name) == Some(&slot) {
                self.slots.remove(&name);
            }
        }
    }

    /// A rank.
    pub fn rank(&self, slot: Slot) -> Option<&Rank> {
        self.ranks.get(&slot)
    }

    /// A rank, to change it.
    pub fn rank_mut(&mut self, slot: Slot) -> Option<&mut Rank> {
        self.ranks.get_mut(&slot)
    }

    /// What a newcomer starts with, so that it is neither flooded nor starved; 0 when it is the first.
    pub fn mean_recent(&self) -> f64 {
        let ups = self.ranks.values().filter(|rank| rank.is_up);
        let (sum, count) = ups.fold((0.0, 0.0), |(sum, count), rank| (sum + rank.recent, count + 1.0));
        if count > 0.0 { sum / count } else { 0.0 }
    }

    /// Judge candidates for a prompt, in their order; with a law also what each costs.
    pub fn judge(
        &self,
        slots: &[Slot],
        found: &[Match],
        asked: &Asked<'_>,
        learned: &Learned,
        law: Option<Law>,
    ) -> Vec<Judged> {
        let ranks = || {
            slots
                .iter()
                .filter_map(|slot| self.ranks.get(slot).map(|rank| (slot, rank)))
        };
        let least = ranks().map(|(_, rank)| rank.recent).fold(f64::INFINITY, f64::min);
        let mut by_slot = HashMap::new();
        for one in found {
            let name = (Arc::clone(&one.worker), one.dp_rank.unwrap_or(0));
            if let Some(&slot) = self.slots.get(&name) {
                by_slot.insert(slot, one);
            }
        }
        let judge = |(slot, rank): (&Slot, &Rank)| {
            let found = by_slot.get(slot).copied();
            let mut judged = self
                .settings
                .judge((*slot, rank), found, asked, learned, self.means, (least, self.age));
            judged.cost = law.map_or(0.0, |law| judged.cost(law));
            judged
        };
        ranks().map(judge).collect()
    }

    /// Open a request on a rank, which then will hold its prompt. Its number, and 0 where the rank is gone.
    pub fn place(&mut self, slot: Slot, placing: Placing, asked: &Asked<'_>, learned: &mut Learned) -> u64 {
        let Some(rank) = self.ranks.get_mut(&slot) else {
            return 0;
        };
        self.turn += 1;
        rank.last_chosen = self.turn;
        // What it takes there: half an answer on average, and what no open request holds anyway.
        let shared = rank.opened.first_key_value().map_or(0, |(_, &oldest)| {
            learned.depth(asked.chain, rank.holder, oldest) as u64 * asked.block_size
        });
        let held = asked.prompt_tokens as i64 - shared as i64 + (placing.output_tokens / 2) as i64;
        rank.held += held;
        rank.opened.insert(self.turn, asked.now);
        if let Some(prefill) = placing.prefill {
            rank.queued += prefill;
            rank.prefilling.insert(self.turn, asked.now);
            let work = prefill as f64 + self.settings.request_tokens;
            learned.expire(asked.oldest);
            learned.learn(asked.chain, rank.holder, asked.now, work, self.age);
            self.means.observe(asked.prompt_tokens as f64, prefill as f64);
        } else {
            rank.decode += held;
        }
        let open = Open {
            slot,
            prefill: placing.prefill.unwrap_or(0),
            held,
            is_prefilled: placing.prefill.is_none(),
        };
        self.open.insert(self.turn, open);
        self.turn
    }

    /// A prompt is computed: work to come turns into work done, and all earlier work gets older.
    pub fn computed(&mut self, number: u64) {
        let Some(open) = self.open.get_mut(&number).filter(|open| !open.is_prefilled) else {
            return;
        };
        open.is_prefilled = true;
        let Open {
            slot, prefill, held, ..
        } = *open;
        let work = prefill as f64 + self.settings.request_tokens;
        let ups = self.ranks.values().filter(|rank| rank.is_up).count().max(1);
        let older = work / (self.settings.memory_tokens * ups as f64);
        let factor = 0.5_f64.powf(older);
        self.age += older;
        for rank in self.ranks.values_mut().filter(|rank| rank.is_up) {
            rank.recent *= factor;
        }
        if let Some(rank) = self.ranks.get_mut(&slot) {
            rank.queued -= prefill;
            rank.decode += held;
            rank.prefilling.remove(&number);
            rank.recent += work;
        }
    }

    /// A request has ended, well or not; one that is not open has no part in anything.
    pub fn end(&mut self, number: u64) {
        let Some(open) = self.open.remove(&number) else {
            return;
        };
        let Some(rank) = self.ranks.get_mut(&open.slot) else {
            return;
        };
        if open.is_prefilled {
            rank.decode -= open.held;
        } else {
            rank.queued -= open.prefill;
            rank.prefilling.remove(&number);
        }
        rank.held -= open.held;
        rank.opened.remove(&number);
    }
}
