//! `kvevents._core.recorder`.

mod event_recorder;
mod events;
mod group;
mod naming;

use pyo3::prelude::*;

pub(crate) use event_recorder::EventRecorder;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<EventRecorder>()?;
    module.add_class::<event_recorder::RecorderStats>()?;
    module.add_class::<group::CacheGroup>()?;
    module.add_class::<naming::AdapterNames>()?;
    module.add_function(wrap_pyfunction!(events::merges, module)?)
}
