//! What joins ranks: jobs of processes, transports between ranks, and the memory that ranks share.
//!
//! A [`job`] brings processes together, watches over them and ends when one of them cannot go on. A [`transport`] moves bytes
//! between ranks, be they threads of a process, processes of a host or of several. This crate knows no plan and no kernel: what the
//! bytes are is the business of who sends them.
//!
//! Why a job has ended is a [`JobEnd`]; a wait that ends without what was waited for is a [`TransportError`].
//!
//! Unsafe code is in few files, and each block says why it is sound:
//!
//! - `memory` (arenas that ranks lend each other);
//! - `transport/in_process/mailbox` (a peer's memory during a rendezvous), `transport/process/{segment,outbox,shared}`
//!   (memory that processes share), `transport/process/foreign` (a system call that reads another process's memory);
//! - `mpi/calls` (the MPI library, whose buffers stay until it is done with them).
//!
//! Start reading with [`transport::Transport`], then [`job::Job`].

#![warn(unreachable_pub)]

mod control;
mod end;
mod error;
pub mod explore;
pub mod job;
pub mod memory;
#[cfg(feature = "mpi")]
mod mpi;
pub mod standstill;
pub mod transport;

pub use control::{Activity, enter_activity};
pub use end::JobEnd;
pub use error::TransportError;
