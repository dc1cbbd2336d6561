//! Fusion: tasks that become one.
//!
//! `elementwise` joins elementwise ops that run side by side. `chains` says which tasks may be steps of one chain, and `cheap` makes again,
//! for each reader, what is cheaper to compute than to keep. `buckets` joins collectives.

pub(in crate::lower) mod buckets;
mod chains;
mod cheap;
pub(in crate::lower) mod elementwise;
