//! Elementwise ops, whose operands broadcast.

use graphc_ir::graph::Node;
use graphc_ir::ids::ValueId;
use graphc_ir::op::OpError;

use super::rewrite::Rewriter;
use super::view::View;

impl Rewriter<'_> {
    /// An elementwise op of several operands, on the base of the first that is as large as the result and is not there as
    /// it is seen. The others are brought into its order.
    pub(super) fn elementwise(&mut self, node: &Node) -> Result<Option<Vec<View>>, OpError> {
        let shape = &self.old.value(node.results[0]).ty.shape;
        let lead = node.operands.iter().find_map(|&operand| {
            let view = self.view(operand);
            let moved = !self.stays(&view);
            (moved && self.old.value(operand).ty.shape == *shape).then_some(view)
        });
        let Some(lead) = lead else { return Ok(None) };
        let mut operands = Vec::new();
        for &operand in &node.operands {
            operands.push(self.like(&lead, operand, node)?);
        }
        self.computed(node.op.clone(), operands, &lead.dims, node).map(Some)
    }

    /// An operand with its dims where a view's base has them, for broadcasting.
    fn like(&mut self, lead: &View, operand: ValueId, node: &Node) -> Result<ValueId, OpError> {
        let view = self.view(operand);
        let base = self.extents(lead.base).to_vec();
        if view.dims == lead.dims && self.extents(view.base) == base {
            return Ok(view.base);
        }
        let seen = self.old.value(operand).ty.shape.clone();
        let shape = broadcast(lead, &base, &seen);
        let (value, order) = match matched((lead, &base), (&view, self.extents(view.base)), &seen) {
            Some(order) => (view.base, order),
            None => {
                let apart: Vec<usize> = lead.order().iter().map(|&dim| shape[dim]).collect();
                let made = self.made(operand)?;
                let lead_order = lead.order();
                let order = (0..base.len()).map(|dim| lead_order.iter().position(|&at| at == dim));
                (self.reshape(made, apart, node)?, order.flatten().collect())
            }
        };
        let value = self.transpose(value, order, node)?;
        let own = self.extents(value);
        if own.len() <= shape.len() && significant(own) == significant(&shape) {
            return Ok(value);
        }
        self.reshape(value, significant(&shape).to_vec(), node)
    }
}

/// The shape that an operand of a shape broadcasts from, to the base of a view.
fn broadcast(lead: &View, base: &[usize], seen: &[usize]) -> Vec<usize> {
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
fn matched(
    (lead, base): (&View, &[usize]),
    (view, extents): (&View, &[usize]),
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

/// A shape without the leading dims that broadcasting adds.
fn significant(shape: &[usize]) -> &[usize] {
    let first = shape.iter().position(|&extent| extent > 1);
    &shape[first.unwrap_or(shape.len())..]
}
