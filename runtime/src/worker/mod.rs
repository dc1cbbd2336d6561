//! Workers: one thread per rank and stream, or one per rank for all of its streams, which executes its order step after step.
//!
//! What can be known before the first step is worked out in `resolve`: launches, addresses, rectangles, endpoints. What
//! is left per action is to ask the machine for credits, to launch, and to count. Start reading with
//! [`run::Worker::run_step`], then `actor`.

mod actor;
mod apart;
mod edge;
mod lanes;
mod neighbours;
mod outputs;
mod replay;
mod report;
mod resolve;
mod run;
mod share;
mod step;
mod timed;

pub(crate) use actor::PreparedWork;
pub(crate) use apart::ActionStopwatches;
pub(crate) use edge::{Fed, Rows};
pub use outputs::OutputsAt;
pub(crate) use outputs::{
    Fetch, find_fetch, first_holder, output_readers, output_tag, ranks_hold_same,
};
pub(crate) use replay::Replay;
pub(crate) use report::Report;
pub(crate) use resolve::{ActorResolver, Edges, RankPart};
pub(crate) use run::{Worker, WorkerRequest, WorkerSettings};
pub(crate) use share::{WorkerShare, find_edge_actions, find_sending_actors};
pub(crate) use step::StepState;
