//! The methods of a tensor: changes of its layout and ranks, operations of one operand, and the product.

use graphc_ir::mesh::Placement;
use graphc_ir::sbp::NdSbp;
use graphc_ir::types::DType;
use graphc_runtime::HostTensor;

use crate::calls::call_operation;
use crate::error::EagerError;
use crate::operation::{Axes, EagerOperation};
use crate::tensor::GlobalTensor;

/// # Layouts and ranks
impl GlobalTensor {
    /// Returns the same tensor in another layout, perhaps on other ranks. The old and the new ranks may overlap in any way, or not at all.
    ///
    /// # Errors
    /// Returns an error if the placement names ranks that do not exist, if the layout does not fit, if the ranks call different things, or if the job
    /// ends.
    pub fn to_global(&self, placement: &Placement, sbp: &NdSbp) -> Result<Self, EagerError> {
        let to = self.eager().build_layout(&self.spot().layout.ty(), placement, sbp)?;
        if to == self.spot().layout {
            return Ok(self.clone());
        }
        call_operation(EagerOperation::ToGlobal(placement.clone(), sbp.clone()), &[self], 0)
    }

    /// Returns the whole tensor, on all ranks of the group.
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
    /// Computes -x.
    ///
    /// # Errors
    /// Returns an error if the operation does not take the operand, if the ranks call different things, or if the job ends. All operations do so.
    #[allow(clippy::should_implement_trait, reason = "the operator is there as well")]
    pub fn neg(&self) -> Result<Self, EagerError> {
        call_operation(EagerOperation::Neg, &[self], 0)
    }

    /// Computes max(x, 0).
    ///
    /// # Errors
    /// As [`GlobalTensor::neg`].
    pub fn relu(&self) -> Result<Self, EagerError> {
        call_operation(EagerOperation::Relu, &[self], 0)
    }

    /// Computes e^x.
    ///
    /// # Errors
    /// As [`GlobalTensor::neg`].
    pub fn exp(&self) -> Result<Self, EagerError> {
        call_operation(EagerOperation::Exp, &[self], 0)
    }

    /// Sums over these dims, which stay with extent 1 if `keep_dims` is set.
    ///
    /// # Errors
    /// As [`GlobalTensor::neg`].
    pub fn sum(&self, axes: &[usize], keep_dims: bool) -> Result<Self, EagerError> {
        call_operation(EagerOperation::Sum(Axes { axes: axes.to_vec(), keep_dims }), &[self], 0)
    }

    /// Averages over these dims, which stay with extent 1 if `keep_dims` is set.
    ///
    /// # Errors
    /// As [`GlobalTensor::neg`].
    pub fn mean(&self, axes: &[usize], keep_dims: bool) -> Result<Self, EagerError> {
        call_operation(EagerOperation::Mean(Axes { axes: axes.to_vec(), keep_dims }), &[self], 0)
    }

    /// Puts the dims in another order: dim `i` of the result is dim `permutation[i]`.
    ///
    /// # Errors
    /// As [`GlobalTensor::neg`].
    pub fn transpose(&self, permutation: &[usize]) -> Result<Self, EagerError> {
        call_operation(EagerOperation::Transpose(permutation.to_vec()), &[self], 0)
    }

    /// Gives the elements another shape.
    ///
    /// # Errors
    /// As [`GlobalTensor::neg`].
    pub fn reshape(&self, shape: &[usize]) -> Result<Self, EagerError> {
        call_operation(EagerOperation::Reshape(shape.to_vec()), &[self], 0)
    }

    /// Converts the elements to another type.
    ///
    /// # Errors
    /// As [`GlobalTensor::neg`].
    pub fn cast(&self, dtype: DType) -> Result<Self, EagerError> {
        call_operation(EagerOperation::Cast(dtype), &[self], 0)
    }

    /// Multiplies matrices `[.., i, k]` and `[.., k, j]`.
    ///
    /// # Errors
    /// As [`GlobalTensor::neg`].
    pub fn matmul(&self, other: &Self) -> Result<Self, EagerError> {
        call_operation(EagerOperation::MatMul, &[self, other], 0)
    }
}
