//! Eager tensors on threads and processes.

#[path = "../common/mod.rs"]
mod common;
mod errors;
mod processes;
mod threads;
