//! A double of NCCL: communicators of ranks that are threads or processes of one machine.
//!
//! Each communicator has a *hub*, a thread in the process of its rank 0 ([`hub`]), to which every rank has one Unix
//! socket ([`wire`]). A rank's part in a collective is an operation on its stream ([`operation`]). When its turn comes it
//! posts what it calls, with its data. Then it waits until the hub has matched it with what the other ranks post, and
//! writes what it gets. So the hub sees all that ranks want of each other: it compares calls, adds in the order of ranks,
//! and can say who waits for whom.
//!
//! [`member`] is a rank's end of that, and [`group`] collects the calls of a group. [`exports`] and [`collectives`] are
//! the functions of C, and [`call`] is what they ask for as data. It computes nothing on devices and never blocks a
//! stream's executor: an operation is polled.

pub mod call;
pub mod collectives;
pub mod exports;
pub mod group;
pub mod hub;
pub mod init;
pub mod member;
pub mod operation;
pub mod pulse;
pub mod types;
pub mod wire;
