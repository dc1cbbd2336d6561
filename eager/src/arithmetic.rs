//! The operators `+ - * /` between tensors and with numbers, and the sign `-`. They return a `Result`, because layouts may not fit and ranks may
//! fail: `((&x + &y)? * 2.0)?`.

use std::borrow::Borrow;
use std::ops;

use graphc_ir::sbp::NdSbp;
use graphc_plan::Layout;

use crate::calls::call_operation;
use crate::create::scalar_element;
use crate::error::EagerError;
use crate::operation::EagerOperation;
use crate::tensor::GlobalTensor;

impl GlobalTensor {
    /// Makes a tensor of a number, whole on each rank of this tensor.
    fn scalar_like(&self, value: f64) -> Result<Self, EagerError> {
        let Layout { dtype, ranks, hierarchy, .. } = &self.spot().layout;
        let layout = Layout {
            shape: Vec::new(),
            dtype: *dtype,
            microbatch_dim: None,
            ranks: ranks.clone(),
            hierarchy: hierarchy.clone(),
            sbp: NdSbp::broadcast(hierarchy.len()),
        };
        let scalar = scalar_element(*dtype, value)?;
        let local = self.to_local().map(|_| scalar);
        Ok(Self::new(self.eager(), self.eager().find_spot(&layout), local))
    }
}

fn of_two(
    operation: EagerOperation,
    left: impl Borrow<GlobalTensor>,
    right: impl Borrow<GlobalTensor>,
) -> Result<GlobalTensor, EagerError> {
    call_operation(operation, &[left.borrow(), right.borrow()], 0)
}

fn with_number(
    operation: EagerOperation,
    tensor: impl Borrow<GlobalTensor>,
    value: f64,
) -> Result<GlobalTensor, EagerError> {
    let tensor = tensor.borrow();
    call_operation(operation, &[tensor, &tensor.scalar_like(value)?], value.to_bits())
}

fn of_number(
    operation: EagerOperation,
    value: f64,
    tensor: impl Borrow<GlobalTensor>,
) -> Result<GlobalTensor, EagerError> {
    let tensor = tensor.borrow();
    call_operation(operation, &[&tensor.scalar_like(value)?, tensor], value.to_bits())
}

/// Implements an operator between tensors, owned or borrowed, and with numbers on either side.
macro_rules! operator {
    ($trait:ident, $method:ident) => {
        operator!($trait, $method, &GlobalTensor, &GlobalTensor, of_two);
        operator!($trait, $method, GlobalTensor, &GlobalTensor, of_two);
        operator!($trait, $method, &GlobalTensor, GlobalTensor, of_two);
        operator!($trait, $method, GlobalTensor, GlobalTensor, of_two);
        operator!($trait, $method, &GlobalTensor, f64, with_number);
        operator!($trait, $method, GlobalTensor, f64, with_number);
        operator!($trait, $method, f64, &GlobalTensor, of_number);
        operator!($trait, $method, f64, GlobalTensor, of_number);
    };
    ($trait:ident, $method:ident, $left:ty, $right:ty, $function:ident) => {
        impl ops::$trait<$right> for $left {
            type Output = Result<GlobalTensor, EagerError>;

            fn $method(self, other: $right) -> Self::Output {
                $function(EagerOperation::$trait, self, other)
            }
        }
    };
}

operator!(Add, add);
operator!(Sub, sub);
operator!(Mul, mul);
operator!(Div, div);

impl ops::Neg for &GlobalTensor {
    type Output = Result<GlobalTensor, EagerError>;

    fn neg(self) -> Self::Output {
        GlobalTensor::neg(self)
    }
}

impl ops::Neg for GlobalTensor {
    type Output = Result<GlobalTensor, EagerError>;

    fn neg(self) -> Self::Output {
        GlobalTensor::neg(&self)
    }
}
