//! The compiler: from a graph to a plan. Start reading with `compile`, the pipeline of passes.
//!
//! Nothing here reads a clock, the network or the environment, and files are read by importers alone.

pub mod check;
pub mod compile;
pub mod decisions;
pub mod lower;
pub mod null_device;
