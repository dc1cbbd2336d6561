//! Data files: one tensor per graph input, rows are samples; and weights for a session.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use graphc_compiler::import::weights::Weights;
use graphc_ir::ops::Init;
use graphc_ir::plan::{Action, Plan, RegisterKind};
use graphc_ir::types::TensorType;
use graphc_runtime::HostTensor;
use graphc_runtime::data::load_safetensors;

/// The samples of a data file.
pub struct Samples {
    tensors: BTreeMap<String, HostTensor>,
    rows: usize,
}

impl Samples {
    /// Reads a data file; every tensor has the same first dim.
    pub fn load(path: &Path) -> Result<Self> {
        let tensors = load_safetensors(path)
            .with_context(|| format!("cannot read data file {}", path.display()))?;
        let mut rows: Option<(&str, usize)> = None;
        for (name, tensor) in &tensors {
            let Some(&first) = tensor.shape.first() else {
                bail!("tensor `{name}` of {} is a scalar: its first dim must count samples", path.display());
            };
            match rows {
                Some((other, count)) if count != first => bail!(
                    "tensors of {} differ in their number of samples: `{other}` has {count}, `{name}` {first}",
                    path.display()
                ),
                _ => rows = Some((name, first)),
            }
        }
        let (_, count) = rows.with_context(|| format!("{} holds no tensors", path.display()))?;
        ensure!(count > 0, "{} holds no samples", path.display());
        Ok(Self { rows: count, tensors })
    }

    /// Number of samples.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Checks that there is a tensor of the right type for every input of the plan.
    pub fn check(&self, inputs: &[(String, TensorType)]) -> Result<()> {
        for (name, ty) in inputs {
            let Some(tensor) = self.tensors.get(name) else {
                let found: Vec<&str> = self.tensors.keys().map(String::as_str).collect();
                bail!("the data has no tensor `{name}` ({ty}); it has {}", found.join(", "));
            };
            ensure!(
                tensor.dtype == ty.dtype && tensor.shape.get(1..) == ty.shape.get(1..),
                "data tensor `{name}` is {}{:?}, and the graph's input is {ty}: element type and all dims but the \
                 first must agree",
                tensor.dtype,
                tensor.shape,
            );
        }
        Ok(())
    }

    /// Rows `[step * batch, (step + 1) * batch)` of each input, wrapping.
    pub fn batch(&self, inputs: &[(String, TensorType)], step: u64) -> Result<BTreeMap<String, HostTensor>> {
        let slice = |(name, ty): &(String, TensorType)| {
            let batch = ty.shape[0];
            let first = (step as usize).wrapping_mul(batch) % self.rows;
            Ok((name.clone(), self.tensors[name].rows_wrapping(first, batch)?))
        };
        inputs.iter().map(slice).collect()
    }
}

/// What a plan is fed: name and type of a whole batch.
pub fn inputs(plan: &Plan) -> Vec<(String, TensorType)> {
    let mut inputs = BTreeMap::new();
    for program in &plan.programs {
        for actor in &program.actors {
            if let Action::Feed { input } = &actor.action {
                let register = &program.registers[actor.outputs[0].index()];
                inputs.insert(input.clone(), plan.layouts[register.layout as usize].ty());
            }
        }
    }
    inputs.into_iter().collect()
}

/// The weights that variables of the plan take from the model's file.
pub fn session_weights(plan: &Plan, weights: &Weights) -> Result<BTreeMap<String, HostTensor>> {
    let mut tensors = BTreeMap::new();
    for register in plan.programs.iter().flat_map(|program| &program.registers) {
        let RegisterKind::Variable { name, init: Init::Weights, .. } = &register.kind else { continue };
        if let (false, Some(tensor)) = (tensors.contains_key(name), weights.tensors.get(name)) {
            let bytes = weights.bytes(name)?.to_vec();
            tensors.insert(name.clone(), HostTensor::new(tensor.dtype, tensor.shape.clone(), bytes)?);
        }
    }
    Ok(tensors)
}
