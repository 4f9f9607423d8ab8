//! Python bindings of `kvevents-core`: thin wrappers, one file a module.
use pyo3::prelude::*;

mod buffers;

#[pymodule]
mod _core {
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add(
            "BUILD_PROFILE",
            if cfg!(debug_assertions) { "debug" } else { "release" },
        )
    }
}

/// Make `kvevents._core.<name>` importable, not only an attribute of the extension.
#[allow(dead_code)]
pub(crate) fn register_submodule(module: &Bound<'_, PyModule>, name: &str) -> PyResult<()> {
    let full_name = format!("kvevents._core.{name}");
    module.setattr("__name__", &full_name)?;
    module
        .py()
        .import("sys")?
        .getattr("modules")?
        .set_item(full_name, module)
}
