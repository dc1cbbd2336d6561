//! What can go wrong while a plan is loaded or run.

use graphc_ir::types::TensorType;
use graphc_kernels::KernelError;

use crate::tensor::TensorError;
use crate::transport::TransportError;

/// Why a session cannot be made or a step has failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RuntimeError {
    /// A plan that this runtime cannot execute: written by another version, or edited.
    #[error("the plan cannot be executed: {reason}")]
    Plan {
        /// What is wrong.
        reason: String,
    },
    /// A plan that computes what this machine has no kernel for.
    #[error("the plan cannot be executed here, actor `{actor}`: {error}")]
    NoKernel {
        /// The actor.
        actor: String,
        /// The op and its element types.
        error: Box<KernelError>,
    },
    /// An input of the graph was not fed.
    #[error("input `{name}` ({ty}) is not fed")]
    InputMissing {
        /// The input.
        name: String,
        /// What the plan expects.
        ty: TensorType,
    },
    /// A tensor was fed that the graph has no input for.
    #[error("the graph has no input `{name}`; it has {inputs:?}")]
    InputUnknown {
        /// The name.
        name: String,
        /// The graph's inputs.
        inputs: Vec<String>,
    },
    /// An input of another type.
    #[error("input `{name}` is {found}, but the plan was compiled for {expected}")]
    InputType {
        /// The input.
        name: String,
        /// What the plan expects.
        expected: TensorType,
        /// What was fed.
        found: TensorType,
    },
    /// The weights lack a variable.
    #[error("the weights have no tensor `{name}` ({ty})")]
    WeightMissing {
        /// The variable.
        name: String,
        /// What the plan expects.
        ty: TensorType,
    },
    /// Weights, or a value set by hand, of another type than the variable.
    #[error("variable `{name}` is {expected}, but its value is {found}")]
    VariableType {
        /// The variable.
        name: String,
        /// What the plan expects.
        expected: TensorType,
        /// What was given.
        found: TensorType,
    },
    /// No variable of that name.
    #[error("the plan has no variable `{name}`")]
    VariableUnknown {
        /// The name.
        name: String,
    },
    /// A tensor that is not what its type says.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A rank failed; all ranks have stopped.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The session was dropped before the step was done.
    #[error("the session was shut down before the step was done")]
    ShutDown,
    /// The job has ended: some rank has failed, died or fallen silent.
    #[error("{report}")]
    Job {
        /// Who, where, why, and what each rank was doing.
        report: String,
    },
    /// The program that runs this rank cannot go on.
    #[error("{reason}")]
    Program {
        /// Why.
        reason: String,
    },
    /// A peer did not answer outside of a step.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The system gave no thread.
    #[error("cannot start a thread for rank {rank}: {reason}")]
    Thread {
        /// The rank.
        rank: u32,
        /// What the system says.
        reason: String,
    },
}

impl RuntimeError {
    pub(crate) fn plan(reason: impl Into<String>) -> Self {
        Self::Plan { reason: reason.into() }
    }
}

/// The first failure of a job: who, where, and why.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("rank {rank}, step {step}, {actor}: {cause}")]
pub struct Failure {
    /// The rank that failed first.
    pub rank: u32,
    /// The step, from 0.
    pub step: u64,
    /// The actor's name and microbatch.
    pub actor: String,
    /// Why.
    pub cause: Cause,
}

/// Why an action failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Cause {
    /// The kernel refused its operands.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A peer did not answer.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The plan's order cannot go on.
    #[error("the plan's order cannot go on: {0}")]
    Blocked(String),
    /// A worker panicked: a fault of graphc, not of the user.
    #[error("internal error: {0}")]
    Panic(String),
}
