//! Jobs of several threads, processes and hosts.

mod hosts;
mod launch;
mod processes;
#[path = "../support/mod.rs"]
mod support;
mod threads;
