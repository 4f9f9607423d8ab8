//! Recorded payloads, in which every shape of an event occurs (`collect.py` chose them).

use std::path::Path;
use std::sync::LazyLock;

/// The payloads, by the order of their names.
pub static PAYLOADS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let entries = std::fs::read_dir(&folder).expect("the corpus is beside the crate");
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("a folder can be read").path())
        .collect();
    paths.sort();
    let read = |path| std::fs::read(path).expect("a file can be read");
    paths.into_iter().map(read).collect()
});
