//! What a rank held before something of its stream was lost.

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::copies::{Place, place};
use crate::coalesce::{Act, Carried, Next, Scope, Waiting};
use crate::wire::{Dialect, Event, Limits, WireError, Writer, begin_batch, end_batch, read_batch, write_event};

/// Where a block was announced: the place, the event, and which of its blocks it is.
type Announced = (Place, u32, u32);

/// Blocks that were held before a loss. Which of them are held still, nobody knows; but an engine that stores a block below
/// another holds that one, and with it all above, in the same place. So they are given back one chain at a time, as
/// later events name them.
#[derive(Clone, Debug, Default)]
pub struct Remains {
    events: Vec<Carried>,
    blocks: HashMap<u64, SmallVec<[Announced; 1]>>,
}

/// Blocks that are known to be held after all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confirmed {
    /// A batch of stores.
    pub payload: Vec<u8>,
    /// Blocks in it.
    pub blocks: usize,
}

impl Remains {
    pub(super) fn new(events: Vec<Carried>) -> Self {
        let mut remains = Self::default();
        for (number, event) in events.iter().enumerate() {
            match event.act() {
                // Of windows and states, a block says nothing about those above it.
                Act::Store { .. } if event.standing().aligned && event.is_of_full_attention() => {
                    let place = place(event.standing().scope);
                    for (at, &key) in event.keys().iter().enumerate() {
                        let known = remains.blocks.entry(key).or_default();
                        known.retain(|&mut (other, ..)| other != place);
                        known.push((place, number as u32, at as u32));
                    }
                }
                Act::Removal { .. } => {
                    for &key in event.keys() {
                        remains.forget(key, event.standing().scope);
                    }
                }
                _ => {}
            }
        }
        remains.events = events;
        remains
    }

    /// Read the next batch of the stream. The answer: stores of blocks that it shows to be held, to be said before it.
    pub fn confirm(&mut self, payload: &[u8]) -> Result<Option<Confirmed>, WireError> {
        let batch = read_batch(payload, &Limits::default())?;
        let mut stores = Vec::new();
        for event in &batch.events {
            let event = match event {
                Event::Cleared(_) => {
                    self.blocks.clear();
                    continue;
                }
                event => Carried::new(event),
            };
            let scope = event.standing().scope;
            if let Act::Store { parent: Some(parent) } = event.act()
                && event.is_of_full_attention()
            {
                self.give_back(parent, place(scope), &mut stores);
            }
            for &key in event.keys() {
                self.forget(key, scope);
            }
        }
        if stores.is_empty() {
            return Ok(None);
        }
        let mut out = Writer::new();
        begin_batch(&mut out, batch.ts, stores.len());
        for store in &stores {
            write_event(&mut out, &Dialect::VLLM, store).expect("maps have a place for everything");
        }
        end_batch(&mut out, batch.dp_rank);
        Ok(Some(Confirmed {
            payload: out.into_bytes(),
            blocks: stores.iter().map(|store| store.keys().len()).sum(),
        }))
    }

    /// Blocks that may be held still.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The stores of a block and of all above it, from the top.
    fn give_back(&mut self, block: u64, place: Place, stores: &mut Vec<Carried>) {
        let first = stores.len();
        let mut next = Some(block);
        while let Some(&(_, number, at)) = next.and_then(|key| self.find(key, place)) {
            let event = &self.events[number as usize];
            let is_here = |&unit: &u32| {
                let found = self.find(event.keys()[unit as usize], place);
                found == Some(&(place, number, unit))
            };
            // Those above it that are not here were given back before, or are gone.
            let from = (0..=at).rev().take_while(is_here).last().unwrap_or(at) as usize;
            let store = event.part(from, at as usize);
            next = match event.act() {
                Act::Store { parent } if from == 0 => parent,
                _ => None,
            };
            for key in store.keys() {
                take(&mut self.blocks, *key, place);
            }
            stores.push(store);
        }
        stores[first..].reverse();
    }

    fn find(&self, key: u64, place: Place) -> Option<&Announced> {
        self.blocks.get(&key)?.iter().find(|(known, ..)| *known == place)
    }

    fn forget(&mut self, key: u64, scope: Scope) {
        if let Scope::In(_) = scope {
            take(&mut self.blocks, key, place(scope));
        } else {
            self.blocks.remove(&key);
        }
    }
}

fn take(blocks: &mut HashMap<u64, SmallVec<[Announced; 1]>>, key: u64, place: Place) {
    if let Some(known) = blocks.get_mut(&key) {
        known.retain(|&mut (other, ..)| other != place);
        if known.is_empty() {
            blocks.remove(&key);
        }
    }
}
