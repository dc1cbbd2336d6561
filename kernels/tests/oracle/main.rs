//! Kernels of the CPU beside the evaluation that defines each op.

#[path = "../common/mod.rs"]
mod common;
mod drawn;
mod elementwise;
mod epilogues;
mod half;
mod layers;
mod places;
mod products;
mod states;
mod sums;
mod training;
