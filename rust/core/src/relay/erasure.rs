//! Which announcements of a log nobody needs.
//!
//! Seen by one block, a log is a walk: after each of its announcements all kinds of consumers hold some copies of it. Where
//! the walk comes back to where it was, the loop can be left out, and every consumer still holds the same after
//! each announcement that is left, provided that the stores inside the loop that name the block as their parent, and are
//! left, are taken by the same kinds of consumers. What is left of each walk has no loops that can go, so that a log
//! is bounded by what is held, whatever came and went.

use hashbrown::HashMap;

use super::copies::{ALL, Copies, Kinds, Place, place};
use crate::coalesce::{Act, Carried, Next, Waiting};

/// Leave out of a log, which begins with nothing held, what nobody needs.
pub(super) fn erase(events: &mut Vec<Carried>) {
    let mut walks = Walks::new(events);
    walks.read(events);
    walks.erase(events);
    let mut number = 0;
    events.retain_mut(|event| {
        let units = walks.starts[number]..walks.starts[number + 1];
        let alive = walks.alive[number];
        number += 1;
        if alive > 0 && alive < units.len() {
            event.keep(&walks.is_dead[units].iter().map(|dead| !dead).collect::<Vec<_>>());
        }
        alive > 0
    });
}

/// A moment of a block's walk.
#[derive(Debug)]
enum Moment {
    /// It is announced, and held like this afterwards.
    Announced { unit: usize, after: Copies },
    /// A store names it as the parent of its first block.
    Named(Naming),
}

#[derive(Clone, Copy, Debug)]
struct Naming {
    event: usize,
    place: Place,
    /// Who takes the store.
    takers: Kinds,
}

/// The announcements of a log, a unit for each block of an event.
struct Walks {
    /// The first unit of each event, and how many there are.
    starts: Vec<usize>,
    /// The event of each unit.
    event_of: Vec<usize>,
    is_dead: Vec<bool>,
    /// Units of each event that are left.
    alive: Vec<usize>,
    /// Numbers of the blocks that are announced more than once: the others have no loops.
    blocks: HashMap<u64, usize>,
    moments: Vec<Vec<Moment>>,
}

/// A place on a walk, and the stores that named the block there.
struct Stop {
    copies: Copies,
    unit: Option<usize>,
    namings: Vec<Naming>,
}

impl Walks {
    fn new(events: &[Carried]) -> Self {
        let mut starts = vec![0];
        let mut event_of = Vec::new();
        let mut seen: HashMap<u64, bool> = HashMap::new();
        for (number, event) in events.iter().enumerate() {
            event_of.extend(std::iter::repeat_n(number, event.keys().len()));
            starts.push(event_of.len());
            for &key in event.keys() {
                seen.entry(key).and_modify(|again| *again = true).or_insert(false);
            }
        }
        let again = seen.into_iter().filter(|&(_, again)| again);
        let blocks: HashMap<u64, usize> = again.enumerate().map(|(number, (key, _))| (key, number)).collect();
        Self {
            alive: starts.windows(2).map(|ends| ends[1] - ends[0]).collect(),
            is_dead: vec![false; event_of.len()],
            moments: std::iter::repeat_with(Vec::new).take(blocks.len()).collect(),
            starts,
            event_of,
            blocks,
        }
    }

    /// Follow the walks of all blocks.
    fn read(&mut self, events: &[Carried]) {
        let mut held: HashMap<u64, Copies> = HashMap::new();
        for (number, event) in events.iter().enumerate() {
            let standing = event.standing();
            let mut takers = ALL;
            if let Act::Store { parent: Some(parent) } = event.act() {
                let place = place(standing.scope);
                takers = held.get(&parent).map_or(0b11, |copies| copies.takers(place));
                if let Some(&block) = self.blocks.get(&parent) {
                    let event = number;
                    self.moments[block].push(Moment::Named(Naming { event, place, takers }));
                }
            }
            for (at, key) in event.keys().iter().enumerate() {
                let copies = held.entry(*key).or_default();
                match event.act() {
                    Act::Store { .. } => copies.store(standing, takers),
                    Act::Removal { .. } => copies.remove(standing.scope),
                    Act::Barrier(_) => {}
                }
                if let Some(&block) = self.blocks.get(key) {
                    let (unit, after) = (self.starts[number] + at, copies.clone());
                    self.moments[block].push(Moment::Announced { unit, after });
                }
            }
        }
    }

    /// Leave out loops until there are no more that can go: one that goes may let those of its parent go.
    fn erase(&mut self, events: &[Carried]) {
        let mut to_try: Vec<usize> = (0..self.moments.len()).collect();
        while !to_try.is_empty() {
            let mut freed = Vec::new();
            for block in to_try {
                self.erase_loops(block, events, &mut freed);
            }
            freed.sort_unstable();
            freed.dedup();
            to_try = freed;
        }
    }

    fn erase_loops(&mut self, block: usize, events: &[Carried], freed: &mut Vec<usize>) {
        let moments = std::mem::take(&mut self.moments[block]);
        let mut stops = vec![Stop {
            copies: Copies::default(),
            unit: None,
            namings: Vec::new(),
        }];
        for moment in &moments {
            match moment {
                Moment::Named(naming) if self.alive[naming.event] > 0 => {
                    stops.last_mut().expect("the first stop stays").namings.push(*naming);
                }
                Moment::Announced { unit, after } if !self.is_dead[*unit] => {
                    stops.push(Stop {
                        copies: after.clone(),
                        unit: Some(*unit),
                        namings: Vec::new(),
                    });
                    self.close_loop(&mut stops, events, freed);
                }
                _ => {}
            }
        }
        self.moments[block] = moments;
        self.moments[block].retain(|moment| match moment {
            Moment::Named(naming) => self.alive[naming.event] > 0,
            Moment::Announced { unit, .. } => !self.is_dead[*unit],
        });
    }

    /// Leave out the loop that ends with the last stop, if there is one that can go.
    fn close_loop(&mut self, stops: &mut Vec<Stop>, events: &[Carried], freed: &mut Vec<usize>) {
        let last = stops.len() - 1;
        let start = (0..last).find(|&start| {
            stops[start].copies == stops[last].copies
                && stops[start + 1..].iter().all(|stop| {
                    stop.unit.is_none_or(|unit| self.can_go(unit, events))
                        && stop
                            .namings
                            .iter()
                            .all(|naming| stops[start].copies.takers(naming.place) == naming.takers)
                })
        });
        let Some(start) = start else { return };
        for stop in stops.split_off(start + 1) {
            if let Some(unit) = stop.unit {
                self.kill(unit, events, freed);
            }
            stops[start].namings.extend(stop.namings);
        }
    }

    /// Whether an event can do without one of its blocks: a removal can, a store only without its last ones.
    fn can_go(&self, unit: usize, events: &[Carried]) -> bool {
        let number = self.event_of[unit];
        let event = &events[number];
        let alive = self.alive[number];
        match event.act() {
            Act::Store { .. } if event.standing().aligned => unit == self.starts[number] + alive - 1,
            Act::Store { .. } => alive == 1 || !event.would_align(alive - 1),
            _ => true,
        }
    }

    fn kill(&mut self, unit: usize, events: &[Carried], freed: &mut Vec<usize>) {
        let number = self.event_of[unit];
        self.is_dead[unit] = true;
        self.alive[number] -= 1;
        if let Act::Store { parent } = events[number].act() {
            let at = unit - self.starts[number];
            let above = if events[number].standing().aligned && at > 0 {
                Some(events[number].keys()[at - 1])
            } else if self.alive[number] == 0 {
                parent
            } else {
                None
            };
            freed.extend(above.and_then(|key| self.blocks.get(&key)));
        }
    }
}
