//! Numbers in the order of their last use.

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    older: u32,
    newer: u32,
}

/// A doubly linked list over small numbers, which are used again after they have gone.
#[derive(Debug)]
pub struct Recency {
    links: Vec<Link>,
    oldest: u32,
    newest: u32,
}

impl Default for Recency {
    fn default() -> Self {
        Self {
            links: Vec::new(),
            oldest: NONE,
            newest: NONE,
        }
    }
}

impl Recency {
    /// The one that was not used for longest.
    pub fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// A number that is not there yet, as the newest.
    pub fn add(&mut self, number: u32) {
        let link = Link {
            older: self.newest,
            newer: NONE,
        };
        if number as usize == self.links.len() {
            self.links.push(link);
        } else {
            self.links[number as usize] = link;
        }
        match self.newest {
            NONE => self.oldest = number,
            newest => self.links[newest as usize].newer = number,
        }
        self.newest = number;
    }

    /// A number that is there is the newest now.
    pub fn touch(&mut self, number: u32) {
        if number != self.newest {
            self.remove(number);
            self.add(number);
        }
    }

    /// Take a number out.
    pub fn remove(&mut self, number: u32) {
        let Link { older, newer } = self.links[number as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.links[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.links[newer as usize].older = older,
        }
    }
}
