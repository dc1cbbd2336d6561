//! Errors of data parallelism.

use graphc_compiler::error::CompileError;
use graphc_ir::types::TensorType;
use graphc_runtime::dist::DistError;
use graphc_runtime::{CheckpointError, RuntimeError, TensorError};

/// An error of data parallelism.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum DataParallelError {
    /// The graph cannot be compiled.
    #[error(transparent)]
    Compile(#[from] Box<CompileError>),
    /// The session has failed.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The communication has failed.
    #[error(transparent)]
    Dist(#[from] DistError),
    /// A tensor is not what its type says.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A checkpoint cannot be saved or loaded.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The ranks have different parameters or buffers.
    #[error("rank {rank} does not have the parameters and buffers of rank 0: {difference}")]
    Parameters {
        /// The rank of this process.
        rank: usize,
        /// The difference.
        difference: String,
    },
    /// A variable that is in no plan has no first content.
    #[error("the weights have no tensor `{name}` ({ty})")]
    Weight {
        /// The variable.
        name: String,
        /// Its type.
        ty: TensorType,
    },
    /// Weights of which nothing would be used.
    #[error(
        "the graph has no variable `{name}`, which the weights have: leave it out, or rename it"
    )]
    UnknownWeight {
        /// The name.
        name: String,
    },
    /// Options that ask for a plan of several ranks.
    #[error(
        "the mesh of DataParallelOptions::training is {mesh:?}, but each rank has a plan of its own: leave it at [1]; the \
         ranks are those of the group"
    )]
    Mesh {
        /// The mesh that was asked for.
        mesh: Vec<usize>,
    },
    /// A graph that computes in f16.
    #[error(
        "the graph `{model}` computes in f16, whose gradients vanish unless the loss is scaled, which DataParallel does not \
         do: compute in bf16, or train one plan of all ranks with the strategy `data`"
    )]
    Scaling {
        /// The graph.
        model: String,
    },
    /// Options that ask for steps to be skipped.
    #[error(
        "DataParallelOptions::training asks to skip steps whose loss is not finite, which ranks with plans of their own cannot do \
         alike: look at the outputs of `step` before `apply`, or train one plan of all ranks with the strategy `data`"
    )]
    Skipping,
    /// Updates without an optimizer.
    #[error(
        "there is no optimizer to make a step: give DataParallelOptions::training one, or apply the gradients with `update`"
    )]
    NoOptimizer,
}

graphc_ir::readable_debug!(DataParallelError);

impl From<CompileError> for DataParallelError {
    fn from(error: CompileError) -> Self {
        Self::Compile(Box::new(error))
    }
}
