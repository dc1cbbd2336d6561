//! Ops along dims: those of the base are found for those that are seen.

use graphc_ir::graph::Node;
use graphc_ir::ids::ValueId;
use graphc_ir::op::{Op, OpError};
use graphc_ir::ops::{Concat, Expand, Pad, Reduce, Slice, Split, ToGlobal};
use graphc_ir::rule::{DimRule, FactorKind};

use super::Purpose;
use super::rewrite::ViewRewriter;
use super::view::BaseView;

/// The result of an op on bases, or `None` where it needs its operands as they were.
type Found = Result<Option<Vec<BaseView>>, OpError>;

impl ViewRewriter<'_> {
    /// A part along dims that are dims of the base.
    pub(super) fn slice_view(&mut self, view: &BaseView, slice: &Slice, node: &Node) -> Found {
        let shape = self.extents(view.base).to_vec();
        let mut of_base =
            Slice { starts: vec![0; shape.len()], steps: vec![1; shape.len()], ends: shape };
        let whole = &self.old.value(node.operands[0]).ty.shape;
        for (dim, group) in view.dims.iter().enumerate() {
            let (start, end, step) = (slice.starts[dim], slice.ends[dim], slice.steps[dim]);
            if (start, end, step) == (0, whole[dim], 1) {
                continue;
            }
            if let [dim] = group[..] {
                (of_base.starts[dim], of_base.ends[dim], of_base.steps[dim]) = (start, end, step);
                continue;
            }
            let Some((dim, inner)) = self.slowest_dim(view.base, group) else { return Ok(None) };
            if step != 1 || start % inner != 0 || end % inner != 0 {
                return Ok(None);
            }
            (of_base.starts[dim], of_base.ends[dim]) = (start / inner, end / inner);
        }
        self.compute_views(Op::Slice(of_base), vec![view.base], &view.dims, node).map(Some)
    }

    /// Pads along dims that are dims of the base.
    pub(super) fn pad_view(&mut self, view: &BaseView, pad: &Pad, node: &Node) -> Found {
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
        self.compute_views(Op::Pad(of_base), vec![view.base], &view.dims, node).map(Some)
    }

    /// Splits along a dim of the base.
    pub(super) fn split_view(&mut self, view: &BaseView, split: &Split, node: &Node) -> Found {
        let Some((axis, inner)) = self.slowest_dim(view.base, &view.dims[split.axis]) else {
            return Ok(None);
        };
        if split.sizes.iter().any(|size| size % inner != 0) {
            return Ok(None);
        }
        let sizes = split.sizes.iter().map(|size| size / inner).collect();
        let op = Op::Split(Split { axis, sizes });
        self.compute_views(op, vec![view.base], &view.dims, node).map(Some)
    }

    /// Concatenates operands, all arranged as the first one that is moved. The dim along which they are joined stands where the base has it, even if
    /// an operand has one element there.
    pub(super) fn concat_views(&mut self, axis: usize, node: &Node) -> Found {
        let moved = |&operand: &_| {
            let view = self.view(operand);
            let mut extents = self.extents(view.base).to_vec();
            view.dims[axis].iter().for_each(|&part| extents[part] = extents[part].max(2));
            if self.stays_in_place(&view) { None } else { view.order_in_base(&extents) }
        };
        let Some(order) = node.operands.iter().find_map(moved) else {
            return self.beside_each_other(axis, node);
        };
        let mut operands = Vec::new();
        for &operand in &node.operands {
            operands.push(self.arrange_base(operand, &order, node)?);
        }
        let view = BaseView::from_order(operands[0], &order);
        let [axis] = view.dims[axis][..] else { return Ok(None) };
        self.compute_views(Op::Concat(Concat { axis }), operands, &view.dims, node).map(Some)
    }

    /// Concatenates operands with equally many samples along their samples. The samples stay where they are, and the index of the operand becomes a
    /// dim behind theirs. So the base has the first sample of all operands first, then the second.
    fn beside_each_other(&mut self, axis: usize, node: &Node) -> Found {
        let ty = |value: ValueId| &self.old.value(value).ty;
        let first = ty(node.operands[0]).clone();
        let lie_first = first.shape.first().is_some_and(|&dim| self.samples.are_counted_by(dim));
        let is_alike = |&value: &ValueId| *ty(value) == first && self.samples.reach(value);
        let alike = node.operands.iter().all(is_alike);
        let is_one = axis != 0 || node.operands.len() < 2;
        if self.purpose != Purpose::Samples || is_one || !lie_first || !alike {
            return Ok(None);
        }
        let shape = [&first.shape[..1], &[1], &first.shape[1..]].concat();
        let mut operands = Vec::new();
        for &operand in &node.operands {
            let made = self.restore_value(operand)?;
            operands.push(self.reshape(made, shape.clone(), node)?);
        }
        let others = (2..=first.shape.len()).map(|dim| vec![dim]);
        let dims: Vec<Vec<usize>> = [vec![1, 0]].into_iter().chain(others).collect();
        self.compute_views(Op::Concat(Concat { axis: 1 }), operands, &dims, node).map(Some)
    }

    /// Returns the slowest of the dims of a base that make up one dim, and the product of the others' extents.
    fn slowest_dim(&self, base: ValueId, group: &[usize]) -> Option<(usize, usize)> {
        let (&first, others) = group.split_first()?;
        let inner = others.iter().map(|&dim| self.extents(base)[dim]).product();
        (inner > 0).then_some((first, inner))
    }

    /// Computes an op that treats each place along the first dim of its operands by itself. The places may then stay in the order that the bases
    /// have.
    pub(super) fn in_other_order(&mut self, node: &Node) -> Found {
        if self.purpose != Purpose::Samples {
            return Ok(None);
        }
        let Some(alike) = self.first_alike(node)? else { return Ok(None) };
        let view = self.view(node.operands[0]);
        let group = view.dims[0].clone();
        let samples = self.extents(view.base)[..group.len()].to_vec();
        let same = |&(operand, alike): &(&ValueId, bool)| {
            let other = self.view(*operand);
            let extents = self.extents(other.base);
            !alike || is_leading(&other) && other.dims[0] == group && extents.starts_with(&samples)
        };
        let operands: Vec<(&ValueId, bool)> = node.operands.iter().zip(alike).collect();
        if !operands.iter().all(same) {
            return Ok(None);
        }
        let mut bases = Vec::new();
        for (&operand, alike) in operands {
            if !alike {
                bases.push(self.restore_value(operand)?);
                continue;
            }
            let base = self.view(operand).base;
            let behind = &self.extents(base)[samples.len()..];
            let merged = [&[samples.iter().product()], behind].concat();
            bases.push(self.reshape(base, merged, node)?);
        }
        let mut views = Vec::new();
        for result in self.push_reordered(node.op.clone(), bases, node)? {
            let behind = self.extents(result)[1..].to_vec();
            let base = self.reshape(result, [&samples[..], &behind].concat(), node)?;
            let others = (0..behind.len()).map(|dim| vec![samples.len() + dim]);
            views
                .push(BaseView { base, dims: [group.clone()].into_iter().chain(others).collect() });
        }
        Ok(Some(views))
    }

    /// Returns, for each operand, whether its first dim is that of the first operand and of all results, with each place by itself. `None` if an op
    /// has no such dim.
    fn first_alike(&self, node: &Node) -> Result<Option<Vec<bool>>, OpError> {
        let rule = node.op.operation().rule(&self.old.operand_types(node))?;
        let first = |dims: &Vec<DimRule>| match dims.first() {
            Some(DimRule::Factors(factors)) if factors.len() == 1 => Some(factors[0]),
            _ => None,
        };
        let Some(own) = rule.operands.first().and_then(first) else { return Ok(None) };
        let behind =
            |dims: &Vec<DimRule>| dims.iter().skip(1).any(|dim| dim.factors().contains(&own));
        let fits = node.op.operation().is_function()
            && rule.factors[own].kind == FactorKind::Parallel
            && rule.results.iter().all(|dims| first(dims) == Some(own))
            && !rule.operands.iter().chain(&rule.results).any(behind);
        let alike = rule.operands.iter().map(|dims| first(dims) == Some(own));
        Ok(fits.then(|| alike.collect()))
    }

    /// A reduction over all that the dims are made of.
    pub(super) fn reduce_view(&mut self, view: &BaseView, reduce: &Reduce, node: &Node) -> Found {
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
        self.compute_views(op, vec![view.base], &dims, node).map(Some)
    }

    /// A repetition along dims of extent 1: what the base has not gets a dim there.
    pub(super) fn expand_view(&mut self, view: BaseView, shape: &[usize], node: &Node) -> Found {
        let seen = self.old.value(node.operands[0]).ty.shape.clone();
        let missing = shape.len() - seen.len();
        let (base, mut repeated) = (self.extents(view.base), Vec::new());
        let (mut of_base, mut dims) = (Vec::new(), vec![Vec::new(); shape.len()]);
        let Some(order) = view.order_in_base(base) else { return Ok(None) };
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
        self.compute_views(Op::Expand(Expand { shape: repeated }), vec![base], &dims, node)
            .map(Some)
    }

    /// A repetition of what no sample makes, as often as there are samples and along a later dim. The base has that dim first.
    pub(super) fn repeat_for_samples(&mut self, shape: &[usize], node: &Node) -> Found {
        let operand = node.operands[0];
        let seen = self.old.value(operand).ty.shape.clone();
        let ones = vec![1; shape.len() - seen.len()];
        let before = [&ones[..], &seen].concat();
        let repeats = |&dim: &usize| before[dim] == 1 && self.samples.are_counted_by(shape[dim]);
        let dim = (0..shape.len()).find(repeats).filter(|&dim| dim > 0);
        let Some(dim) = dim.filter(|_| !self.samples.reach(operand)) else { return Ok(None) };
        let order: Vec<usize> =
            [dim].into_iter().chain((0..shape.len()).filter(|&other| other != dim)).collect();
        let arranged = |extents: &[usize]| order.iter().map(|&dim| extents[dim]).collect();
        let made = self.restore_value(operand)?;
        let base = self.reshape(made, arranged(&before), node)?;
        let dims = BaseView::from_order(base, &order).dims;
        let expand = Op::Expand(Expand { shape: arranged(shape) });
        self.compute_views(expand, vec![base], &dims, node).map(Some)
    }

    /// A layout that is asked for, of the base.
    pub(super) fn laid_globally(&mut self, view: &BaseView, op: &ToGlobal, node: &Node) -> Found {
        let Some(sbp) = view.base_layout(&op.sbp, self.extents(view.base)) else { return Ok(None) };
        let op = Op::ToGlobal(ToGlobal { placement: op.placement.clone(), sbp });
        self.compute_views(op, vec![view.base], &view.dims, node).map(Some)
    }
}

/// Whether the first dim of a view is made of the first dims of its base, in whatever order, and each other dim is the next one.
fn is_leading(view: &BaseView) -> bool {
    let Some((group, others)) = view.dims.split_first() else { return false };
    let mut own = group.clone();
    own.sort_unstable();
    own.iter().copied().eq(0..own.len())
        && others.iter().enumerate().all(|(at, dims)| dims[..] == [own.len() + at])
}
