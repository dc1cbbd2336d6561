//! Finds the sites where a graph writes attention in parts.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use graphc_ir::array::Array;
use graphc_ir::graph::{Graph, Node};
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::Op;
use graphc_ir::ops::{
    Attention, Binary, BinaryFunction, DropoutOp, MatMul, Softmax, Unary, UnaryFunction,
};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::DType;
use graphc_plan::CompileOptions;

use super::heads::{Heads, Matrices};
use super::kept::Kept;
use super::masks::{SeenKeys, find_seen_keys, is_low};
use super::terms::{Nature, ScoreTerm, TermForm, TermSource};
use crate::passes::constants::{Constants, repeat_array};
use crate::passes::joined::check_joined;
use crate::passes::pins::pin_of;

/// The most ops between a product and its softmax, or a softmax and its product.
const MOST_STEPS: usize = 32;

/// The index of values among the operands of attention.
const VALUES: usize = 2;

/// A softmax between two products.
pub struct AttentionSite {
    /// The softmax.
    pub softmax: NodeId,
    /// The attention that is to replace it, or the reason to leave it in parts.
    pub(super) found: Result<FoundAttention, Kept>,
}

impl AttentionSite {
    /// Returns the reason to leave it in parts; `None` if one op can replace it.
    pub(crate) fn kept_reason(&self) -> Option<Kept> {
        self.found.as_ref().err().copied()
    }
}

/// Attention that is to replace a product and all nodes that only this product needs.
pub(super) struct FoundAttention {
    /// The product of weights and values.
    pub product: NodeId,
    /// The nodes between the product and its queries, keys and values, which nothing else reads.
    pub inside: BTreeSet<NodeId>,
    pub op: Attention,
    /// Queries, keys and values. These may have another width.
    pub operands: [Heads; 3],
    /// The summands of the scores, each with the shapes that bring it to the op's form.
    pub terms: Vec<(ScoreTerm, TermForm)>,
    /// A number for each head by which queries are multiplied.
    pub head_scale: Option<ValueId>,
}

impl FoundAttention {
    /// Returns the width of the op, the greatest of its operands'.
    pub(super) fn width(&self) -> usize {
        self.operands.iter().map(|heads| heads.shape[3]).fold(0, usize::max)
    }

    /// Returns the values from which the attention is computed.
    pub(super) fn roots(&self) -> impl Iterator<Item = ValueId> {
        let of_terms = self.terms.iter().map(|(term, _)| term.root());
        self.operands.iter().map(|heads| heads.root).chain(of_terms).chain(self.head_scale)
    }
}

/// Finds all sites of a graph, in its order.
pub(crate) fn find_sites(graph: &Graph, options: &CompileOptions) -> Vec<AttentionSite> {
    let softmax = |node: &Node| matches!(node.op, Op::Softmax(_));
    if !graph.nodes.iter().any(softmax) {
        return Vec::new();
    }
    let consumers = graph.list_consumers();
    let mut finder =
        AttentionFinder { graph, options, consumers, constants: Constants::new(graph) };
    let products = graph.iter().filter(|(_, node)| matches!(node.op, Op::MatMul(_)));
    let mut sites: Vec<AttentionSite> =
        products.filter_map(|(id, _)| finder.find_site(id)).collect();
    separate_sites(&mut sites);
    sites
}

/// Lets only the first of sites that have a node in common become one op.
fn separate_sites(sites: &mut [AttentionSite]) {
    let mut taken = BTreeSet::new();
    for site in sites {
        let Ok(found) = &site.found else { continue };
        let nodes = || found.inside.iter().copied().chain([found.product]);
        if nodes().any(|node| taken.contains(&node)) {
            site.found = Err(Kept::Read);
            continue;
        }
        taken.extend(nodes());
    }
}

pub(super) struct AttentionFinder<'a> {
    pub graph: &'a Graph,
    options: &'a CompileOptions,
    consumers: Vec<Vec<NodeId>>,
    pub constants: Constants<'a>,
}

/// The path from a product up to another one.
#[derive(Default)]
pub(super) struct Path {
    /// The nodes that a rewrite would remove.
    pub inside: BTreeSet<NodeId>,
    /// The scores by which the model finds rows without keys. They must be inside the path.
    pub watched: Vec<ValueId>,
    /// Whether the path is still between softmax and the values.
    pub of_weights: bool,
    /// Whether the weights of a row without keys are 0.
    pub zeroed: bool,
    /// The dropout of the weights, if any of them can be dropped.
    dropout: Option<DropoutOp>,
    /// The first reason to leave the attention in parts.
    kept: Option<Kept>,
    /// The product of all numbers by which scores are multiplied so far.
    factor: f64,
    /// The summands of the scores: causal masks, and below them all others.
    past: Vec<ScoreTerm>,
    terms: Vec<ScoreTerm>,
    /// The window of causal masks that have one.
    window: Option<NonZeroU32>,
    /// The bound of the scores.
    pub cap: Option<f64>,
    /// A number for each head by which scores are multiplied. Summands found behind it would be multiplied as well.
    pub head_scale: Option<ValueId>,
}

impl Path {
    fn mark_kept(&mut self, kept: Kept) {
        self.kept.get_or_insert(kept);
    }
}

impl<'a> AttentionFinder<'a> {
    /// Returns the site that ends in a product, if one does.
    fn find_site(&mut self, product: NodeId) -> Option<AttentionSite> {
        let mut path = Path { factor: 1.0, of_weights: true, ..Path::default() };
        let graph = self.graph;
        let values = graph.node(product);
        let softmax = self.softmax_of(values.operands[0], &mut path)?;
        path.of_weights = false;
        let scores = self.product_of(graph.node(softmax).operands[0], &mut path)?;
        let found = match path.kept {
            Some(kept) => Err(kept),
            None => self
                .check_product(product, &path)
                .and_then(|()| self.assemble_attention(product, scores, path)),
        };
        Some(AttentionSite { softmax, found })
    }

    /// Returns the softmax from which a product's weights come.
    fn softmax_of(&mut self, weights: ValueId, path: &mut Path) -> Option<NodeId> {
        let (graph, mut value) = (self.graph, weights);
        for _ in 0..MOST_STEPS {
            let id = graph.value(value).producer;
            let node = graph.node(id);
            path.inside.insert(id);
            value = match &node.op {
                Op::Softmax(Softmax { axis }) => {
                    if axis + 1 != graph.value(value).ty.shape.len() {
                        path.mark_kept(Kept::Axis);
                    }
                    return Some(id);
                }
                Op::Cast(_) if self.casts_floats(node) => node.operands[0],
                Op::Reshape(_) if self.keeps_matrices(node) => node.operands[0],
                Op::Dropout(dropout) => {
                    if dropout.can_drop() && path.dropout.replace(*dropout).is_some() {
                        path.mark_kept(Kept::Dropout);
                    }
                    node.operands[0]
                }
                Op::Where(_) if self.is_guarded(node, path) => node.operands[2],
                _ => self.passed_by(node, path)?,
            };
        }
        None
    }

    /// Returns the product from which a softmax's scores come.
    fn product_of(&mut self, scores: ValueId, path: &mut Path) -> Option<NodeId> {
        let (graph, mut value) = (self.graph, scores);
        if graph.value(value).ty.elements() == 0 {
            return None;
        }
        for _ in 0..MOST_STEPS {
            let id = graph.value(value).producer;
            let node = graph.node(id);
            path.inside.insert(id);
            if let Some((operand, factor)) = self.match_scaling(node) {
                path.factor *= factor;
                value = operand;
                continue;
            }
            if let Some(scores) = self.match_head_scale(node, path) {
                value = scores;
                continue;
            }
            value = match &node.op {
                Op::MatMul(_) => return Some(id),
                Op::Cast(_) if self.casts_floats(node) && self.dtype(value) == DType::F32 => {
                    node.operands[0]
                }
                Op::Reshape(_) if self.keeps_matrices(node) => node.operands[0],
                Op::Where(_) if self.is_guarded(node, path) => node.operands[2],
                Op::Where(_) => self.match_choice(node, path)?,
                Op::Binary(Binary { function: BinaryFunction::Add | BinaryFunction::Sub }) => {
                    self.match_sum(node, path)?
                }
                // Exporters add a mask of zeros where there is none.
                Op::Unary(Unary { function: UnaryFunction::Offset(by) }) if by.0 == 0.0 => {
                    node.operands[0]
                }
                Op::Unary(Unary { function: UnaryFunction::Tanh }) => {
                    if path.cap.is_some() || path.head_scale.is_some() || path.factor <= 0.0 {
                        path.mark_kept(Kept::SoftCap);
                    }
                    path.cap = Some(path.factor);
                    node.operands[0]
                }
                _ => self.passed_by(node, path)?,
            };
        }
        None
    }

    /// Passes by an elementwise op that is no part of attention, which is then left in parts. Returns the operand that has the op's shape.
    fn passed_by(&self, node: &Node, path: &mut Path) -> Option<ValueId> {
        if !node.op.operation().is_elementwise() {
            return None;
        }
        path.mark_kept(Kept::Other(node.op.name()));
        let shape = |value: ValueId| &self.graph.value(value).ty.shape;
        let computed = |value: &&ValueId| {
            !self.constants.contains(**value) && shape(**value) == shape(node.results[0])
        };
        node.operands.iter().find(computed).copied()
    }

    fn dtype(&self, value: ValueId) -> DType {
        self.graph.value(value).ty.dtype
    }

    fn casts_floats(&self, node: &Node) -> bool {
        self.dtype(node.operands[0]).is_float() && self.dtype(node.results[0]).is_float()
    }

    /// Whether a reshape keeps the last two dims, queries and keys, as they are.
    fn keeps_matrices(&self, node: &Node) -> bool {
        let last = |value: ValueId| match self.graph.value(value).ty.shape[..] {
            [.., queries, keys] => Some([queries, keys]),
            _ => None,
        };
        let of_operand = last(node.operands[0]);
        of_operand.is_some() && of_operand == last(node.results[0])
    }

    /// Returns the other operand of a product with a number, and that number.
    fn match_scaling(&mut self, node: &Node) -> Option<(ValueId, f64)> {
        let [a, rest @ ..] = &node.operands[..] else { return None };
        let (operand, factor) = match (&node.op, rest) {
            (Op::Unary(Unary { function: UnaryFunction::Scale(factor) }), []) => (*a, factor.0),
            (Op::Binary(Binary { function: BinaryFunction::Mul }), [b]) => {
                match self.constants.number(*b) {
                    Some(number) => (*a, number),
                    None => (*b, self.constants.number(*a)?),
                }
            }
            (Op::Binary(Binary { function: BinaryFunction::Div }), [b]) => {
                (*a, self.constants.number(*b)?.recip())
            }
            _ => return None,
        };
        let same = self.graph.value(operand).ty == self.graph.value(node.results[0]).ty;
        let sensible = factor.is_finite() && factor != 0.0 && !self.constants.contains(operand);
        (same && sensible).then_some((operand, factor))
    }

    /// Returns the summand that is scores, if the other one is a mask or a bias.
    fn match_sum(&mut self, node: &Node, path: &mut Path) -> Option<ValueId> {
        let &[a, b] = &node.operands[..] else { return None };
        let subtracts = matches!(node.op, Op::Binary(Binary { function: BinaryFunction::Sub }));
        let shape = |value: ValueId| &self.graph.value(value).ty.shape;
        let is_whole = |value| shape(value) == shape(node.results[0]);
        let (scores, mask) = match self.constants.contains(a) && !subtracts {
            true => (b, a),
            false => (a, b),
        };
        let (scores, mask) = match self.constants.contains(mask) {
            true => (scores, mask),
            // Which of the two comes from a product is told by what else it is made of.
            false => [(a, b), (b, a)]
                .into_iter()
                .filter(|&(value, _)| is_whole(value) && !(subtracts && value == b))
                .find(|&(value, _)| self.comes_from_product(value))?,
        };
        if !is_whole(scores) {
            return None;
        }
        let factor = if subtracts { -path.factor } else { path.factor };
        self.add_summands(mask, factor, scores, path, MOST_STEPS);
        Some(scores)
    }

    /// Adds a summand of the scores to the path, or each summand of a sum.
    fn add_summands(
        &mut self,
        value: ValueId,
        factor: f64,
        scores: ValueId,
        path: &mut Path,
        steps: usize,
    ) {
        let node = self.graph.producer(value);
        let constant = self.constants.contains(value);
        let sum = Op::Binary(Binary { function: BinaryFunction::Add });
        if !constant && steps > 0 && node.op == sum {
            for &summand in &node.operands {
                self.add_summands(summand, factor, scores, path, steps - 1);
            }
            return;
        }
        let elements = if constant { self.constants.elements(value) } else { None };
        let scaled = elements.map(|mut array| {
            array.data.iter_mut().for_each(|x| *x *= factor / path.factor);
            array
        });
        self.add_term(scaled, (TermSource::Added(value), factor), value, scores, path);
    }

    /// Whether elementwise ops and reshapes lead from a product to a value.
    pub(super) fn comes_from_product(&self, value: ValueId) -> bool {
        let mut value = value;
        for _ in 0..MOST_STEPS {
            let node = self.graph.producer(value);
            match &node.op {
                Op::MatMul(_) => return true,
                Op::Reshape(_) => {}
                op if op.operation().is_elementwise() => {}
                _ => return false,
            }
            // What is as large as the result is scores before a factor of each head is.
            let elements = |operand: &ValueId| self.graph.value(*operand).ty.elements();
            let computed = node.operands.iter().filter(|value| !self.constants.contains(**value));
            let Some(&operand) = computed.rev().max_by_key(|operand| elements(operand)) else {
                return false;
            };
            value = operand;
        }
        false
    }

    /// Returns the branch that is scores, if a condition hides some of them.
    fn match_choice(&mut self, node: &Node, path: &mut Path) -> Option<ValueId> {
        let &[condition, a, b] = &node.operands[..] else { return None };
        let shape = |value: ValueId| &self.graph.value(value).ty.shape;
        let (scores, other) = if self.constants.contains(a) { (b, a) } else { (a, b) };
        if shape(scores) != shape(node.results[0]) || !self.constants.contains(other) {
            return self.passed_by(node, path);
        }
        let known = self.constants.contains(condition);
        let elements = match known {
            true => self.constants.elements(condition).zip(self.constants.elements(other)),
            false => None,
        };
        let mask =
            elements.map(|(condition, low)| mask_from_condition(&condition, &low, scores == a));
        let low = self.constants.number(other);
        let hides = |low: &f64| is_low(*low, self.dtype(other), path.factor);
        let Some(low) = low.filter(hides) else {
            let nothing = mask.is_some_and(|mask| mask.data.iter().all(|&x| x == 0.0));
            if !nothing {
                path.mark_kept(if known { Kept::Bias } else { Kept::MaskOfData });
            }
            return Some(scores);
        };
        let source = TermSource::Chosen { condition, low, where_true: scores != a };
        self.add_term(mask, (source, path.factor), other, scores, path);
        Some(scores)
    }

    /// Adds a summand of the scores to the path. Its elements may be known, and it has the element type of `like`.
    fn add_term(
        &mut self,
        mask: Option<Array>,
        (source, factor): (TermSource, f64),
        like: ValueId,
        scores: ValueId,
        path: &mut Path,
    ) {
        let shape = &self.graph.value(scores).ty.shape;
        let [.., queries, keys] = shape[..] else { return path.mark_kept(Kept::OtherMask) };
        let found =
            mask.map(|mask| find_seen_keys(&mask, self.dtype(like), path.factor, [queries, keys]));
        let term = ScoreTerm { source, factor, scores: shape.clone() };
        if path.cap.is_some() && found != Some(Some(SeenKeys::All)) {
            // It would be bounded as well.
            path.mark_kept(Kept::SoftCap);
        }
        if path.head_scale.is_some() && found != Some(Some(SeenKeys::All)) {
            path.mark_kept(Kept::Other("binary"));
        }
        match found.flatten() {
            Some(SeenKeys::All) => {}
            Some(SeenKeys::Past) => path.past.push(term),
            Some(SeenKeys::Near(window)) => {
                path.window = Some(path.window.map_or(window, |other| other.min(window)));
                path.past.push(term);
            }
            None => path.terms.push(term),
        }
    }

    /// Checks that nothing but the product needs the nodes that a rewrite would remove.
    fn check_product(&self, product: NodeId, path: &Path) -> Result<(), Kept> {
        check_joined(self.graph, self.options, &self.consumers, (product, &path.inside))?;
        let is_inside = |value: &ValueId| path.inside.contains(&self.graph.value(*value).producer);
        if path.watched.iter().all(is_inside) { Ok(()) } else { Err(Kept::Other("where")) }
    }

    /// Assembles the op, if queries, keys and values fit it.
    fn assemble_attention(
        &mut self,
        product: NodeId,
        scores: NodeId,
        path: Path,
    ) -> Result<FoundAttention, Kept> {
        let graph = self.graph;
        let (of_values, of_scores) = (graph.node(product), graph.node(scores));
        let (Op::MatMul(second), Op::MatMul(first)) = (&of_values.op, &of_scores.op) else {
            return Err(Kept::Other("matmul"));
        };
        // Samples and heads may be merged in the one product and not in the other.
        let batch = batch_of(graph, of_values);
        let all = |batch: &[usize]| batch.iter().product::<usize>();
        if second.transpose_a || all(&batch) != all(&batch_of(graph, of_scores)) {
            return Err(Kept::Other("matmul"));
        }
        let MatMul { transpose_a, transpose_b } = *first;
        let sides = [
            (of_scores.operands[0], transpose_a),
            (of_scores.operands[1], !transpose_b),
            (of_values.operands[1], second.transpose_b),
        ];
        let dtype = self.dtype(sides[0].0);
        if !dtype.is_float() || sides.iter().any(|&(value, _)| self.dtype(value) != dtype) {
            return Err(Kept::ElementTypes);
        }
        let mut factor = path.factor;
        let mut operand = |index: usize| {
            let (value, turned) = sides[index];
            let way = self.trace_operand(value, of_values, index != VALUES);
            let matrices = Matrices { batch: &batch, turned };
            let (heads, own) =
                find_earliest_heads(graph, value, &way, matrices).ok_or(Kept::Shared)?;
            factor *= own;
            Ok::<Heads, Kept>(heads)
        };
        let operands = [operand(0)?, operand(1)?, operand(2)?];
        let [q, k, v] = [0, 1, 2].map(|index: usize| operands[index].shape);
        let heads: usize = batch[1..].iter().product();
        if q[2] != heads || k[..3] != v[..3] || q.contains(&0) || k.contains(&0) {
            return Err(Kept::Shared);
        }
        let soft_cap = path.cap.map(Scalar);
        let (causal, terms) = self.choose_causal(path.past, path.terms, path.zeroed)?;
        let form = |term: ScoreTerm| {
            let form = term.find_form(graph, &batch).ok_or(Kept::MaskOfData)?;
            Ok((term, form))
        };
        let terms = terms.into_iter().map(form).collect::<Result<Vec<_>, Kept>>()?;
        let window = path.window.filter(|_| causal);
        let Path { inside, head_scale, dropout, .. } = path;
        let op =
            Attention { causal, scale: Scalar(factor), window, soft_cap, dropout, zigzag: None };
        Ok(FoundAttention { product, inside, op, operands, terms, head_scale })
    }

    /// Chooses whether the op is to be causal, and the summands that remain. A causal mask remains a summand if other masks hide keys by low numbers
    /// as well: a query may then have only hidden keys, and softmax gives weights to those behind it, too.
    fn choose_causal(
        &self,
        past: Vec<ScoreTerm>,
        mut terms: Vec<ScoreTerm>,
        zeroed: bool,
    ) -> Result<(bool, Vec<ScoreTerm>), Kept> {
        let nature = |term: &ScoreTerm| term.nature(self.graph, &self.constants);
        let worst = terms.iter().map(nature).max().unwrap_or(Nature::Ordinary);
        let nothing_left = zeroed && past.iter().all(|term| nature(term) == Nature::Infinite);
        let causal = !past.is_empty() && (worst == Nature::Ordinary || nothing_left);
        if !causal {
            terms.extend(past);
        }
        match worst {
            Nature::Ordinary | Nature::Large => Ok((causal, terms)),
            Nature::Between => Err(Kept::Bias),
            Nature::Infinite if zeroed => Ok((causal, terms)),
            Nature::Infinite => match &terms[..] {
                [term] if term.leaves_keys(&self.constants) => Ok((causal, terms)),
                _ => Err(Kept::HiddenRows),
            },
        }
    }

    /// Traces an operand of a product back over ops that move elements and, if `scaled`, over products with numbers.
    fn trace_operand(&mut self, value: ValueId, like: &Node, scaled: bool) -> Vec<OperandStep<'a>> {
        let graph = self.graph;
        let (mut way, mut value) = (Vec::new(), value);
        while way.len() < MOST_STEPS {
            let node = graph.producer(value);
            let together = node.part == like.part && node.placement == like.placement;
            if !together || pin_of(graph, value, self.options).is_some() {
                break;
            }
            let step = match &node.op {
                Op::Transpose(_) | Op::Reshape(_) | Op::Expand(_) => {
                    OperandStep { moves: Some(node), from: node.operands[0], factor: 1.0 }
                }
                _ if scaled => match self.match_scaling(node) {
                    Some((from, factor)) => OperandStep { moves: None, from, factor },
                    None => break,
                },
                _ => break,
            };
            value = step.from;
            way.push(step);
        }
        way
    }
}

/// A step from a value back to the value from which it comes.
struct OperandStep<'a> {
    /// The op that moves elements, if one does.
    moves: Option<&'a Node>,
    from: ValueId,
    /// The number by which the step multiplies elements.
    factor: f64,
}

/// Describes an operand of a product as heads of the earliest value for which that is possible, and returns the number by which it is multiplied
/// since.
fn find_earliest_heads(
    graph: &Graph,
    value: ValueId,
    way: &[OperandStep<'_>],
    matrices: Matrices<'_>,
) -> Option<(Heads, f64)> {
    (0..=way.len()).rev().find_map(|steps| {
        let root = way[..steps].last().map_or(value, |step| step.from);
        let factor = way[..steps].iter().map(|step| step.factor).product();
        let moves: Vec<&Node> = way[..steps].iter().rev().filter_map(|step| step.moves).collect();
        Heads::from_moves(graph, root, &moves, matrices).map(|heads| (heads, factor))
    })
}

/// Makes a mask from a choice: 0 where the condition chooses scores, and the low number elsewhere.
fn mask_from_condition(condition: &Array, low: &Array, where_true: bool) -> Array {
    let rank = condition.shape.len().max(low.shape.len());
    let extent = |array: &Array, dim: usize| {
        let missing = rank - array.shape.len();
        dim.checked_sub(missing).map_or(1, |dim| array.shape[dim])
    };
    let shape: Vec<usize> =
        (0..rank).map(|dim| extent(condition, dim).max(extent(low, dim))).collect();
    let (condition, mut mask) = (repeat_array(condition, &shape), repeat_array(low, &shape));
    for (x, &holds) in mask.data.iter_mut().zip(&condition.data) {
        if (holds != 0.0) == where_true {
            *x = 0.0;
        }
    }
    mask
}

/// Returns the dims of a product before its matrices.
fn batch_of(graph: &Graph, product: &Node) -> Vec<usize> {
    let shape = &graph.value(product.results[0]).ty.shape;
    shape[..shape.len().saturating_sub(2)].to_vec()
}
