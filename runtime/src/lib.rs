//! The runtime: executes plans.
//!
//! Ranks are threads of this process, or processes of a [`job`]; a [`transport`] joins them (both are `graphc-comm`'s). Each rank has one `device`
//! with the memory of its registers. It has one worker per stream, or one for all of them, which drives the actor state
//! machine of `graphc-ir`. The worker launches on the device what actors compute, and has a `communicator` do what
//! crosses ranks.
//!
//! The runtime knows nothing of the compiler: a plan is all that it reads. A session opens devices of the kind for which
//! its plan was made; [`SessionOptions::device`] has the processor run the same plan, with its streams as threads.
//!
//! Unsafe code is in few files, and each block says why it is sound:
//!
//! - `device/views` (shards in arenas), `copy` (vector stores), `dist/element` (elements as bytes);
//! - `device/cuda/{driver,mark,compile,product,nccl,nvtx,library,stream}` (NVIDIA's libraries, whose handles are kept and
//!   given back; the plan says what a launch touches).
//!
//! Start reading with [`Session`], then `worker`, then [`transport::Transport`]; what lies where is in `rectangles`.

#![warn(unreachable_pub)]

pub mod cards;
mod checkpoint;
mod collectives;
mod communicator;
mod copy;
mod device;
pub mod dist;
mod error;
mod rectangles;
mod routine;
mod session;
mod sharded;
mod worker;

pub use checkpoint::{
    Checkpoint, CheckpointError, CheckpointHeader, Checkpoints, VariableRecord, is_table,
};
pub use error::{Cause, Failure, RuntimeError};
pub use graphc_comm::{JobEnd, job, transport};
pub use graphc_host::memory::memory_and_swap;
pub use graphc_host::tensor::{HostTensor, TensorError, is_finite};
pub use graphc_host::{FeedTypes, data, threads};
pub use routine::{Routine, RoutineCall, Routines};
pub use session::{
    ActorStatistics, OutputsAt, RankStatistics, RegisterStatistics, Session, SessionOptions,
    Statistics, StepHandle, known_weights,
};
pub use sharded::{ShardedTensor, cut_shard, generate_shard, laid_out};
