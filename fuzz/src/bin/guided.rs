//! A target for libFuzzer: `FUZZ_TARGET` names it.
#![no_main]

use std::sync::LazyLock;

use kvevents_fuzz::campaign;
use kvevents_fuzz::dice::Dice;
use kvevents_fuzz::targets::Target;
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

static TARGET: LazyLock<&Target> =
    LazyLock::new(|| campaign::target(&std::env::var("FUZZ_TARGET").expect("FUZZ_TARGET names a target")));

fuzz_target!(|data: &[u8]| {
    (TARGET.check)(data);
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let mut dice = Dice::new(seed.into());
    let made = match dice.below(8) {
        0 => (TARGET.make)(&mut dice),
        1..6 => (TARGET.mutate)(&data[..size], &mut dice),
        _ => return fuzzer_mutate(data, size, max_size),
    };
    let length = made.len().min(max_size);
    data[..length].copy_from_slice(&made[..length]);
    length
});
