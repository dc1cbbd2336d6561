//! The summands of scores that are no masks the op knows by itself. They become the bias that it takes.

use std::collections::BTreeMap;

use graphc_ir::array::Array;
use graphc_ir::graph::{Graph, Node};
use graphc_ir::ids::ValueId;
use graphc_ir::op::{Op, OpError};
use graphc_ir::ops::{Binary, BinaryFunction, Cast, Expand, Full, Unary, UnaryFunction, Where};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};

use crate::passes::constants::Constants;
use crate::passes::joined::push_reshape;

/// The least distance from 0 of a number that leaves nothing of a score to which it is added.
const LARGE: f64 = 1e9;

/// The greatest distance from 0 of a number that is no mask, whatever it is meant to be. The op takes such biases as they are.
const ORDINARY: f64 = 2e4;

/// A summand of scores.
#[derive(Clone, Debug)]
pub(super) struct ScoreTerm {
    pub source: TermSource,
    /// The number by which it is multiplied.
    pub factor: f64,
    /// The shape of the scores to which it is added.
    pub scores: Vec<usize>,
}

/// The source of a summand.
#[derive(Clone, Debug)]
pub(super) enum TermSource {
    /// A value.
    Added(ValueId),
    /// A low number where a condition holds, or where it does not.
    Chosen { condition: ValueId, low: f64, where_true: bool },
}

/// The size of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Nature {
    /// No larger than [`ORDINARY`].
    Ordinary,
    /// Ordinary, or so large that nothing of a score is left.
    Large,
    /// Some in between.
    Between,
    /// Infinite, or unknown.
    Infinite,
}

impl ScoreTerm {
    /// Returns the value from which it is computed, or the condition that chooses it.
    pub(super) fn root(&self) -> ValueId {
        match self.source {
            TermSource::Added(value) => value,
            TermSource::Chosen { condition, .. } => condition,
        }
    }

    /// Returns how large it may be.
    pub(super) fn nature(&self, graph: &Graph, constants: &Constants<'_>) -> Nature {
        match self.source {
            TermSource::Chosen { low, .. } => of_numbers(&[0.0, low * self.factor]),
            TermSource::Added(value) => match constants.contains(value) {
                true => constants.elements(value).map_or(Nature::Infinite, |array| {
                    let scaled: Vec<f64> = array.data.iter().map(|x| x * self.factor).collect();
                    of_numbers(&scaled)
                }),
                false => match Magnitudes::new(graph, constants).of_value(value, false) {
                    Nature::Large if self.factor.abs() < 1.0 => Nature::Between,
                    nature => nature,
                },
            },
        }
    }

    /// Whether it is a constant that leaves each row a key.
    pub(super) fn leaves_keys(&self, constants: &Constants<'_>) -> bool {
        let all = match self.source {
            TermSource::Added(value) if constants.contains(value) => constants.elements(value),
            TermSource::Chosen { condition, low, where_true } if constants.contains(condition) => {
                constants.elements(condition).map(|mut array| {
                    let hides = |x: f64| (x != 0.0) == where_true;
                    array.data.iter_mut().for_each(|x| *x = if hides(*x) { low } else { 0.0 });
                    array
                })
            }
            _ => None,
        };
        let hidden = f64::NEG_INFINITY;
        all.is_some_and(|Array { shape, data }| {
            let keys = shape.last().copied().unwrap_or(1).max(1);
            data.chunks(keys).all(|row| row.iter().any(|&x| x * self.factor > hidden))
        })
    }

    /// Returns the shapes through which it gets four dims, `[batch, heads, queries, keys]`, each whole or 1, for a product with these dims of a
    /// batch. `None` if it does not fit.
    pub(super) fn find_form(&self, graph: &Graph, batch: &[usize]) -> Option<TermForm> {
        let shape = &graph.value(self.root()).ty.shape;
        let rank = self.scores.len();
        let missing = rank.checked_sub(shape.len())?;
        let own = [&vec![1; missing][..], shape].concat();
        let (leading, matrix) = self.scores.split_at(rank.checked_sub(2)?);
        let (outer, heads) = (*batch.first()?, batch[1..].iter().product::<usize>());
        let cut = (0..=leading.len()).find(|&cut| {
            let extent = |dims: &[usize]| dims.iter().product::<usize>();
            extent(&leading[..cut]) == outer && extent(&leading[cut..]) == heads
        });
        let bounds = [0].into_iter().chain(cut).chain([leading.len()]).collect::<Vec<usize>>();
        let groups = bounds.windows(2).map(|pair| pair[0]..pair[1]);
        let (mut expanded, mut four) = (own.clone(), Vec::new());
        for group in groups {
            let (own, all) = (&own[group.clone()], &leading[group.clone()]);
            let one = own.iter().all(|&extent| extent == 1);
            if !one {
                expanded[group].copy_from_slice(all);
            }
            four.push(if one { 1 } else { all.iter().product() });
        }
        // Samples and heads that are merged otherwise than the product's are cut anew.
        if four.len() == 1 {
            four = if four[0] == 1 { vec![1, 1] } else { vec![outer, heads] };
        }
        let mut last = own[rank - 2..].iter().zip(matrix);
        let fits = last.all(|(own, all)| own == all || *own == 1);
        four.extend(&own[rank - 2..]);
        fits.then_some(TermForm { own, expanded, four })
    }

    /// Appends the summand in the form that the op takes, in `f32` or the queries' element type.
    pub(super) fn push_term(
        &self,
        graph: &mut Graph,
        root: ValueId,
        form: &TermForm,
        like: &Node,
        dtype: DType,
    ) -> Result<ValueId, OpError> {
        let mut value = match self.source {
            TermSource::Added(_) => self.push_scaled(graph, root, like, dtype)?,
            TermSource::Chosen { low, where_true, .. } => {
                let number = |graph: &mut Graph, value: f64| {
                    let ty = TensorType::new(DType::F32, Vec::new());
                    let full = Full { ty, value: Scalar(value) };
                    Ok::<_, OpError>(graph.push_like(Op::Full(full), Vec::new(), like)?[0])
                };
                let zero = number(graph, 0.0)?;
                let low = number(graph, low * self.factor)?;
                let [a, b] = if where_true { [low, zero] } else { [zero, low] };
                graph.push_like(Op::Where(Where {}), vec![root, a, b], like)?[0]
            }
        };
        value = push_reshape(graph, value, &form.own, like)?;
        if form.expanded != form.own {
            let expand = Op::Expand(Expand { shape: form.expanded.clone() });
            value = graph.push_like(expand, vec![value], like)?[0];
        }
        push_reshape(graph, value, &form.four, like)
    }

    fn push_scaled(
        &self,
        graph: &mut Graph,
        root: ValueId,
        like: &Node,
        dtype: DType,
    ) -> Result<ValueId, OpError> {
        let mut value = root;
        if ![DType::F32, dtype].contains(&graph.value(value).ty.dtype) {
            value = graph.push_like(Op::Cast(Cast { dtype: DType::F32 }), vec![value], like)?[0];
        }
        if self.factor == 1.0 {
            return Ok(value);
        }
        let function = UnaryFunction::Scale(Scalar(self.factor));
        Ok(graph.push_like(Op::Unary(Unary { function }), vec![value], like)?[0])
    }
}

/// The shapes that a summand gets one after the other.
#[derive(Clone, Debug)]
pub(super) struct TermForm {
    /// The shape with as many dims as the scores.
    own: Vec<usize>,
    /// The shape with whole dims of samples, and of heads, where it has more than one index of them.
    expanded: Vec<usize>,
    /// The shape with four dims.
    four: Vec<usize>,
}

/// Appends the sum of summands; `None` if there are none.
pub(super) fn push_sum(
    graph: &mut Graph,
    terms: Vec<ValueId>,
    like: &Node,
) -> Result<Option<ValueId>, OpError> {
    let mut terms = terms.into_iter();
    let Some(mut sum) = terms.next() else { return Ok(None) };
    for term in terms {
        let mut pair = [sum, term];
        let dtypes = pair.map(|value| graph.value(value).ty.dtype);
        if dtypes[0] != dtypes[1] {
            for value in &mut pair {
                if graph.value(*value).ty.dtype != DType::F32 {
                    let cast = Op::Cast(Cast { dtype: DType::F32 });
                    *value = graph.push_like(cast, vec![*value], like)?[0];
                }
            }
        }
        let add = Op::Binary(Binary { function: BinaryFunction::Add });
        sum = graph.push_like(add, pair.to_vec(), like)?[0];
    }
    Ok(Some(sum))
}

/// The most values that are visited on the way back from one.
const MOST_VALUES: usize = 256;

fn of_numbers(numbers: &[f64]) -> Nature {
    let of = |&x: &f64| match x.abs() {
        x if x.is_nan() || x.is_infinite() => Nature::Infinite,
        x if x >= LARGE => Nature::Large,
        x if x <= ORDINARY => Nature::Ordinary,
        _ => Nature::Between,
    };
    numbers.iter().map(of).max().unwrap_or(Nature::Ordinary)
}

/// Determines how large the elements of values that depend on inputs and weights may be. Trained weights are ordinary, other variables are no larger
/// than a mask, and floating-point inputs may be anything. Products, sums and norms of ordinary numbers count as ordinary, as the product of queries
/// and keys does to which they are added.
struct Magnitudes<'a> {
    graph: &'a Graph,
    constants: &'a Constants<'a>,
    /// The results so far, by value and by whether only its products with trained weights matter.
    known: BTreeMap<(ValueId, bool), Nature>,
}

impl<'a> Magnitudes<'a> {
    fn new(graph: &'a Graph, constants: &'a Constants<'a>) -> Self {
        Self { graph, constants, known: BTreeMap::new() }
    }

    /// Returns how large the elements of a value may be. `multiplied` says that only its products with trained weights matter.
    fn of_value(&mut self, value: ValueId, multiplied: bool) -> Nature {
        if let Some(&nature) = self.known.get(&(value, multiplied)) {
            return nature;
        }
        let nature = self.look_at(value, multiplied);
        self.known.insert((value, multiplied), nature);
        nature
    }

    fn look_at(&mut self, value: ValueId, multiplied: bool) -> Nature {
        let graph = self.graph;
        if !graph.value(value).ty.dtype.is_float() {
            return Nature::Ordinary;
        }
        if self.constants.contains(value) {
            let all = self.constants.elements(value);
            return all.map_or(Nature::Infinite, |array| of_numbers(&array.data));
        }
        if self.known.len() >= MOST_VALUES {
            return Nature::Infinite;
        }
        let node = graph.producer(value);
        let mut of = |place: usize| self.of_value(node.operands[place], multiplied);
        match &node.op {
            Op::Variable(variable) if variable.trainable => Nature::Ordinary,
            // A table: what is multiplied with weights is no mask.
            Op::Variable(_) if multiplied => Nature::Ordinary,
            // A mask that an exporter has computed, and that leaves each query a key, or the model would give no numbers at all.
            Op::Variable(_) => Nature::Large,
            Op::Normalize(_) | Op::Softmax(_) => Nature::Ordinary,
            Op::Reshape(_)
            | Op::Transpose(_)
            | Op::Slice(_)
            | Op::Expand(_)
            | Op::Split(_)
            | Op::Cast(_)
            | Op::Embedding(_)
            | Op::Gather(_)
            | Op::Triangle(_)
            | Op::Zigzag(_)
            | Op::Dropout(_)
            | Op::Rotary(_) => of(0),
            Op::Pad(pad) => of(0).max(of_numbers(&[pad.value.0])),
            Op::Concat(_) => (0..node.operands.len()).map(of).max().unwrap_or(Nature::Infinite),
            Op::Where(_) => of(1).max(of(2)),
            // A mean of values, by weights that sum up to 1.
            Op::Attention(_) => of(2),
            Op::MatMul(_) | Op::Convolution(_) => {
                let [a, b] = [node.operands[0], node.operands[1]];
                let factors = [(a, b), (b, a)].map(|(one, other)| {
                    let trained =
                        matches!(&graph.producer(other).op, Op::Variable(v) if v.trainable);
                    self.of_value(one, trained)
                });
                only_ordinary(factors[0].max(factors[1]))
            }
            Op::Reduce(_) => only_ordinary(of(0)),
            Op::Binary(Binary {
                function:
                    BinaryFunction::Add
                    | BinaryFunction::Sub
                    | BinaryFunction::Mul
                    | BinaryFunction::Max
                    | BinaryFunction::Min,
            }) => of(0).max(of(1)),
            Op::Unary(Unary { function }) => match function {
                UnaryFunction::Scale(by) | UnaryFunction::Offset(by) => {
                    of(0).max(of_numbers(&[by.0]))
                }
                UnaryFunction::Relu
                | UnaryFunction::Neg
                | UnaryFunction::Abs
                | UnaryFunction::Gelu
                | UnaryFunction::GeluTanh
                | UnaryFunction::Silu
                | UnaryFunction::Floor
                | UnaryFunction::Ceil
                | UnaryFunction::Round
                | UnaryFunction::Detach => of(0),
                UnaryFunction::Sigmoid
                | UnaryFunction::Tanh
                | UnaryFunction::Erf
                | UnaryFunction::Sin
                | UnaryFunction::Cos
                | UnaryFunction::Sign => Nature::Ordinary,
                _ => Nature::Infinite,
            },
            _ => Nature::Infinite,
        }
    }
}

/// Returns the nature of sums over many numbers. Of large numbers they may be anything.
fn only_ordinary(summed: Nature) -> Nature {
    match summed {
        Nature::Ordinary => Nature::Ordinary,
        _ => Nature::Infinite,
    }
}
