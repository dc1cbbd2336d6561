//! The methods of a tensor: where it goes, operations of one operand, and the product.

use graphc_ir::mesh::Placement;
use graphc_ir::sbp::NdSbp;
use graphc_ir::types::DType;
use graphc_runtime::HostTensor;

use crate::calls::call_operation;
use crate::error::EagerError;
use crate::operation::{Axes, EagerOperation};
use crate::tensor::GlobalTensor;

/// # Where it goes
impl GlobalTensor {
    /// The same tensor in another layout, perhaps on other ranks: of those the tensor lies on and those it goes to, any may be
    /// the same, or none.
    ///
    /// # Errors
    /// Where the placement names ranks that there are not or the layout does not fit; where the ranks differ, or the job ends.
    pub fn to_global(&self, placement: &Placement, sbp: &NdSbp) -> Result<Self, EagerError> {
        let to = self.eager().build_layout(&self.spot().layout.ty(), placement, sbp)?;
        if to == self.spot().layout {
            return Ok(self.clone());
        }
        call_operation(EagerOperation::ToGlobal(placement.clone(), sbp.clone()), &[self], 0)
    }

    /// The whole tensor, on all ranks of the group.
    ///
    /// # Errors
    /// As [`GlobalTensor::to_global`].
    pub fn to_host(&self) -> Result<HostTensor, EagerError> {
        let all = self.eager().all();
        let whole = self.to_global(&all, &NdSbp::broadcast(1))?;
        Ok(whole.into_local().expect("this rank is one of all"))
    }
}

/// # Operations of one operand
impl GlobalTensor {
    /// -x
    ///
    /// # Errors
    /// Where the operation does not take the operand; where the ranks differ, or the job ends. So do all operations.
    #[allow(clippy::should_implement_trait, reason = "the operator is there as well")]
    pub fn neg(&self) -> Result<Self, EagerError> {
        call_operation(EagerOperation::Neg, &[self], 0)
    }

    /// max(x, 0)
    ///
    /// # Errors
    /// As [`GlobalTensor::neg`].
    pub fn relu(&self) -> Result<Self, EagerError> {
        call_operation(EagerOperation::Relu, &[self], 0)
    }

    /// e^x
    ///
    /// # Errors
    /// As [`GlobalTensor::neg`].
    pub fn exp(&self) -> Result<Self, EagerError> {
        call_operation(EagerOperation::Exp, &[self], 0)
    }

    /// The sum over these dims, which stay with extent 1 where `keep_dims` says so.
    ///
    /// # Errors
    /// As [`GlobalTensor::neg`].
    pub fn sum(&self, axes: &[usize], keep_dims: bool) -> Result<Self, EagerError> {
        call_operation(EagerOperation::Sum(Axes { axes: axes.to_vec(), keep_dims }), &[self], 0)
    }

    /// The mean over these dims, which stay with extent 1 where `keep_dims` says so.
    ///
    /// # Errors
    /// As [`GlobalTensor::neg`].
    pub fn mean(&self, axes: &[usize], keep_dims: bool) -> Result<Self, EagerError> {
        call_operation(EagerOperation::Mean(Axes { axes: axes.to_vec(), keep_dims }), &[self], 0)
    }

    /// Dims in another order: dim `i` of the result is dim `permutation[i]`.
    ///
    /// # Errors
    /// As [`GlobalTensor::neg`].
    pub fn transpose(&self, permutation: &[usize]) -> Result<Self, EagerError> {
        call_operation(EagerOperation::Transpose(permutation.to_vec()), &[self], 0)
    }

    /// The same elements in another shape.
    ///
    /// # Errors
    /// As [`GlobalTensor::neg`].
    pub fn reshape(&self, shape: &[usize]) -> Result<Self, EagerError> {
        call_operation(EagerOperation::Reshape(shape.to_vec()), &[self], 0)
    }

    /// The same numbers in another element type.
    ///
    /// # Errors
    /// As [`GlobalTensor::neg`].
    pub fn cast(&self, dtype: DType) -> Result<Self, EagerError> {
        call_operation(EagerOperation::Cast(dtype), &[self], 0)
    }

    /// The product of matrices `[.., i, k]` and `[.., k, j]`.
    ///
    /// # Errors
    /// As [`GlobalTensor::neg`].
    pub fn matmul(&self, other: &Self) -> Result<Self, EagerError> {
        call_operation(EagerOperation::MatMul, &[self, other], 0)
    }
}
