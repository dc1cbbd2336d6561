//! The runtime: executes plans. Ranks are threads of this process, or processes of a [`job`]; a [`transport`] joins
//! them. Each rank has one `device` with the memory of its registers, and one worker per stream, which drives the actor state
//! machine of `graphc-ir`: it launches on the device what actors compute, and has a `communicator` do what crosses ranks.
//!
//! It knows nothing of the compiler: a plan is all that it reads. Start reading with [`Session`], then `worker`, then
//! [`transport::Transport`]; what lies where is in `rectangles`.

pub mod cards;
mod checkpoint;
mod collectives;
mod communicator;
mod copy;
pub mod data;
mod device;
pub mod dist;
mod error;
mod explore;
pub mod job;
mod memory;
#[cfg(feature = "mpi")]
mod mpi;
mod rectangles;
mod routine;
mod session;
mod sharded;
mod show;
mod standstill;
mod tensor;
pub mod threads;
pub mod transport;
mod worker;

pub use checkpoint::{
    Checkpoint, CheckpointError, CheckpointHeader, Checkpoints, VariableRecord, is_table,
};
pub use error::{Cause, Failure, RuntimeError};
pub use routine::{Call, Routine, Routines};
pub use session::{
    ActorStatistics, OutputsAt, RankStatistics, RegisterStatistics, Session, SessionOptions,
    Statistics, StepHandle, known_weights, memory_and_swap,
};
pub use sharded::{ShardedTensor, laid_out};
pub use tensor::{HostTensor, TensorError, is_finite};
