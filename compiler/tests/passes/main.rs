//! The passes from a user's graph to a training graph, held against finite differences, a reference trainer and
//! evaluation microbatch by microbatch.

mod fetched;
mod filetests;
mod gradients;
mod microbatches;
mod models;
mod references;
mod rounded;
mod simplification;
mod training;

/// As in the command: planning allocates much that is small.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
