//! Planning and lowering of whole models.

mod attention;
mod averages;
mod compile;
mod cross_entropy;
mod experts;
mod float8;
mod fusion;
mod growth;
mod known_answers;
mod little_memory;
mod megatron;
mod mixed;
mod overlap;
mod planner;
mod planner_gpt;
mod planner_sizes;
#[path = "../planner_support/mod.rs"]
mod planner_support;
mod precision;
mod recompute;
mod sequences;
mod stages;
mod trained;
mod updates;

/// As in the command, whose planning these tests are of.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
