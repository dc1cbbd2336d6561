//! The reasons why a kernel cannot run.

use std::fmt;

use graphc_ir::mesh::DeviceKind;
use graphc_ir::types::DType;

/// The reason that a kernel cannot be found or cannot run.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// No kernel for this op, these element types and this device.
    #[error("no kernel for {op} of {types} on {device}", types = KernelTypes(dtypes), device = device_name(*device))]
    NoKernel {
        /// The op.
        op: &'static str,
        /// The element types of the operands, and of the results; boxed, or every error would be larger.
        dtypes: Box<[Vec<DType>; 2]>,
        /// The device.
        device: DeviceKind,
    },
    /// Views that do not fit the op: a fault of who made the call, not of the data.
    #[error("{op}: {reason}")]
    Call {
        /// The op.
        op: &'static str,
        /// The misfit.
        reason: String,
    },
    /// Elements of another type than the kernel reads.
    #[error("elements of {found} where the kernel reads {expected}")]
    ElementType {
        /// The Rust type that the kernel reads.
        expected: &'static str,
        /// The view's type.
        found: DType,
    },
    /// An op of a program's own without its kernel.
    #[error(
        "`{name}` is an op of a program's own, and there is no kernel for it: the program that has it gives it to its session \
         (SessionOptions::custom), on the processor"
    )]
    NoCustomKernel {
        /// The op's name.
        name: String,
    },
    /// A kernel of a program's own that does not compute.
    #[error("the program's own kernel of `{name}` fails: {reason}")]
    Custom {
        /// The op's name.
        name: String,
        /// The reason that it says.
        reason: String,
    },
    /// An integer divided by 0.
    #[error("an integer is divided by 0")]
    DivisionByZero,
    /// An index out of range.
    #[error(
        "{what} {index} at position {position:?} is out of range: it must be from 0 to {}",
        range.saturating_sub(1)
    )]
    Index {
        /// `label`, `row`.
        what: &'static str,
        /// The index.
        index: i64,
        /// One past the greatest.
        range: usize,
        /// The position of the index in its whole tensor.
        position: Vec<usize>,
    },
}

graphc_ir::readable_debug!(KernelError);

/// `(f32, i64) -> (f32)`
struct KernelTypes<'a>(&'a [Vec<DType>; 2]);

impl fmt::Display for KernelTypes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |dtypes: &[DType]| {
            let names: Vec<&str> = dtypes.iter().map(|dtype| dtype.name()).collect();
            names.join(", ")
        };
        let [operands, results] = self.0;
        write!(f, "({}) -> ({})", list(operands), list(results))
    }
}

fn device_name(device: DeviceKind) -> &'static str {
    match device {
        DeviceKind::Cpu => "cpu",
        DeviceKind::Cuda => "cuda",
    }
}

impl KernelError {
    /// An error of a call.
    pub fn bad_call(op: &'static str, reason: impl Into<String>) -> Self {
        Self::Call { op, reason: reason.into() }
    }

    pub(crate) fn wrong_dtype<T>(found: DType) -> Self {
        Self::ElementType { expected: std::any::type_name::<T>(), found }
    }
}
