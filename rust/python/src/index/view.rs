//! What was seen in the tree of prompts, as plain Python values; `kvevents.index` gives them their classes.

use kvevents_core::index::{Stretch, Tier, View};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Figures under the names of `kvevents.index.View`.
pub(super) fn figures<'py>(py: Python<'py>, view: &View) -> PyResult<Bound<'py, PyDict>> {
    let figures = PyDict::new(py);
    let stretches: PyResult<Vec<_>> = view.stretches.iter().map(|one| stretch(py, one)).collect();
    figures.set_item("stretches", stretches?)?;
    figures.set_item("path", &view.path)?;
    figures.set_item("total", view.total)?;
    figures.set_item("blocks", view.blocks)?;
    figures.set_item("followed", view.followed)?;
    Ok(figures)
}

fn stretch<'py>(py: Python<'py>, stretch: &Stretch) -> PyResult<Bound<'py, PyDict>> {
    let figures = PyDict::new(py);
    figures.set_item("content", stretch.content)?;
    figures.set_item("parent", stretch.parent)?;
    figures.set_item("block_size", stretch.geometry.block_size)?;
    figures.set_item("blocks", stretch.blocks)?;
    figures.set_item("depth", stretch.depth)?;
    figures.set_item("below", stretch.below)?;
    figures.set_item("hits", stretch.hits)?;
    figures.set_item("children", stretch.children)?;
    figures.set_item("held_by", stretch.held_by)?;
    let holders = stretch.holders.iter().map(|((worker, dp_rank), tiers)| {
        let held = Tier::ALL.into_iter().filter(|&tier| tiers.contains(tier));
        let names: Vec<&str> = held.map(Tier::name).collect();
        let worker: &str = worker;
        let holder = PyDict::new(py);
        holder.set_item("worker", worker)?;
        holder.set_item("dp_rank", dp_rank)?;
        holder.set_item("tiers", names)?;
        Ok(holder)
    });
    figures.set_item("holders", holders.collect::<PyResult<Vec<_>>>()?)?;
    Ok(figures)
}
