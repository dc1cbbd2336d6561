//! The order of tasks on the streams of a rank.
//!
//! `background` chooses what runs on the second stream, `second_stream` sorts it, and `in_flight` bounds what it makes ahead of the first.
//! `before_updates`, `early_updates` and `casts` move tasks of the first stream. `schedule` orders blocks, each a part of a step for one
//! microbatch, and `block_clock` says when each actor of a block begins.

pub(in crate::lower) mod background;
pub(in crate::lower) mod before_updates;
pub(in crate::lower) mod block_clock;
pub(in crate::lower) mod casts;
pub(in crate::lower) mod early_updates;
pub(in crate::lower) mod in_flight;
pub(in crate::lower) mod schedule;
pub(in crate::lower) mod second_stream;
