//! The decisions of the compiler, kept as data beside the graph: phases, stages and placements, rates, signatures.
//!
//! Each is made by one function and applied by another. To the passes a chunk of an interleaved schedule is a stage
//! (`Node::stage`). [`Staging`] has both, the stage and the chunk.

use graphc_ir::graph::{Graph, Node};
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::mesh::Placement;
use graphc_ir::plan::{Layout, TensorKind};
use graphc_ir::rule::Choice;
use graphc_ir::sbp::NdSbp;

/// The part of a step that a node belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// From inputs to loss and outputs.
    Forward,
    /// From the loss to gradients.
    Backward,
    /// From accumulated gradients to new variables: once per step.
    Update,
}

/// A graph with gradients and updates. Of an inference graph all nodes are forward.
#[derive(Clone, Debug)]
pub struct TrainingGraph {
    /// The graph; its outputs are the user's, and `loss` where it trains.
    pub graph: Graph,
    /// Of each node.
    pub phases: Vec<Phase>,
    /// Of each value.
    pub kinds: Vec<TensorKind>,
    /// The loss of the whole step.
    pub loss: Option<ValueId>,
    /// The trained variables with their gradients.
    pub gradients: Vec<(ValueId, ValueId)>,
}

/// Stage and placement of each node.
#[derive(Clone, Debug)]
pub struct Staging {
    /// Number of stages.
    pub stages: usize,
    /// Stage of each node. A variable lives in one stage; other stages that read it receive it.
    pub stage: Vec<usize>,
    /// Which chunk of its stage each node belongs to; 0 where stages have one.
    pub chunk: Vec<usize>,
    /// Mesh of each node.
    pub placement: Vec<Placement>,
}

impl Staging {
    /// The place of a node's chunk in the order in which a microbatch passes through all of them.
    pub fn chunk_of_all(&self, node: usize) -> usize {
        self.chunk[node] * self.stages + self.stage[node]
    }
}

/// The effect of microbatches on a value: the time axis of its layout.
///
/// A part of a mean is divided by the extent of the whole tensor. So a mean keeps the divisor of the whole batch without a special
/// case: each microbatch has a summand of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueRate {
    /// The same in all microbatches: computed once per step.
    Step,
    /// Each microbatch has its range of this dim.
    Microbatch {
        /// The dim.
        dim: usize,
    },
    /// The same in all microbatches, and gathered for each of them anew: the result of a `regather` of what is computed once a
    /// step.
    Anew,
    /// Each microbatch has a summand of full shape. Read by one `accumulate` node, whose result is `Step`.
    Summand,
}

/// Rates of all values and nodes.
#[derive(Clone, Debug)]
pub struct Rates {
    /// Parts of a step's batch.
    pub microbatches: usize,
    /// Of each value.
    pub values: Vec<ValueRate>,
    /// The effect of the time axis on each node, `None` for those that act once per step.
    pub nodes: Vec<Option<Choice>>,
}

/// A training graph with its rates.
#[derive(Clone, Debug)]
pub struct Rated {
    /// The graph.
    pub training: TrainingGraph,
    /// Its rates.
    pub rates: Rates,
    /// Of each node that computes again what another one has computed in the forward pass, that one.
    pub recomputed: Vec<Option<NodeId>>,
}

/// The signature of one node: one SBP per axis of its placement for each operand and result.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeSharding {
    /// One choice per mesh axis.
    pub choices: Vec<Choice>,
    /// The layout in which it takes each operand, on its own placement.
    pub operands: Vec<NdSbp>,
    /// The layout of each result.
    pub results: Vec<NdSbp>,
}

/// The signatures of all nodes.
#[derive(Clone, Debug)]
pub struct Sharding {
    /// By node.
    pub nodes: Vec<NodeSharding>,
}

/// All that is decided about a graph.
#[derive(Clone, Debug)]
pub struct Decisions {
    /// The graph with its phases and kinds.
    pub training: TrainingGraph,
    /// Stages and placements.
    pub staging: Staging,
    /// Rates.
    pub rates: Rates,
    /// Of each node that computes again what another one has computed in the forward pass, that one.
    pub recomputed: Vec<Option<NodeId>>,
}

impl Decisions {
    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.training.graph
    }

    /// The graph with its rates, without stages.
    pub fn to_rated(&self) -> Rated {
        let Self { training, rates, recomputed, .. } = self;
        Rated { training: training.clone(), rates: rates.clone(), recomputed: recomputed.clone() }
    }

    /// The layout of a value on a placement with an SBP, at the value's rate.
    pub fn layout(&self, value: ValueId, placement: &Placement, sbp: &NdSbp) -> Layout {
        let ty = &self.graph().value(value).ty;
        let microbatch_dim = match self.rates.values[value.index()] {
            ValueRate::Microbatch { dim } => Some(dim),
            ValueRate::Step | ValueRate::Anew | ValueRate::Summand => None,
        };
        Layout {
            shape: ty.shape.clone(),
            dtype: ty.dtype,
            microbatch_dim,
            ranks: placement.ranks.clone(),
            hierarchy: placement.hierarchy.clone(),
            sbp: sbp.clone(),
        }
    }

    /// The number of times that a node acts in a step.
    pub fn count_actions(&self, node: &Node) -> usize {
        let values = node.operands.iter().chain(&node.results);
        let per_microbatch = |value: &ValueId| self.rates.values[value.index()] != ValueRate::Step;
        if values.into_iter().any(per_microbatch) { self.rates.microbatches } else { 1 }
    }

    /// How often a value is boxed in a step.
    pub fn times_boxed(&self, value: ValueId) -> usize {
        match self.rates.values[value.index()] {
            ValueRate::Step => 1,
            ValueRate::Microbatch { .. } | ValueRate::Anew | ValueRate::Summand => {
                self.rates.microbatches
            }
        }
    }

    /// The placement of the node that makes a value.
    pub fn placement(&self, value: ValueId) -> &Placement {
        let producer: NodeId = self.graph().value(value).producer;
        &self.staging.placement[producer.index()]
    }
}
