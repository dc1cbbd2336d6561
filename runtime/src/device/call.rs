//! The calls of a device: what an actor has it do.

use graphc_ir::op::{InPlace, Op};
use graphc_ir::ops::{MatMul, Reduce};
use graphc_kernels::KernelError;
use graphc_plan::{FusedArg, FusedOp, Layout};

use super::port::Port;

/// A call that is to be prepared.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DeviceCall<'a> {
    /// An op.
    Op(&'a Op),
    /// A chain of elementwise ops.
    Fused(&'a FusedOp),
    /// Adds the operand to the result; the first microbatch overwrites. Nothing where both are the same memory.
    Accumulate,
    /// Copies the operand to the result.
    Copy,
    /// A rank's own part of its operand, a slice or a mask, by the layouts before and after.
    Local {
        /// The rank.
        rank: u32,
        /// The operand's layout.
        from: &'a Layout,
        /// The result's.
        to: &'a Layout,
    },
}

/// The reason why something cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unprepared {
    /// The device has no kernel for it.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The registers do not fit the call.
    #[error("{0}")]
    Registers(String),
    /// The device or one of its libraries does not take it.
    #[error("{0}")]
    Device(String),
}

/// A product and what goes with it.
pub(crate) struct ProductPair<'a> {
    pub(crate) op: &'a MatMul,
    /// Both factors.
    pub(crate) factors: Vec<Port>,
    pub(crate) with: With<'a>,
    /// The results: those of a chain, and behind them the product where it keeps a value; the product and the sums; the sum
    /// over microbatches; or the product, whose content then means nothing, and the update's results.
    pub(crate) results: Vec<Port>,
}

/// The company of a product.
pub(crate) enum With<'a> {
    /// The chain behind it.
    Chain {
        chain: &'a FusedOp,
        /// The chain's operands.
        operands: Vec<Port>,
        /// The index of the operand that is the product.
        product: usize,
        /// A value of the chain that others read in the product's place.
        keeps: Option<FusedArg>,
        /// Results of the chain in the memory of its operands.
        shared: Vec<InPlace>,
    },
    /// Sums of a factor.
    Sums {
        /// The index of the factor that is summed.
        factor: usize,
        /// The tensor that is summed, the same memory.
        operand: Port,
        reduce: &'a Reduce,
    },
    /// The sum over microbatches to which it is added, the only result.
    Accumulation,
    /// The update of which it is the gradient.
    Update {
        /// The op.
        update: &'a Op,
        /// The update's operands, of which the second is the product.
        operands: Vec<Port>,
    },
}
