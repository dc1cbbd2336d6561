//! What an actor has its device do.

use graphc_ir::op::Op;
use graphc_ir::plan::{FusedOp, Layout};
use graphc_kernels::KernelError;

/// What is to be prepared.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call<'a> {
    /// An op.
    Op(&'a Op),
    /// A chain of elementwise ops.
    Fused(&'a FusedOp),
    /// Adds the operand to the result; the first microbatch overwrites. Nothing where both are the same memory.
    Accumulate,
    /// Copies the operand to the result.
    Copy,
    /// What a rank keeps of its operand, a slice or a mask, by the layouts before and after.
    Local {
        /// The rank.
        rank: u32,
        /// The operand's layout.
        from: &'a Layout,
        /// The result's.
        to: &'a Layout,
    },
}

/// Why something cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unprepared {
    /// The device has no kernel for it.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// Its registers do not fit what it does.
    #[error("{0}")]
    Registers(String),
    /// The device or one of its libraries does not take it.
    #[error("{0}")]
    Device(String),
}
