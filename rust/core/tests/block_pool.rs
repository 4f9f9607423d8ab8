//! What the block pool does with its blocks.

use kvevents_core::block_pool::{BlockPool, PoolError, Taken};
use proptest::prelude::*;

type Digest = [u8; 32];

fn digests(numbers: impl IntoIterator<Item = u8>) -> Vec<Digest> {
    numbers.into_iter().map(|number| [number; 32]).collect()
}

fn take(pool: &mut BlockPool, count: usize) -> Vec<i64> {
    let taken = pool.take(count).expect("as many are free");
    taken.blocks
}

fn queue(pool: &BlockPool) -> Vec<u32> {
    pool.check().expect("sound");
    pool.queue().collect()
}

/// A sequence of `pages` full blocks and a partial one, published and given back.
fn run(pool: &mut BlockPool, pages: std::ops::Range<u8>) -> Vec<i64> {
    let blocks = take(pool, pages.len() + 1);
    pool.publish(&blocks[..pages.len()], &digests(pages))
        .expect("held and bare");
    pool.release(&blocks).expect("held");
    blocks
}

#[test]
fn the_tail_of_a_sequence_is_reused_before_its_head_and_the_partial_block_first() {
    let mut pool = BlockPool::new(7);
    assert_eq!(run(&mut pool, 0..3), [1, 2, 3, 4]);
    assert_eq!(queue(&pool), [4, 5, 6, 3, 2, 1]);
    assert_eq!((pool.free(), pool.labelled(), pool.evictable()), (6, 3, 3));
    assert_eq!(pool.lookup(&digests(0..4)), [1, 2, 3]);
    let taken = pool.take(4).expect("as many are free");
    let expected = Taken {
        blocks: vec![4, 5, 6, 3],
        evicted: digests([2]),
    };
    assert_eq!(taken, expected);
    assert_eq!(pool.lookup(&digests(0..4)), [1, 2]);
    assert_eq!(pool.take(3), None);
}

#[test]
fn several_bare_blocks_go_to_the_front_the_last_of_the_sequence_first() {
    let mut pool = BlockPool::new(6);
    let blocks = take(&mut pool, 4);
    pool.publish(&blocks[..1], &digests([7])).expect("held and bare");
    pool.release(&blocks).expect("held");
    assert_eq!(queue(&pool), [4, 3, 2, 5, 1]);
}

#[test]
fn a_held_hit_leaves_the_queue_from_wherever_it_is() {
    let mut pool = BlockPool::new(6);
    run(&mut pool, 0..3);
    let hits = pool.lookup(&digests(0..2));
    assert_eq!(pool.parked(&hits), Ok(2));
    pool.hold(&hits, None).expect("blocks of the pool");
    pool.hold(&hits[..1], Some(&digests([0]))).expect("still there");
    assert_eq!(queue(&pool), [4, 5, 3]);
    assert_eq!((pool.parked(&hits), pool.evictable()), (Ok(0), 1));
    pool.release(&hits).expect("held");
    assert_eq!(queue(&pool), [4, 5, 3, 2]);
}

#[test]
fn copies_of_a_page_are_found_in_the_order_of_labelling_and_lost_one_by_one() {
    let mut pool = BlockPool::new(5);
    let blocks = take(&mut pool, 3);
    for block in [2, 0, 1] {
        pool.publish(&blocks[block..=block], &digests([9]))
            .expect("held and bare");
    }
    assert_eq!((pool.lookup(&digests([9])), pool.labelled()), (vec![3], 3));
    assert_eq!(
        pool.digests().collect::<Vec<_>>(),
        digests([9]).iter().collect::<Vec<_>>()
    );
    pool.release(&blocks[..1]).expect("held");
    take(&mut pool, 2); // Block 4 and the copy in the middle of the list.
    assert_eq!(pool.lookup(&digests([9])), [3]);
    pool.release(&blocks[2..]).expect("held");
    take(&mut pool, 1);
    assert_eq!(pool.lookup(&digests([9])), [2]);
    pool.check().expect("sound");
}

#[test]
fn an_eviction_takes_labels_and_leaves_the_queue_as_it_is() {
    let mut pool = BlockPool::new(6);
    run(&mut pool, 0..4);
    assert_eq!(pool.evict(2), digests([3, 2]));
    assert_eq!(queue(&pool), [5, 4, 3, 2, 1]);
    assert_eq!(pool.evict(9), digests([1, 0]));
    assert_eq!(pool.labelled(), 0);
}

#[test]
fn a_reset_waits_until_nobody_holds_a_block_and_keeps_the_queue() {
    let mut pool = BlockPool::new(5);
    let blocks = run(&mut pool, 0..2);
    pool.hold(&blocks[..1], None).expect("blocks of the pool");
    assert!(!pool.reset());
    assert_eq!(pool.labelled(), 2);
    pool.release(&blocks[..1]).expect("held");
    let before = queue(&pool);
    assert!(pool.reset());
    assert_eq!((queue(&pool), pool.labelled(), pool.evictable()), (before, 0, 0));
    assert_eq!(pool.lookup(&digests(0..2)), Vec::<i64>::new());
}

#[test]
fn what_is_refused_changes_nothing() {
    let mut pool = BlockPool::new(5);
    let blocks = take(&mut pool, 3);
    pool.publish(&blocks[..1], &digests([1])).expect("held and bare");
    let before = format!("{pool:?}");
    let unknown = |position, block| {
        Err(PoolError::Unknown {
            position,
            block,
            last: 4,
        })
    };
    assert_eq!(pool.hold(&[1, 0], None), unknown(1, 0));
    assert_eq!(pool.release(&[1, 5]), unknown(1, 5));
    assert_eq!(pool.parked(&[-1]).map(|_| ()), unknown(0, -1));
    let not_held = |position, block| Err(PoolError::NotHeld { position, block });
    assert_eq!(pool.release(&[1, 2, 2]), not_held(2, 2));
    assert_eq!(pool.publish(&[2, 4], &digests([2, 3])), not_held(1, 4));
    let labelled = |position, block| Err(PoolError::Labelled { position, block });
    assert_eq!(pool.publish(&[2, 1], &digests([2, 3])), labelled(1, 1));
    assert_eq!(pool.publish(&[2, 2], &digests([2, 3])), labelled(1, 2));
    assert_eq!(
        pool.publish(&[2], &digests([2, 3])),
        Err(PoolError::Count { expected: 2, got: 1 })
    );
    assert_eq!(
        pool.hold(&[1, 2], Some(&digests([1, 2]))),
        Err(PoolError::Lost { position: 1, block: 2 })
    );
    assert_eq!(format!("{pool:?}"), before);
}

proptest! {
    /// Sequences come and go: no block is lost or used twice, and what is labelled is found.
    #[test]
    fn blocks_are_neither_lost_nor_used_twice(
        blocks in 2u32..40,
        steps in prop::collection::vec((0usize..6, 0u8..5, any::<prop::sample::Index>(), any::<bool>()), 1..80),
    ) {
        let mut pool = BlockPool::new(blocks);
        let mut running: Vec<Vec<i64>> = Vec::new();
        let mut stored = std::collections::HashMap::<Digest, usize>::new();
        for (count, start, which, ends) in steps {
            if ends && !running.is_empty() {
                let table = running.swap_remove(which.index(running.len()));
                prop_assert_eq!(pool.release(&table), Ok(()));
            } else {
                let pages: Vec<Digest> = digests(start..start + count as u8);
                let mut table = pool.lookup(&pages);
                prop_assert_eq!(pool.hold(&table, Some(&pages[..table.len()])), Ok(()));
                let hits = table.len();
                let free = pool.free();
                if let Some(taken) = pool.take(count + 1 - hits) {
                    for digest in &taken.evicted {
                        *stored.get_mut(digest).expect("it was published") -= 1;
                    }
                    table.extend(taken.blocks);
                    prop_assert_eq!(pool.publish(&table[hits..count], &pages[hits..]), Ok(()));
                    for digest in &pages[hits..] {
                        *stored.entry(*digest).or_default() += 1;
                    }
                    prop_assert_eq!(pool.lookup(&pages).len(), count);
                    running.push(table);
                } else {
                    prop_assert!(free < count + 1 - hits);
                    prop_assert_eq!(pool.release(&table), Ok(()));
                }
            }
            prop_assert_eq!(pool.check(), Ok(()));
            let mut held = running.concat();
            held.sort_unstable();
            held.dedup();
            prop_assert_eq!(held.len() + pool.free() + 1, blocks as usize);
            prop_assert_eq!(pool.labelled(), stored.values().sum::<usize>());
            stored.retain(|_, copies| *copies > 0);
            prop_assert!(pool.digests().len() == stored.len() && pool.digests().all(|digest| stored.contains_key(digest)));
        }
    }
}
