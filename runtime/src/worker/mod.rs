//! Workers: one thread per rank and stream, or one per rank for all of its streams, which executes its order step after step.
//!
//! What can be known before the first step is worked out in `resolve`: launches, addresses, rectangles, endpoints. What
//! is left per action is to ask the machine for credits, to launch, and to count. Start reading with
//! [`run::Worker::step`], then `actor`.

mod actor;
mod apart;
mod edge;
mod lanes;
mod neighbours;
mod replay;
mod report;
mod resolve;
mod run;
mod share;
mod step;
mod timed;

pub(crate) use actor::Work;
pub(crate) use apart::Apart;
pub(crate) use replay::Replay;
pub(crate) use report::Report;
pub(crate) use resolve::{Edges, RankPart, Resolver};
pub(crate) use run::{Job, Settings, Worker};
pub(crate) use share::{Share, beside, edges};
pub(crate) use step::StepState;
