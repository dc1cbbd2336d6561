//! Checkpoints of variables that no session holds alone: a program that keeps them alike on all of its ranks saves them
//! whole.
//!
//! Data parallelism by a group keeps its variables in two sessions of each rank. Rank 0 saves them, with the samples of
//! all ranks as the batch. These checkpoints are what those of sessions are, and either is loaded by the other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use graphc_host::tensor::HostTensor;
use graphc_ir::types::TensorType;
use graphc_plan::{CompileOptions, TensorKind};

use super::fit::ExpectedVariable;
use super::save::{CheckpointParts, ManifestHeader};
use super::stored::{StoredRectangle, write_rank_part};
use super::{Checkpoint, CheckpointError, Checkpoints, TrainingSettings};

/// The header of a checkpoint: all that it says besides its variables.
#[derive(Clone, Copy, Debug)]
pub struct CheckpointHeader<'a> {
    /// Number of finished steps.
    pub step: u64,
    /// The job's seed.
    pub seed: u64,
    /// The name of the graph that is trained.
    pub model: &'a str,
    /// The ranks that train it.
    pub mesh: &'a [usize],
    /// The options that it is trained with.
    pub options: &'a CompileOptions,
    /// The feeds of a step of all ranks together.
    pub inputs: &'a BTreeMap<String, TensorType>,
    /// Variables that training changes: all of their elements must be finite.
    pub updated: &'a BTreeSet<String>,
}

impl CheckpointHeader<'_> {
    fn settings(&self) -> TrainingSettings {
        TrainingSettings::from_options(self.options, self.inputs)
    }
}

impl Checkpoints {
    /// Saves whole variables. One process of a program that keeps them alike calls this. Returns the checkpoint's directory.
    ///
    /// # Errors
    /// As [`Session::save_checkpoint`](crate::Session::save_checkpoint).
    pub fn save_whole(
        &mut self,
        about: CheckpointHeader<'_>,
        variables: &BTreeMap<String, (TensorKind, HostTensor)>,
    ) -> Result<PathBuf, CheckpointError> {
        self.begin_checkpoint(about.step)?;
        self.write_whole(about, variables).inspect_err(|_| self.abandon_checkpoint(about.step))
    }

    fn write_whole(
        &self,
        about: CheckpointHeader<'_>,
        variables: &BTreeMap<String, (TensorKind, HostTensor)>,
    ) -> Result<PathBuf, CheckpointError> {
        let part = write_rank_part(
            &self.partial_path(about.step),
            0,
            stored_whole(variables, about.updated),
        )?;
        let CheckpointHeader { step, seed, model, mesh, .. } = about;
        let header = ManifestHeader { step, seed, model, mesh, settings: &about.settings() };
        self.publish_checkpoint(header, 1, CheckpointParts([(0, part)].into()))
    }
}

fn stored_whole<'a>(
    variables: &'a BTreeMap<String, (TensorKind, HostTensor)>,
    updated: &BTreeSet<String>,
) -> Vec<StoredRectangle<'a>> {
    let stored = |(name, (kind, tensor)): (&'a String, &'a (TensorKind, HostTensor))| {
        StoredRectangle::from_host_tensor(name, *kind, tensor, updated.contains(name))
    };
    variables.iter().map(stored).collect()
}

impl Checkpoint {
    /// Reads all variables, whole, by name; they must be these, no more and no fewer.
    ///
    /// # Errors
    /// Where the checkpoint has others, or a file is damaged.
    pub fn read_whole<'a>(
        &self,
        variables: &BTreeMap<&'a str, TensorType>,
    ) -> Result<BTreeMap<String, HostTensor>, CheckpointError> {
        let wanted = |(&name, ty): (&&'a str, &TensorType)| {
            let kind = TensorKind::Parameter;
            (name, ExpectedVariable { ty: ty.clone(), kind, updated: true, may_lack: false })
        };
        self.check_variables(&variables.iter().map(wanted).collect())?;
        self.read(&variables.keys().copied().collect::<Vec<_>>())
    }

    /// Describes the options that decide what a step does and differ from those that the checkpoint was trained with:
    /// see [`Session::changes_since`](crate::Session::changes_since).
    pub fn describe_changes(
        &self,
        options: &CompileOptions,
        inputs: &BTreeMap<String, TensorType>,
    ) -> Vec<String> {
        self.settings().map_or(Vec::new(), |before| {
            TrainingSettings::from_options(options, inputs).describe_changes(before)
        })
    }
}
