//! Checkpoints of data parallelism: what a session of one plan for all ranks would save, saved by rank 0.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use graphc_ir::ops::{Init, Variable};
use graphc_ir::types::TensorType;
use graphc_plan::{CompileOptions, TensorKind};
use graphc_runtime::dist::Group;
use graphc_runtime::{Checkpoint, CheckpointError, CheckpointHeader, Checkpoints, HostTensor};

use super::{DataParallel, DataParallelError, DataParallelOptions};

/// The content of checkpoints besides variables.
#[derive(Debug)]
pub(super) struct CheckpointRecord {
    model: String,
    seed: u64,
    /// Steps of the whole training so far.
    pub(super) finished: u64,
    options: CompileOptions,
    /// The inputs of a step of all ranks together.
    inputs: BTreeMap<String, TensorType>,
    /// The parameters and buffers that some rank's plan holds.
    kept: Vec<Variable>,
}

impl CheckpointRecord {
    pub(super) fn new(
        group: &Group,
        model: String,
        kept: Vec<Variable>,
        inputs: &BTreeMap<String, TensorType>,
        options: &DataParallelOptions,
    ) -> Result<Self, DataParallelError> {
        let inputs = of_all_ranks(group, inputs)?;
        let (seed, finished) = (options.session.seed, options.session.first_step);
        Ok(Self { model, seed, finished, options: options.training.clone(), inputs, kept })
    }
}

/// Inputs of this rank with the samples of all.
fn of_all_ranks(
    group: &Group,
    inputs: &BTreeMap<String, TensorType>,
) -> Result<BTreeMap<String, TensorType>, DataParallelError> {
    let samples = |ty: &TensorType| ty.shape.first().copied();
    let own: BTreeMap<&str, usize> =
        inputs.iter().filter_map(|(name, ty)| Some((name.as_str(), samples(ty)?))).collect();
    let own = serde_json::to_vec(&own).unwrap_or_default();
    let mut all: BTreeMap<String, usize> = BTreeMap::new();
    for theirs in group.all_gather(&own)? {
        let theirs: BTreeMap<String, usize> = serde_json::from_slice(&theirs).unwrap_or_default();
        theirs.into_iter().for_each(|(name, samples)| *all.entry(name).or_default() += samples);
    }
    let mut inputs = inputs.clone();
    for (name, ty) in &mut inputs {
        if let (Some(extent), Some(samples)) = (ty.shape.first_mut(), all.get(name)) {
            *extent = *samples;
        }
    }
    Ok(inputs)
}

impl DataParallel {
    /// Number of steps of the whole training so far, and so of the next one: the optimizer's, or without one those of
    /// [`DataParallel::step`].
    pub fn finished(&self) -> u64 {
        self.record.finished
    }

    /// Saves all variables, buffers as they are on rank 0, in a checkpoint as sessions write them: `graphc export` and
    /// `--weights-from` read it, and a session with a plan of the same graph and optimizer on any mesh loads it. All ranks call
    /// this after the same step; rank 0 writes. Returns the checkpoint's directory.
    ///
    /// # Errors
    /// As [`Session::save_checkpoint`](graphc_runtime::Session::save_checkpoint); on all ranks where rank 0 fails.
    pub fn save_checkpoint(&mut self, to: &mut Checkpoints) -> Result<PathBuf, DataParallelError> {
        self.write(to).inspect_err(|error| self.group.fail(error))
    }

    fn write(&mut self, to: &mut Checkpoints) -> Result<PathBuf, DataParallelError> {
        if self.group.rank() == 0 {
            let variables = self.read_variables()?;
            let CheckpointRecord { model, seed, finished, options, inputs, .. } = &self.record;
            let mesh = [self.group.world_size()];
            let (step, seed) = (*finished, *seed);
            let updated = &self.updated_names();
            let about =
                CheckpointHeader { step, seed, model, mesh: &mesh, options, inputs, updated };
            to.save_whole(about, &variables)?;
        }
        self.group.barrier()?;
        Ok(to.path(self.record.finished))
    }

    /// Reads the variables that a checkpoint holds, and their kinds.
    fn read_variables(
        &mut self,
    ) -> Result<BTreeMap<String, (TensorKind, HostTensor)>, DataParallelError> {
        let names: Vec<(String, TensorKind)> = self
            .saved_variables()
            .into_iter()
            .map(|(name, (kind, _))| (name.to_owned(), kind))
            .collect();
        let mut whole = BTreeMap::new();
        for (name, kind) in names {
            let value = self.variable(&name)?;
            whole.insert(name, (kind, value));
        }
        Ok(whole)
    }

    /// Returns the names of those that training changes. Buffers are not among them, as they may hold what is infinite.
    fn updated_names(&self) -> BTreeSet<String> {
        let trained = self.record.kept.iter().filter(|variable| variable.trainable);
        let trained = trained.map(|variable| variable.name.clone());
        let states = self.updater.iter().flat_map(|updater| updater.states());
        trained.chain(states.map(|(name, _)| name.to_owned())).collect()
    }

    /// The variables of a checkpoint: what one plan for all ranks would hold.
    fn saved_variables(&self) -> BTreeMap<&str, (TensorKind, TensorType)> {
        let is_table = |v: &&Variable| matches!(v.init, Init::Table(_));
        let kept = self.record.kept.iter().filter(|variable| !is_table(variable));
        let kept = kept.map(|v| (v.name.as_str(), (TensorKind::Parameter, v.ty.clone())));
        let states = self.updater.iter().flat_map(|updater| updater.states());
        kept.chain(states.map(|(name, ty)| (name, (TensorKind::State, ty.clone())))).collect()
    }

    /// Sets all variables to what a checkpoint holds, whether data parallelism wrote it, on however many ranks, or a
    /// session. The checkpoint's step and seed must have been given as
    /// [`SessionOptions::first_step`](graphc_runtime::SessionOptions::first_step) and seed. All ranks call it.
    ///
    /// # Errors
    /// Returns an error if the variables are not those of this graph and optimizer, by name, element type and shape, or if a file is
    /// damaged.
    pub fn load_checkpoint(&mut self, from: &Checkpoint) -> Result<(), DataParallelError> {
        self.read(from).inspect_err(|error| self.group.fail(error))
    }

    fn read(&mut self, from: &Checkpoint) -> Result<(), DataParallelError> {
        let (expected, own_seed) = (self.record.finished, self.record.seed);
        let (found, seed) = (from.step(), from.seed());
        if (found, seed) != (expected, own_seed) {
            return Err(CheckpointError::Position { found, seed, expected, own_seed }.into());
        }
        let types = self.saved_variables().into_iter().map(|(name, (_, ty))| (name, ty)).collect();
        let values = from.read_whole(&types)?;
        values.iter().try_for_each(|(name, value)| self.set_variable(name, value))
    }

    /// Returns the options that decide what a step does and in which this differs from what saved a checkpoint: see
    /// [`Session::changes_since`](graphc_runtime::Session::changes_since).
    pub fn changes_since(&self, checkpoint: &Checkpoint) -> Vec<String> {
        checkpoint.describe_changes(&self.record.options, &self.record.inputs)
    }
}
