//! A forest in the form that snapshots have: runs of blocks, each hanging on the one before, with the same holders.
//!
//! ```text
//! block size, pairs | blocks | runs: length, block above the first, holders | content and engine hash of each block
//! ```
//!
//! Blocks are numbered in the order in which they come; a set of holders is spelled out where it comes first.

use hashbrown::HashMap;

use super::blocks::{BlockNumber, Flag};
use super::forest::Forest;
use super::geometry::Geometry;
use super::holders::{Holder, HolderSet, Member};
use super::image::SourceImage;
use super::pack::{Pack, Reader, SnapshotError};
use super::residency::Residency;

const NO_PARENT: u32 = u32::MAX;

/// Append a forest. `sources` are numbers of the snapshot by member.
pub fn pack(geometry: Geometry, forest: &Forest, sources: &HashMap<Member, u32>, bytes: &mut Vec<u8>) {
    geometry.pack(bytes);
    let blocks = &forest.blocks;
    blocks.len().pack(bytes);
    bytes.reserve(blocks.len() * 2 * size_of::<u64>());
    let ranks = blocks.ranks();
    let mut known: HashMap<HolderSet, u32> = HashMap::new();
    let mut run: Vec<u8> = Vec::new();
    let mut length = 0_u32;
    let mut last: Option<(BlockNumber, HolderSet)> = None;
    for block in blocks.iter() {
        let link = blocks.link(block);
        let goes_on = last.is_some_and(|(above, holders)| link.parent() == Some(above) && link.holders == holders);
        if !goes_on {
            flush(&mut length, &mut run, bytes);
            link.parent()
                .map_or(NO_PARENT, |parent| blocks.rank(&ranks, parent))
                .pack(&mut run);
            let next = known.len() as u32;
            let set = *known.entry(link.holders).or_insert(next);
            set.pack(&mut run);
            if set == next {
                pack_set(forest, link.holders, sources, &mut run);
            }
        }
        length += 1;
        (blocks.content(block), blocks.engine(block)).pack(&mut run);
        last = Some((block, link.holders));
    }
    flush(&mut length, &mut run, bytes);
}

fn flush(length: &mut u32, run: &mut Vec<u8>, bytes: &mut Vec<u8>) {
    if *length > 0 {
        length.pack(bytes);
        bytes.append(run);
        *length = 0;
    }
}

fn pack_set(forest: &Forest, set: HolderSet, sources: &HashMap<Member, u32>, bytes: &mut Vec<u8>) {
    let holders = forest.sets.holders(set).iter();
    let mut holders: Vec<_> = holders
        .map(|holder| (sources[&holder.member], holder.residency))
        .collect();
    holders.sort_unstable();
    holders.len().pack(bytes);
    for (source, residency) in holders {
        source.pack(bytes);
        forest.sets.residency(residency).pack(bytes);
    }
}

/// Read a forest; `sources` with their members are those of the snapshot, by number.
pub fn unpack(
    reader: &mut Reader<'_>,
    sources: &[(&SourceImage, Member)],
) -> Result<(Geometry, Forest), SnapshotError> {
    let geometry = Geometry::unpack(reader)?;
    let count = usize::unpack(reader)?;
    let mut forest = Forest::default();
    if count > reader.left() / (2 * size_of::<u64>()) || count > forest.room() {
        return Err(reader.error(format!("expected as many blocks as follow, found a count of {count}")));
    }
    let mut sets: Vec<HolderSet> = Vec::new();
    while forest.blocks.len() < count {
        let left = count - forest.blocks.len();
        let length = u32::unpack(reader)? as usize;
        if length == 0 || length > left {
            return Err(reader.error(format!(
                "expected a run of 1 to {left} blocks before here, found {length}"
            )));
        }
        let parent = u32::unpack(reader)?;
        if parent != NO_PARENT && parent as usize >= count {
            return Err(reader.error(format!("expected one of {count} blocks before here, found {parent}")));
        }
        let mut parent = (parent != NO_PARENT).then_some(parent);
        let set = u32::unpack(reader)? as usize;
        if set == sets.len() {
            sets.push(unpack_set(reader, &mut forest, sources)?);
        }
        let Some(&set) = sets.get(set) else {
            let known = sets.len();
            return Err(reader.error(format!(
                "expected one of {known} sets or the next before here, found {set}"
            )));
        };
        for _ in 0..length {
            let (content, engine) = Pack::unpack(reader)?;
            let block = forest.plant(engine, content, parent);
            forest.set_holders(block, set);
            parent = Some(block);
        }
    }
    for block in 0..count as BlockNumber {
        if let Some(parent) = forest.link(block).parent().filter(|parent| parent + 1 != block) {
            forest.blocks.set(parent, Flag::Fork, true);
        }
    }
    Ok((geometry, forest))
}

fn unpack_set(
    reader: &mut Reader<'_>,
    forest: &mut Forest,
    sources: &[(&SourceImage, Member)],
) -> Result<HolderSet, SnapshotError> {
    let mut holders: Vec<Holder> = Vec::new();
    for _ in 0..usize::unpack(reader)? {
        let source = u32::unpack(reader)? as usize;
        let Some((image, member)) = sources.get(source) else {
            let known = sources.len();
            return Err(reader.error(format!("expected one of {known} sources before here, found {source}")));
        };
        let residency = Residency::unpack(reader)?;
        image.check(&residency, reader)?;
        holders.push(Holder {
            member: *member,
            residency: forest.sets.number(residency),
        });
    }
    holders.sort_unstable_by_key(|holder| holder.member);
    if holders.is_empty() || holders.windows(2).any(|two| two[0].member == two[1].member) {
        return Err(reader.error("expected each holder once before here, found none or one twice"));
    }
    Ok(forest.sets.intern(holders))
}
