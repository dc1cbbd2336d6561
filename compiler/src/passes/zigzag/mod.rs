//! Puts sequences that ranks share in an order in which each of them has as much to do.
//!
//! Under a causal mask late queries see more keys than early ones, so of ranks that share a sequence in one piece each, the last has nearly twice the
//! mean work of attention. In the order of [`Zigzag`] a rank's part has early queries and as many late ones. The inputs, a few bytes for each
//! element of a sequence, are put in that order, and so is what is the same for all samples, as tables of positions are. All else then lies in it, whatever
//! its layout, and what depends on the place in the sequence, attention and rotary embeddings, knows the order. An output is put back.
//!
//! Where something mixes elements of a sequence otherwise (a convolution over time, a shift of labels, dropout, a bias of the scores), all sequences stay as
//! they are. [`follow`] says which dims of an op's operands and results count the elements of a sequence.

mod follow;

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use graphc_ir::graph::{Graph, Node, Output};
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::mesh::Placement;
use graphc_ir::op::{Op, OpError};
use graphc_ir::ops::{Attention, ToGlobal, Zigzag, has_pairs};
use graphc_ir::sbp::{NdSbp, Sbp};
use graphc_plan::CompileOptions;

use super::error::PassError;
use super::pins::pin_of;
use super::staging::collect_staging;

use follow::{SequenceDim, follow_op};

const PASS: &str = "zigzag";

/// The dim of an input that counts the elements of a sequence.
const SEQUENCE: usize = 1;

/// Orders the sequences that strategy or pins share among ranks, if attention has a causal mask and nothing in the model forbids it.
///
/// # Errors
/// Returns an error if the mesh is not valid.
pub(crate) fn order_sequences(graph: Graph, options: &CompileOptions) -> Result<Graph, PassError> {
    let causal = |node: &Node| matches!(&node.op, Op::Attention(op) if op.causal);
    if options.keep_order || !graph.nodes.iter().any(causal) {
        return Ok(graph);
    }
    let placements = collect_staging(&graph, options)?.placement;
    let Some(sequences) = SharedSequences::of_graph(&graph, options, &placements) else {
        return Ok(graph);
    };
    let ordered = Orderer::new(&graph, &placements, &sequences).run();
    match ordered.map_err(|error| PassError::Op { pass: PASS, error })? {
        Some(ordered) => Ok(ordered),
        None => Ok(graph),
    }
}

/// The sequences that ranks share.
struct SharedSequences {
    /// The number of ranks that share each, which are the pairs of chunks.
    pairs: NonZeroU32,
    /// Samples and elements of a sequence.
    extents: [usize; 2],
    /// The layout of inputs.
    layout: NdSbp,
}

impl SharedSequences {
    /// Finds the first input whose sequences several ranks share by a pin or the strategy.
    fn of_graph(graph: &Graph, options: &CompileOptions, placements: &[Placement]) -> Option<Self> {
        graph.iter().find_map(|(id, node)| {
            let Op::Input(input) = &node.op else { return None };
            let (Some(0), &[batch, time, ..]) = (input.samples_dim(), &input.ty.shape[..]) else {
                return None;
            };
            let hierarchy = &placements[id.index()].hierarchy;
            let strategy = Some(options.strategy).filter(|strategy| strategy.splits_sequences());
            let asked = strategy.map(|strategy| strategy.lay_input(hierarchy.len(), input));
            let layout = pin_of(graph, node.results[0], options).or(asked)?;
            let splits = layout.0.iter().zip(hierarchy);
            let splits = splits.filter(|(sbp, _)| **sbp == Sbp::Split(SEQUENCE));
            let ranks: usize = splits.map(|(_, &ranks)| ranks).product();
            let pairs = NonZeroU32::new(u32::try_from(ranks).ok()?)?;
            (ranks > 1 && has_pairs(time, pairs)).then_some(Self {
                pairs,
                extents: [batch, time],
                layout,
            })
        })
    }

    /// Whether a node gives an input with such sequences.
    fn are_given_by(&self, node: &Node) -> bool {
        let Op::Input(input) = &node.op else { return false };
        input.samples_dim() == Some(0)
            && input.ty.shape.len() > SEQUENCE
            && input.ty.shape[..=SEQUENCE] == self.extents
    }
}

/// A value of the old graph in the new one.
#[derive(Clone, Copy)]
struct OrderedValue {
    value: ValueId,
    /// The dim that counts elements of a sequence in the order of pairs.
    sequence: Option<SequenceDim>,
    /// Whether it is an input whose sequences readers take in the order of pairs.
    is_input: bool,
}

/// Rebuilds the graph.
struct Orderer<'a> {
    old: &'a Graph,
    placements: &'a [Placement],
    sequences: &'a SharedSequences,
    graph: Graph,
    values: Vec<Option<OrderedValue>>,
    /// Values of the old graph that were put in the order of pairs, by the dim, for a placement.
    ordered: BTreeMap<(ValueId, usize), Vec<(Placement, ValueId)>>,
    /// Whether an attention is causal and lies in the order of pairs.
    pays: bool,
}

impl<'a> Orderer<'a> {
    fn new(old: &'a Graph, placements: &'a [Placement], sequences: &'a SharedSequences) -> Self {
        let values = vec![None; old.values.len()];
        let (graph, ordered) = (old.clone_empty(), BTreeMap::new());
        Self { old, placements, sequences, graph, values, ordered, pays: false }
    }

    /// Returns the new graph; `None` if something forbids the order, or nothing gains by it.
    fn run(mut self) -> Result<Option<Graph>, OpError> {
        for (id, node) in self.old.iter() {
            if !self.push_node(id, node)? {
                return Ok(None);
            }
        }
        for Output { name, value } in &self.old.outputs {
            let Some(value) = self.restore(*value)? else { return Ok(None) };
            self.graph.outputs.push(Output { name: name.clone(), value });
        }
        Ok(self.pays.then_some(self.graph))
    }

    /// Appends a node of the old graph. Returns whether it allows the order of its operands.
    fn push_node(&mut self, id: NodeId, node: &Node) -> Result<bool, OpError> {
        let given = node.operands.iter().map(|operand| self.values[operand.index()]);
        let given: Vec<OrderedValue> =
            given.map(|value| value.expect("operands come before readers")).collect();
        let sequences: Vec<Option<SequenceDim>> = given
            .iter()
            .map(|given| match given.is_input {
                true => Some(SequenceDim { dim: SEQUENCE, inner: 1 }),
                false => given.sequence,
            })
            .collect();
        let mut op = node.op.clone();
        let (mut operands, mut results) = (Vec::new(), vec![None; node.results.len()]);
        if sequences.iter().any(Option::is_some) {
            let types = self.old.operand_types(node);
            let Some(followed) = follow_op(&node.op, &types, &sequences, self.sequences) else {
                return Ok(false);
            };
            for (place, wanted) in followed.operands.into_iter().enumerate() {
                operands.push(match wanted {
                    Some(dim) if given[place].sequence.is_none() => {
                        self.put_in_order(node.operands[place], dim, (id, node))?
                    }
                    _ => given[place].value,
                });
            }
            (op, results) = (followed.op, followed.results);
            self.pays |= matches!(op, Op::Attention(Attention { zigzag: Some(_), .. }));
        } else {
            operands.extend(given.iter().map(|given| given.value));
        }
        let is_input = self.sequences.are_given_by(node);
        let made = self.graph.push_like(op, operands, node)?;
        for ((&old, value), sequence) in node.results.iter().zip(made).zip(results) {
            let (from, to) = (self.old.value(old), &mut self.graph.values[value.index()]);
            (to.name, to.pin) = (from.name.clone(), from.pin.clone());
            self.values[old.index()] = Some(OrderedValue { value, sequence, is_input });
        }
        Ok(true)
    }

    /// Returns a value in the order of pairs along a dim, for a node that reads it. Ranks share inputs as they did before.
    fn put_in_order(
        &mut self,
        old: ValueId,
        dim: usize,
        (reader, like): (NodeId, &Node),
    ) -> Result<ValueId, OpError> {
        let placement = &self.placements[reader.index()];
        let made = self.ordered.get(&(old, dim));
        let known = made.and_then(|made| made.iter().find(|(place, _)| place == placement));
        if let Some(&(_, value)) = known {
            return Ok(value);
        }
        let given = self.values[old.index()].expect("operands come before readers");
        let op = Op::Zigzag(Zigzag { dim, pairs: self.sequences.pairs, inverse: false });
        let mut value = self.graph.push_like(op, vec![given.value], like)?[0];
        if given.is_input {
            let sbp = self.sequences.layout.clone();
            let op = Op::ToGlobal(ToGlobal { placement: placement.clone(), sbp });
            value = self.graph.push_like(op, vec![value], like)?[0];
        }
        self.ordered.entry((old, dim)).or_default().push((placement.clone(), value));
        Ok(value)
    }

    /// Returns a value in the sequence's own order, if it can be put there.
    fn restore(&mut self, old: ValueId) -> Result<Option<ValueId>, OpError> {
        let given = self.values[old.index()].expect("outputs are values of the graph");
        let Some(SequenceDim { dim, inner }) = given.sequence else {
            return Ok(Some(given.value));
        };
        let value = self.old.value(old);
        if inner != 1 || value.ty.shape[dim] != self.sequences.extents[1] {
            return Ok(None);
        }
        let op = Op::Zigzag(Zigzag { dim, pairs: self.sequences.pairs, inverse: true });
        let like = self.old.node(value.producer);
        Ok(Some(self.graph.push_like(op, vec![given.value], like)?[0]))
    }
}
