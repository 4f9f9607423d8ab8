//! Which block holds which content.

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use crate::hash::sglang::Digest;

/// The digest of each block that has one, and the blocks of each digest in the order of labelling. Equal content may be
/// in several blocks; nothing merges them.
#[derive(Clone, Debug)]
pub(super) struct Labels {
    blocks: Vec<Label>,
    copies: HashMap<Digest, Copies>,
    len: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Label {
    digest: Option<Digest>,
    /// The copies of the same content labelled before and after this one; block 0, which has none, is nobody.
    older: u32,
    newer: u32,
}

#[derive(Clone, Copy, Debug)]
struct Copies {
    oldest: u32,
    newest: u32,
}

const NOBODY: u32 = 0;

impl Labels {
    pub fn new(blocks: u32) -> Self {
        Self {
            blocks: vec![Label::default(); blocks as usize],
            copies: HashMap::new(),
            len: 0,
        }
    }

    /// Blocks that have a label.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn get(&self, block: u32) -> Option<&Digest> {
        self.blocks[block as usize].digest.as_ref()
    }

    /// The block labelled first among those that carry the digest now.
    pub fn oldest(&self, digest: &Digest) -> Option<u32> {
        self.copies.get(digest).map(|copies| copies.oldest)
    }

    /// Every digest that some block carries, each once, in no order.
    pub fn digests(&self) -> impl ExactSizeIterator<Item = &Digest> {
        self.copies.keys()
    }

    /// Label a block that has no label.
    pub fn add(&mut self, block: u32, digest: Digest) {
        let older = match self.copies.entry(digest) {
            Entry::Occupied(mut copies) => std::mem::replace(&mut copies.get_mut().newest, block),
            Entry::Vacant(entry) => {
                entry.insert(Copies {
                    oldest: block,
                    newest: block,
                });
                NOBODY
            }
        };
        if older != NOBODY {
            self.blocks[older as usize].newer = block;
        }
        self.blocks[block as usize] = Label {
            digest: Some(digest),
            older,
            newer: NOBODY,
        };
        self.len += 1;
    }

    /// Take a block's label off, if it has one.
    pub fn remove(&mut self, block: u32) -> Option<Digest> {
        let Label { digest, older, newer } = std::mem::take(&mut self.blocks[block as usize]);
        let digest = digest?;
        if older != NOBODY {
            self.blocks[older as usize].newer = newer;
        }
        if newer != NOBODY {
            self.blocks[newer as usize].older = older;
        }
        if (older, newer) == (NOBODY, NOBODY) {
            self.copies.remove(&digest);
        } else {
            let copies = self.copies.get_mut(&digest).expect("a digest in use has its copies");
            if older == NOBODY {
                copies.oldest = newer;
            }
            if newer == NOBODY {
                copies.newest = older;
            }
        }
        self.len -= 1;
        Some(digest)
    }

    pub fn clear(&mut self) {
        self.blocks.fill(Label::default());
        self.copies.clear();
        self.len = 0;
    }

    /// Say what is broken, if something is.
    pub fn check(&self) -> Result<(), String> {
        let mut reached = 0;
        for (digest, copies) in &self.copies {
            let (mut older, mut block) = (NOBODY, copies.oldest);
            while block != NOBODY {
                let label = &self.blocks[block as usize];
                if label.digest.as_ref() != Some(digest) || label.older != older {
                    return Err(format!(
                        "block {block} is in the wrong list of copies, or at the wrong place"
                    ));
                }
                reached += 1;
                (older, block) = (block, label.newer);
            }
            if copies.newest != older {
                return Err(format!(
                    "block {older} is the newest copy, but {} is noted",
                    copies.newest
                ));
            }
        }
        let labelled = self.blocks.iter().filter(|label| label.digest.is_some()).count();
        if (reached, labelled) != (self.len, self.len) {
            return Err(format!(
                "{labelled} blocks are labelled, {reached} are found by their digest, {} are counted",
                self.len
            ));
        }
        Ok(())
    }
}
