//! Many inputs from one seed.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

use crate::dice::Dice;
use crate::targets::{ALL, Target};

/// Inputs of a campaign, unless `FUZZ_INPUTS` says otherwise.
const INPUTS: u64 = 700;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect("a number"))
}

/// The target of that name.
pub fn target(name: &str) -> &'static Target {
    ALL.iter()
        .find(|target| target.name == name)
        .expect("one of `targets::ALL`")
}

/// Run a target on inputs from a seed (`FUZZ_SEED`). One that breaks a law is written to `target/fuzz`.
pub fn run(target: &Target) {
    let inputs = setting("FUZZ_INPUTS", INPUTS);
    let seed = setting("FUZZ_SEED", 0);
    let mut taken = 0;
    for number in 0..inputs {
        let mut dice = Dice::new(seed.wrapping_mul(1 << 32).wrapping_add(number));
        let input = (target.make)(&mut dice);
        let outcome = catch_unwind(AssertUnwindSafe(|| (target.check)(&input)));
        if let Ok(is_taken) = outcome {
            taken += u64::from(is_taken);
        } else if let Err(panic) = outcome {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/fuzz");
            let path = folder.join(format!("{}-{seed}-{number}", target.name));
            let written = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, &input));
            written.expect("the build folder can be written");
            eprintln!("input {number} of seed {seed} breaks a law: {}", path.display());
            resume_unwind(panic);
        }
    }
    assert!(
        taken >= inputs / 20,
        "of {inputs} inputs {taken} were good enough to show anything"
    );
    eprintln!("{}: {inputs} inputs, {taken} of them taken", target.name);
}
