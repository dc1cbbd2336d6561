//! The graph made anew with views.

use graphc_ir::graph::{Graph, Node, Output};
use graphc_ir::ids::ValueId;
use graphc_ir::op::{Op, OpError};
use graphc_ir::ops::{LogSoftmax, MatMul, Reshape, Slice, Softmax, Transpose};
use graphc_ir::plan::CompileOptions;

use super::PASS;
use super::view::{Reshaped, View, reshaped};
use crate::passes::pins::pin_of;

/// The graph with transposes and reshapes moved to where their results are needed as they are.
///
/// # Errors
/// Where an op does not take its operands.
pub(super) fn rewrite(old: &Graph, options: &CompileOptions) -> Result<Graph, OpError> {
    let graph = Graph { stages: old.stages.clone(), ..Graph::new(old.name.clone()) };
    let (views, made) = (vec![None; old.values.len()], vec![None; old.values.len()]);
    let mut rewriter = Rewriter { old, options, graph, views, made };
    for node in &old.nodes {
        rewriter.node(node)?;
    }
    let mut outputs = Vec::new();
    for Output { name, value } in &old.outputs {
        outputs.push(Output { name: name.clone(), value: rewriter.made(*value)? });
    }
    rewriter.graph.outputs = outputs;
    Ok(rewriter.graph)
}

struct Rewriter<'a> {
    old: &'a Graph,
    options: &'a CompileOptions,
    graph: Graph,
    /// What each value of the old graph is.
    views: Vec<Option<View>>,
    /// Each value of the old graph as it was, where it is needed so.
    made: Vec<Option<ValueId>>,
}

impl Rewriter<'_> {
    fn node(&mut self, node: &Node) -> Result<(), OpError> {
        let views = match self.on_bases(node)? {
            Some(views) => views,
            None => self.as_it_was(node)?,
        };
        for (&value, view) in node.results.iter().zip(views) {
            self.views[value.index()] = Some(view);
            if pin_of(self.old, value, self.options).is_some() {
                let (base, made) = (self.view(value).base, self.made(value)?);
                if base != made {
                    // A pattern that fits both names means the dims of the model.
                    self.graph.values[base.index()].name = None;
                }
                let rank = self.graph.value(made).ty.shape.len();
                self.views[value.index()] = Some(View::whole(made, rank));
            }
        }
        Ok(())
    }

    fn view(&self, value: ValueId) -> View {
        self.views[value.index()].clone().expect("operands stand before their readers")
    }

    fn extents(&self, value: ValueId) -> &[usize] {
        &self.graph.value(value).ty.shape
    }

    /// Appends a node where another one stood.
    fn push(
        &mut self,
        op: Op,
        operands: Vec<ValueId>,
        like: &Node,
    ) -> Result<Vec<ValueId>, OpError> {
        let id = self.graph.push(op, operands, like.source.clone())?;
        let node = &mut self.graph.nodes[id.index()];
        node.annotate_like(like);
        Ok(node.results.clone())
    }

    fn one(&mut self, op: Op, operand: ValueId, like: &Node) -> Result<ValueId, OpError> {
        Ok(self.push(op, vec![operand], like)?[0])
    }

    fn transpose(
        &mut self,
        value: ValueId,
        order: Vec<usize>,
        like: &Node,
    ) -> Result<ValueId, OpError> {
        match order.iter().copied().eq(0..order.len()) {
            true => Ok(value),
            false => self.one(Op::Transpose(Transpose { permutation: order }), value, like),
        }
    }

    fn reshape(
        &mut self,
        value: ValueId,
        shape: Vec<usize>,
        like: &Node,
    ) -> Result<ValueId, OpError> {
        match self.extents(value) == shape {
            true => Ok(value),
            false => self.one(Op::Reshape(Reshape { shape }), value, like),
        }
    }

    /// A value of the old graph as it was there, with its name and layout.
    fn made(&mut self, value: ValueId) -> Result<ValueId, OpError> {
        if let Some(made) = self.made[value.index()] {
            return Ok(made);
        }
        let view = self.view(value);
        let old = self.old;
        let (like, from) = (old.producer(value), old.value(value));
        let transposed = self.transpose(view.base, view.order(), like)?;
        let made = self.reshape(transposed, from.ty.shape.clone(), like)?;
        if from.name.is_some() {
            self.graph.values[made.index()].name.clone_from(&from.name);
        }
        self.graph.values[made.index()].pin.clone_from(&from.pin);
        self.made[value.index()] = Some(made);
        Ok(made)
    }

    /// The node on its operands as they were.
    fn as_it_was(&mut self, node: &Node) -> Result<Vec<View>, OpError> {
        let mut operands = Vec::new();
        for &operand in &node.operands {
            operands.push(self.made(operand)?);
        }
        let results = self.push(node.op.clone(), operands, node)?;
        let mut views = Vec::new();
        for (&old, &new) in node.results.iter().zip(&results) {
            let (from, to) = (self.old.value(old), &mut self.graph.values[new.index()]);
            to.name.clone_from(&from.name);
            to.pin.clone_from(&from.pin);
            views.push(View::whole(new, to.ty.shape.len()));
            self.made[old.index()] = Some(new);
        }
        Ok(views)
    }

    /// The node on what its operands are views of; `None` where it needs them as they were.
    fn on_bases(&mut self, node: &Node) -> Result<Option<Vec<View>>, OpError> {
        let view = match node.operands.first() {
            Some(&operand) => self.view(operand),
            None => return Ok(None),
        };
        match &node.op {
            Op::Transpose(Transpose { permutation }) => {
                Ok(Some(vec![view.transposed(permutation)]))
            }
            Op::Reshape(Reshape { shape }) => self.reshaped(&view, shape, node),
            Op::Slice(slice) => self.slice(&view, slice, node),
            Op::Unary(_) | Op::Cast(_) | Op::Dropout(_) => {
                self.computed(node.op.clone(), vec![view.base], &view.dims, node).map(Some)
            }
            Op::Binary(_) | Op::Where(_) => self.elementwise(node),
            Op::MatMul(MatMul { transpose_a: false, .. }) => self.product(view, node),
            Op::Normalize(_) => {
                let Some(view) = self.with_last_dim(view, node)? else { return Ok(None) };
                self.computed(node.op.clone(), vec![view.base], &view.dims, node).map(Some)
            }
            Op::Softmax(Softmax { axis }) => {
                let [dim] = view.dims[*axis][..] else { return Ok(None) };
                let op = Op::Softmax(Softmax { axis: dim });
                self.computed(op, vec![view.base], &view.dims, node).map(Some)
            }
            Op::LogSoftmax(LogSoftmax { axis }) => {
                let [dim] = view.dims[*axis][..] else { return Ok(None) };
                let op = Op::LogSoftmax(LogSoftmax { axis: dim });
                self.computed(op, vec![view.base], &view.dims, node).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// An op on bases, whose results are seen as its first operand is. What has other dims than in the model has another
    /// name.
    fn computed(
        &mut self,
        op: Op,
        operands: Vec<ValueId>,
        dims: &[Vec<usize>],
        node: &Node,
    ) -> Result<Vec<View>, OpError> {
        let results = self.push(op, operands, node)?;
        let mut views = Vec::new();
        for (&old, base) in node.results.iter().zip(results) {
            let view = View { base, dims: dims.to_vec() };
            let named = self.old.value(old).name.as_ref();
            let rank = self.extents(base).len();
            self.graph.values[base.index()].name = match view == View::whole(base, rank) {
                true => named.cloned(),
                false => named.map(|name| format!("{name}.{PASS}")),
            };
            views.push(view);
        }
        Ok(views)
    }

    fn reshaped(
        &mut self,
        view: &View,
        shape: &[usize],
        node: &Node,
    ) -> Result<Option<Vec<View>>, OpError> {
        let found = reshaped(view, self.extents(view.base), shape);
        let Some(Reshaped { shape, view }) = found else { return Ok(None) };
        let base = self.reshape(view.base, shape, node)?;
        Ok(Some(vec![View { base, ..view }]))
    }

    /// A part along dims that are dims of the base.
    fn slice(
        &mut self,
        view: &View,
        slice: &Slice,
        node: &Node,
    ) -> Result<Option<Vec<View>>, OpError> {
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

    /// An elementwise op of several operands, on the base of the first that is as large as the result and is not there as
    /// it is seen. The others are brought into its order.
    fn elementwise(&mut self, node: &Node) -> Result<Option<Vec<View>>, OpError> {
        let shape = &self.old.value(node.results[0]).ty.shape;
        let lead = node.operands.iter().find_map(|&operand| {
            let view = self.view(operand);
            let seen = view != View::whole(view.base, shape.len());
            (seen && self.old.value(operand).ty.shape == *shape).then_some(view)
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
        let value = self.made(operand)?;
        let own = self.extents(value).to_vec();
        let missing = lead.dims.len() - own.len();
        let (mut seen, mut shape) = (Vec::new(), vec![1; base.len()]);
        for (index, group) in lead.dims.iter().enumerate() {
            let repeats = index < missing || own[index - missing] == 1;
            for &dim in group {
                shape[dim] = if repeats { 1 } else { base[dim] };
                seen.push(shape[dim]);
            }
        }
        if own.len() <= base.len() && significant(&own) == significant(&shape) && one_extent(&own) {
            return Ok(value);
        }
        let order = lead.order();
        let mut to_base = vec![0; order.len()];
        order.iter().enumerate().for_each(|(at, &dim)| to_base[dim] = at);
        let apart = self.reshape(value, seen, node)?;
        self.transpose(apart, to_base, node)
    }

    /// A product with a matrix that all share.
    fn product(&mut self, view: View, node: &Node) -> Result<Option<Vec<View>>, OpError> {
        if self.old.value(node.operands[1]).ty.shape.len() != 2 {
            return Ok(None);
        }
        let Some(view) = self.with_last_dim(view, node)? else { return Ok(None) };
        if self.extents(view.base).len() < 2 {
            return Ok(None);
        }
        let weight = self.made(node.operands[1])?;
        self.computed(node.op.clone(), vec![view.base, weight], &view.dims, node).map(Some)
    }

    /// The view of a base whose last dim is what is seen last, and of nothing else: that may have to be made.
    fn with_last_dim(&mut self, view: View, node: &Node) -> Result<Option<View>, OpError> {
        let rank = self.extents(view.base).len();
        let Some((last, others)) = view.dims.split_last().filter(|(last, _)| !last.is_empty())
        else {
            return Ok(None);
        };
        if *last == [rank - 1] {
            return Ok(Some(view));
        }
        // The other dims stay in their order, the last ones come behind them as one.
        let kept: Vec<usize> = (0..rank).filter(|dim| !last.contains(dim)).collect();
        let mut shape: Vec<usize> = kept.iter().map(|&dim| self.extents(view.base)[dim]).collect();
        shape.push(last.iter().map(|&dim| self.extents(view.base)[dim]).product());
        let at = |dim: &usize| kept.iter().position(|kept| kept == dim);
        let mut dims: Vec<Vec<usize>> =
            others.iter().map(|group| group.iter().filter_map(at).collect()).collect();
        dims.push(vec![kept.len()]);
        let order = kept.iter().chain(last).copied().collect();
        let transposed = self.transpose(view.base, order, node)?;
        let base = self.reshape(transposed, shape, node)?;
        Ok(Some(View { base, dims }))
    }
}

/// A shape without the leading dims that broadcasting adds.
fn significant(shape: &[usize]) -> &[usize] {
    let first = shape.iter().position(|&extent| extent > 1);
    &shape[first.unwrap_or(shape.len())..]
}

/// Whether no order of the dims would put elements in another order.
fn one_extent(shape: &[usize]) -> bool {
    shape.iter().filter(|&&extent| extent > 1).count() <= 1
}
