//! What nobody sees any more and is still there: blocks without holders, and members that were retired. It goes some
//! blocks at a time, so that nobody waits long for the lock.

use super::blocks::BlockNumber;
use super::forest::Forest;
use super::holders::{Member, NOBODY};
use super::residency::Change;

/// Blocks that are looked at, changed, and buried under one hold of the lock.
const LOOKED_AT: u32 = 4096;
const SWEPT: usize = 256;
const BURIED: usize = 64;

/// Retired members on their way out of all holders.
#[derive(Debug)]
pub struct Sweep {
    members: Vec<Member>,
    next: BlockNumber,
}

impl Forest {
    /// A member holds nothing any more, wherever its number still stands.
    pub fn retire(&mut self, member: Member) {
        self.retired.push(member);
    }

    /// Members that were retired and may still be in sets.
    pub fn retired(&self) -> &[Member] {
        &self.retired
    }

    /// Whether there is something to bury or to sweep.
    pub fn is_littered(&self) -> bool {
        !self.dead.is_empty() || !self.retired.is_empty()
    }

    /// Bury some dead blocks, or take retired members out of the holders of some blocks. Gives the members that are in
    /// no set any more.
    pub fn sweep(&mut self) -> Vec<Member> {
        if self.dead.is_empty() {
            return self.sweep_retired();
        }
        for block in self.dead.split_off(self.dead.len().saturating_sub(BURIED)) {
            // It may have holders again, and it may be here twice.
            if self.blocks.contains(block) && self.blocks.link(block).holders == NOBODY {
                self.remove(block);
            }
        }
        if self.dead.is_empty() {
            self.dead = Vec::new();
        }
        Vec::new()
    }

    fn sweep_retired(&mut self) -> Vec<Member> {
        let sweep = self.sweep.take();
        let Sweep { members, mut next } = sweep.unwrap_or_else(|| Sweep {
            members: self.retired.clone(),
            next: 0,
        });
        let end = self.blocks.end().min(next.saturating_add(LOOKED_AT));
        let mut swept = 0;
        while next < end && swept < SWEPT {
            if self.blocks.contains(next) {
                let before = self.blocks.link(next).holders;
                let after = members.iter().fold(before, |set, &member| {
                    let outcome = self.sets.change(set, member, Change::Clear, 0);
                    outcome.to
                });
                swept += usize::from(before != after);
                self.set_holders(next, after);
            }
            next += 1;
        }
        if next < self.blocks.end() {
            self.sweep = Some(Sweep { members, next });
            return Vec::new();
        }
        self.retired.retain(|member| !members.contains(member));
        members
    }
}
