//! Trainings by the command and by `DataParallel`: their numbers, options, data, checkpoints and weights.

mod buckets;
mod checkpoints;
mod command;
mod data;
mod data_parallel;
mod data_parallel_training;
mod diverged;
mod dropped_weights;
mod epochs;
mod exported;
mod fetching;
mod flattened;
mod options;
mod own_loss;
mod own_weights;
mod precision_training;
mod references;
mod resident;
mod samples;
mod skipping;
mod spans;
mod statistics;
mod streams;
mod sums_in_products;
#[path = "../support/mod.rs"]
mod support;
mod wanted;
mod weights;

/// As in the command: planning allocates much that is small.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
