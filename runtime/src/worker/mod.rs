//! Workers: one thread per rank and stream, which executes the stream's order step after step.
//!
//! What can be known before the first step is worked out in `resolve`: launches, addresses, rectangles, endpoints. What
//! is left per action is to ask the machine for credits, to launch, and to count. Start reading with
//! [`run::Worker::step`], then `actor`.

mod actor;
mod edge;
mod neighbours;
mod replay;
mod report;
mod resolve;
mod run;
mod step;

pub(crate) use actor::Work;
pub(crate) use replay::Replay;
pub(crate) use report::Report;
pub(crate) use resolve::{Edges, RankPart, Resolver};
pub(crate) use run::{Job, Settings, Worker};
pub(crate) use step::{StepState, Watch};
