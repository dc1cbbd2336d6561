//! Errors of plans that are loaded or run.

use graphc_comm::{JobEnd, TransportError};
use graphc_host::tensor::TensorError;
use graphc_ir::text::suggest_name;
use graphc_ir::types::{TensorType, format_bytes};
use graphc_kernels::KernelError;

/// The reason why a session cannot be made or a step has failed.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// A plan that this runtime cannot execute: written by another version, or edited.
    #[error("the plan cannot be executed: {reason}")]
    Plan {
        /// The fault.
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
    /// No card, where one was asked for.
    #[error(
        "the plan is to run on CUDA devices, and there is none here: {reason}; `graphc devices` says what is there, and \
         --device cpu (in Rust: SessionOptions::device) runs the same plan on the processor"
    )]
    NoCard {
        /// The part that is missing.
        reason: String,
    },
    /// A device does not do what it is asked for.
    #[error("the device of rank {rank}: {reason}")]
    Device {
        /// The rank.
        rank: u32,
        /// The driver's error.
        reason: String,
    },
    /// A card has not the memory.
    #[error(
        "rank {rank} needs {} of its card's memory for the plan's tensors, and {} are free: compile for less memory \
         (--memory), for a smaller batch, with more microbatches, or with activations computed again",
        format_bytes(*.bytes), format_bytes(*.free)
    )]
    CardMemory {
        /// The rank.
        rank: u32,
        /// Bytes of its arena.
        bytes: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// An input of the graph was not fed.
    #[error("input `{name}` ({ty}) is not fed")]
    InputMissing {
        /// The input.
        name: String,
        /// The type that the plan expects.
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
        /// The type that the plan expects.
        expected: TensorType,
        /// The type that was fed.
        found: TensorType,
    },
    /// An output is to be fetched that the plan does not give.
    #[error(
        "the plan has no output `{name}`; it has {outputs:?}, and gives another one of its graph where it is compiled to \
         (--fetch; in Rust: CompileOptions::fetch)"
    )]
    OutputUnknown {
        /// The name.
        name: String,
        /// The plan's outputs.
        outputs: Vec<String>,
    },
    /// The weights lack a variable.
    #[error("the weights have no tensor `{name}` ({ty})")]
    WeightMissing {
        /// The variable.
        name: String,
        /// The type that the plan expects.
        ty: TensorType,
    },
    /// Weights that the plan has no variables for: nothing of them would be used.
    #[error(
        "the plan has no variable `{name}`{}{}; its variables are {known}: leave out what it lacks, or rename it",
        suggest_name(.nearest.as_deref()),
        describe_others(*.others)
    )]
    WeightsUnknown {
        /// The first of them.
        name: String,
        /// The plan's variable that has nearly this name.
        nearest: Option<String>,
        /// The number of others.
        others: usize,
        /// Some of the plan's variables.
        known: String,
    },
    /// Weights, or a value set by hand, of another type than the variable.
    #[error("variable `{name}` is {expected}, but its value is {found}")]
    VariableType {
        /// The variable.
        name: String,
        /// The type that the plan expects.
        expected: TensorType,
        /// The type that was given.
        found: TensorType,
    },
    /// No variable of that name.
    #[error("the plan has no variable `{name}`{}", suggest_name(.nearest.as_deref()))]
    VariableUnknown {
        /// The name.
        name: String,
        /// The variable that has nearly this name.
        nearest: Option<String>,
    },
    /// A session that is to go back.
    #[error("step {step} was begun before: the next one is step {next}")]
    StepPassed {
        /// The step that was asked for.
        step: u64,
        /// The next one.
        next: u64,
    },
    /// A learning rate that cannot stand in the place of the plan's.
    #[error("the learning rate cannot be set: {reason}")]
    LearningRate {
        /// The reason, and what to do.
        reason: String,
    },
    /// A tensor that is not what its type says.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A rank failed; all ranks have stopped.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The job has ended, here or on another rank.
    #[error(transparent)]
    Ended(JobEnd),
    /// A peer did not answer outside of a step.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// More ranks than threads that a process may have.
    #[error(
        "the plan is for {ranks} ranks, and one process takes at most {most}: start a process for each rank with `graphc \
         launch`, on several machines"
    )]
    Ranks {
        /// Ranks of the plan.
        ranks: usize,
        /// Ranks of a process.
        most: usize,
    },
    /// The system has not the memory.
    #[error(
        "rank {rank} needs {} of memory for the plan's tensors, the ranks of this machine so far {} together, and {} are \
         available: compile for less memory, for a smaller batch, with more microbatches, or with activations computed \
         again, or use more machines",
        format_bytes(*.bytes), format_bytes(*.together), format_bytes(*.available)
    )]
    Memory {
        /// The rank.
        rank: u32,
        /// Bytes of its arena.
        bytes: u64,
        /// Bytes of the arenas of this machine, up to this rank's.
        together: u64,
        /// Bytes that there are.
        available: u64,
    },
    /// The system did not give the memory, although it has it.
    #[error(
        "rank {rank} was not given {} of memory for the plan's tensors: others use it, or a limit (ulimit -v) is set; \
         free some, or compile for less memory",
        format_bytes(*.bytes)
    )]
    NoMemory {
        /// The rank.
        rank: u32,
        /// Bytes of its arena.
        bytes: u64,
    },
    /// The system gave no thread.
    #[error("cannot start a thread for rank {rank}: {reason}")]
    Thread {
        /// The rank.
        rank: u32,
        /// The system's error.
        reason: String,
    },
}

graphc_ir::readable_debug!(RuntimeError);

impl RuntimeError {
    /// Makes the error that the system gave no thread for a rank.
    pub(crate) fn from_thread_error(rank: u32, error: std::io::Error) -> Self {
        Self::Thread { rank, reason: graphc_host::threads::explain_thread_error(error).to_string() }
    }

    pub(crate) fn invalid_plan(reason: impl Into<String>) -> Self {
        Self::Plan { reason: reason.into() }
    }
}

impl From<JobEnd> for RuntimeError {
    /// Returns the runtime's own error where that has ended the job.
    fn from(end: JobEnd) -> Self {
        let own = match &end {
            JobEnd::Own(own) => own.downcast_ref::<Self>().cloned(),
            JobEnd::Transport(error) => Some(error.clone().into()),
            _ => None,
        };
        own.unwrap_or(Self::Ended(end))
    }
}

impl From<RuntimeError> for JobEnd {
    fn from(error: RuntimeError) -> Self {
        match error {
            RuntimeError::Ended(end) => end,
            RuntimeError::Transport(error) => error.into(),
            RuntimeError::Failed(_) => Self::from_error_of_rank(error),
            error => Self::from_error(error),
        }
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
    /// The cause.
    pub cause: Cause,
}

/// The cause why an action failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
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
    /// The device failed.
    #[error("{0}")]
    Device(String),
    /// A kernel that was launched before found something wrong.
    #[error("{actor}: {error}")]
    Found {
        /// The actor whose kernel it is.
        actor: String,
        /// The kernel's error.
        error: Box<KernelError>,
    },
    /// A worker panicked: a fault of graphc, not of the user.
    #[error("internal error: {0}")]
    Panic(String),
}

fn describe_others(others: usize) -> String {
    match others {
        0 => String::new(),
        others => format!(", nor {others} more of the weights"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_output_is_said_in_one_sentence() {
        let (name, outputs) = ("score".to_owned(), vec!["loss".to_owned()]);
        assert_eq!(
            RuntimeError::OutputUnknown { name, outputs }.to_string(),
            "the plan has no output `score`; it has [\"loss\"], and gives another one of its graph where it is compiled to \
             (--fetch; in Rust: CompileOptions::fetch)"
        );
    }
}
