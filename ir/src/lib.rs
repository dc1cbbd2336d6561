//! The intermediate representation of graphc: types, meshes and SBP, ops, graphs, the builder, the text format, the
//! verifier, the plan's schema with the proof that a plan is sound, and the actor state machine that the null device and the
//! runtime drive.
//!
//! Here is no clock, no network, no environment, no file and no thread. Start reading with [`op::Operation`] and
//! [`graph::Graph`], then [`plan::Plan`] and [`check::VerifiedPlan`].

#![warn(unreachable_pub)]

pub mod array;
pub mod builder;
pub mod check;
pub mod cycle;
pub mod decompose;
pub mod evaluate;
pub mod float8;
pub mod gradients;
pub mod graph;
pub mod hex;
pub mod ids;
pub mod in_place;
pub mod learning_rate;
pub mod machine;
pub mod math;
pub mod mesh;
pub mod models;
pub mod nn;
pub mod op;
mod operation;
pub mod ops;
pub mod pattern;
pub mod plan;
pub mod random;
pub mod readable;
pub mod rule;
pub mod sbp;
pub mod scalar;
pub mod shard;
pub mod streams;
pub mod table;
pub mod text;
pub mod trace;
pub mod types;
pub mod verify;
