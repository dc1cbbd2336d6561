//! Collectives over the ranks along one mesh axis, built on [`graphc_comm::transport::ExchangeGroup::exchange`].
//!
//! A collective is worked out when a session begins, as one or two *stages*. In a stage every rank shows parts of its
//! memory to its peers, and copies or combines what they show. All of them combine in the order of the ranks'
//! coordinates, and cut by shape alone. So results are the same bits on all ranks, in all runs, on every transport.
//!
//! Ranks of one host reach each other's memory, threads and processes alike. There all-reduce is one rendezvous: each
//! rank reduces its part of the flat tensors and writes it into the memory of all ([`through`]), so every byte is read
//! once and written once. The result takes the operand's place (`graphc_plan::in_place`). Where that makes each rank read
//! no more than 32 KiB in all, every rank reads all of the others in one stage instead.
//!
//! Where a group spans hosts messages are packed ([`graphc_comm::transport::Transport::is_direct`] says which). All-reduce is then
//! a reduce-scatter and an all-gather of the same parts. They move 2 (n - 1) / n of the bytes, as a ring does, but in two
//! rendezvous instead of 2 (n - 1), and give the same bits. A ring would pay where links are few.

mod buffers;
mod plan;
mod stage;
mod through;

pub(crate) use buffers::Buffers;
pub(crate) use plan::{CollectiveScope, LayoutChange, check_collective, group_of, plan_collective};
pub(crate) use stage::{CollectiveStage, StageLists};

#[cfg(test)]
mod tests;
