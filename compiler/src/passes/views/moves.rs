//! Ops along dims: those of the base are found for those that are seen.

use graphc_ir::graph::Node;
use graphc_ir::op::{Op, OpError};
use graphc_ir::ops::{Concat, Expand, Pad, Reduce, Slice, Split, ToGlobal};

use super::rewrite::Rewriter;
use super::view::View;

/// The result of an op on bases, or `None` where it needs its operands as they were.
type Found = Result<Option<Vec<View>>, OpError>;

impl Rewriter<'_> {
    /// A part along dims that are dims of the base.
    pub(super) fn slice(&mut self, view: &View, slice: &Slice, node: &Node) -> Found {
        let shape = self.extents(view.base).to_vec();
        let mut of_base =
            Slice { starts: vec![0; shape.len()], steps: vec![1; shape.len()], ends: shape };
        let whole = &self.old.value(node.operands[0]).ty.shape;
        for (dim, group) in view.dims.iter().enumerate() {
            let (start, end, step) = (slice.starts[dim], slice.ends[dim], slice.steps[dim]);
            if (start, end, step) == (0, whole[dim], 1) {
                continue;
            }
            let [dim] = group[..] else { return Ok(None) };
            (of_base.starts[dim], of_base.ends[dim], of_base.steps[dim]) = (start, end, step);
        }
        self.computed(Op::Slice(of_base), vec![view.base], &view.dims, node).map(Some)
    }

    /// More along dims that are dims of the base.
    pub(super) fn pad(&mut self, view: &View, pad: &Pad, node: &Node) -> Found {
        let none = vec![0; self.extents(view.base).len()];
        let Pad { value, .. } = *pad;
        let mut of_base = Pad { low: none.clone(), high: none.clone(), interior: none, value };
        for (dim, group) in view.dims.iter().enumerate() {
            let (low, high, interior) = (pad.low[dim], pad.high[dim], pad.interior[dim]);
            if (low, high, interior) == (0, 0, 0) {
                continue;
            }
            let [dim] = group[..] else { return Ok(None) };
            (of_base.low[dim], of_base.high[dim], of_base.interior[dim]) = (low, high, interior);
        }
        self.computed(Op::Pad(of_base), vec![view.base], &view.dims, node).map(Some)
    }

    /// Parts along a dim of the base.
    pub(super) fn split(&mut self, view: &View, split: &Split, node: &Node) -> Found {
        let [axis] = view.dims[split.axis][..] else { return Ok(None) };
        let op = Op::Split(Split { axis, sizes: split.sizes.clone() });
        self.computed(op, vec![view.base], &view.dims, node).map(Some)
    }

    /// Operands one after the other, all arranged as the first is that is moved. The dim that they follow each other along stands
    /// where the base has it, also where an operand has one element there.
    pub(super) fn concat(&mut self, axis: usize, node: &Node) -> Found {
        let moved = |&operand: &_| {
            let view = self.view(operand);
            let mut extents = self.extents(view.base).to_vec();
            view.dims[axis].iter().for_each(|&part| extents[part] = extents[part].max(2));
            if self.stays(&view) { None } else { view.arrangement(&extents) }
        };
        let Some(order) = node.operands.iter().find_map(moved) else { return Ok(None) };
        let mut operands = Vec::new();
        for &operand in &node.operands {
            operands.push(self.arranged(operand, &order, node)?);
        }
        let view = View::arranged(operands[0], &order);
        let [axis] = view.dims[axis][..] else { return Ok(None) };
        self.computed(Op::Concat(Concat { axis }), operands, &view.dims, node).map(Some)
    }

    /// A reduction over all that the dims are made of.
    pub(super) fn reduce(&mut self, view: &View, reduce: &Reduce, node: &Node) -> Found {
        let Reduce { function, keep_dims, .. } = *reduce;
        let mut axes: Vec<usize> =
            reduce.axes.iter().flat_map(|&axis| view.dims[axis].clone()).collect();
        if axes.is_empty() {
            return Ok(None);
        }
        axes.sort_unstable();
        let left = |dim: usize| dim - axes.iter().filter(|&&axis| axis < dim).count();
        let kept = view.dims.iter().enumerate().filter(|(dim, _)| !reduce.axes.contains(dim));
        let dims: Vec<Vec<usize>> = match keep_dims {
            true => view.dims.clone(),
            false => kept.map(|(_, group)| group.iter().map(|&dim| left(dim)).collect()).collect(),
        };
        let op = Op::Reduce(Reduce { function, axes, keep_dims });
        self.computed(op, vec![view.base], &dims, node).map(Some)
    }

    /// A repetition along dims of extent 1: what the base has not gets a dim there.
    pub(super) fn expand(&mut self, view: View, shape: &[usize], node: &Node) -> Found {
        let seen = self.old.value(node.operands[0]).ty.shape.clone();
        let missing = shape.len() - seen.len();
        let (base, mut repeated) = (self.extents(view.base), Vec::new());
        let (mut of_base, mut dims) = (Vec::new(), vec![Vec::new(); shape.len()]);
        let Some(order) = view.arrangement(base) else { return Ok(None) };
        dims.iter_mut().take(missing).enumerate().for_each(|(dim, group)| {
            group.push(dim);
            of_base.push(1);
            repeated.push(shape[dim]);
        });
        for dim in order {
            let (extent, target) = (seen[dim], shape[missing + dim]);
            if extent == 1 {
                dims[missing + dim].push(of_base.len());
                of_base.push(1);
                repeated.push(target);
                continue;
            }
            for &part in view.dims[dim].iter().filter(|&&part| base[part] != 1) {
                dims[missing + dim].push(of_base.len());
                of_base.push(base[part]);
                repeated.push(base[part]);
            }
        }
        let base = self.reshape(view.base, of_base, node)?;
        self.computed(Op::Expand(Expand { shape: repeated }), vec![base], &dims, node).map(Some)
    }

    /// A layout that is asked for, of the base.
    pub(super) fn laid_globally(&mut self, view: &View, op: &ToGlobal, node: &Node) -> Found {
        let Some(sbp) = view.layout(&op.sbp, self.extents(view.base)) else { return Ok(None) };
        let op = Op::ToGlobal(ToGlobal { placement: op.placement.clone(), sbp });
        self.computed(op, vec![view.base], &view.dims, node).map(Some)
    }
}
