//! Plans: that they fit, what they say of themselves, what refuses them, and what is predicted of them.

mod boxing;
mod conflicts;
mod contract;
mod digests;
mod experts;
mod explain;
mod files;
mod half;
mod large_models;
mod limits;
#[path = "../support/machine.rs"]
mod machine;
mod padding;
mod pipeline;
mod precision;
mod profile;
mod random_graphs;
mod simulate;
#[path = "../support/mod.rs"]
mod support;

/// As in the command: planning allocates much that is small.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
