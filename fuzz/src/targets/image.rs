//! The reader of one rank's image: it goes into an index that holds other things, whatever its bytes say.

use kvevents_core::index::PrefixIndex;
use xxhash_rust::xxh3::xxh3_64;

use super::{Target, case, index};
use crate::allocation::peak;
use crate::case::Case;
use crate::corpus::PAYLOADS;
use crate::dice::Dice;
use crate::mutation;

pub const TARGET: Target = Target {
    name: "image",
    make,
    mutate: mutation::bytes,
    check,
};

/// Bytes that restoring may take beside those that it takes for each byte of an image.
const MEMORY: (usize, usize) = (1 << 20, 512);

/// An image without its checksum, mostly damaged.
fn make(dice: &mut Dice) -> Vec<u8> {
    let index = index::empty(dice);
    index::feed(&index, &Case::read(&case(dice)).payloads, dice);
    let images = index.snapshot_worker("a", None).unwrap_or_default();
    let Some(image) = images.first() else { return Vec::new() };
    let body = &image[..image.len() - 8];
    if dice.once_in(8) {
        body.to_vec()
    } else {
        mutation::bytes(body, dice)
    }
}

fn check(body: &[u8]) -> bool {
    let data = [body, &xxh3_64(body).to_le_bytes()].concat();
    let mut dice = Dice::new(body.len() as u64);
    let index = index::empty(&mut dice);
    index::feed(&index, &PAYLOADS[..6], &mut dice);
    let before = index.snapshot();
    let (restored, bytes) = peak(|| index.restore_worker("a", &data, None, Some(0)));
    assert!(
        bytes <= MEMORY.0 + MEMORY.1 * data.len(),
        "{bytes} bytes for an image of {}",
        data.len()
    );
    assert_eq!(index.check_integrity(), Vec::<String>::new());
    let Ok(report) = restored else {
        assert!(index.snapshot() == before, "what is refused changes nothing");
        return false;
    };
    check_copy(&index, report.dp_rank);
    index::feed(&index, &PAYLOADS[6..9], &mut dice);
    assert_eq!(index.check_integrity(), Vec::<String>::new());
    report.stored > 0
}

/// The image of what was restored gives the same in an index that holds nothing else.
fn check_copy(index: &PrefixIndex, rank: Option<i64>) {
    let images = index.snapshot_worker("a", rank).expect("it was restored");
    let again = PrefixIndex::new(*index.config()).expect("the settings are right");
    for image in &images {
        again.restore_worker("a", image, None, None).expect("its own image");
    }
    assert_eq!(again.check_integrity(), Vec::<String>::new());
    if rank.is_some() {
        let images_again = again.snapshot_worker("a", rank).expect("it was restored");
        assert!(images == images_again, "an image restores what it was taken of");
    }
}
