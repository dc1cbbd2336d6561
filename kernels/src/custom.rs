//! Kernels of a program's own: what it computes for [`Op::Custom`](graphc_ir::op::Op::Custom), by the op's name.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use graphc_ir::ops::Custom;

use crate::error::KernelError;
use crate::view::{View, ViewMut};

/// The error of a kernel that the program itself brings.
pub type CustomError = Box<dyn std::error::Error + Send + Sync>;

/// A kernel: it fills its results, whose content is anything before.
pub(crate) type CustomKernel =
    dyn Fn(&Custom, &[View<'_>], &mut [ViewMut<'_>]) -> Result<(), CustomError> + Send + Sync;

/// Kernels of a program's own by the names of their ops, for the processor. All ranks need the same.
///
/// ```
/// use graphc_kernels::CustomKernels;
///
/// let kernels = CustomKernels::default().with("scaled_square", |_, operands, results| {
///     let (x, w) = (operands[0].as_slice::<f32>()?, operands[1].as_slice::<f32>()?);
///     let rows = x.chunks_exact(w.len()).zip(results[0].as_mut_slice::<f32>()?.chunks_exact_mut(w.len()));
///     for (x, y) in rows {
///         (0..w.len()).for_each(|i| y[i] = x[i] * x[i] * w[i]);
///     }
///     Ok(())
/// });
/// assert_eq!(format!("{kernels:?}"), r#"{"scaled_square"}"#);
/// ```
#[derive(Clone, Default)]
pub struct CustomKernels(BTreeMap<String, Arc<CustomKernel>>);

impl CustomKernels {
    /// Adds the kernel of the op of this name. It is given the op, and the parts of operands and results that a rank has: their `shape`,
    /// that of the `global` tensor, and where the part begins (`origin`). It may be called by several threads at once.
    #[must_use]
    pub fn with(
        mut self,
        name: impl Into<String>,
        kernel: impl Fn(&Custom, &[View<'_>], &mut [ViewMut<'_>]) -> Result<(), CustomError>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.0.insert(name.into(), Arc::new(kernel));
        self
    }

    pub(crate) fn find_kernel(&self, name: &str) -> Option<Arc<CustomKernel>> {
        self.0.get(name).cloned()
    }
}

/// The names.
impl fmt::Debug for CustomKernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// A kernel with its name.
type Entry<'a> = (&'a String, &'a Arc<CustomKernel>);

/// Two sets are equal if they have the same names with the same functions.
impl PartialEq for CustomKernels {
    fn eq(&self, other: &Self) -> bool {
        let same = |((a, one), (b, two)): (Entry<'_>, Entry<'_>)| {
            a == b && Arc::as_ptr(one).cast::<()>() == Arc::as_ptr(two).cast::<()>()
        };
        self.0.len() == other.0.len() && self.0.iter().zip(&other.0).all(same)
    }
}

impl Eq for CustomKernels {}

/// A kernel that was found for its op.
pub(crate) struct FoundKernel {
    op: Custom,
    kernel: Arc<CustomKernel>,
}

impl FoundKernel {
    /// # Errors
    /// Returns an error if there is no kernel of the op's name.
    pub(crate) fn from_op(op: &Custom, kernels: &CustomKernels) -> Result<Self, KernelError> {
        let missing = || KernelError::NoCustomKernel { name: op.name.clone() };
        let kernel = kernels.find_kernel(&op.name).ok_or_else(missing)?;
        Ok(Self { op: op.clone(), kernel })
    }

    /// # Errors
    /// Returns an error if the kernel returns one or panics.
    pub(crate) fn call(
        &self,
        operands: &[View<'_>],
        results: &mut [ViewMut<'_>],
    ) -> Result<(), KernelError> {
        let call = AssertUnwindSafe(|| (self.kernel)(&self.op, operands, results));
        let reason = match catch_unwind(call) {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error.to_string(),
            Err(panic) => format!("it panicked: {}", panic_message(&*panic)),
        };
        Err(KernelError::Custom { name: self.op.name.clone(), reason })
    }
}

impl fmt::Debug for FoundKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Found({})", self.op.name)
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let message = panic.downcast_ref::<String>().cloned();
    let literal = || panic.downcast_ref::<&str>().map(|&text| text.to_owned());
    message.or_else(literal).unwrap_or_else(|| "without a message".to_owned())
}
