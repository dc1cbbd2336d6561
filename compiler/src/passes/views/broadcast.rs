//! Elementwise ops, whose operands broadcast.

use graphc_ir::graph::Node;
use graphc_ir::ids::ValueId;
use graphc_ir::op::{Op, OpError};

use super::rewrite::ViewRewriter;
use super::view::{BaseView, Reshaped, reshape_view};

impl ViewRewriter<'_> {
    /// An elementwise op of several operands, on the base of the first that is as large as the result and is not there as
    /// it is seen. The others are brought into its order.
    pub(super) fn apply_elementwise(
        &mut self,
        node: &Node,
    ) -> Result<Option<Vec<BaseView>>, OpError> {
        let shape = &self.old.value(node.results[0]).ty.shape;
        let lead = node.operands.iter().find_map(|&operand| {
            let view = self.view(operand);
            let moved = !self.stays_in_place(&view);
            (moved && self.old.value(operand).ty.shape == *shape).then_some(view)
        });
        let lead = match lead {
            Some(lead) => Some(lead),
            None => self.behind_ones(node)?,
        };
        let Some(lead) = lead else { return Ok(None) };
        let mut operands = Vec::new();
        for &operand in &node.operands {
            operands.push(self.align_operand(&lead, operand, node)?);
        }
        self.compute_views(node.op.clone(), operands, &lead.dims, node).map(Some)
    }

    /// The operand that is all of a result but its leading dims of extent 1, where it lost them in a reshape of what is moved: a step
    /// `[n, w]` of a sequence beside a state `[1, n, w]`. It gets them back behind its first dim, where what is moved had them.
    fn behind_ones(&mut self, node: &Node) -> Result<Option<BaseView>, OpError> {
        let old = self.old;
        let whole = &old.value(node.results[0]).ty.shape;
        for &operand in &node.operands {
            let (shape, producer) = (&old.value(operand).ty.shape, old.producer(operand));
            let ones = whole.len() - shape.len();
            let fits = ones > 0 && shape.len() > 1 && whole[ones..] == **shape;
            let lost = fits && whole[..ones].iter().all(|&extent| extent == 1);
            if !lost
                || !matches!(producer.op, Op::Reshape(_))
                || self.stays_in_place(&self.view(producer.operands[0]))
            {
                continue;
            }
            let order: Vec<usize> =
                [ones].into_iter().chain(0..ones).chain(ones + 1..whole.len()).collect();
            let apart = order.iter().map(|&dim| whole[dim]).collect();
            let made = self.restore_value(operand)?;
            let base = self.reshape(made, apart, node)?;
            return Ok(Some(BaseView::from_order(base, &order)));
        }
        Ok(None)
    }

    /// An operand with its dims where a view's base has them, for broadcasting.
    fn align_operand(
        &mut self,
        lead: &BaseView,
        operand: ValueId,
        node: &Node,
    ) -> Result<ValueId, OpError> {
        let view = self.view(operand);
        let base = self.extents(lead.base).to_vec();
        if view.dims == lead.dims && self.extents(view.base) == base {
            return Ok(view.base);
        }
        let seen = self.old.value(operand).ty.shape.clone();
        let shape = broadcast_shape(lead, &base, &seen);
        let (of_lead, own) = ((lead, &base[..]), (&view, self.extents(view.base)));
        let matched = match_dims(of_lead, own, &seen);
        let cut = if matched.is_none() { cut_alike(of_lead, own, &seen) } else { None };
        let (value, order) = match (matched, cut) {
            (Some(order), _) => (view.base, order),
            (None, Some(cut)) => (self.reshape(view.base, cut.shape, node)?, cut.order),
            (None, None) => {
                let apart: Vec<usize> = lead.seen_order().iter().map(|&dim| shape[dim]).collect();
                let made = self.restore_value(operand)?;
                let lead_order = lead.seen_order();
                let order = (0..base.len()).map(|dim| lead_order.iter().position(|&at| at == dim));
                (self.reshape(made, apart, node)?, order.flatten().collect())
            }
        };
        let value = self.transpose(value, order, node)?;
        let own = self.extents(value);
        if own.len() <= shape.len() && trim_leading_ones(own) == trim_leading_ones(&shape) {
            return Ok(value);
        }
        self.reshape(value, trim_leading_ones(&shape).to_vec(), node)
    }
}

/// The shape that an operand of a shape broadcasts from, to the base of a view.
fn broadcast_shape(lead: &BaseView, base: &[usize], seen: &[usize]) -> Vec<usize> {
    let missing = lead.dims.len() - seen.len();
    let mut shape = vec![1; base.len()];
    for (group, &extent) in lead.dims[missing..].iter().zip(seen) {
        for &dim in group.iter().filter(|_| extent != 1) {
            shape[dim] = base[dim];
        }
    }
    shape
}

/// The order of the dims of an operand's base in which they stand as in the base of `lead`; `None` where a dim is made of other parts.
fn match_dims(
    (lead, base): (&BaseView, &[usize]),
    (view, extents): (&BaseView, &[usize]),
    seen: &[usize],
) -> Option<Vec<usize>> {
    let missing = lead.dims.len() - seen.len();
    let mut to = vec![None; extents.len()];
    for (own, (group, &extent)) in view.dims.iter().zip(lead.dims[missing..].iter().zip(seen)) {
        let mut parts = own.iter().filter(|&&dim| extents[dim] != 1);
        let mut of_lead = group.iter().filter(|&&dim| extent != 1 && base[dim] != 1);
        loop {
            match (parts.next(), of_lead.next()) {
                (None, None) => break,
                (Some(&dim), Some(&target)) if extents[dim] == base[target] => {
                    to[dim] = Some(target);
                }
                _ => return None,
            }
        }
    }
    let mut order: Vec<usize> = (0..extents.len()).collect();
    // Dims of extent 1 come first: they may stand anywhere.
    order.sort_by_key(|&dim| to[dim]);
    Some(order)
}

/// A base whose dims are split further.
struct CutAlike {
    /// The base's shape, without dims of extent 1.
    shape: Vec<usize>,
    /// The order of its dims in which they stand as in another base.
    order: Vec<usize>,
}

/// Splits the dims of an operand's base as those of `lead` are; `None` if they cannot be.
fn cut_alike(
    (lead, base): (&BaseView, &[usize]),
    (view, extents): (&BaseView, &[usize]),
    seen: &[usize],
) -> Option<CutAlike> {
    let missing = lead.dims.len() - seen.len();
    let groups = lead.dims[missing..].iter().zip(seen).filter(|&(_, &extent)| extent != 1);
    let parts: Vec<usize> = groups.flat_map(|(group, _)| group.iter().copied()).collect();
    let target: Vec<usize> = parts.iter().map(|&part| base[part]).collect();
    let Reshaped { shape, view } = reshape_view(view, extents, &target)?;
    let found = view.dims.iter().zip(parts).filter(|(group, _)| !group.is_empty());
    let mut places: Vec<(&Vec<usize>, usize)> = found.collect();
    places.sort_by_key(|(group, _)| group[0]);
    let stands = places.iter().flat_map(|(group, _)| group.iter().copied()).eq(0..shape.len());
    let extent = |group: &[usize]| -> usize { group.iter().map(|&dim| shape[dim]).product() };
    let cut = places.iter().map(|(group, _)| extent(group)).collect();
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by_key(|&at| places[at].1);
    stands.then_some(CutAlike { shape: cut, order })
}

/// A shape without the leading dims that broadcasting adds.
fn trim_leading_ones(shape: &[usize]) -> &[usize] {
    let first = shape.iter().position(|&extent| extent > 1);
    &shape[first.unwrap_or(shape.len())..]
}
