//! The host: tensors in its memory, files of them, and its threads.
//!
//! A [`tensor::HostTensor`] is what a step is fed with and what it gives back. [`data`] reads and writes files of tensors, metrics and batches,
//! [`threads`] starts threads, [`memory`] says how much memory there is, and [`FeedTypes`] says what a step takes.
//!
//! Whatever handles data without executing plans stands on this crate: it knows no plan, no device and no rank. Unsafe code is in `memory` alone,
//! which maps files. Start reading with [`tensor`].

#![warn(unreachable_pub)]

pub mod data;
mod feed_types;
pub mod memory;
mod show;
pub mod tensor;
pub mod threads;

pub use feed_types::FeedTypes;
