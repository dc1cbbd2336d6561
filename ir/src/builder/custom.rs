//! Ops of a program's own.

use super::{GraphBuilder, Tensor};
use crate::op::Op;
use crate::ops::Custom;

impl GraphBuilder {
    /// Applies an op of one's own; all its results. The session that executes it is given its kernel by name.
    #[track_caller]
    pub fn custom(&self, op: &Custom, operands: &[&Tensor]) -> Vec<Tensor> {
        let mut results = self.apply_all(Op::Custom(op.clone()), operands);
        // After an error there is one handle.
        results.resize_with(op.count_results(), || self.inert_tensor());
        results
    }
}
