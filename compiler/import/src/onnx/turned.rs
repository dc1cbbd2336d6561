//! Dims in another order: how transpositions that follow each other become one.

use graphc_ir::op::Op;

use super::lower::{Lowering, Val};
use super::node::Res;

impl Lowering {
    /// The op that made a value of the graph, and its first operand.
    pub(super) fn find_producer(&self, x: &Val) -> Option<(Op, Val)> {
        let Val::Tensor(id) = x else { return None };
        let node = self.graph.producer(*id);
        Some((node.op.clone(), Val::Tensor(*node.operands.first()?)))
    }

    pub(super) fn transpose_without_ones(
        &mut self,
        x: &Val,
        shape: &[usize],
        permutation: &[usize],
    ) -> Res<Val> {
        let counted = |dim: usize| shape[dim] != 1;
        let kept: Vec<usize> = (0..shape.len()).filter(|&dim| counted(dim)).collect();
        let order = permutation.iter().filter_map(|dim| kept.binary_search(dim).ok()).collect();
        let squeezed: Vec<usize> = kept.iter().map(|&dim| shape[dim]).collect();
        let squeezed = self.reshape(x, &squeezed)?;
        let turned = self.transpose(&squeezed, order)?;
        let result: Vec<usize> = permutation.iter().map(|&dim| shape[dim]).collect();
        self.reshape(&turned, &result)
    }
}

/// Moves a reshape before a transposition. `shape` is that of the transposition's result, and the reshape to `to` must merge only last dims that stay
/// in their place. Returns how many dims those become, and the permutation of all dims after the merge. `None` if other dims change as well.
pub(super) fn merge_last_dims(
    permutation: &[usize],
    shape: &[usize],
    to: &[usize],
) -> Option<(usize, Vec<usize>)> {
    let same = shape.iter().zip(to).take_while(|(a, b)| a == b).count();
    let kept = (0..permutation.len()).rev().find(|&dim| permutation[dim] != dim)? + 1;
    let fits = kept <= same && kept < to.len() && to.len() < shape.len();
    let order = || permutation[..kept].iter().copied().chain(kept..to.len()).collect();
    fits.then(|| (to.len() - kept, order()))
}
