//! Where gradients of parameters lie between the backward pass and the update.

use graphc_ir::graph::{Graph, Node};
use graphc_ir::ids::NodeId;
use graphc_ir::op::Op;
use graphc_ir::sbp::{NdSbp, Sbp};
use graphc_ir::types::DType;
use graphc_plan::AxisStrategy;

use super::super::problem::Problem;
use super::super::problem::layouts::SbpId;

/// The gradients of a training, by value.
pub(super) struct GradientLayouts {
    /// For each value that is a gradient, the node of its variable.
    of: Vec<Option<NodeId>>,
    readers: Vec<Vec<NodeId>>,
}

impl GradientLayouts {
    pub(super) fn of_problem(problem: &Problem<'_>) -> Self {
        let graph = problem.decisions.graph();
        let mut of = vec![None; graph.values.len()];
        for &(variable, gradient) in &problem.decisions.training.gradients {
            of[gradient.index()] = Some(graph.value(variable).producer);
        }
        Self { of, readers: graph.list_consumers() }
    }

    /// Returns the layout in which the strategies of axes want a gradient that a node sums over microbatches, or casts from half precision before
    /// that. Over axes that share gradients it is split, over others summed where it is cast, and after that as it comes.
    pub(super) fn wished_layout(
        &self,
        problem: &Problem<'_>,
        axes: &[AxisStrategy],
        node: &Node,
        assignment: &[usize],
    ) -> Option<SbpId> {
        if !axes.iter().any(|axis| axis.shards_gradients()) {
            return None;
        }
        let graph = problem.decisions.graph();
        let cast = self.half_gradient(graph, node);
        let summed = matches!(node.op, Op::Accumulate(_))
            .then(|| self.of[node.results[0].index()])
            .flatten();
        let (dim, variable) = cast.or_else(|| summed.map(|variable| (0, variable)))?;
        let home = pinned_layout(problem, variable);
        let made = graph.value(node.operands[0]);
        let label = assignment.get(made.producer.index())?;
        let comes =
            problem.layouts.sbp(problem.candidates_of(made.producer)[*label].results[made.index]);
        let stays = |axis: usize| match comes.0.get(axis) {
            Some(&Sbp::Broadcast) => Sbp::Broadcast,
            _ if cast.is_some() => Sbp::Broadcast,
            _ => Sbp::PARTIAL,
        };
        let keeps_copies = |axis: usize| {
            home.as_ref().is_some_and(|home| home.0.get(axis) == Some(&Sbp::Broadcast))
        };
        let sbp = |(axis, strategy): (usize, &AxisStrategy)| {
            let is_split = strategy.shards_gradients() && !keeps_copies(axis);
            if is_split { Sbp::Split(dim) } else { stays(axis) }
        };
        let layout = NdSbp(axes.iter().enumerate().map(sbp).collect());
        Some(problem.layouts.intern_sbp(&layout))
    }

    /// Returns, for a cast of a gradient from half precision before microbatches are summed, the dim that is dim 0 of the gradient, and the node of the
    /// gradient's variable.
    fn half_gradient(&self, graph: &Graph, node: &Node) -> Option<(usize, NodeId)> {
        let Op::Cast(_) = node.op else { return None };
        let half = matches!(graph.value(node.operands[0]).ty.dtype, DType::BF16 | DType::F16);
        if !half {
            return None;
        }
        let mut value = node.results[0];
        let mut moved = Vec::new();
        let variable = loop {
            if let Some(variable) = self.of[value.index()] {
                break variable;
            }
            let &[reader] = self.readers[value.index()].as_slice() else { return None };
            let reader = graph.node(reader);
            match &reader.op {
                Op::Transpose(transpose) => moved.push(&transpose.permutation),
                Op::Accumulate(_) | Op::Cast(_) => {}
                _ => return None,
            }
            value = reader.results[0];
        };
        let scattered = !graph.value(value).ty.shape.is_empty();
        let dim = moved.iter().rev().fold(0, |dim, permutation| permutation[dim]);
        scattered.then_some((dim, variable))
    }
}

/// Returns the layout of a variable if the user pins it.
pub(super) fn pinned_layout(problem: &Problem<'_>, variable: NodeId) -> Option<NdSbp> {
    match &problem.candidates_of(variable)[..] {
        [only] => Some(NdSbp::clone(&problem.layouts.sbp(*only.results.first()?))),
        _ => None,
    }
}
