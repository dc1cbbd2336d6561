//! Sessions and jobs that execute plans, on threads.

mod boxing;
#[path = "../common/collectives.rs"]
mod collectives;
#[path = "../common/mod.rs"]
mod common;
mod dist;
mod jobs;
mod runs;
mod session;
#[path = "../common/tour.rs"]
mod tour;
mod verified;
