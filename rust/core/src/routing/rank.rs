//! One rank of one worker: what it has to do, and what its engine says of itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::learned::Holder;

/// What an engine said about its load, beyond what this router sent it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reported {
    /// Requests that it computes answers for.
    pub running: u64,
    /// Requests that wait for it.
    pub waiting: u64,
    /// Of those running, how many are not ours.
    pub foreign_running: u64,
    /// Of those waiting, how many are not ours.
    pub foreign_waiting: u64,
    /// Tokens in use that are not of our requests; None when it does not say.
    pub foreign_tokens: Option<u64>,
    /// When it said so, by the router's clock.
    pub at: f64,
}

/// The work in flight on one rank of one worker, and how much it did of late.
#[derive(Clone, Debug)]
pub struct Rank {
    /// The worker's id.
    pub worker: Arc<str>,
    /// The rank within it.
    pub dp_rank: i64,
    /// What stands for it among those who are believed to hold something.
    pub holder: Holder,
    /// State of its event source; None where it has none.
    pub source: Option<Arc<str>>,
    /// What anything that is believed of it was found to be worth while its source is not live.
    pub trust: Option<f64>,
    /// Whether it may be chosen.
    pub is_up: bool,
    /// Tokens still to compute, over all its requests.
    pub queued: i64,
    /// Of `held`, the tokens of requests whose answers are being produced.
    pub decode: i64,
    /// Tokens of KV cache that its requests hold or will hold, those that they share once.
    pub held: i64,
    /// Tokens computed and requests answered (in tokens), older ones forgotten by and by.
    pub recent: f64,
    /// The turn in which it was last chosen, 0 for never.
    pub last_chosen: u64,
    /// What its engine said last.
    pub reported: Option<Reported>,
    /// When each open request was sent. Numbers rise, so the first is the oldest.
    pub opened: BTreeMap<u64, f64>,
    /// When each request that still computes its prompt was sent.
    pub prefilling: BTreeMap<u64, f64>,
}

impl Rank {
    /// One without work.
    pub fn new(worker: Arc<str>, dp_rank: i64, holder: Holder, source: Option<Arc<str>>, recent: f64) -> Self {
        Self {
            worker,
            dp_rank,
            holder,
            source,
            trust: None,
            is_up: true,
            queued: 0,
            decode: 0,
            held: 0,
            recent,
            last_chosen: 0,
            reported: None,
            opened: BTreeMap::new(),
            prefilling: BTreeMap::new(),
        }
    }

    /// Requests that have not ended.
    pub fn requests(&self) -> u64 {
        self.opened.len() as u64
    }

    /// Take note of its engine's own figures; what is ours of them is known better here.
    pub fn report(&mut self, running: u64, waiting: u64, tokens: Option<u64>, now: f64) {
        let foreign_waiting = waiting.saturating_sub(self.prefilling.len() as u64);
        self.reported = Some(Reported {
            running,
            waiting,
            foreign_running: (running.saturating_add(waiting))
                .saturating_sub(self.requests())
                .saturating_sub(foreign_waiting),
            foreign_waiting,
            foreign_tokens: tokens.map(|tokens| tokens.saturating_sub(self.held.max(0) as u64)),
            at: now,
        });
    }
}
