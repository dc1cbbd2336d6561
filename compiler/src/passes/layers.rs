//! Finds the layers of a model in its graph. No names or annotations are needed, so models from any source, ONNX
//! files too, have layers.
//!
//! This is no pass. Stages, recomputation and the pages of `graphc report` use it.
//!
//! 1. A *cut* is a place in the order of forward ops over which one tensor alone leads. The stream of a residual
//!    network between two blocks is one, or the output of one layer in a stack. Only tensors count that depend on
//!    inputs and on variables and have more than one element. So masks, tables of positions and labels do not hide a
//!    cut.
//! 2. Between two cuts is a *segment*. A segment that contracts nothing (a bias, an activation function) belongs to
//!    the one before it.
//! 3. The contractions of a segment, op by op with types, are its signature. The longest run in which signatures
//!    repeat with some period is the stack of equal layers: one period is one layer. Every other segment is a layer
//!    of its own.

use std::collections::BTreeMap;
use std::ops::Range;

use graphc_ir::graph::{Graph, Node};
use graphc_ir::ids::LayerId;
use graphc_ir::op::Op;

/// The layers of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layers {
    /// The layer of each forward node that depends on an input, but is none itself.
    pub of: Vec<Option<LayerId>>,
    /// Number of layers.
    pub count: usize,
    /// The layers that are alike; empty where none are.
    pub repeated: Range<usize>,
}

/// The layers of those nodes that are `forward`.
pub fn find_layers(graph: &Graph, forward: impl Fn(usize) -> bool) -> Layers {
    let reach = NodeDependencies::new(graph, &forward);
    let ops: Vec<usize> = (0..graph.nodes.len())
        .filter(|&n| forward(n) && reach.input[n] && !matches!(graph.nodes[n].op, Op::Input(_)))
        .collect();
    let mut segments = split_segments(graph, &ops, &find_cuts(graph, &ops, &reach));
    let (period, run) = longest_run(&segments);
    give_on(&mut segments, period, &run);
    let mut of = vec![None; graph.nodes.len()];
    let mut layer = 0;
    for (index, segment) in segments.iter().enumerate() {
        let inside = run.contains(&index);
        let continues = inside && !(index - run.start).is_multiple_of(period);
        layer += usize::from(index > 0 && !continues);
        for &op in segment.parts.iter().flat_map(|part| &ops[part.clone()]) {
            of[op] = Some(LayerId::new(layer));
        }
    }
    let count = if segments.is_empty() { 0 } else { layer + 1 };
    let repeated = run.start..run.start + run.len() / period;
    Layers { of, count, repeated }
}

/// The dependencies of each node.
struct NodeDependencies {
    input: Vec<bool>,
    variable: Vec<bool>,
}

impl NodeDependencies {
    fn new(graph: &Graph, forward: impl Fn(usize) -> bool) -> Self {
        let count = graph.nodes.len();
        let mut reach = Self { input: vec![false; count], variable: vec![false; count] };
        for (id, node) in graph.nodes.iter().enumerate().filter(|(id, _)| forward(*id)) {
            let from =
                |of: &[bool]| node.operands.iter().any(|&v| of[graph.value(v).producer.index()]);
            let (input, variable) = (from(&reach.input), from(&reach.variable));
            reach.input[id] = input || matches!(node.op, Op::Input(_));
            reach.variable[id] = variable || matches!(node.op, Op::Variable(_));
        }
        reach
    }

    /// Whether a node's results count where they lead over a place.
    fn counts_at_cut(&self, node: usize) -> bool {
        self.input[node] && self.variable[node]
    }
}

/// The places, each before the op of that position, over which one tensor leads.
fn find_cuts(graph: &Graph, ops: &[usize], reach: &NodeDependencies) -> Vec<usize> {
    let mut position = vec![None; graph.nodes.len()];
    for (at, &op) in ops.iter().enumerate() {
        position[op] = Some(at);
    }
    let mut changes = vec![0i64; ops.len() + 2];
    for (value, readers) in graph.values.iter().zip(graph.list_consumers()) {
        let Some(made) = position[value.producer.index()] else { continue };
        let last = readers.iter().filter_map(|reader| position[reader.index()]).max();
        let Some(last) = last.filter(|_| value.ty.elements() > 1) else { continue };
        if reach.counts_at_cut(value.producer.index()) {
            changes[made + 1] += 1;
            changes[last + 1] -= 1;
        }
    }
    let mut over = 0;
    let mut places = Vec::new();
    for (place, change) in changes[..ops.len()].iter().enumerate() {
        over += change;
        if over == 1 {
            places.push(place);
        }
    }
    places
}

/// Ops between two cuts, with those of the next ones that contract nothing.
struct LayerSegment {
    parts: Vec<Range<usize>>,
    /// The number of its signature.
    kind: usize,
}

fn split_segments(graph: &Graph, ops: &[usize], cuts: &[usize]) -> Vec<LayerSegment> {
    let mut found: Vec<(Vec<Range<usize>>, Vec<String>)> = Vec::new();
    let ends = cuts.iter().copied().chain([ops.len()]);
    let mut start = 0;
    for end in ends.filter(|&end| end > 0) {
        let signature: Vec<String> = ops[start..end]
            .iter()
            .filter_map(|&op| contraction_signature(graph, &graph.nodes[op]))
            .collect();
        match found.last_mut() {
            Some((parts, kept)) if signature.is_empty() || kept.is_empty() => {
                parts.push(start..end);
                kept.extend(signature);
            }
            _ => found.push((std::iter::once(start..end).collect(), signature)),
        }
        start = end;
    }
    let mut kinds: BTreeMap<Vec<String>, usize> = BTreeMap::new();
    let kind = |(parts, signature): (Vec<Range<usize>>, Vec<String>)| {
        let next = kinds.len();
        LayerSegment { parts, kind: *kinds.entry(signature).or_insert(next) }
    };
    found.into_iter().map(kind).collect()
}

/// Gives what the last of the equal layers has more than the one before to what follows: the normalization before the
/// head, say.
fn give_on(segments: &mut Vec<LayerSegment>, period: usize, run: &Range<usize>) {
    let Some(last) = run.end.checked_sub(1) else { return };
    let own = segments[last - period].parts.len().min(segments[last].parts.len());
    let more = segments[last].parts.split_off(own);
    match segments.get_mut(run.end) {
        Some(next) => next.parts.splice(0..0, more).for_each(drop),
        None if !more.is_empty() => segments.push(LayerSegment { parts: more, kind: usize::MAX }),
        None => {}
    }
}

/// Op and operand types of a node that contracts.
fn contraction_signature(graph: &Graph, node: &Node) -> Option<String> {
    let operands = graph.operand_types(node);
    let rule = node.op.operation().rule(&operands).ok()?;
    let types: Vec<String> = operands.iter().map(ToString::to_string).collect();
    rule.is_contraction().then(|| format!("{} {}", node.op.name(), types.join(" ")))
}

/// The period and the range of the segments in which kinds repeat: the most segments, then the shortest period, then the
/// first. An empty range where nothing repeats.
fn longest_run(segments: &[LayerSegment]) -> (usize, Range<usize>) {
    let mut best = (1, 0..0);
    for period in 1..=segments.len() / 2 {
        let equal = |at: usize| segments[at].kind == segments[at + period].kind;
        let mut start = 0;
        while start + period < segments.len() {
            let length = (start..segments.len() - period).take_while(|&at| equal(at)).count();
            let whole = if length < period { 0 } else { (length + period) / period * period };
            if whole > best.1.len() {
                best = (period, start..start + whole);
            }
            start += length + 1;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use graphc_ir::builder::{GraphBuilder, Tensor};
    use graphc_ir::ops::Init;
    use graphc_ir::types::DType;
    use graphc_nn::{Gpt, GptConfig, Module};

    use super::*;

    #[test]
    fn blocks_of_a_transformer_are_its_layers_between_embedding_and_head() {
        let g = GraphBuilder::new("gpt");
        let config = GptConfig { layers: 5, width: 16, heads: 2, sequence: 8, vocabulary: 50 };
        let tokens = g.input("tokens", DType::I64, [2, 8]);
        g.output("logits", &Gpt::new(&g, &config).forward(&tokens));
        let graph = g.finish().expect("fits");
        let layers = find_layers(&graph, |_| true);
        assert_eq!((layers.count, layers.repeated.clone()), (7, 1..6));
        // Each block has as many ops, and begins with a normalization.
        let of = |layer| {
            (0..graph.nodes.len()).filter(move |&n| layers.of[n] == Some(LayerId::new(layer)))
        };
        let ops: Vec<Vec<&str>> = (1..6)
            .map(|layer| of.clone()(layer).map(|n| graph.nodes[n].op.name()).collect())
            .collect();
        assert!(ops.iter().all(|names| *names == ops[0]), "{ops:?}");
        assert!(ops[0][0].contains("norm"), "{:?}", ops[0]);
    }

    #[test]
    fn a_stack_of_equal_products_has_a_layer_each_with_what_follows_it() {
        let g = GraphBuilder::new("stack");
        let w =
            |name: String, shape: [usize; 2]| g.variable(&name, DType::F32, shape, Init::Weights);
        let mut x: Tensor = g.input("x", DType::F32, [8, 4]);
        for i in 0..3 {
            x = x.matmul(&w(format!("w{i}"), [4, 4])).relu();
        }
        g.output("y", &x.matmul(&w("last".into(), [4, 2])).tanh());
        let layers = find_layers(&g.finish().expect("fits"), |_| true);
        assert_eq!((layers.count, layers.repeated), (4, 0..3));
        let computed: Vec<usize> = layers.of.into_iter().flatten().map(LayerId::index).collect();
        assert_eq!(computed, [0, 0, 1, 1, 2, 2, 3, 3]);
    }

    #[test]
    fn what_repeats_nowhere_has_a_layer_for_each_segment() {
        let g = GraphBuilder::new("mlp");
        let w = |name: &str, shape: [usize; 2]| g.variable(name, DType::F32, shape, Init::Weights);
        let x = g.input("x", DType::F32, [8, 4]);
        let hidden = x.matmul(&w("a", [4, 6])).relu().matmul(&w("b", [6, 5])).relu();
        g.output("y", &hidden.matmul(&w("c", [5, 2])).add(&w("d", [1, 2])));
        let layers = find_layers(&g.finish().expect("fits"), |_| true);
        assert_eq!((layers.count, layers.repeated), (3, 0..0));
        let nothing = GraphBuilder::new("nothing");
        nothing.output("y", &nothing.input("x", DType::F32, [3]));
        assert_eq!(super::find_layers(&nothing.finish().expect("fits"), |_| true).count, 0);
    }
}
