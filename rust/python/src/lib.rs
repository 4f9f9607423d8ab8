//! Python bindings of `kvevents-core`: thin wrappers, one file a module.
// PyO3 hands arguments over by value and wants a result from every registration.
#![allow(clippy::needless_pass_by_value, clippy::unnecessary_wraps)]

use pyo3::prelude::*;

mod block_pool;
mod buffers;
mod capture;
mod classes;
mod coalescing;
mod hashing;
mod index;
mod learned;
mod lint;
mod numbers;
mod prompt;
mod recorder;
mod relay;
mod routing;
mod slots;
mod texts;
mod tokens;
mod wire;
mod yardstick;

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add(
        "BUILD_PROFILE",
        if cfg!(debug_assertions) { "debug" } else { "release" },
    )?;
    add_submodule(module, "block_pool", block_pool::register)?;
    add_submodule(module, "capture", capture::register)?;
    add_submodule(module, "coalescing", coalescing::register)?;
    add_submodule(module, "hashing", hashing::register)?;
    add_submodule(module, "index", index::register)?;
    add_submodule(module, "learned", learned::register)?;
    add_submodule(module, "lint", lint::register)?;
    add_submodule(module, "prompt", prompt::register)?;
    add_submodule(module, "recorder", recorder::register)?;
    add_submodule(module, "relay", relay::register)?;
    add_submodule(module, "routing", routing::register)?;
    add_submodule(module, "slots", slots::register)?;
    add_submodule(module, "tokens", tokens::register)?;
    add_submodule(module, "wire", wire::register)?;
    add_submodule(module, "yardstick", yardstick::register)
}

/// Add a module that can also be imported by its full name, not only reached as an attribute.
fn add_submodule<'py>(
    parent: &Bound<'py, PyModule>,
    name: &str,
    register: impl FnOnce(&Bound<'py, PyModule>) -> PyResult<()>,
) -> PyResult<()> {
    let full_name = format!("kvevents._core.{name}");
    let module = PyModule::new(parent.py(), &full_name)?;
    register(&module)?;
    parent.add(name, &module)?;
    parent
        .py()
        .import("sys")?
        .getattr("modules")?
        .set_item(full_name, module)
}
