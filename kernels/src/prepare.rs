//! Calls that are prepared once and launched as often as needed.
//!
//! A call's op, device and element types of all operands and results choose its kernel. Preparing a call also works out all else
//! that is known before the first step. This is done when a plan is loaded, so a plan without a kernel is refused then. An action
//! only launches.

use graphc_ir::mesh::DeviceKind;
use graphc_ir::op::Op;
use graphc_ir::ops::{Custom, MatMul};
use graphc_ir::types::{DType, TensorType};
use graphc_plan::FusedOp;

use crate::context::{Kernel, KernelContext};
use crate::custom::{CustomKernels, FoundKernel};
use crate::elementwise::Chain;
use crate::epilogue::Headed;
use crate::error::KernelError;
use crate::lookup;
use crate::summed::SummedProduct;
use crate::updated::Updated;
use crate::view::{View, ViewMut};

/// A call of a kernel for shards of known types. Made by [`prepare_op`] and [`prepare_fused`].
#[derive(Debug)]
pub struct Prepared(PreparedCall);

#[derive(Debug)]
enum PreparedCall {
    /// An op other than an elementwise one.
    Op { kernel: Kernel, op: Op },
    /// One elementwise op, or several.
    Chain(Box<Chain>),
    /// A convolution and elementwise ops behind it.
    Headed(Box<Headed>),
    /// An op of a program's own.
    Custom(FoundKernel),
    /// A matrix product and the update of which it is the gradient.
    Updated(Box<Updated>),
    /// A matrix product that is added to what microbatches before have summed.
    Summed(SummedProduct),
}

impl Prepared {
    /// Computes the results from the operands. The views have the types that the call was prepared for.
    ///
    /// # Errors
    /// Returns an error if the views have other types, or an index among the operands' elements is out of range.
    pub fn launch(
        &self,
        operands: &[View<'_>],
        results: &mut [ViewMut<'_>],
        cx: &mut KernelContext<'_>,
    ) -> Result<(), KernelError> {
        match &self.0 {
            PreparedCall::Op { kernel, op } => kernel(op, operands, results, cx),
            PreparedCall::Chain(chain) => chain.evaluate(operands, results, cx),
            PreparedCall::Headed(headed) => headed.evaluate(operands, results, cx),
            PreparedCall::Custom(found) => found.call(operands, results),
            PreparedCall::Updated(updated) => updated.evaluate(operands, results, cx),
            PreparedCall::Summed(summed) => summed.evaluate(operands, results, cx),
        }
    }
}

/// Prepares an op. `operands` and `results` are the types of the shards: their element types, and their own extents.
///
/// # Errors
/// Returns an error if the op does not take such elements, or has no kernel for them on this device.
pub fn prepare_op(
    op: &Op,
    operands: &[TensorType],
    results: &[TensorType],
    device: DeviceKind,
) -> Result<Prepared, KernelError> {
    let missing = || no_kernel(op.name(), operands, results, device);
    let given = op.operation().infer_dtypes(&operands.iter().collect::<Vec<_>>());
    if !given.is_ok_and(|given| given == list_dtypes(results)) || device != DeviceKind::Cpu {
        return Err(missing());
    }
    if op.operation().is_elementwise() {
        let chain = Chain::single(op, operands, results)?;
        return Ok(Prepared(PreparedCall::Chain(Box::new(chain))));
    }
    if let Op::Custom(op) = op {
        return Err(KernelError::NoCustomKernel { name: op.name.clone() });
    }
    let kernel = lookup::find_cpu_kernel(op, &list_dtypes(operands), &list_dtypes(results))
        .ok_or_else(missing)?;
    Ok(Prepared(PreparedCall::Op { kernel, op: op.clone() }))
}

/// Prepares an op of a program's own, for the processor.
///
/// # Errors
/// Returns an error if `kernels` has no kernel for it.
pub fn prepare_custom(op: &Custom, kernels: &CustomKernels) -> Result<Prepared, KernelError> {
    Ok(Prepared(PreparedCall::Custom(FoundKernel::from_op(op, kernels)?)))
}

/// Prepares a chain of elementwise ops, or of a convolution and elementwise ops; operands broadcast to the shape of the results.
///
/// # Errors
/// Returns an error if the types do not fit the chain, or there is no kernel on this device.
pub fn prepare_fused(
    fused: &FusedOp,
    operands: &[TensorType],
    results: &[TensorType],
    device: DeviceKind,
) -> Result<Prepared, KernelError> {
    match device {
        DeviceKind::Cpu => {
            if let Some(headed) = Headed::from_chain(fused, operands, results)? {
                return Ok(Prepared(PreparedCall::Headed(Box::new(headed))));
            }
            let chain = Chain::of(fused, operands, results)?;
            Ok(Prepared(PreparedCall::Chain(Box::new(chain))))
        }
        DeviceKind::Cuda => {
            let first = fused.steps.first().map_or("fused", |step| step.op.name());
            Err(no_kernel(first, operands, results, device))
        }
    }
}

/// Prepares a matrix product and the update of which it is the gradient as one call, for the processor; `None` where that is not faster
/// than both one after the other. `operands` are those of the update, whose second is the gradient. The call takes both factors
/// and the update's operands but the gradient, and gives the gradient, whose content then means nothing, and the update's results.
pub fn prepare_updated(
    product: &MatMul,
    factors: [&TensorType; 2],
    update: &Op,
    operands: &[TensorType],
) -> Option<Prepared> {
    let updated = Updated::from_product(product, factors, update, operands)?;
    Some(Prepared(PreparedCall::Updated(Box::new(updated))))
}

/// Prepares a matrix product that is added to a sum over microbatches, or that replaces it where `is_first` says so, as one call for the
/// processor; `None` where that is not faster than both one after the other. The call takes both factors and gives the sum.
pub fn prepare_summed(
    product: &MatMul,
    factors: [&TensorType; 2],
    sum: &TensorType,
    is_first: bool,
) -> Option<Prepared> {
    let summed = SummedProduct::from_product(product, factors, sum, is_first)?;
    Some(Prepared(PreparedCall::Summed(summed)))
}

fn list_dtypes(types: &[TensorType]) -> Vec<DType> {
    types.iter().map(|ty| ty.dtype).collect()
}

fn no_kernel(
    op: &'static str,
    operands: &[TensorType],
    results: &[TensorType],
    device: DeviceKind,
) -> KernelError {
    let dtypes = Box::new([list_dtypes(operands), list_dtypes(results)]);
    KernelError::NoKernel { op, dtypes, device }
}
