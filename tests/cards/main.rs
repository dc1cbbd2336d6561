//! Plans for cards on the double of a card, and the kit that tries a real one.

mod card;
mod cuda_cache;
mod cuda_kernels;
mod cuda_libraries;
mod cuda_products;
#[path = "../support/machine.rs"]
mod machine;
#[path = "../support/mod.rs"]
mod support;
#[path = "../traffic/mod.rs"]
mod traffic;
mod training;

/// As in the command: planning allocates much that is small.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
