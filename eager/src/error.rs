//! Errors of eager tensors.

use graphc_compiler::error::CompileError;
use graphc_ir::mesh::Placement;
use graphc_ir::types::{DType, TensorType};
use graphc_plan::Layout;
use graphc_runtime::{RuntimeError, TensorError};

/// An error of an operation that cannot be done. All ranks find by themselves, from what all of them know, that operands do not fit, so nothing is
/// communicated, and operations that do fit may follow. [`EagerError::Runtime`] ends the job on all ranks.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum EagerError {
    /// Operands that an operation does not take.
    #[error("{call}: {reason}")]
    Operands {
        /// The call, with the operands' types and layouts.
        call: String,
        /// The fault.
        reason: String,
    },
    /// A number that the element type does not have.
    #[error("{value} is no element of {dtype}: make or cast the tensor to one that has it")]
    Number {
        /// The number.
        value: f64,
        /// The element type.
        dtype: DType,
    },
    /// Random numbers of an element type that has none between 0 and 1.
    #[error("{what} of {dtype}: random numbers are f32, bf16 or f16; cast them afterwards")]
    Random {
        /// The call.
        what: &'static str,
        /// The element type.
        dtype: DType,
    },
    /// Operands on different placements.
    #[error(
        "{call}: one operand is on {first}, another on {other}; bring one to the placement of the other with to_global"
    )]
    Placements {
        /// The call.
        call: String,
        /// The placement of the first operand.
        first: Box<Placement>,
        /// The placement of one that is elsewhere.
        other: Box<Placement>,
    },
    /// A placement on ranks that do not exist.
    #[error("{placement} names rank {rank}, but the group has ranks 0 to {}", ranks - 1)]
    Rank {
        /// The placement.
        placement: Placement,
        /// A rank that it names.
        rank: u32,
        /// Number of ranks of the group.
        ranks: usize,
    },
    /// A placement on devices that ranks do not have.
    #[error("{placement} is on devices of another kind than the ranks', which compute on cpu")]
    Device {
        /// The placement.
        placement: Placement,
    },
    /// Local tensors that are no shards of one tensor.
    #[error(
        "from_local: rank {rank} brings {found}, but {} in ({}) on ranks {:?} needs {expected} there",
        layout.ty(), layout.sbp, layout.ranks
    )]
    Local {
        /// The first rank whose tensor does not fit.
        rank: u32,
        /// The type that it brings.
        found: TensorType,
        /// The type that it would have to bring.
        expected: TensorType,
        /// The whole tensor that all local tensors would make, and its intended layout.
        layout: Box<Layout>,
    },
    /// Tensors of two contexts.
    #[error("{call}: the operands belong to different `Eager` contexts")]
    Contexts {
        /// The call.
        call: String,
    },
    /// A layout that does not fit its tensor, or a wrong element type.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// An operation that the compiler has no plan for.
    #[error("{call}: {error}")]
    Compile {
        /// The call.
        call: String,
        /// The reason.
        error: Box<CompileError>,
    },
    /// A plan that does not read its operands as they lie.
    #[error("{call}: the plan does not read its operands as they lie: a fault of graphc's")]
    Fault {
        /// The call.
        call: String,
    },
    /// Ranks that do not call the same, a rank that has died or does not come, or too little memory.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

graphc_ir::readable_debug!(EagerError);
