//! The context of a kernel call: all that it is given besides its operands and results.

use graphc_ir::learning_rate::GivenRate;
use graphc_ir::op::Op;

use crate::error::KernelError;
use crate::threads::ThreadPool;
use crate::view::{Scratch, View, ViewMut};

/// A kernel: computes all results of one op from its operands.
pub(crate) type Kernel =
    fn(&Op, &[View<'_>], &mut [ViewMut<'_>], &mut KernelContext<'_>) -> Result<(), KernelError>;

/// All that a kernel needs besides operands.
pub struct KernelContext<'a> {
    /// The job's seed.
    pub seed: u64,
    /// The training step, from 0.
    pub step: u64,
    /// The learning rate of the step, where it is not the one that updates say.
    pub rate: Option<GivenRate>,
    /// The number of threads that the kernel may use.
    pub threads: usize,
    /// The pool whose threads it uses; without one, it runs on the caller's thread alone.
    pub pool: Option<&'a ThreadPool>,
    /// Memory to work in, kept from call to call.
    pub scratch: &'a mut Scratch,
}
