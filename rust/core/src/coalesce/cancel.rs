//! Which announcements of a batch undo each other.
//!
//! A store and a later removal of a block cancel if the block was not held before the store; a removal and a later store
//! if exactly one copy was held before the removal; and either only if nothing between the two, and no later store of
//! the batch, names the block as block or as parent in any tier. Each pair that goes may make room for another: all of
//! them are found, in time linear in the blocks of the batch.

use hashbrown::HashMap;

use super::holdings::{Before, Holdings};
use super::standing::{Place, Scope};
use super::window::{Act, Barrier, Waiting};

/// Leave out what undoes itself, and note what consumers hold after the batch. The answer: how many announcements of a
/// block were left out.
pub(super) fn cancel<E: Waiting>(events: &mut Vec<E>, holdings: &mut Holdings) -> usize {
    let is_clear = |event: &E| event.act() == Act::Barrier(Barrier::Clear);
    if !holdings.is_tracking() && !events.iter().any(is_clear) {
        return 0;
    }
    let mut batch = Mentions::new(events);
    for event in events.iter() {
        batch.read(event, holdings);
    }
    let left_out = batch.cancel();
    let count = left_out.iter().filter(|&&unit| unit).count();
    if count > 0 {
        let mut start = 0;
        events.retain_mut(|event| {
            let units = &left_out[start..start + event.keys().len()];
            start += units.len();
            let is_gone = !units.is_empty() && units.iter().all(|&unit| unit);
            if !is_gone && units.contains(&true) {
                event.retain(&units.iter().map(|unit| !unit).collect::<Vec<_>>());
            }
            !is_gone
        });
    }
    count
}

/// One mention of a block. Blocks that the batch does not remove are not followed.
#[derive(Clone, Copy, Debug)]
struct Mention {
    block: usize,
    before: Option<usize>,
    after: Option<usize>,
    role: Role,
}

#[derive(Clone, Copy, Debug)]
enum Role {
    /// As the parent of a stored block.
    Parent,
    Stored {
        announced: Announced,
        /// The mention of the block above it, if that is followed.
        parent: Option<usize>,
        /// Whether every consumer takes the store.
        is_taken: bool,
    },
    Removed(Announced),
}

/// What decides whether the announcement of a block may be left out.
#[derive(Clone, Copy, Debug)]
struct Announced {
    /// Number of the announcement in the batch.
    unit: usize,
    /// Clears and other barriers before it.
    epoch: usize,
    /// None: it is never left out.
    place: Option<Place>,
    /// What was held there before.
    held: Before,
}

/// The mentions of the blocks that a batch removes, each block's in order.
struct Mentions {
    all: Vec<Mention>,
    /// Dense numbers of blocks.
    blocks: HashMap<u64, usize>,
    /// For each block, its last mention.
    last: Vec<Option<usize>>,
    /// For each block, its last mention by a store.
    last_by_store: Vec<Option<usize>>,
    units: usize,
    epoch: usize,
}

impl Mentions {
    fn new<E: Waiting>(events: &[E]) -> Self {
        let mut blocks = HashMap::new();
        let stores = events.iter().any(|event| matches!(event.act(), Act::Store { .. }));
        for event in events.iter().filter(|_| stores) {
            if matches!(event.act(), Act::Removal { .. }) {
                for &key in event.keys() {
                    let number = blocks.len();
                    blocks.entry(key).or_insert(number);
                }
            }
        }
        Self {
            all: Vec::new(),
            last: vec![None; blocks.len()],
            last_by_store: vec![None; blocks.len()],
            blocks,
            units: 0,
            epoch: 0,
        }
    }

    /// Go on by one event.
    fn read<E: Waiting>(&mut self, event: &E, holdings: &mut Holdings) {
        match event.act() {
            Act::Store { parent } => self.read_store(event, parent, holdings),
            Act::Removal { .. } => {
                let scope = event.standing().scope;
                let place = if let Scope::In(place) = scope {
                    Some(place)
                } else {
                    None
                };
                for &key in event.keys() {
                    let held = holdings.remove(key, scope);
                    let announced = self.announced(place, held);
                    self.mention(key, Role::Removed(announced));
                }
            }
            Act::Barrier(barrier) => {
                match barrier {
                    Barrier::Clear => holdings.clear(),
                    Barrier::Foreign => {}
                    Barrier::Unusable => holdings.lose_track(),
                }
                self.epoch += 1;
            }
        }
    }

    fn read_store<E: Waiting>(&mut self, event: &E, parent: Option<u64>, holdings: &mut Holdings) {
        let standing = event.standing();
        // Only a store whose blocks have their own tokens each can do without one of them.
        let place = standing.scope.place().filter(|_| standing.aligned);
        let is_taken = holdings.takes(parent, standing.scope);
        let mut above = parent;
        for &key in event.keys() {
            let parent = above.replace(key).and_then(|above| self.mention(above, Role::Parent));
            let held = holdings.store(key, standing, is_taken);
            let stored = Role::Stored {
                announced: self.announced(place, held),
                parent,
                is_taken,
            };
            self.mention(key, stored);
        }
    }

    fn announced(&mut self, place: Option<Place>, held: Before) -> Announced {
        let unit = self.units;
        self.units += 1;
        Announced {
            unit,
            epoch: self.epoch,
            place,
            held,
        }
    }

    fn mention(&mut self, key: u64, role: Role) -> Option<usize> {
        let &block = self.blocks.get(&key)?;
        let number = self.all.len();
        let before = self.last[block].replace(number);
        if let Some(before) = before {
            self.all[before].after = Some(number);
        }
        if !matches!(role, Role::Removed(_)) {
            self.last_by_store[block] = Some(number);
        }
        self.all.push(Mention {
            block,
            before,
            after: None,
            role,
        });
        Some(number)
    }

    /// Which announcements are left out, by their numbers.
    fn cancel(mut self) -> Vec<bool> {
        let mut left_out = vec![false; self.units];
        let mut to_try: Vec<usize> = (0..self.last.len()).collect();
        while let Some(block) = to_try.pop() {
            while let Some((first, second)) = self.pair(block) {
                for number in [first, second] {
                    match self.all[number].role {
                        Role::Removed(announced) => left_out[announced.unit] = true,
                        Role::Stored { announced, parent, .. } => {
                            left_out[announced.unit] = true;
                            if let Some(parent) = parent {
                                self.unlink(parent);
                                to_try.push(self.all[parent].block);
                            }
                        }
                        Role::Parent => {}
                    }
                    self.unlink(number);
                }
            }
        }
        left_out
    }

    /// Two neighbouring mentions of a block that cancel. After its last mention by a store only removals follow, so one
    /// of the two is that.
    fn pair(&self, block: usize) -> Option<(usize, usize)> {
        let last = self.last_by_store[block]?;
        let mention = &self.all[last];
        let with_next = mention.after.map(|after| (last, after));
        let with_previous = mention.before.map(|before| (before, last));
        [with_next, with_previous]
            .into_iter()
            .flatten()
            .find(|&(first, second)| self.cancels(first, second))
    }

    fn cancels(&self, first: usize, second: usize) -> bool {
        let (first, second, holds) = match (self.all[first].role, self.all[second].role) {
            (Role::Stored { announced, .. }, Role::Removed(removed)) => {
                (announced, removed, announced.held == Before::Absent)
            }
            (
                Role::Removed(removed),
                Role::Stored {
                    announced, is_taken, ..
                },
            ) => (removed, announced, removed.held == Before::Sole && is_taken),
            _ => return false,
        };
        holds && first.place.is_some() && first.place == second.place && first.epoch == second.epoch
    }

    fn unlink(&mut self, number: usize) {
        let Mention {
            block, before, after, ..
        } = self.all[number];
        if let Some(before) = before {
            self.all[before].after = after;
        }
        match after {
            Some(after) => self.all[after].before = before,
            None => self.last[block] = before,
        }
        if self.last_by_store[block] == Some(number) {
            let mut at = before;
            while let Some(number) = at
                && matches!(self.all[number].role, Role::Removed(_))
            {
                at = self.all[number].before;
            }
            self.last_by_store[block] = at;
        }
    }
}
