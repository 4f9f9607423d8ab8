//! A lock for work of microseconds: whoever has to wait spins, since to sleep and be woken takes longer than the work.

use std::hint::spin_loop;
use std::time::{Duration, Instant};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// How long to spin before going to sleep: the holder is then not running.
const PATIENCE: Duration = Duration::from_micros(50);
/// Looks at the lock between looks at the clock.
const LOOKS: usize = 32;

/// Many readers or one writer, each for a short time.
#[derive(Debug, Default)]
pub struct BriefLock<T>(RwLock<T>);

impl<T> BriefLock<T> {
    /// Wait until no one writes.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        spin(|| self.0.try_read()).unwrap_or_else(|| self.0.read())
    }

    /// Wait until no one reads or writes. Until its patience ends, a waiting writer keeps no reader out.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        spin(|| self.0.try_write()).unwrap_or_else(|| self.0.write())
    }

    /// Whether it is held at all.
    pub fn is_locked(&self) -> bool {
        self.0.is_locked()
    }
}

fn spin<G>(attempt: impl Fn() -> Option<G>) -> Option<G> {
    let attempts = || {
        (0..LOOKS).find_map(|_| {
            attempt().or_else(|| {
                spin_loop();
                None
            })
        })
    };
    if let Some(guard) = attempts() {
        return Some(guard);
    }
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if let Some(guard) = attempts() {
            return Some(guard);
        }
    }
    None
}
