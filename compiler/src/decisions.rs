//! The decisions of the compiler, kept as data beside the graph: phases, stages and placements, rates, signatures.
//!
//! Each is made by one function and applied by another. To the passes a chunk of an interleaved schedule is a stage
//! (`Node::stage`). [`Staging`] has both, the stage and the chunk.

use graphc_ir::graph::{Graph, Node};
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::mesh::Placement;
use graphc_ir::op::{Movement, Op};
use graphc_ir::rule::Choice;
use graphc_ir::sbp::NdSbp;
use graphc_plan::{Layout, TensorKind};

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

/// A graph with gradients and updates. In an inference graph all nodes are forward.
#[derive(Clone, Debug)]
pub struct TrainingGraph {
    /// The graph. Its outputs are the user's, and `loss` if it is trained.
    pub graph: Graph,
    /// The phase of each node.
    pub phases: Vec<Phase>,
    /// The kind of each value.
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
    /// The chunk of its stage that each node belongs to; 0 if stages have one.
    pub chunk: Vec<usize>,
    /// Mesh of each node.
    pub placement: Vec<Placement>,
}

impl Staging {
    /// Returns the position of a node's chunk in the order in which a microbatch passes through all of them.
    pub(crate) fn chunk_of_all(&self, node: NodeId) -> usize {
        self.chunk[node.index()] * self.stages + self.stage[node.index()]
    }
}

/// The way in which a value changes from microbatch to microbatch: the time axis of its layout.
///
/// Each part of a mean is divided by the extent of the whole tensor. So each microbatch has a summand of the mean over the whole batch, without a
/// special case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueRate {
    /// One value for all microbatches, which is computed once per step.
    Step,
    /// A range of this dim for each microbatch.
    Microbatch {
        /// The dim.
        dim: usize,
    },
    /// One value for all microbatches, which is gathered for each of them anew. It is the result of a `regather` of a value that is computed once a
    /// step.
    Anew,
    /// A value of full shape for each microbatch, which has its own: the greatest size by which the microbatch's numbers are rounded to 8 bits.
    Each,
    /// A summand of full shape for each microbatch. It is read by one `accumulate` node, whose result is `Step`.
    Summand,
}

/// Rates of all values and nodes.
#[derive(Clone, Debug)]
pub struct Rates {
    /// The number of parts of a step's batch.
    pub microbatches: usize,
    /// The rate of each value.
    pub values: Vec<ValueRate>,
    /// The effect of the time axis on each node, `None` for those that act once per step.
    pub nodes: Vec<Option<Choice>>,
}

/// A training graph with its rates.
#[derive(Clone, Debug)]
pub(crate) struct Rated {
    /// The graph.
    pub training: TrainingGraph,
    /// Its rates.
    pub rates: Rates,
    /// For each node that is recomputed, the node of the forward pass that computed the same; `None` for others.
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
    /// The signatures, by node.
    pub nodes: Vec<NodeSharding>,
}

/// All decisions about a graph.
#[derive(Clone, Debug)]
pub struct Decisions {
    /// The graph with its phases and kinds.
    pub training: TrainingGraph,
    /// Stages and placements.
    pub staging: Staging,
    /// Rates.
    pub rates: Rates,
    /// For each node that is recomputed, the node of the forward pass that computed the same; `None` for others.
    pub recomputed: Vec<Option<NodeId>>,
}

impl Decisions {
    /// Returns the graph.
    pub fn graph(&self) -> &Graph {
        &self.training.graph
    }

    /// Returns the graph with its rates, without stages.
    pub(crate) fn to_rated(&self) -> Rated {
        let Self { training, rates, recomputed, .. } = self;
        Rated { training: training.clone(), rates: rates.clone(), recomputed: recomputed.clone() }
    }

    /// Returns the layout of a value on a placement with an SBP, at the value's rate.
    pub fn layout(&self, value: ValueId, placement: &Placement, sbp: &NdSbp) -> Layout {
        let ty = &self.graph().value(value).ty;
        let microbatch_dim = match self.rates.values[value.index()] {
            ValueRate::Microbatch { dim } => Some(dim),
            ValueRate::Step | ValueRate::Anew | ValueRate::Each | ValueRate::Summand => None,
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

    /// Returns the number of times that a node acts in a step.
    pub fn count_actions(&self, node: &Node) -> usize {
        let values = node.operands.iter().chain(&node.results);
        let per_microbatch = |value: &ValueId| self.rates.values[value.index()] != ValueRate::Step;
        if values.into_iter().any(per_microbatch) { self.rates.microbatches } else { 1 }
    }

    /// Returns the number of times that a value is boxed in a step.
    pub(crate) fn times_boxed(&self, value: ValueId) -> usize {
        match self.rates.values[value.index()] {
            ValueRate::Step => 1,
            ValueRate::Microbatch { .. }
            | ValueRate::Anew
            | ValueRate::Each
            | ValueRate::Summand => self.rates.microbatches,
        }
    }

    /// Returns the placement of the node that makes a value.
    pub fn placement(&self, value: ValueId) -> &Placement {
        let producer: NodeId = self.graph().value(value).producer;
        &self.staging.placement[producer.index()]
    }
}

/// Returns the variable that a value is, in whatever precision and order of dims, gathered again or not.
pub(crate) fn variable_of(graph: &Graph, value: ValueId) -> Option<ValueId> {
    let node = graph.producer(value);
    let moves = node.op.operation().movement() == Some(Movement::Rearranged);
    match &node.op {
        Op::Variable(_) => Some(value),
        _ if moves || matches!(node.op, Op::Cast(_) | Op::Regather(_)) => {
            variable_of(graph, *node.operands.first()?)
        }
        _ => None,
    }
}
