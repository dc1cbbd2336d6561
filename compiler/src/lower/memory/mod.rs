//! Slots and offsets of a program's registers in the arena of a rank.
//!
//! `flow` knows in which order actions run and what streams know of each other, and `lifetimes` when each content of a register lives.
//! `in_place` and `together` say which registers must share memory or must not. `arena` finds offsets, `places` searches until all fit, and `reuse`
//! makes a stream wait where it takes memory that the other gives back.

pub(in crate::lower) mod arena;
pub(in crate::lower) mod flow;
pub(in crate::lower) mod in_place;
pub(in crate::lower) mod lifetimes;
pub(in crate::lower) mod places;
pub(in crate::lower) mod reuse;
pub(in crate::lower) mod together;
