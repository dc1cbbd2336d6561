//! Errors of checkpoints.

use std::path::Path;

use graphc_comm::JobEnd;
use graphc_ir::types::TensorType;

use crate::error::RuntimeError;

/// The reason why a checkpoint cannot be saved or loaded.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A path that leads nowhere.
    #[error("there is no checkpoint {path}: no such directory")]
    Absent {
        /// The path.
        path: String,
    },
    /// A directory that holds no complete checkpoint.
    #[error("{path} holds no complete checkpoint (a directory step-N with a manifest.json)")]
    Nothing {
        /// The directory.
        path: String,
    },
    /// A file that is not what it should be.
    #[error("{path} is no manifest of a checkpoint: {reason}")]
    NotACheckpoint {
        /// The file.
        path: String,
        /// The fault.
        reason: String,
    },
    /// A checkpoint of another version.
    #[error("{path} has version {found}, this build reads {own}: use the build that wrote it")]
    Version {
        /// The manifest.
        path: String,
        /// Its version.
        found: u64,
        /// The version that this build reads.
        own: u32,
    },
    /// A file of a checkpoint that is not as it was written.
    #[error("{path} is damaged: {reason}; take another checkpoint, or copy the file again")]
    Damaged {
        /// The file.
        path: String,
        /// The sign by which that is known.
        reason: String,
    },
    /// A file that cannot be read.
    #[error("cannot read {path}: {reason}")]
    Read {
        /// The file.
        path: String,
        /// The system's error.
        reason: String,
    },
    /// A variable that the checkpoint lacks.
    #[error(
        "checkpoint {checkpoint} lacks variable `{name}` ({ty}): it is of another model or optimizer"
    )]
    VariableMissing {
        /// The checkpoint, and the model that it is of.
        checkpoint: String,
        /// The variable.
        name: String,
        /// The type that the plan expects.
        ty: TensorType,
    },
    /// A variable that the plan lacks.
    #[error(
        "checkpoint {checkpoint} has variable `{name}` ({ty}), which the plan lacks: it is of another \
         model or optimizer"
    )]
    VariableUnknown {
        /// The checkpoint, and the model that it is of.
        checkpoint: String,
        /// The variable.
        name: String,
        /// Its type.
        ty: TensorType,
    },
    /// A variable of another type.
    #[error("variable `{name}` is {expected}, but checkpoint {checkpoint} has {found}")]
    VariableType {
        /// The checkpoint, and the model that it is of.
        checkpoint: String,
        /// The variable.
        name: String,
        /// The type that the plan expects.
        expected: TensorType,
        /// The type that the checkpoint has.
        found: TensorType,
    },
    /// A session that does not go on where the checkpoint ends.
    #[error(
        "the checkpoint was saved after {found} steps with seed {seed}, but the session begins at step {expected} with \
         seed {own_seed}: set SessionOptions::first_step and seed to the checkpoint's, or begin with its weights \
         alone (Checkpoint::weights)"
    )]
    Position {
        /// Finished steps of the checkpoint.
        found: u64,
        /// Its seed.
        seed: u64,
        /// The session's next step.
        expected: u64,
        /// The session's seed.
        own_seed: u64,
    },
    /// A directory that cannot be made, or in which nothing can be written.
    #[error("no checkpoint can be saved to {path}: {reason}")]
    Directory {
        /// The directory.
        path: String,
        /// The system's error.
        reason: String,
    },
    /// A checkpoint that could not be written. Nothing half-written is left.
    #[error(
        "cannot write {path}: {reason}; complete checkpoints in that directory are as they were: make room, or save to \
         another directory"
    )]
    Write {
        /// The file or directory.
        path: String,
        /// The system's error.
        reason: String,
    },
    /// A directory into which another process saves.
    #[error("another running job saves its checkpoints to {path}: choose another directory")]
    InUse {
        /// The directory.
        path: String,
    },
    /// A directory with checkpoints of another run.
    #[error(
        "{path} is another run's, or this run begins before it: resume from it, save to another directory, or remove it"
    )]
    Later {
        /// The latest checkpoint in the directory.
        path: String,
    },
    /// The parts of ranks do not fit together.
    #[error("the checkpoint in {path} cannot be completed: {reason}")]
    Parts {
        /// The directory.
        path: String,
        /// The fault.
        reason: String,
    },
    /// Variables from which no training goes on.
    #[error(
        "after {step} steps {} not finite in each element, so no checkpoint of them is saved, and those before are as they were: \
         lower the learning rate or clip gradients, and go on from an earlier one",
        names_of(.names)
    )]
    NotFinite {
        /// Finished steps.
        step: u64,
        /// The variables.
        names: Vec<String>,
    },
    /// A rank has failed.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

graphc_ir::readable_debug!(CheckpointError);

impl From<JobEnd> for CheckpointError {
    fn from(end: JobEnd) -> Self {
        Self::Runtime(end.into())
    }
}

/// Names that an error lists.
const LISTED: usize = 5;

/// Returns the names of so many variables, with the verb.
fn names_of(names: &[String]) -> String {
    let first: Vec<String> = names.iter().take(LISTED).map(|name| format!("`{name}`")).collect();
    let more = names.len().saturating_sub(LISTED);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{rest} {}", first.join(", "), if names.len() == 1 { "is" } else { "are" })
}

impl CheckpointError {
    pub(super) fn cannot_read(path: &Path, reason: impl ToString) -> Self {
        Self::Read { path: path.display().to_string(), reason: reason.to_string() }
    }

    pub(super) fn cannot_write(path: &Path, reason: impl ToString) -> Self {
        Self::Write { path: path.display().to_string(), reason: reason.to_string() }
    }

    pub(super) fn damaged(path: &Path, reason: impl ToString) -> Self {
        Self::Damaged { path: path.display().to_string(), reason: reason.to_string() }
    }

    pub(super) fn cannot_complete(path: &Path, reason: impl ToString) -> Self {
        Self::Parts { path: path.display().to_string(), reason: reason.to_string() }
    }
}
