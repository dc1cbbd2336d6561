//! Which kernel computes an op.

use graphc_ir::mesh::DeviceKind;
use graphc_ir::op::Op;
use graphc_ir::types::DType;

use crate::context::Kernel;
use crate::error::KernelError;

/// The kernel of an op whose first operand (or, of a source, whose result) has this element type.
///
/// # Errors
/// Where there is none.
pub fn lookup(op: &Op, dtype: DType, device: DeviceKind) -> Result<Kernel, KernelError> {
    Err(KernelError::NoKernel { op: op.name(), dtype, device })
}

/// Pairs (result, operand) that may be the same memory in a call of the op's kernel, provided that both have the same
/// shape, origin and element type.
pub fn in_place(op: &Op) -> &'static [(usize, usize)] {
    match op {
        Op::Unary(_) | Op::Cast(_) | Op::Dropout(_) | Op::Reshape(_) | Op::ToGlobal(_) => &[(0, 0)],
        Op::Accumulate(_) => &[(0, 0)],
        Op::Binary(_) => &[(0, 0), (0, 1)],
        Op::Where(_) => &[(0, 1), (0, 2)],
        Op::SgdUpdate(update) if update.momentum.0 == 0.0 => &[(0, 0)],
        Op::SgdUpdate(_) => &[(0, 0), (1, 2)],
        Op::AdamUpdate(_) => &[(0, 0), (1, 2), (2, 3)],
        _ => &[],
    }
}
