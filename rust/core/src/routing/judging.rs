//! From what the caches hold and what is in flight to the figures of one candidate.

use std::sync::Arc;

use super::rank::{Rank, Reported};
use super::table::Slot;
use crate::index::Match;
use crate::learned::Learned;

/// What was computed is told by events within this time: for so long after its prefill a prompt is on its way.
const EVENTS_LAG_S: f64 = 1.0;

const LIVE: &str = "live";

/// What does not change from prompt to prompt.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What a match is worth while the worker's source is not live.
    pub trust: f64,
    /// What an engine said counts half after so long, in seconds.
    pub half_life_s: f64,
    /// What a token held in each tier saves of computing it, fastest first.
    pub tiers: [f64; 4],
    /// Recent work is half forgotten after so many computed tokens per candidate.
    pub memory_tokens: f64,
    /// What answering one request counts for as work besides its prompt.
    pub request_tokens: f64,
}

/// What one unit of each figure adds to a cost where a unit of `queued` adds 1.
#[derive(Clone, Copy, Debug)]
pub struct Law {
    /// Of `prefill`.
    pub prefill: f64,
    /// Of `held`.
    pub held: f64,
    /// Of `surplus`, as far as it is `shared`.
    pub balance: f64,
}

/// A prompt that is to be placed.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Its blocks.
    pub chain: &'a [u64],
    /// Its length.
    pub prompt_tokens: u64,
    /// Tokens in a block.
    pub block_size: u64,
    /// Whether events count at all.
    pub by_events: bool,
    /// Seconds.
    pub now: f64,
    /// What was last used before then counts no more.
    pub oldest: f64,
}

/// One candidate for one prompt; the fields are those of `kvevents.routing.Score`.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "said there")]
pub struct Judged {
    /// Its place in the table.
    pub slot: Slot,
    pub worker: Arc<str>,
    pub dp_rank: i64,
    pub by_events: bool,
    pub usable: u64,
    pub indexed: Option<u64>,
    pub pending: u64,
    pub tiers: Option<[usize; 4]>,
    pub state: Option<Arc<str>>,
    pub prefill: f64,
    pub queued: f64,
    pub held: f64,
    pub requests: u64,
    pub surplus: f64,
    pub shared: f64,
    pub reported: Option<(u64, u64)>,
    pub cost: f64,
    /// The turn in which it was last chosen.
    pub last_chosen: u64,
}

/// What requests of others are like, guessed from ours.
#[derive(Clone, Copy, Debug, Default)]
pub struct Means {
    pub prompt: f64,
    pub prefill: f64,
}

impl Means {
    /// A prompt was placed.
    pub fn observe(&mut self, prompt_tokens: f64, prefill: f64) {
        self.prompt += 0.05 * (prompt_tokens - self.prompt);
        self.prefill += 0.05 * (prefill - self.prefill);
    }
}

impl Settings {
    /// Judge a candidate by its events where they can be trusted, else by what was sent to it.
    pub fn judge(
        &self,
        (slot, rank): (Slot, &Rank),
        found: Option<&Match>,
        asked: &Asked<'_>,
        learned: &Learned,
        means: Means,
        (least_recent, age): (f64, f64),
    ) -> Judged {
        let found = found.filter(|_| rank.source.is_some());
        let most = asked.prompt_tokens.saturating_sub(1) / asked.block_size;
        let state = found.map_or(rank.source.as_ref(), |found| Some(&found.state));
        let source_is_live = state.is_some_and(|state| &**state == LIVE);
        let is_live = asked.by_events && source_is_live;
        let since = if is_live {
            rank.prefilling.first_key_value().map_or(asked.now, |(_, &at)| at) - EVENTS_LAG_S
        } else {
            asked.oldest
        };
        let sent = (learned.depth(asked.chain, rank.holder, since) as u64).min(most);
        let indexed = found.map_or(0, |found| (found.usable as u64).min(most));
        let mut saved = found.map_or(0.0, |found| self.saved(&found.fastest, indexed));
        let (by_events, usable, pending);
        if is_live {
            (by_events, usable, pending) = (true, indexed, sent.saturating_sub(indexed));
            saved += pending as f64;
        } else {
            let trust = if source_is_live { None } else { rank.trust };
            saved *= match trust {
                _ if !asked.by_events => 0.0,
                None => self.trust,
                Some(_) => 1.0,
            };
            by_events = saved > sent as f64;
            (usable, pending) = (if by_events { indexed } else { sent }, 0);
            saved = saved.max(sent as f64) * trust.unwrap_or(1.0);
        }
        let (mut queued, mut held) = (rank.queued as f64, rank.held as f64);
        if let Some(reported) = &rank.reported {
            let (theirs_queued, theirs_held) = self.of_others(reported, means, asked.now);
            queued += theirs_queued;
            held += theirs_held;
        }
        let surplus = rank.recent - least_recent;
        let depth = usable + pending;
        let shared = match depth.checked_sub(1) {
            None => surplus,
            Some(last) => (asked.chain.get(last as usize)).map_or(0.0, |&block| learned.work(block, rank.holder, age)),
        };
        Judged {
            slot,
            worker: Arc::clone(&rank.worker),
            dp_rank: rank.dp_rank,
            by_events,
            usable,
            indexed: rank.source.is_some().then_some(indexed),
            pending,
            tiers: found.filter(|_| by_events).map(|found| found.fastest),
            state: state.cloned(),
            prefill: asked.prompt_tokens as f64 - saved * asked.block_size as f64,
            queued,
            held,
            requests: rank.requests(),
            surplus,
            shared,
            reported: rank.reported.map(|reported| (reported.running, reported.waiting)),
            cost: 0.0,
            last_chosen: rank.last_chosen,
        }
    }

    /// Blocks that need not be computed; those that come from slower tiers count in part.
    ///
    /// What is usable is counted from the first block on, and of a prompt's blocks the slower ones are its last: what
    /// is held but not usable is taken off the slowest tier first.
    fn saved(&self, fastest: &[usize; 4], usable: u64) -> f64 {
        let mut left = usable;
        let mut saved = 0.0;
        for (weight, &blocks) in self.tiers.iter().zip(fastest) {
            let blocks = left.min(blocks as u64);
            saved += weight * blocks as f64;
            left -= blocks;
        }
        saved
    }

    /// The load of requests that others sent there, fading as the news of them ages: tokens queued, and held.
    fn of_others(&self, reported: &Reported, means: Means, now: f64) -> (f64, f64) {
        let fade = 0.5_f64.powf((now - reported.at) / self.half_life_s);
        let requests = reported.foreign_running as f64 + reported.foreign_waiting as f64;
        let tokens = reported
            .foreign_tokens
            .map_or(means.prompt * requests, |tokens| tokens as f64);
        (fade * means.prefill * reported.foreign_waiting as f64, fade * tokens)
    }
}

impl Judged {
    /// The cost by a law.
    pub fn cost(&self, law: Law) -> f64 {
        self.queued + law.prefill * self.prefill + law.held * self.held + law.balance * self.shared.min(self.surplus)
    }
}
