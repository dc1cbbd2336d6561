//! Collectives over the ranks along one mesh axis, built on [`crate::transport::Group::exchange`].
//!
//! A collective is worked out when a session begins, as one or two *stages*; in a stage every rank shows parts of its
//! memory to its peers and copies or combines what they show. All of them combine in the order of the ranks' coordinates,
//! and cut by shape alone, so results are the same bits on all ranks, in all runs, on every transport.
//!
//! All-reduce between ranks that reach each other's memory is one rendezvous in which each rank reduces its part of the flat
//! tensors and writes it into the memory of all ([`through`]). Elsewhere it is a reduce-scatter and an all-gather of the same
//! parts: 2 (n - 1) / n of the bytes, as a ring moves, but in two rendezvous instead of 2 (n - 1). Small tensors go in one
//! stage in which every rank reads all of the others.

mod buffers;
mod plan;
mod stage;
mod through;

pub(crate) use buffers::Buffers;
pub(crate) use plan::{Change, Scope, check, group_of, plan};
pub(crate) use stage::{Lists, Stage};

#[cfg(test)]
mod tests;
