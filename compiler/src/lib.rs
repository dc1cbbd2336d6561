//! The compiler, which turns a graph into a plan. Start reading with `compile`; `pipeline` lists the passes.
//!
//! Nothing here reads a clock, the network, the environment or files. What knows no graphs is the crate `graphc-solver`; importers of model files are
//! the crate `graphc-import`, which the compiler does not know.

#![warn(unreachable_pub)]

pub mod boxing;
pub mod check;
pub mod cluster;
pub mod compile;
pub mod cost;
pub mod decisions;
#[cfg(test)]
mod draw;
pub mod error;
pub mod finite;
pub mod lora;
pub mod lower;
pub mod mixing;
pub mod null_device;
pub mod passes;
pub mod pipeline;
pub mod planner;
mod schedule;
mod side_by_side;
