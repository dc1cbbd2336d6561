//! The edges of a session: what goes into a step and comes out of it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use graphc_host::tensor::HostTensor;
use graphc_ir::types::{Samples, TensorType};
use graphc_plan::{Action, Layout, Plan, TensorKind};

use crate::error::RuntimeError;
use crate::worker::{Edges, Fed, OutputsAt, Rows};

/// The inputs and outputs of a plan.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub(super) inputs: BTreeMap<String, TensorType>,
    pub(super) outputs: BTreeMap<String, TensorType>,
    /// The dims of inputs that count samples.
    pub(super) samples: BTreeMap<String, Samples>,
    /// The dims of outputs that count samples.
    pub(super) output_samples: BTreeMap<String, Samples>,
    /// The rows of each input with a dim of samples that the ranks of this process read.
    pub(super) rows: BTreeMap<String, Fed>,
    /// The names of `outputs`, in order.
    pub(super) output_names: Arc<[String]>,
}

impl Sockets {
    /// Collects the tensors that the actors of a plan feed and fetch, and the rows of them that `ranks` feed, those of this
    /// process.
    pub(crate) fn from_plan(plan: &Plan, ranks: &[u32]) -> Self {
        let (mut inputs, mut outputs) = (BTreeMap::new(), BTreeMap::new());
        let (mut samples, mut output_samples) = (BTreeMap::new(), BTreeMap::new());
        for program in &plan.programs {
            let ty = |register: Option<&graphc_ir::ids::RegisterId>| {
                let register = program.registers.get(register?.index())?;
                plan.layouts.get(register.layout.index()).map(|layout| layout.ty())
            };
            for actor in &program.actors {
                let (types, dims, name, along, ty) = match &actor.action {
                    Action::Feed { input, samples: along } => {
                        (&mut inputs, &mut samples, input, along, ty(actor.outputs.first()))
                    }
                    Action::Fetch { output, samples: along } => {
                        (&mut outputs, &mut output_samples, output, along, ty(actor.inputs.first()))
                    }
                    _ => continue,
                };
                if let Some(ty) = ty {
                    types.insert(name.clone(), ty);
                    dims.insert(name.clone(), *along);
                }
            }
        }
        let output_names = outputs.keys().cloned().collect();
        let fed = |(name, ty): (&String, &TensorType)| {
            let dim = samples[name].dim(ty.shape.len())?;
            Some((name.clone(), Fed { dim, rows: rows_of(plan, ranks, name, dim) }))
        };
        let rows = inputs.iter().filter_map(fed).collect();
        Self { inputs, outputs, samples, output_samples, rows, output_names }
    }

    /// Returns the place of each name among a step's feeds and outputs. `remote`: where ranks are processes, which of
    /// them want outputs.
    pub(crate) fn edges(&self, remote: Option<OutputsAt>) -> Edges {
        let places = |map: &BTreeMap<String, TensorType>| {
            map.keys().enumerate().map(|(place, name)| (name.clone(), place)).collect()
        };
        let (inputs, outputs) = (places(&self.inputs), places(&self.outputs));
        Edges { inputs, outputs, rows: self.rows.clone(), remote }
    }
}

/// Returns the rows of an input that these ranks feed, in all microbatches.
fn rows_of(plan: &Plan, ranks: &[u32], input: &str, dim: usize) -> Rows {
    let mut all = Vec::new();
    for &rank in ranks {
        for layout in fed_layouts(plan, rank, input) {
            let variants = if layout.microbatch_dim.is_some() { plan.microbatches } else { 1 };
            for microbatch in 0..variants {
                let Some(rect) = layout.rect(rank, microbatch, plan.microbatches) else { continue };
                all.push(rect.origin[dim]..rect.origin[dim] + rect.extent[dim]);
            }
        }
    }
    merge_ranges(all)
}

/// Returns the layouts in which a rank feeds an input.
fn fed_layouts<'a>(plan: &'a Plan, rank: u32, input: &str) -> impl Iterator<Item = &'a Layout> {
    let program = plan.program_of(rank);
    let is_it =
        move |action: &Action| matches!(action, Action::Feed { input: fed, .. } if fed == input);
    let actors = program.actors.iter().filter(move |actor| is_it(&actor.action));
    let registers =
        actors.filter_map(|actor| program.registers.get(actor.outputs.first()?.index()));
    registers.filter_map(|register| plan.layouts.get(register.layout.index()))
}

/// Merges rows into as few ranges as possible, ascending.
fn merge_ranges(mut ranges: Rows) -> Rows {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_by_key(|range| range.start);
    let mut result: Rows = Vec::new();
    for range in ranges {
        match result.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => result.push(range),
        }
    }
    result
}

/// Orders the feeds of a step as the inputs, each whole or the rows of this process alone. An input that the graph has but
/// nobody reads may be fed.
pub(super) fn order_feeds(
    plan: &Plan,
    sockets: &Sockets,
    mut by_name: BTreeMap<String, HostTensor>,
) -> Result<Vec<HostTensor>, RuntimeError> {
    let mut feeds = Vec::with_capacity(sockets.inputs.len());
    for (name, ty) in &sockets.inputs {
        let missing = || RuntimeError::InputMissing { name: name.clone(), ty: ty.clone() };
        let tensor = by_name.remove(name).ok_or_else(missing)?;
        if tensor.dtype() != ty.dtype || !fits_input(&tensor, ty, sockets.rows.get(name)) {
            let (expected, found) = (ty.clone(), tensor.ty());
            return Err(RuntimeError::InputType { name: name.clone(), expected, found });
        }
        feeds.push(tensor);
    }
    let unread = |name: &String| {
        plan.tensors.iter().any(|entry| entry.kind == TensorKind::Input && entry.name == *name)
    };
    match by_name.into_keys().find(|name| !unread(name)) {
        None => Ok(feeds),
        Some(name) => {
            let inputs = sockets.inputs.keys().cloned().collect();
            Err(RuntimeError::InputUnknown { name, inputs })
        }
    }
}

/// Whether a tensor is an input, or the rows of it that this process reads.
fn fits_input(tensor: &HostTensor, ty: &TensorType, fed: Option<&Fed>) -> bool {
    let part = |fed: &Fed| {
        let mut shape = ty.shape.clone();
        shape[fed.dim] = fed.rows.iter().map(Range::len).sum();
        tensor.shape() == shape
    };
    tensor.shape() == ty.shape || fed.is_some_and(part)
}

#[cfg(test)]
mod tests {
    use super::merge_ranges;

    #[test]
    fn rows_that_touch_are_one_range() {
        assert_eq!(merge_ranges(vec![6..8, 0..2, 3..3, 2..4, 7..9]), [0..4, 6..9]);
        assert!(merge_ranges(vec![5..5, 7..7]).is_empty());
    }
}
