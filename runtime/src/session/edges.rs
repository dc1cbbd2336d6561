//! What goes into a step and comes out of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use graphc_ir::plan::{Action, Plan, TensorKind};
use graphc_ir::types::TensorType;

use super::options::OutputsAt;
use crate::error::RuntimeError;
use crate::tensor::HostTensor;
use crate::worker::Edges;

/// The inputs and outputs of a plan.
#[derive(Debug)]
pub(super) struct Sockets {
    pub(super) inputs: BTreeMap<String, TensorType>,
    pub(super) outputs: BTreeMap<String, TensorType>,
    /// The names of `outputs`, in order.
    pub(super) output_names: Arc<[String]>,
}

impl Sockets {
    /// What the actors of a plan feed and fetch.
    pub(super) fn of(plan: &Plan) -> Self {
        let (mut inputs, mut outputs) = (BTreeMap::new(), BTreeMap::new());
        for program in &plan.programs {
            let ty = |register: Option<&graphc_ir::ids::RegisterId>| {
                let register = program.registers.get(register?.index())?;
                plan.layouts.get(register.layout as usize).map(|layout| layout.ty())
            };
            for actor in &program.actors {
                let (map, name, ty) = match &actor.action {
                    Action::Feed { input } => (&mut inputs, input, ty(actor.outputs.first())),
                    Action::Fetch { output } => (&mut outputs, output, ty(actor.inputs.first())),
                    _ => continue,
                };
                if let Some(ty) = ty {
                    map.insert(name.clone(), ty);
                }
            }
        }
        let output_names = outputs.keys().cloned().collect();
        Self { inputs, outputs, output_names }
    }

    /// The place of each name among a step's feeds and outputs.
    /// `remote`: where ranks are processes, which of them want outputs.
    pub(super) fn edges(&self, remote: Option<OutputsAt>) -> Edges {
        let places = |map: &BTreeMap<String, TensorType>| {
            map.keys().enumerate().map(|(place, name)| (name.clone(), place)).collect()
        };
        Edges { inputs: places(&self.inputs), outputs: places(&self.outputs), remote }
    }
}

/// The feeds of a step in the order of the inputs. An input that the graph has but nobody reads may be fed.
pub(super) fn feeds(
    plan: &Plan,
    sockets: &Sockets,
    mut by_name: BTreeMap<String, HostTensor>,
) -> Result<Vec<HostTensor>, RuntimeError> {
    let mut feeds = Vec::with_capacity(sockets.inputs.len());
    for (name, ty) in &sockets.inputs {
        let missing = || RuntimeError::InputMissing { name: name.clone(), ty: ty.clone() };
        let tensor = by_name.remove(name).ok_or_else(missing)?;
        if tensor.dtype() != ty.dtype || tensor.shape() != ty.shape {
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
