//! Automatic mixed precision: the pass inserts casts, as `torch.autocast` does.
//!
//! Variables keep their type. Each op takes its operands in the element type that its [`CastClass`] says. One table gives
//! the class of every op, after PyTorch's lists ("Automatic Mixed Precision package", section "Autocast Op
//! Reference"). As in PyTorch's layers, a bias counts as part of its product.
//!
//! Regions of lower precision are marks on nodes (`autocast bf16` in the text of a graph), which this pass consumes.
//! The option `--precision` marks all other nodes.
//!
//! Casts are nodes, and each tensor is cast once per type. So autodiff casts the gradient of a cast variable back.
//! The planner sees casts as well: it can cast a weight in shards and gather it in half precision, or gather it whole
//! first. Gradients have the same choice before and after their sum. A view of a weight is a view of the cast weight,
//! so products still see how the weight lies.
//!
//! Sums over microbatches are f32 unless the options say otherwise (`rates`). How fixed strategies cast and reduce is
//! said in `planner/strategies`.

use std::collections::BTreeMap;

use graphc_ir::graph::{Graph, Node, Output};
use graphc_ir::ids::ValueId;
use graphc_ir::op::{Movement, Op, OpError};
use graphc_ir::ops::{BinaryFunction, Cast, Constant, Full, ReduceFunction, UnaryFunction};
use graphc_ir::types::{DType, TensorType};
use graphc_plan::CompileOptions;

use crate::passes::error::PassError;

const PASS: &str = "autocast";

/// The index of the bias among the operands of attention.
const BIAS: usize = 3;

/// The element type in which an op takes its floating-point operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CastClass {
    /// The type of the region.
    Region,
    /// f32.
    Single,
    /// The widest type of the operands, apart from numbers in the model's text.
    Widest,
    /// The type that each operand has.
    Own,
    /// The type that each operand has in the graph without casts.
    Written,
}

/// The class of each op. It holds for f16 and bf16 alike, as PyTorch's lists for CUDA do.
fn classify_op(op: &Op) -> CastClass {
    match op {
        Op::MatMul(_) | Op::GroupedMatMul(_) | Op::Convolution(_) | Op::Attention(_) => {
            CastClass::Region
        }
        Op::Unary(op) => of_unary(op.function),
        Op::Binary(op) if op.function == BinaryFunction::Pow => CastClass::Single,
        Op::Binary(_)
        | Op::Where(_)
        | Op::Concat(_)
        | Op::Scatter(_)
        | Op::Dispatch(_)
        | Op::Combine(_) => CastClass::Widest,
        Op::Reduce(op) => match op.function {
            ReduceFunction::Sum | ReduceFunction::Mean => CastClass::Single,
            ReduceFunction::Max | ReduceFunction::Min | ReduceFunction::MaxAbs => CastClass::Own,
        },
        Op::Softmax(_)
        | Op::LogSoftmax(_)
        | Op::Normalize(_)
        | Op::BatchNorm(_)
        | Op::BatchNormTraining(_)
        | Op::Recurrence(_) => CastClass::Single,
        // Gradients that somebody wrote: those of what is cast here are made later, by autodiff, of the types that it has.
        Op::SoftmaxGrad(_)
        | Op::LogSoftmaxGrad(_)
        | Op::NormalizeGrad(_)
        | Op::CrossEntropyGrad(_)
        | Op::PickGrad(_)
        | Op::EmbeddingGrad(_)
        | Op::ScatterSum(_)
        | Op::CumulativeSum(_)
        | Op::AttentionGrad(_)
        | Op::RecurrenceGrad(_)
        | Op::ConvolutionInputGrad(_)
        | Op::ConvolutionKernelGrad(_)
        | Op::MaxPoolGrad(_)
        | Op::AveragePoolGrad(_)
        | Op::ResizeGrad(_)
        | Op::CombineWeightsGrad(_)
        | Op::GroupedMatMulGrad(_)
        | Op::Custom(_) => CastClass::Single,
        Op::SgdUpdate(_)
        | Op::AdamUpdate(_)
        | Op::RmspropUpdate(_)
        | Op::LambDirection(_)
        | Op::LambUpdate(_)
        | Op::SquareSum(_)
        | Op::ClipFactor(_)
        | Op::Blend(_)
        | Op::NonFinite(_)
        | Op::LossScale(_)
        | Op::SkipStep(_) => CastClass::Written,
        Op::Input(_)
        | Op::Variable(_)
        | Op::Constant(_)
        | Op::Full(_)
        | Op::Iota(_)
        | Op::Random(_)
        | Op::Cast(_)
        | Op::ArgMax(_)
        | Op::Reshape(_)
        | Op::Transpose(_)
        | Op::Slice(_)
        | Op::Split(_)
        | Op::Expand(_)
        | Op::Pad(_)
        | Op::Embedding(_)
        | Op::Gather(_)
        | Op::TopK(_)
        | Op::Rotary(_)
        | Op::MaxPool(_)
        | Op::AveragePool(_)
        | Op::Resize(_)
        | Op::Dropout(_)
        | Op::Triangle(_)
        | Op::Zigzag(_)
        | Op::ToGlobal(_)
        | Op::Regather(_)
        | Op::Accumulate(_) => CastClass::Own,
        // They compute in f32 whatever they read, so that scores need no copy in f32.
        Op::CrossEntropy(_) | Op::LabelRank(_) | Op::Pick(_) => CastClass::Own,
    }
}

fn of_unary(function: UnaryFunction) -> CastClass {
    use UnaryFunction::*;
    match function {
        Exp | Log | Sin | Cos | Rsqrt | Reciprocal | PowScalar(_) => CastClass::Single,
        Relu
        | Gelu
        | GeluTanh
        | Sigmoid
        | Tanh
        | Silu
        | Sqrt
        | Abs
        | Neg
        | Detach
        | Sign
        | Erf
        | Floor
        | Ceil
        | Round
        | Not
        | Scale(_)
        | Offset(_)
        | Clip { .. } => CastClass::Own,
    }
}

/// Whether losses are to be scaled: what is trained computes in f16, whose least numbers are larger than many gradients.
pub fn scales_loss(graph: &Graph, options: &CompileOptions) -> bool {
    let f16 = |node: &Node| node.autocast.or(options.precision) == Some(DType::F16);
    options.optimizer.is_some() && graph.nodes.iter().any(f16)
}

/// Inserts casts where the user's regions ask for them and, outside of these, as the option for precision says. Outputs keep their types.
///
/// # Errors
/// Returns an error if the precision is no floating-point type.
pub(crate) fn apply_autocast(graph: Graph, options: &CompileOptions) -> Result<Graph, PassError> {
    if let Some(dtype) = options.precision.filter(|dtype| !dtype.holds_floats()) {
        return Err(PassError::Precision { dtype });
    }
    // What is not of 8 bits is of bf16 there: see `float8`.
    let precision = options.precision.map(|dtype| match dtype {
        DType::F8E4M3 | DType::F8E5M2 => DType::BF16,
        other => other,
    });
    if precision.is_none() && graph.nodes.iter().all(|node| node.autocast.is_none()) {
        return Ok(graph);
    }
    cast_graph(&graph, precision).map_err(|error| PassError::Op { pass: PASS, error })
}

fn cast_graph(old: &Graph, precision: Option<DType>) -> Result<Graph, OpError> {
    let new = Graph { stages: old.stages.clone(), ..Graph::new(old.name.clone()) };
    let mut caster = Caster { old, new, values: Vec::new(), casts: BTreeMap::new() };
    for node in &old.nodes {
        caster.visit_node(node, node.autocast.or(precision))?;
    }
    for output in &old.outputs {
        let value = caster.cast_value(output.value, old.value(output.value).ty.dtype)?;
        caster.new.outputs.push(Output { name: output.name.clone(), value });
    }
    Ok(caster.new)
}

/// Whether a node only copies tokens to the places of their experts, whose products read them in half precision: so the tokens are cast, which are fewer
/// than their copies.
fn copies_tokens(node: &Node) -> bool {
    matches!(node.op, Op::Dispatch(_)) && node.operands.len() == 2
}

struct Caster<'a> {
    old: &'a Graph,
    new: Graph,
    /// The new value of each old one.
    values: Vec<ValueId>,
    casts: BTreeMap<(ValueId, DType), ValueId>,
}

impl Caster<'_> {
    /// Copies a node with its operands in the types that it takes in a region of this type. Without a region it is copied as it is written.
    fn visit_node(&mut self, node: &Node, region: Option<DType>) -> Result<(), OpError> {
        let class = match region {
            Some(_) if self.adds_bias(node) || copies_tokens(node) => CastClass::Region,
            Some(_) => classify_op(&node.op),
            None => CastClass::Written,
        };
        let dtypes: Vec<DType> = self.operand_dtypes(node, class, region.unwrap_or(DType::F32));
        let operands = node.operands.iter().zip(dtypes);
        let operands: Vec<ValueId> = operands
            .map(|(&operand, dtype)| self.cast_value(operand, dtype))
            .collect::<Result<_, _>>()?;
        let results = self.push(node.op.clone(), operands, node)?;
        for (&old, &new) in node.results.iter().zip(&results) {
            let value = &mut self.new.values[new.index()];
            value.name.clone_from(&self.old.value(old).name);
            value.pin.clone_from(&self.old.value(old).pin);
        }
        self.values.extend(results);
        Ok(())
    }

    /// Returns the element type in which each operand is taken. Operands that hold no floating-point numbers keep theirs.
    fn operand_dtypes(&self, node: &Node, class: CastClass, region: DType) -> Vec<DType> {
        let now = |operand: &ValueId| self.new.value(self.values[operand.index()]).ty.dtype;
        let widest = || self.widest_dtype(node);
        let floats = |dtype: DType| {
            let of = |(place, operand)| match now(operand) {
                // Biases of scores hide keys by numbers that halves have not.
                own if place == BIAS && matches!(node.op, Op::Attention(_)) => own,
                own if own.is_float() => dtype,
                own => own,
            };
            node.operands.iter().enumerate().map(of).collect()
        };
        match class {
            CastClass::Region => floats(region),
            CastClass::Single => floats(DType::F32),
            CastClass::Widest => floats(widest()),
            CastClass::Own => node.operands.iter().map(now).collect(),
            CastClass::Written => self.old.operand_types(node).iter().map(|ty| ty.dtype).collect(),
        }
    }

    /// Returns the common type of a node's operands, f32 if they differ. Numbers take the type of the others, as Python's numbers do in PyTorch, if
    /// they are not too large for it.
    fn widest_dtype(&self, node: &Node) -> DType {
        let now = |operand: &ValueId| self.new.value(self.values[operand.index()]).ty.dtype;
        let floats = node.operands.iter().filter(|operand| now(operand).is_float());
        let (numbers, tensors): (Vec<&ValueId>, Vec<&ValueId>) =
            floats.partition(|&&operand| self.literal_number(operand).is_some());
        let of = |operands: &[&ValueId]| {
            operands
                .iter()
                .map(|&operand| now(operand))
                .reduce(|a, b| if a == b { a } else { DType::F32 })
        };
        match of(&tensors) {
            None => of(&numbers).unwrap_or(DType::F32),
            Some(dtype) => {
                let fits = |&&operand: &&ValueId| {
                    self.literal_number(operand).is_some_and(|number| holds_number(dtype, number))
                };
                if numbers.iter().all(fits) { dtype } else { DType::F32 }
            }
        }
    }

    /// The number that a value is in the text of the model, in whatever shape.
    fn literal_number(&self, old: ValueId) -> Option<f64> {
        let mut node = self.old.producer(old);
        while let Op::Reshape(_) | Op::Expand(_) = node.op {
            node = self.old.producer(node.operands[0]);
        }
        if self.old.value(node.results[0]).ty.elements() != 1 {
            return None;
        }
        match &node.op {
            Op::Full(full) => Some(full.value.0),
            Op::Constant(constant) => constant.data.first().map(|number| number.0),
            _ => None,
        }
    }

    /// Whether a node adds a bias to a product or a convolution: PyTorch's linear and convolutional layers are one op, which
    /// takes the bias in half precision too.
    fn adds_bias(&self, node: &Node) -> bool {
        let Op::Binary(binary) = &node.op else { return false };
        let &[a, b] = node.operands.as_slice() else { return false };
        let pair = |a, b| self.is_product(a) && self.is_bias(b);
        binary.function == BinaryFunction::Add && (pair(a, b) || pair(b, a))
    }

    fn is_product(&self, old: ValueId) -> bool {
        matches!(self.source_node(old).op, Op::MatMul(_) | Op::Convolution(_))
    }

    fn is_bias(&self, old: ValueId) -> bool {
        let source = self.source_node(old);
        matches!(source.op, Op::Variable(_))
            && self.old.value(source.results[0]).ty.shape.len() == 1
    }

    /// Whether a value is a variable in another shape or order.
    fn is_weight(&self, old: ValueId) -> bool {
        let moved = |node: &Node| node.op.operation().movement() == Some(Movement::Rearranged);
        let mut node = self.old.producer(old);
        let is_view = moved(node);
        while moved(node) {
            node = self.old.producer(node.operands[0]);
        }
        is_view && matches!(node.op, Op::Variable(_))
    }

    /// The node whose elements a value has, under whatever shape.
    fn source_node(&self, old: ValueId) -> &Node {
        let mut node = self.old.producer(old);
        while let Op::Reshape(_) = node.op {
            node = self.old.producer(node.operands[0]);
        }
        node
    }

    /// The value that stands for a value, in this element type, in the stage and on the placement where it is made.
    fn cast_value(&mut self, old: ValueId, dtype: DType) -> Result<ValueId, OpError> {
        let value = self.values[old.index()];
        if self.new.value(value).ty.dtype == dtype {
            return Ok(value);
        }
        if let Some(&known) = self.casts.get(&(value, dtype)) {
            return Ok(known);
        }
        if self.is_weight(old) {
            // The weight is cast, not each view of it, so that products still see how it lies.
            let view = self.old.producer(old);
            let weight = self.cast_value(view.operands[0], dtype)?;
            let cast = self.push(view.op.clone(), vec![weight], view)?[0];
            self.casts.insert((value, dtype), cast);
            return Ok(cast);
        }
        let producer = self.new.producer(value).clone();
        let cast = match retype_literal(&producer.op, dtype)
            .filter(|_| self.literal_number(old).is_some())
        {
            Some(number) => self.push(number, Vec::new(), &producer)?[0],
            None => self.push(Op::Cast(Cast { dtype }), vec![value], &producer)?[0],
        };
        self.casts.insert((value, dtype), cast);
        Ok(cast)
    }

    /// Appends a node where another one stands.
    fn push(
        &mut self,
        op: Op,
        operands: Vec<ValueId>,
        like: &Node,
    ) -> Result<Vec<ValueId>, OpError> {
        let results = self.new.push_like(op, operands, like)?;
        // What it asked for is done.
        if let Some(node) = self.new.nodes.last_mut() {
            node.autocast = None;
        }
        Ok(results)
    }
}

/// A number of another element type; `None` of other ops.
fn retype_literal(op: &Op, dtype: DType) -> Option<Op> {
    let of = |ty: &TensorType| TensorType { dtype, shape: ty.shape.clone() };
    match op {
        Op::Full(full) => Some(Op::Full(Full { ty: of(&full.ty), ..full.clone() })),
        Op::Constant(number) => {
            Some(Op::Constant(Constant { ty: of(&number.ty), ..number.clone() }))
        }
        _ => None,
    }
}

/// Whether a number is not too large for an element type.
fn holds_number(dtype: DType, number: f64) -> bool {
    let greatest = match dtype {
        DType::F16 => 65504.0,
        // 2^127 (2 - 2^-7)
        DType::BF16 => 3.389_531_389_251_535_5e38,
        _ => f64::INFINITY,
    };
    !number.is_finite() || number.abs() <= greatest
}
