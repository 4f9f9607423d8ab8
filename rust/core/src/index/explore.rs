//! Looking around in the tree of prompts: what is shared, by how many blocks, and who holds it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::PrefixIndex;
use super::geometry::Geometry;
use super::prompt::Prompt;
use super::survey::{Holders, Holdings, Owner, Survey};
use super::tier::Tiers;

/// Where to look, and how much to tell.
#[derive(Clone, Copy, Debug)]
pub struct Outlook {
    /// The content of a node's first block; None: above all first blocks of prompts.
    pub at: Option<u64>,
    /// Levels of nodes to tell.
    pub depth: usize,
    /// Nodes to tell at most: those with most hits, then most blocks.
    pub limit: usize,
    /// Holders to tell of each node at most.
    pub holders: usize,
}

/// Blocks one below the other with the same holders.
#[derive(Clone, Debug)]
pub struct Stretch {
    /// The content of its first block.
    pub content: u64,
    /// The one above it among those that are told.
    pub parent: Option<usize>,
    /// How its blocks are cut.
    pub geometry: Geometry,
    /// Its blocks.
    pub blocks: usize,
    /// Blocks above its first.
    pub depth: usize,
    /// Blocks below its last, all branches together.
    pub below: usize,
    /// Trails that lead to it or further down.
    pub hits: usize,
    /// Stretches right below it.
    pub children: usize,
    /// Sources that hold it.
    pub held_by: usize,
    /// Some of them, and in which tiers.
    pub holders: Vec<(Owner, Tiers)>,
}

/// What was seen.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Stretches, each after the one above it; the first is the one asked for, if one was.
    pub stretches: Vec<Stretch>,
    /// Contents of the stretches above it, from the first block on.
    pub path: Vec<u64>,
    /// All stretches of the index.
    pub total: usize,
    /// All blocks in them.
    pub blocks: usize,
    /// Trails that lead to a block that is still known.
    pub followed: usize,
}

impl PrefixIndex {
    /// The trail of a prompt: the content of the deepest of its blocks that anyone knows, then of one half as deep, and
    /// so on up to the first. Empty where nobody knows it.
    pub fn trail(&self, prompt: &Prompt<'_>) -> Vec<u64> {
        self.follow(prompt, |_, state, chains| {
            let known = chains.iter().map(|chain| {
                let forest = state.forests.get(chain.geometry());
                forest.map_or(&[][..], |forest| chain.known(forest))
            });
            let Some(mut known) = known.max_by_key(|known| known.len()) else {
                return Vec::new();
            };
            let mut trail = Vec::new();
            while let Some(&last) = known.last() {
                trail.push(last);
                known = &known[..known.len() / 2];
            }
            trail
        })
    }

    /// Look around. None where there is nothing (any more) at the place asked for.
    ///
    /// Takes time in the number of blocks, and nobody waits for it longer than for a batch. What changes meanwhile may
    /// be seen half.
    pub fn explore(&self, outlook: Outlook, trails: &[Vec<u64>]) -> Option<View> {
        let geometries: Vec<Geometry> = self.state.read().forests.iter().map(|(geometry, _)| geometry).collect();
        let mut holdings = Holdings::default();
        let mut view = View::default();
        let mut surveys = Vec::with_capacity(geometries.len());
        for geometry in geometries {
            let mut survey = Survey::take(self, geometry, &mut holdings, outlook.at);
            view.followed += survey.follow(self, trails);
            view.total += survey.nodes.len();
            view.blocks += survey.nodes.iter().map(|node| node.blocks).sum::<usize>();
            surveys.push(survey);
        }
        let mut heap = BinaryHeap::new();
        for (number, survey) in surveys.iter().enumerate() {
            match (outlook.at, survey.found) {
                (None, _) => heap.extend(survey.roots.iter().map(|&root| entry(&surveys, number, root, None, 1))),
                (Some(_), Some(found)) => {
                    let above = std::iter::successors(survey.nodes[found].parent, |&node| survey.nodes[node].parent);
                    view.path = above.map(|node| survey.nodes[node].head).collect();
                    view.path.reverse();
                    heap.push(entry(&surveys, number, found, None, 1));
                }
                (Some(_), None) => {}
            }
        }
        if outlook.at.is_some() && heap.is_empty() {
            return None;
        }
        while let Some((_, _, place)) = heap.pop() {
            if view.stretches.len() == outlook.limit {
                break;
            }
            let Place {
                survey,
                node,
                parent,
                level,
            } = place;
            if level < outlook.depth {
                let told = Some(view.stretches.len());
                let children = surveys[survey].nodes[node].children.iter();
                heap.extend(children.map(|&child| entry(&surveys, survey, child, told, level + 1)));
            }
            let stretch = stretch(&surveys[survey], node, parent, &holdings, outlook.holders);
            view.stretches.push(stretch);
        }
        Some(view)
    }
}

/// A node that may be told, and the one above it that was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    survey: usize,
    node: usize,
    parent: Option<usize>,
    level: usize,
}

/// Most hits first, then most blocks; then as they come.
type Entry = ((usize, usize), Reverse<usize>, Place);

fn entry(surveys: &[Survey], survey: usize, node: usize, parent: Option<usize>, level: usize) -> Entry {
    let seen = &surveys[survey].nodes[node];
    let weight = (seen.hits, seen.blocks + seen.below);
    let place = Place {
        survey,
        node,
        parent,
        level,
    };
    (weight, Reverse(node), place)
}

fn stretch(survey: &Survey, place: usize, parent: Option<usize>, holdings: &Holdings, most: usize) -> Stretch {
    let node = &survey.nodes[place];
    let mut holders = Holders::new();
    for &(owner, tiers) in node.sets.iter().flat_map(|&set| holdings.get(set)) {
        match holders.iter_mut().find(|(known, _)| *known == owner) {
            Some((_, known)) => *known = known.or(tiers),
            None => holders.push((owner, tiers)),
        }
    }
    let named = |&(owner, tiers): &(u32, Tiers)| (holdings.owners[owner as usize].clone(), tiers);
    let mut told: Vec<(Owner, Tiers)> = holders.iter().map(named).collect();
    told.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    told.truncate(most);
    Stretch {
        content: node.head,
        parent,
        geometry: survey.geometry,
        blocks: node.blocks,
        depth: node.depth,
        below: node.below,
        hits: node.hits,
        children: node.children.len(),
        held_by: holders.len(),
        holders: told,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{index, store};
    use super::super::{Target, Tier};
    use super::*;
    use crate::tokens::TokenSlice;

    const ALL: Outlook = Outlook {
        at: None,
        depth: 100,
        limit: 100,
        holders: 100,
    };

    fn trail(index: &PrefixIndex, tokens: &[u32]) -> Vec<u64> {
        index.trail(&Prompt::new(TokenSlice::U32(tokens), None, None, None, None).expect("no extra keys"))
    }

    fn tell(index: &PrefixIndex, worker: &str, batches: &[Vec<u8>]) {
        for batch in batches {
            index
                .apply(Target::Id(worker), batch, None, None)
                .expect("a good batch");
        }
    }

    /// (blocks, below, depth, children, holders) of each.
    fn shape(view: &View) -> Vec<(usize, usize, usize, usize, String)> {
        let names = |stretch: &Stretch| stretch.holders.iter().map(|((worker, _), _)| &**worker).collect();
        let shape = |one: &Stretch| (one.blocks, one.below, one.depth, one.children, names(one));
        view.stretches.iter().map(shape).collect()
    }

    #[test]
    fn a_shared_beginning_is_one_stretch_whatever_engines_call_its_blocks() {
        for shift in [0, 100] {
            let index = index();
            tell(&index, "a", &[store(&[1, 2, 3, 4], None, &[1, 1, 2, 2, 3, 3, 4, 4])]);
            let more = [
                store(&[shift + 1, shift + 2], None, &[1, 1, 2, 2]),
                store(&[shift + 9], Some(shift + 2), &[9, 9]),
            ];
            tell(&index, "b", &more);
            let view = index.explore(ALL, &[]).expect("above all");
            let expected = [
                (2, 3, 0, 2, "ab".into()),
                (2, 0, 2, 0, "a".into()),
                (1, 0, 2, 0, "b".into()),
            ];
            assert_eq!(shape(&view), expected, "shift {shift}");
            assert_eq!((view.total, view.blocks), (3, 5));
            assert_eq!(view.stretches[1].parent, Some(0));
        }
    }

    #[test]
    fn trails_make_what_they_lead_through_hot() {
        let index = index();
        tell(
            &index,
            "a",
            &[
                store(&[1, 2, 3], None, &[1, 1, 2, 2, 3, 3]),
                store(&[7], Some(1), &[7, 7]),
            ],
        );
        let long = trail(&index, &[1, 1, 2, 2, 3, 3, 8, 8]);
        assert_eq!(long.len(), 2, "three blocks, then one");
        assert!(trail(&index, &[5, 5]).is_empty());
        let trails = [long.clone(), trail(&index, &[1, 1, 7, 7]), long, vec![42]];
        let view = index.explore(ALL, &trails).expect("above all");
        let hits: Vec<_> = view.stretches.iter().map(|one| (one.blocks, one.hits)).collect();
        assert_eq!((hits, view.followed), (vec![(1, 3), (2, 2), (1, 1)], 3));
    }

    #[test]
    fn one_looks_down_from_where_one_stands_and_only_so_far() {
        let index = index();
        tell(
            &index,
            "a",
            &[
                store(&[1, 2, 3], None, &[1, 1, 2, 2, 3, 3]),
                store(&[7], Some(1), &[7, 7]),
            ],
        );
        tell(&index, "a", &[store(&[8], Some(2), &[8, 8])]);
        let all = index.explore(ALL, &[]).expect("above all");
        let second = all
            .stretches
            .iter()
            .find(|one| one.depth == 1 && one.children == 2)
            .expect("it is there");
        let from = Outlook {
            at: Some(second.content),
            depth: 2,
            ..ALL
        };
        let view = index.explore(from, &[]).expect("it is there");
        assert_eq!(view.path, [all.stretches[0].content]);
        assert_eq!(
            view.stretches.iter().map(|one| one.depth).collect::<Vec<_>>(),
            [1, 2, 2]
        );
        let shallow = index.explore(Outlook { depth: 1, ..from }, &[]).expect("it is there");
        assert_eq!((shallow.stretches.len(), shallow.stretches[0].children), (1, 2));
        let few = index.explore(Outlook { limit: 2, ..from }, &[]).expect("it is there");
        assert_eq!(few.stretches.len(), 2);
        assert!(index.explore(Outlook { at: Some(42), ..ALL }, &[]).is_none());
        index.remove_worker("a");
        assert!(index.explore(from, &[]).is_none());
        assert!(index.explore(ALL, &[]).expect("above all").stretches.is_empty());
    }

    #[test]
    fn a_hole_has_no_holders_and_tiers_are_told() {
        let index = index();
        tell(&index, "a", &[store(&[1, 2], None, &[1, 1, 2, 2])]);
        tell(&index, "a", &[super::super::tests::remove(1)]);
        let view = index.explore(ALL, &[]).expect("above all");
        assert_eq!(shape(&view), [(1, 1, 0, 1, String::new()), (1, 0, 1, 0, "a".into())]);
        assert!(view.stretches[1].holders[0].1.contains(Tier::Gpu));
    }
}
