//! Rewrites a graph with views.

use std::collections::BTreeSet;

use graphc_ir::graph::{Graph, Node, Output};
use graphc_ir::ids::ValueId;
use graphc_ir::op::{Op, OpError};
use graphc_ir::ops::{Reshape, Transpose};
use graphc_ir::sbp::NdSbp;
use graphc_plan::CompileOptions;

use super::Purpose;
use super::view::{BaseView, is_ascending};
use crate::passes::pins::pin_of;

/// Moves transposes and reshapes to where their results are needed as they are.
///
/// # Errors
/// Returns an error if an op does not take its operands.
pub(in crate::passes) fn rewrite_views(
    old: &Graph,
    options: &CompileOptions,
    purpose: Purpose,
) -> Result<Graph, OpError> {
    let graph = Graph { stages: old.stages.clone(), ..Graph::new(old.name.clone()) };
    let (views, made) = (vec![None; old.values.len()], vec![None; old.values.len()]);
    let samples = FedSamples::of_graph(old);
    let mut rewriter = ViewRewriter { old, options, purpose, graph, views, made, samples };
    for node in &old.nodes {
        rewriter.rewrite_node(node)?;
    }
    let mut outputs = Vec::new();
    for Output { name, value } in &old.outputs {
        outputs.push(Output { name: name.clone(), value: rewriter.restore_value(*value)? });
    }
    rewriter.graph.outputs = outputs;
    Ok(rewriter.graph)
}

pub(super) struct ViewRewriter<'a> {
    pub(super) old: &'a Graph,
    options: &'a CompileOptions,
    pub(super) purpose: Purpose,
    graph: Graph,
    /// The view that stands for each value of the old graph.
    views: Vec<Option<BaseView>>,
    /// Each value of the old graph as it was, if it is needed so.
    made: Vec<Option<ValueId>>,
    pub(super) samples: FedSamples,
}

/// The values that are computed from samples in the old graph.
pub(super) struct FedSamples {
    /// Whether each value is.
    fed: Vec<bool>,
    /// The numbers of samples that inputs have.
    batches: BTreeSet<usize>,
}

impl FedSamples {
    fn of_graph(graph: &Graph) -> Self {
        let (mut fed, mut batches) = (vec![false; graph.values.len()], BTreeSet::new());
        for node in &graph.nodes {
            let batch = if let Op::Input(input) = &node.op { input.batch_size() } else { None };
            batches.extend(batch);
            let computed = node.operands.iter().any(|operand| fed[operand.index()]);
            node.results.iter().for_each(|value| fed[value.index()] = batch.is_some() || computed);
        }
        Self { fed, batches }
    }

    /// Whether a value is computed from samples.
    pub(super) fn reach(&self, value: ValueId) -> bool {
        self.fed[value.index()]
    }

    /// Whether this is the number of samples of an input, and more than one.
    pub(super) fn are_counted_by(&self, extent: usize) -> bool {
        extent > 1 && self.batches.contains(&extent)
    }
}

impl ViewRewriter<'_> {
    fn rewrite_node(&mut self, node: &Node) -> Result<(), OpError> {
        let first = self.graph.nodes.len();
        let views = match self.on_bases(node)? {
            Some(views) => views,
            None => self.as_it_was(node)?,
        };
        for (&value, view) in node.results.iter().zip(views) {
            self.views[value.index()] = Some(view);
            if let Some(pin) = pin_of(self.old, value, self.options) {
                self.pin_value(value, &pin, first)?;
            }
        }
        Ok(())
    }

    /// Asks for the layout that the user gives a value. The value's base gets it if it was made by the value's node and has the dim that is split.
    /// Otherwise the value is made as it was.
    fn pin_value(&mut self, value: ValueId, pin: &NdSbp, first: usize) -> Result<(), OpError> {
        let view = self.view(value);
        let own = self.graph.value(view.base).producer.index() >= first;
        let of_base = view.base_layout(pin, self.extents(view.base));
        let of_base = of_base.filter(|_| own && self.purpose == Purpose::Images);
        let (base, whole) = (view.base, view == BaseView::whole(view.base, view.dims.len()));
        if let Some(of_base) = of_base.filter(|_| !whole) {
            self.graph.values[base.index()].pin = Some(of_base);
            if pin_of(&self.graph, base, self.options) != self.graph.value(base).pin {
                // A pattern that fits both names means the dims of the model.
                self.graph.values[base.index()].name = None;
            }
            return Ok(());
        }
        let made = self.restore_value(value)?;
        if base != made {
            // As above.
            self.graph.values[base.index()].name = None;
        }
        let rank = self.extents(made).len();
        self.views[value.index()] = Some(BaseView::whole(made, rank));
        Ok(())
    }

    pub(super) fn view(&self, value: ValueId) -> BaseView {
        self.views[value.index()].clone().expect("operands stand before their readers")
    }

    pub(super) fn extents(&self, value: ValueId) -> &[usize] {
        &self.graph.value(value).ty.shape
    }

    pub(super) fn push_value(
        &mut self,
        op: Op,
        operand: ValueId,
        like: &Node,
    ) -> Result<ValueId, OpError> {
        Ok(self.graph.push_like(op, vec![operand], like)?[0])
    }

    pub(super) fn transpose(
        &mut self,
        value: ValueId,
        order: Vec<usize>,
        like: &Node,
    ) -> Result<ValueId, OpError> {
        let shape = order.iter().map(|&dim| self.extents(value)[dim]).collect();
        self.reorder_and_reshape(value, order, shape, like)
    }

    /// Permutes the dims of a value, and then reshapes it.
    fn reorder_and_reshape(
        &mut self,
        value: ValueId,
        order: Vec<usize>,
        shape: Vec<usize>,
        like: &Node,
    ) -> Result<ValueId, OpError> {
        if is_ascending(&order, self.extents(value)) {
            // No element moves.
            return self.reshape(value, shape, like);
        }
        let transpose = Op::Transpose(Transpose { permutation: order });
        let transposed = self.push_value(transpose, value, like)?;
        self.reshape(transposed, shape, like)
    }

    pub(super) fn reshape(
        &mut self,
        value: ValueId,
        shape: Vec<usize>,
        like: &Node,
    ) -> Result<ValueId, OpError> {
        match self.extents(value) == shape {
            true => Ok(value),
            false => self.push_value(Op::Reshape(Reshape { shape }), value, like),
        }
    }

    /// Returns a value of the old graph as it was there, with its name and layout.
    pub(super) fn restore_value(&mut self, value: ValueId) -> Result<ValueId, OpError> {
        if let Some(made) = self.made[value.index()] {
            return Ok(made);
        }
        let view = self.view(value);
        let old = self.old;
        let (like, from) = (old.producer(value), old.value(value));
        let made =
            self.reorder_and_reshape(view.base, view.seen_order(), from.ty.shape.clone(), like)?;
        if from.name.is_some() {
            self.graph.values[made.index()].name.clone_from(&from.name);
        }
        self.graph.values[made.index()].pin.clone_from(&from.pin);
        self.made[value.index()] = Some(made);
        Ok(made)
    }

    /// Computes a node on its operands as they were.
    pub(super) fn as_it_was(&mut self, node: &Node) -> Result<Vec<BaseView>, OpError> {
        let mut operands = Vec::new();
        for &operand in &node.operands {
            operands.push(self.restore_value(operand)?);
        }
        let results = self.graph.push_like(node.op.clone(), operands, node)?;
        let mut views = Vec::new();
        for (&old, &new) in node.results.iter().zip(&results) {
            let (from, to) = (self.old.value(old), &mut self.graph.values[new.index()]);
            to.name.clone_from(&from.name);
            to.pin.clone_from(&from.pin);
            views.push(BaseView::whole(new, to.ty.shape.len()));
            self.made[old.index()] = Some(new);
        }
        Ok(views)
    }

    /// Computes an op on bases, all of whose results have the same view.
    pub(super) fn compute_views(
        &mut self,
        op: Op,
        operands: Vec<ValueId>,
        dims: &[Vec<usize>],
        node: &Node,
    ) -> Result<Vec<BaseView>, OpError> {
        self.computed_each(op, operands, &vec![dims.to_vec(); node.results.len()], node)
    }

    /// Computes an op on bases, and returns the views of its results. A result with other dims than in the model gets another name.
    pub(super) fn computed_each(
        &mut self,
        op: Op,
        operands: Vec<ValueId>,
        dims: &[Vec<Vec<usize>>],
        node: &Node,
    ) -> Result<Vec<BaseView>, OpError> {
        let (results, pass) = (self.graph.push_like(op, operands, node)?, self.purpose.name());
        let mut views = Vec::new();
        for ((&old, base), dims) in node.results.iter().zip(results).zip(dims) {
            let view = BaseView { base, dims: dims.clone() };
            let named = self.old.value(old).name.as_ref();
            let rank = self.extents(base).len();
            self.graph.values[base.index()].name = match view == BaseView::whole(base, rank) {
                true => named.cloned(),
                false => named.map(|name| format!("{name}.{pass}")),
            };
            views.push(view);
        }
        Ok(views)
    }

    /// Computes an op whose results have their elements in another order than in the model. Their names say so.
    pub(super) fn push_reordered(
        &mut self,
        op: Op,
        operands: Vec<ValueId>,
        node: &Node,
    ) -> Result<Vec<ValueId>, OpError> {
        let (results, pass) = (self.graph.push_like(op, operands, node)?, self.purpose.name());
        for (&old, result) in node.results.iter().zip(&results) {
            let named = self.old.value(old).name.as_ref();
            self.graph.values[result.index()].name = named.map(|name| format!("{name}.{pass}"));
        }
        Ok(results)
    }

    /// Returns a base of a value whose dims are those of the value in this order. It is made if there is none.
    pub(super) fn arrange_base(
        &mut self,
        value: ValueId,
        order: &[usize],
        node: &Node,
    ) -> Result<ValueId, OpError> {
        let view = self.view(value);
        let shape: Vec<usize> =
            order.iter().map(|&dim| self.old.value(value).ty.shape[dim]).collect();
        let of_base = order.iter().flat_map(|&dim| view.dims[dim].clone()).collect();
        let base = self.reorder_and_reshape(view.base, of_base, shape, node)?;
        if self.made[value.index()].is_some() && self.same_place(value, node) {
            // The next who wants it so need not make it.
            self.views[value.index()] = Some(BaseView::from_order(base, order));
        }
        Ok(base)
    }

    /// Whether a value is computed on the same stage and placement as a node.
    fn same_place(&self, value: ValueId, node: &Node) -> bool {
        let producer = self.old.producer(value);
        producer.part == node.part && producer.placement == node.placement
    }
}
