//! Workers: how each is set up, which sources it has, and which ids have been removed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::source::Setup;

/// Removed ids that are remembered; the oldest are forgotten first.
const REMEMBERED: usize = 65_536;

/// State of a worker whose transport has said nothing.
pub const DEFAULT_STATE: &str = "live";

/// Stands for a worker as it was added; dead once the worker is removed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    /// The index it belongs to.
    pub index: u64,
    /// The worker's id.
    pub id: Arc<str>,
    /// Which time that id was added.
    pub incarnation: u64,
}

/// Which worker a batch is for.
#[derive(Clone, Copy, Debug)]
pub enum Target<'a> {
    /// By handle.
    Handle(&'a Handle),
    /// By id, added on first sight.
    Id(&'a str),
}

/// A worker.
#[derive(Clone, Debug)]
pub struct Worker {
    /// Its id.
    pub id: Arc<str>,
    /// Which time it was added.
    pub incarnation: u64,
    /// How its sources are set up.
    pub setup: Setup,
    /// Numbers of its sources, by rank.
    pub sources: BTreeMap<Option<i64>, u32>,
    /// State of the ranks that have none of their own.
    state: Arc<str>,
    /// State by rank.
    states: BTreeMap<Option<i64>, Arc<str>>,
}

impl Worker {
    /// A worker without sources.
    pub fn new(id: Arc<str>, incarnation: u64, setup: Setup) -> Self {
        Self {
            id,
            incarnation,
            setup,
            sources: BTreeMap::new(),
            state: DEFAULT_STATE.into(),
            states: BTreeMap::new(),
        }
    }

    /// The state of a rank, as the transport said it last.
    pub fn state(&self, dp_rank: Option<i64>) -> &Arc<str> {
        self.states.get(&dp_rank).unwrap_or(&self.state)
    }

    /// Set the state of a rank; None sets that of all ranks.
    pub fn set_state(&mut self, dp_rank: Option<i64>, state: &str) {
        if dp_rank.is_some() {
            self.states.insert(dp_rank, state.into());
        } else {
            self.states.clear();
            self.state = state.into();
        }
    }
}

/// All workers by id.
#[derive(Clone, Debug, Default)]
pub struct Workers {
    known: HashMap<Arc<str>, Worker>,
    removed: HashSet<Arc<str>>,
    removed_order: VecDeque<Arc<str>>,
    incarnations: u64,
}

impl Workers {
    /// A worker that is there.
    pub fn get(&self, id: &str) -> Option<&Worker> {
        self.known.get(id)
    }

    /// A worker that is there.
    pub fn get_mut(&mut self, id: &str) -> Option<&mut Worker> {
        self.known.get_mut(id)
    }

    /// All workers, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Worker> {
        self.known.values()
    }

    /// All workers, in no order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Worker> {
        self.known.values_mut()
    }

    /// Ids that were removed, oldest first.
    pub fn removed(&self) -> impl Iterator<Item = &str> {
        self.removed_order.iter().map(|id| &**id)
    }

    /// Sources that there are or will be: one for each rank, and one for a worker that has sent nothing yet.
    pub fn source_count(&self) -> usize {
        self.iter().map(|worker| worker.sources.len().max(1)).sum()
    }

    /// Bytes on the heap, about.
    pub fn size_bytes(&self) -> usize {
        self.known.capacity() * (size_of::<(Arc<str>, Worker)>() + 1)
            + (self.removed.capacity() + self.removed_order.capacity()) * size_of::<Arc<str>>()
    }

    /// Whether the id was removed and not added since.
    pub fn is_removed(&self, id: &str) -> bool {
        self.removed.contains(id)
    }

    /// Add a worker that is not there; an id that was removed is back.
    pub fn add(&mut self, id: &str, setup: Setup) -> &mut Worker {
        if self.removed.remove(id) {
            self.removed_order.retain(|removed| &**removed != id);
        }
        self.incarnations += 1;
        let id: Arc<str> = id.into();
        let worker = Worker::new(id.clone(), self.incarnations, setup);
        self.known.entry(id).insert(worker).into_mut()
    }

    /// Remove a worker and remember its id.
    pub fn remove(&mut self, id: &str) -> Option<Worker> {
        let worker = self.known.remove(id)?;
        self.remember_removed(Arc::clone(&worker.id));
        Some(worker)
    }

    /// Remember an id that is not there as removed.
    pub fn remember_removed(&mut self, id: Arc<str>) {
        if self.removed.insert(Arc::clone(&id)) {
            self.removed_order.push_back(id);
        }
        if self.removed_order.len() > REMEMBERED
            && let Some(oldest) = self.removed_order.pop_front()
        {
            self.removed.remove(&oldest);
        }
    }

    /// The worker a batch is for, added if it is an id never seen. None for a dead handle or a removed id.
    pub fn resolve(&mut self, target: Target<'_>, setup: &Setup) -> Option<&mut Worker> {
        match target {
            Target::Handle(handle) => {
                let worker = self.known.get_mut(&handle.id)?;
                (worker.incarnation == handle.incarnation).then_some(worker)
            }
            Target::Id(id) if self.is_removed(id) => None,
            Target::Id(id) if self.known.contains_key(id) => self.known.get_mut(id),
            Target::Id(id) => Some(self.add(id, setup.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::group::Groups;
    use super::*;

    fn setup() -> Setup {
        Setup {
            block_size: None,
            counted: true,
            groups: Groups::default(),
            keep_tokens: false,
        }
    }

    #[test]
    fn a_removed_id_comes_back_only_by_being_added() {
        let mut workers = Workers::default();
        let first = workers.add("w", setup()).incarnation;
        let handle = Handle {
            index: 0,
            id: "w".into(),
            incarnation: first,
        };
        assert!(workers.resolve(Target::Handle(&handle), &setup()).is_some());
        assert!(workers.remove("w").is_some() && workers.remove("w").is_none());
        assert!(workers.resolve(Target::Handle(&handle), &setup()).is_none());
        assert!(workers.resolve(Target::Id("w"), &setup()).is_none());
        workers.add("w", setup());
        assert!(workers.resolve(Target::Handle(&handle), &setup()).is_none());
        assert!(workers.resolve(Target::Id("w"), &setup()).is_some());
    }

    #[test]
    fn removed_ids_are_forgotten_in_the_end() {
        let mut workers = Workers::default();
        for number in 0..=REMEMBERED {
            workers.add(&number.to_string(), setup());
            workers.remove(&number.to_string());
        }
        assert!(!workers.is_removed("0") && workers.is_removed("1"));
    }

    #[test]
    fn a_state_without_a_rank_is_that_of_all_ranks() {
        let mut worker = Worker::new("w".into(), 1, setup());
        assert_eq!(&**worker.state(Some(0)), "live");
        worker.set_state(Some(0), "lost");
        worker.set_state(None, "degraded");
        worker.set_state(Some(1), "live");
        let states = [None, Some(0), Some(1)].map(|rank| worker.state(rank).to_string());
        assert_eq!(states, ["degraded", "degraded", "live"]);
    }
}
