//! Dims in another order and elements in the opposite one: how transpositions that follow each other become one.

use graphc_ir::op::Op;
use graphc_ir::ops::Concat;

use super::lower::{Lowering, Val};
use super::node::{Res, fail};

/// As many elements are put in the opposite order one by one.
const MOST_REVERSED: usize = 1 << 10;

impl Lowering {
    /// The elements of a dim in the opposite order.
    pub fn reversed(&mut self, x: &Val, dim: usize) -> Res<Val> {
        let extent = self.shape(x)?[dim];
        if extent > MOST_REVERSED {
            return fail(format!(
                "{extent} elements in the opposite order are too many to be put so one by one"
            ));
        }
        let parts = (0..extent).rev().map(|at| self.slice(x, dim, at, at + 1, 1));
        let parts = parts.collect::<Res<Vec<_>>>()?;
        match &parts[..] {
            [] | [_] => Ok(x.clone()),
            _ => self.apply(Op::Concat(Concat { axis: dim }), &parts),
        }
    }

    /// The op that made a value of the graph, and its first operand.
    pub fn producer(&self, x: &Val) -> Option<(Op, Val)> {
        let Val::Tensor(id) = x else { return None };
        let node = self.graph.producer(*id);
        Some((node.op.clone(), Val::Tensor(*node.operands.first()?)))
    }

    pub fn transpose_without_ones(
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

/// Of a transposition to `shape` whose last dims stay in their place, and are merged to make `to`: how many they become, and the
/// permutation of all others and these. `None` where other dims change as well.
pub(super) fn merged(
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

/// The bounds, as of a step forward, of the elements that a step back visits. The end is not among them.
pub(super) fn backward([start, end, step]: [i64; 3], extent: i64) -> (usize, usize) {
    let bound = |at: i64, least: i64| {
        (if at < 0 { at.saturating_add(extent) } else { at }).clamp(least, extent - 1)
    };
    let (start, end) = (bound(start, -1), bound(end, -1));
    if start <= end {
        return (0, 0);
    }
    let steps = (start - end - 1) / step.saturating_neg();
    ((start + steps * step) as usize, start as usize + 1)
}
