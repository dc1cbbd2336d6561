//! The record of each call, for errors that kernels find later.

use std::sync::Arc;

use graphc_kernels::KernelError;
use graphc_kernels::cuda::Checked;

/// A call as a device remembers it: whose it is, and what its indices are.
#[derive(Clone, Debug)]
pub(super) struct RememberedCall {
    pub(super) actor: Arc<str>,
    pub(super) checked: Option<Checked>,
}

/// Builds the error of what a kernel has found.
pub(super) fn build_kernel_error(
    known: &RememberedCall,
    kind: u32,
    index: i64,
    position: u64,
) -> KernelError {
    const DIVISION: u32 = 2;
    match &known.checked {
        Some(checked) if kind != DIVISION => KernelError::Index {
            what: checked.what,
            index,
            range: checked.range,
            position: vec![position as usize],
        },
        _ => KernelError::DivisionByZero,
    }
}
