//! The intermediate representation of graphc: types, meshes and SBP, ops, graphs, the builder, the text format and the
//! verifier. Layers and models stand on the builder, in `graphc-nn`. What is made of a graph is a plan, in `graphc-plan`.
//!
//! Here is no clock, no network, no environment, no file and no thread. Start reading with [`op::Operation`] and
//! [`graph::Graph`].

#![warn(unreachable_pub)]

pub mod array;
pub mod builder;
pub mod cycle;
pub mod decompose;
pub mod evaluate;
pub mod float8;
pub mod gradients;
pub mod graph;
pub mod hex;
pub mod ids;
pub mod learning_rate;
pub mod math;
pub mod mesh;
pub mod op;
mod operation;
pub mod ops;
pub mod pattern;
pub mod random;
pub mod readable;
pub mod rule;
pub mod sbp;
pub mod scalar;
pub mod shard;
pub mod table;
pub mod text;
pub mod trace;
pub mod types;
pub mod verify;
