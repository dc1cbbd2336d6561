//! The connection of a process with the coordinator of its job, over which beats, small exchanges and the job's end go.
//!
//! It knows nothing of how tensors travel. [`crate::transport`] asks it whether the job still goes on while it waits, and
//! [`crate::job`] brings the processes together with it.
//!
//! A connection comes in at a `door`, is trusted after the `handshake`, and then speaks the messages of `wire`. Each member
//! has a `line` to the coordinator, which knows the `activity` of the process's workers.

mod activity;
mod door;
pub(crate) mod handshake;
mod line;
mod wire;

pub use activity::Activity;
pub use activity::enter_activity;
pub(crate) use activity::{WaitGuard, note_waiting};
pub(crate) use door::Door;
pub(crate) use line::JobLine;
pub(crate) use wire::{ControlMessage, Member, read_message, write_message};
