//! Axes over which pins split inputs along their sequences (context parallelism).
//!
//! A rank with some queries of a sequence makes summands of the gradients of all keys and values. Fixed strategies leave sums open as long as they
//! can, which is right for gradients of weights; but what follows here are products, which each rank would compute for whole sequences. So over these
//! axes summands of activations `[batch, sequence, ..]` are added up where they are first read, in parts of the sequence.

use graphc_ir::graph::Node;
use graphc_ir::ids::NodeId;
use graphc_ir::op::Op;
use graphc_ir::sbp::{NdSbp, Sbp};

use super::super::problem::Problem;
use super::super::problem::layouts::SbpId;

/// The dim of an activation that counts the elements of a sequence.
pub(super) const SEQUENCE: usize = 1;

/// The axes that split sequences, and the extents of batch and sequence.
pub(super) struct SequenceAxes {
    axes: Vec<usize>,
    extents: [usize; 2],
}

impl SequenceAxes {
    /// Finds the axes over which an input `[batch, sequence, ..]` can only be split along its sequences.
    pub(super) fn of_problem(problem: &Problem<'_>) -> Self {
        let graph = problem.decisions.graph();
        let mut found = Self { axes: Vec::new(), extents: [0; 2] };
        for (id, node) in graph.iter() {
            let Op::Input(input) = &node.op else { continue };
            let (Some(0), &[batch, sequence, ..]) = (input.samples_dim(), &input.ty.shape[..])
            else {
                continue;
            };
            let candidates = problem.candidates_of(id);
            let splits = |axis: usize| {
                let layouts = candidates.iter().map(|candidate| candidate.results[0]);
                let mut sbps =
                    layouts.map(|layout| problem.layouts.sbp(layout).0.get(axis).copied());
                sbps.all(|sbp| sbp == Some(Sbp::Split(SEQUENCE)))
            };
            let axes = problem.decisions.staging.placement[id.index()].hierarchy.len();
            let axes: Vec<usize> = (0..axes).filter(|&axis| splits(axis)).collect();
            if !axes.is_empty() {
                found = Self { axes, extents: [batch, sequence] };
            }
        }
        found
    }

    /// Whether a node would take an operand, which is made in a layout, otherwise than in parts of the sequence although it is a sum over ranks that
    /// share sequences.
    pub(super) fn leaves_sum(
        &self,
        problem: &Problem<'_>,
        (node, position): (&Node, usize),
        made: &NdSbp,
        taken: &NdSbp,
    ) -> bool {
        let shape = &problem.decisions.graph().value(node.operands[position]).ty.shape;
        let is_activation = shape.len() > SEQUENCE + 1 && shape[..2] == self.extents;
        let left = |&axis: &usize| {
            let [made, taken] = [made, taken].map(|layout| layout.0.get(axis));
            made.is_some_and(|sbp| sbp.is_partial()) && taken != Some(&Sbp::Split(SEQUENCE))
        };
        is_activation && self.axes.iter().any(left)
    }

    /// Returns the candidates of a node that add up what ranks share, or all if none does. `made` has the layouts in which operands are made.
    pub(super) fn add_up(
        &self,
        problem: &Problem<'_>,
        id: NodeId,
        made: &[SbpId],
        labels: Vec<usize>,
    ) -> Vec<usize> {
        if self.axes.is_empty() {
            return labels;
        }
        let node = problem.decisions.graph().node(id);
        let adds = |label: &usize| {
            let pairs = made.iter().zip(&problem.candidates_of(id)[*label].operands);
            pairs.enumerate().all(|(position, (&made, &taken))| {
                let [made, taken] = [made, taken].map(|layout| problem.layouts.sbp(layout));
                !self.leaves_sum(problem, (node, position), &made, &taken)
            })
        };
        let added: Vec<usize> = labels.iter().copied().filter(adds).collect();
        if added.is_empty() { labels } else { added }
    }
}
