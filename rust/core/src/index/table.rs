//! From content hash to holders: one table for all workers whose blocks have the same size.

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use smallvec::SmallVec;

use super::tier::Tiers;

/// How an engine cuts tokens into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// Tokens (pairs, for bigrams) in a block.
    pub block_size: u32,
    /// Blocks of pairs: each covers one token of the next block too.
    pub pairs: bool,
}

/// One block of one source that has this content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// What the engine calls the block.
    pub block: u64,
    /// The source that holds it.
    pub source: u32,
    /// Groups that hold it in any tier, a bit each.
    pub groups: u32,
    /// Tiers in which a full-attention group holds it.
    pub tiers: Tiers,
}

/// Holders by content hash.
#[derive(Clone, Debug, Default)]
pub struct Table(HashMap<u64, SmallVec<[Holder; 1]>>);

impl Table {
    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Distinct contents.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Who holds a content.
    pub fn get(&self, content: u64) -> &[Holder] {
        self.0.get(&content).map_or(&[], |holders| holders)
    }

    /// Enter a holder, or replace its entry.
    pub fn set(&mut self, content: u64, holder: Holder) {
        let holders = self.0.entry(content).or_default();
        match find(holders, holder.source, holder.block) {
            Some(place) => holders[place] = holder,
            None => holders.push(holder),
        }
    }

    /// Take a holder out, if it is there.
    pub fn unset(&mut self, content: u64, source: u32, block: u64) {
        if let Entry::Occupied(mut entry) = self.0.entry(content) {
            if let Some(place) = find(entry.get(), source, block) {
                entry.get_mut().swap_remove(place);
            }
            if entry.get().is_empty() {
                entry.remove();
            }
        }
    }

    /// Every content and its holders.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &[Holder])> {
        self.0.iter().map(|(&content, holders)| (content, holders.as_slice()))
    }

    /// Bytes of the map itself; further holders of one content lie outside.
    pub fn memory(&self) -> usize {
        self.0.capacity() * (size_of::<(u64, SmallVec<[Holder; 1]>)>() + 1)
    }
}

fn find(holders: &[Holder], source: u32, block: u64) -> Option<usize> {
    holders
        .iter()
        .position(|holder| holder.source == source && holder.block == block)
}

/// The tables of all geometries in use; few.
#[derive(Clone, Debug, Default)]
pub struct Tables(Vec<(Geometry, Table)>);

impl Tables {
    /// Enter a holder, or replace its entry.
    pub fn set(&mut self, geometry: Geometry, content: u64, holder: Holder) {
        let place = self.find(geometry).unwrap_or_else(|| {
            self.0.push((geometry, Table::default()));
            self.0.len() - 1
        });
        self.0[place].1.set(content, holder);
    }

    /// Take a holder out, if it is there; a table that is empty after it goes too.
    pub fn unset(&mut self, geometry: Geometry, content: u64, source: u32, block: u64) {
        if let Some(place) = self.find(geometry) {
            self.0[place].1.unset(content, source, block);
            if self.0[place].1.is_empty() {
                self.0.swap_remove(place);
            }
        }
    }

    /// All geometries in use and their tables.
    pub fn iter(&self) -> impl Iterator<Item = (Geometry, &Table)> {
        self.0.iter().map(|(geometry, table)| (*geometry, table))
    }

    fn find(&self, geometry: Geometry) -> Option<usize> {
        self.0.iter().position(|(known, _)| *known == geometry)
    }
}
