//! Checkpoints: all variables of a job at the end of a step, from which training goes on bit for bit, on the same mesh or
//! on another one.
//!
//! A checkpoint is a directory `DIR/step-00000120` of one safetensors file per rank and `manifest.json`. Of ranks that
//! hold the same elements the first alone writes them, so nothing is stored twice; a rank that has nothing to add has no
//! file. The manifest says which rectangle of which variable lies in which file, and the size and SHA-256 of every file.
//! SHA-256 is what CPUs have instructions for, and what the plan's weights have.
//!
//! It is written beside its place (`DIR/.step-00000120.partial`), made durable, and renamed. Whoever looks at `DIR` at
//! any moment, after any crash, finds complete checkpoints alone. A lock on `DIR` keeps two jobs apart. Processes of one
//! job share `DIR`: on several machines it lies on a file system that all of them see. The process of rank 0 alone
//! begins, gathers, renames and removes; the others add their files
//! ([`Session::save_checkpoint_with`](crate::Session::save_checkpoint_with)).
//!
//! A rank that loads maps the files whose pieces overlap its shards and checks their sums first, whatever the mesh was
//! that wrote them. The step's number is the only state besides variables: batches, random numbers and Adam's bias
//! correction are functions of it.
//!
//! Variables that no session holds alone are saved whole (`whole`). No communication here: the barrier between processes
//! is the caller's. Start reading with `manifest`, then `save`, then `load`; `fit` says which checkpoints a session goes
//! on from.

mod error;
mod fit;
mod folder;
mod load;
mod manifest;
mod save;
mod settings;
mod stored;
#[cfg(test)]
mod tests;
mod whole;

pub use error::CheckpointError;
pub use fit::is_table;
pub use load::Checkpoint;
pub use manifest::VariableRecord;
pub use save::Checkpoints;
pub use whole::CheckpointHeader;

pub(crate) use fit::ExpectedVariable;
pub(crate) use save::ManifestHeader;
pub(crate) use settings::TrainingSettings;

use graphc_ir::shard::Rect;
use graphc_plan::{Layout, TensorKind};

use crate::device::DeviceMemory;
use graphc_comm::memory::ArenaRange;

/// A shard of a variable in the memory of a rank.
#[derive(Clone, Copy)]
pub(crate) struct HeldShard<'a> {
    pub(crate) name: &'a str,
    pub(crate) kind: TensorKind,
    pub(crate) layout: &'a Layout,
    pub(crate) rank: u32,
    pub(crate) rect: &'a Rect,
    pub(crate) memory: &'a DeviceMemory,
    pub(crate) place: ArenaRange,
    /// Whether steps change it.
    pub(crate) updated: bool,
}
