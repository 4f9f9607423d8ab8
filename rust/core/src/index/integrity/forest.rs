//! Integrity of a forest.

use hashbrown::HashMap;

use crate::hash::content;
use crate::index::blocks::{BlockNumber, Flag};
use crate::index::forest::{By, Forest};
use crate::index::holders::{HolderSet, Member, NOBODY};
use crate::index::record::Namespace;
use crate::index::residency::Residency;

impl Forest {
    /// Every invariant that does not hold; `visit` is told each block and member with where it holds it.
    pub(super) fn faults(
        &self,
        mut visit: impl FnMut(BlockNumber, Member, &Residency, &mut Vec<String>),
    ) -> Vec<String> {
        let mut faults = Vec::new();
        if self.is_empty() {
            faults.push("the forest is empty and still there".into());
        }
        if self.is_littered() {
            faults.push(format!(
                "dead blocks and members {:?} were not swept out",
                self.retired()
            ));
        }
        let mut uses: HashMap<HolderSet, usize> = HashMap::new();
        let (mut held, mut records) = (0, 0);
        // Whether the members of one set are all in another.
        let mut closed: HashMap<(HolderSet, HolderSet), bool> = HashMap::new();
        for block in self.blocks.iter() {
            let link = self.link(block);
            let mut fault = |what: &str| faults.push(format!("block {block}: {what}"));
            *uses.entry(link.holders).or_default() += 1;
            records += self.sets.holders(link.holders).len();
            if link.holders == NOBODY {
                fault("nobody holds it and it is still there");
            }
            self.check_names(block, &mut fault);
            held += usize::from(self.counts_as_held(block));
            if let Some(parent) = link.parent() {
                if self.blocks.contains(parent) && parent != block {
                    let above = self.link(parent);
                    let is_closed = *closed.entry((link.holders, above.holders)).or_insert_with(|| {
                        let mut members = self.sets.holders(link.holders).iter();
                        members.all(|holder| self.sets.contains(above.holders, holder.member))
                    });
                    if !is_closed {
                        fault("not all its members are members of the block above");
                    }
                    if parent + 1 != block && !above.has(Flag::Fork) {
                        fault("the block above is not flagged as a fork");
                    }
                } else {
                    fault("the block above is not there");
                }
            }
            if !self.is_computed_right(block) {
                fault("its content hash is not that of its parent and tokens");
            }
            for holder in self.sets.holders(link.holders) {
                let residency = self.sets.residency(holder.residency);
                visit(block, holder.member, residency, &mut faults);
            }
        }
        if (held, records) != (self.held(), self.records()) {
            let told = (self.held(), self.records());
            faults.push(format!(
                "counted {held} contents and {records} members; the gauges say {told:?}"
            ));
        }
        let entries = [By::Engine, By::Content].map(|by| self.table(by).len());
        if entries != [self.blocks.len(); 2] {
            faults.push(format!(
                "{} blocks, but {entries:?} entries in the tables",
                self.blocks.len()
            ));
        }
        if let Some(block) = self.in_a_circle() {
            faults.push(format!("block {block}: it stands above itself"));
        }
        for set in self.sets.iter() {
            let counted = uses.get(&set).copied().unwrap_or_default();
            if counted != self.sets.blocks(set) {
                faults.push(format!(
                    "set {set}: counted {counted} blocks, not {}",
                    self.sets.blocks(set)
                ));
            }
        }
        faults
    }

    /// It is found under its names, those that share one are flagged, and no source gives it to two blocks.
    fn check_names(&self, block: BlockNumber, fault: &mut impl FnMut(&str)) {
        let link = self.link(block);
        let (mut is_named, mut is_known) = (false, false);
        for other in self.with_engine(self.blocks.engine(block)) {
            if other == block {
                is_named = true;
                continue;
            }
            if !link.has(Flag::Homonym) {
                fault("another block has its engine hash and it is not flagged");
            }
            let mut members = self.sets.holders(self.link(other).holders).iter();
            if members.any(|holder| self.sets.contains(link.holders, holder.member)) {
                fault("one of its members calls another block the same");
            }
        }
        for other in self.with_content(self.blocks.content(block)) {
            is_known |= other == block;
            if other != block && !link.has(Flag::Alias) {
                fault("another block has its content and it is not flagged");
            }
        }
        if !is_named || !is_known {
            fault("it is not found by its engine hash or its content");
        }
    }

    /// Whether it is the first of the held blocks with its content.
    fn counts_as_held(&self, block: BlockNumber) -> bool {
        let is_held = |&other: &BlockNumber| self.sets.is_held(self.link(other).holders);
        self.with_content(self.blocks.content(block)).filter(is_held).min() == Some(block)
    }

    /// Where tokens are kept the content follows from them.
    fn is_computed_right(&self, block: BlockNumber) -> bool {
        let Some(kept) = self.kept(block) else { return true };
        let parent = self.link(block).parent();
        let above = parent
            .filter(|&parent| self.blocks.contains(parent))
            .map(|parent| self.content(parent));
        let Some(seed) = above.or_else(|| kept.namespace.as_ref().map(Namespace::root)) else {
            return false;
        };
        content::block(seed, kept.tokens.as_slice(), Some(&kept.extra)) == self.content(block)
    }

    /// A block among its own ancestors, if there is one.
    fn in_a_circle(&self) -> Option<BlockNumber> {
        let mut seen = vec![0_u32; self.blocks.end() as usize];
        for (walk, start) in (1..).zip(self.blocks.iter()) {
            let mut next = Some(start);
            while let Some(block) = next.filter(|&block| self.blocks.contains(block)) {
                match std::mem::replace(&mut seen[block as usize], walk) {
                    0 => next = self.link(block).parent(),
                    before if before == walk => return Some(block),
                    _ => break,
                }
            }
        }
        None
    }
}
