//! Rewrites ops that need a whole dim (softmax, normalization, cross entropy and their gradients) into reductions and elementwise
//! ops, whose dims may be split. The reductions become partial, and the planner prices their boxing.
//!
//! Parts of an op of half precision are computed in f32: its operands are cast to f32 before, and its result back.

use crate::graph::{Graph, Node, Output};
use crate::ids::ValueId;
use crate::op::{Op, OpError};
use crate::ops::{
    Binary, BinaryFunction, Cast, CrossEntropy, Full, IGNORED_LABEL, Iota, Pick, Reduce,
    ReduceFunction, Reshape, Unary, UnaryFunction, Where,
};
use crate::scalar::Scalar;
use crate::types::{DType, TensorType};

mod batch_norm;

use batch_norm::{BatchStatistics, RunningStatistics};

/// The graph with each node that `which` chooses, and that can be decomposed, in parts. The parts inherit stage,
/// placement and source; the values that stand for the node's results inherit name and layout.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_ir::decompose::decompose_graph;
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("example");
/// g.output("y", &g.input("x", DType::F32, [4, 8]).softmax(1));
/// let parts = decompose_graph(&g.finish()?, |_| true)?;
/// let names: Vec<_> = parts.nodes.iter().map(|node| node.op.name()).collect();
/// assert_eq!(names, ["input", "reduce", "binary", "unary", "reduce", "binary"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns an error if the graph holds an op that does not take its operands.
pub fn decompose_graph(graph: &Graph, which: impl Fn(&Node) -> bool) -> Result<Graph, OpError> {
    decompose_values(graph, which).map(|(graph, _)| graph)
}

/// Decomposes nodes like [`decompose_graph`], and returns for each value of the old graph the value that stands for it.
///
/// # Errors
/// Returns an error if the graph holds an op that does not take its operands.
pub fn decompose_values(
    graph: &Graph,
    which: impl Fn(&Node) -> bool,
) -> Result<(Graph, Vec<ValueId>), OpError> {
    in_parts(graph, which, None)
}

/// The graph with batch normalization as a job does it: by given statistics, in parts, where `batches` is 0 and where a node is one of
/// those that are `kept` so, else by those of each of so many parts of the batch, see [`crate::ops::BatchNormTraining`]. Variables that it reads as its mean and variance then take in what
/// each part of the batch has, as torch's running statistics do: a [`crate::ops::Blend`] behind it.
///
/// # Errors
/// Returns an error if the graph holds an op that does not take its operands.
pub fn batch_norms_in_mode(
    graph: &Graph,
    batches: usize,
    kept: impl Fn(&Node) -> bool,
) -> Result<Graph, OpError> {
    let which = |node: &Node| matches!(node.op, Op::BatchNorm(_));
    in_parts(graph, which, Some(RunningStatistics::from_graph(graph, batches, kept)))
        .map(|(graph, _)| graph)
}

fn in_parts(
    graph: &Graph,
    which: impl Fn(&Node) -> bool,
    mut running: Option<RunningStatistics>,
) -> Result<(Graph, Vec<ValueId>), OpError> {
    let mut result = graph.clone_empty();
    let mut values: Vec<Option<ValueId>> = vec![None; graph.values.len()];
    let of = |values: &[Option<ValueId>], value: ValueId| {
        values[value.index()].expect("nodes stand in topological order")
    };
    for (id, node) in graph.iter() {
        let operands: Vec<ValueId> = node.operands.iter().map(|&v| of(&values, v)).collect();
        let mut parts = NodeDecomposer { graph: &mut result, node, statistics: None };
        let batches = running.as_ref().map_or(0, |running| running.batches_of_node(id));
        let decomposed = match &node.op {
            Op::BatchNorm(op) if batches > 0 => {
                Some(parts.batch_norm_in_training(op, batches, &operands)?)
            }
            _ if which(node) => parts.decompose_node(&operands)?,
            _ => None,
        };
        let results = match decomposed {
            Some(results) => results,
            None => parts.push(node.op.clone(), &operands)?,
        };
        if let Some(running) = &mut running {
            running.take_statistics(id, &mut parts, &operands)?;
        }
        for (&old, new) in node.results.iter().zip(results) {
            values[old.index()] = Some(new);
            let value = &mut result.values[new.index()];
            value.name.clone_from(&graph.value(old).name);
            value.pin.clone_from(&graph.value(old).pin);
        }
    }
    let output =
        |output: &Output| Output { name: output.name.clone(), value: of(&values, output.value) };
    result.outputs = graph.outputs.iter().map(output).collect();
    let values = (0..values.len()).map(|value| of(&values, ValueId::new(value))).collect();
    Ok((result, values))
}

/// Whether [`decompose_graph`] has parts for an op.
pub fn is_decomposable(op: &Op) -> bool {
    matches!(
        op,
        Op::Softmax(_)
            | Op::SoftmaxGrad(_)
            | Op::LogSoftmax(_)
            | Op::LogSoftmaxGrad(_)
            | Op::Normalize(_)
            | Op::NormalizeGrad(_)
            | Op::CrossEntropy(_)
            | Op::BatchNorm(_)
            | Op::BatchNormTraining(_)
    )
}

/// Appends the parts of one node.
struct NodeDecomposer<'a> {
    graph: &'a mut Graph,
    node: &'a Node,
    /// The statistics of a batch normalization in training.
    statistics: Option<BatchStatistics>,
}

impl NodeDecomposer<'_> {
    /// The values that stand for the node's results; `None` where it has no parts.
    fn decompose_node(&mut self, operands: &[ValueId]) -> Result<Option<Vec<ValueId>>, OpError> {
        let results = match (&self.node.op, operands) {
            (Op::Softmax(op), &[x]) => vec![self.softmax(x, op.axis)?],
            (Op::LogSoftmax(op), &[x]) => vec![self.log_softmax(x, op.axis)?],
            (Op::SoftmaxGrad(op), &[y, dy]) => vec![self.softmax_grad(y, dy, op.axis)?],
            (Op::LogSoftmaxGrad(op), &[y, dy]) => vec![self.log_softmax_grad(y, dy, op.axis)?],
            (Op::Normalize(op), &[x]) => self.normalize(x, op.center, op.epsilon)?,
            (Op::NormalizeGrad(op), &[y, r, dy]) => vec![self.normalize_grad(y, r, dy, op.center)?],
            (Op::CrossEntropy(op), &[x, labels]) => self.cross_entropy(op, x, labels)?,
            (Op::BatchNorm(op), operands) => vec![self.batch_norm(op, operands)?],
            (Op::BatchNormTraining(op), operands) => self.batch_norm_training(op, operands)?,
            _ => return Ok(None),
        };
        Ok(Some(results))
    }

    /// exp(x - max) / sum(exp(x - max)).
    fn softmax(&mut self, x: ValueId, axis: usize) -> Result<ValueId, OpError> {
        let greatest = self.push_reduce(ReduceFunction::Max, x, axis)?;
        let shifted = self.push_binary(BinaryFunction::Sub, x, greatest)?;
        let exp = self.push_unary(UnaryFunction::Exp, shifted)?;
        let sum = self.push_reduce(ReduceFunction::Sum, exp, axis)?;
        self.push_binary(BinaryFunction::Div, exp, sum)
    }

    /// (x - max) - log(sum(exp(x - max))).
    fn log_softmax(&mut self, x: ValueId, axis: usize) -> Result<ValueId, OpError> {
        let (_, shifted, log) = self.shifted_and_log_sum(x, axis)?;
        self.push_binary(BinaryFunction::Sub, shifted, log)
    }

    /// max(x), x - max(x) and log(sum(exp(x - max(x)))).
    fn shifted_and_log_sum(
        &mut self,
        x: ValueId,
        axis: usize,
    ) -> Result<(ValueId, ValueId, ValueId), OpError> {
        let greatest = self.push_reduce(ReduceFunction::Max, x, axis)?;
        let shifted = self.push_binary(BinaryFunction::Sub, x, greatest)?;
        let exp = self.push_unary(UnaryFunction::Exp, shifted)?;
        let sum = self.push_reduce(ReduceFunction::Sum, exp, axis)?;
        let log = self.push_unary(UnaryFunction::Log, sum)?;
        Ok((greatest, shifted, log))
    }

    /// y (dy - sum(y dy)).
    fn softmax_grad(&mut self, y: ValueId, dy: ValueId, axis: usize) -> Result<ValueId, OpError> {
        let products = self.push_binary(BinaryFunction::Mul, y, dy)?;
        let sum = self.push_reduce(ReduceFunction::Sum, products, axis)?;
        let rest = self.push_binary(BinaryFunction::Sub, dy, sum)?;
        self.push_binary(BinaryFunction::Mul, y, rest)
    }

    /// dy - exp(y) sum(dy).
    fn log_softmax_grad(
        &mut self,
        y: ValueId,
        dy: ValueId,
        axis: usize,
    ) -> Result<ValueId, OpError> {
        let sum = self.push_reduce(ReduceFunction::Sum, dy, axis)?;
        let exp = self.push_unary(UnaryFunction::Exp, y)?;
        let product = self.push_binary(BinaryFunction::Mul, exp, sum)?;
        self.push_binary(BinaryFunction::Sub, dy, product)
    }

    /// ((x - m) r, r), where r = 1 / sqrt(mean((x - m)^2) + epsilon), and m is the mean or 0.
    fn normalize(
        &mut self,
        x: ValueId,
        center: bool,
        epsilon: Scalar,
    ) -> Result<Vec<ValueId>, OpError> {
        let dtype = self.graph.value(x).ty.dtype;
        let (x, axis) = (self.cast(x, DType::F32)?, self.last_dim(x));
        let centered = match center {
            true => {
                let mean = self.push_reduce(ReduceFunction::Mean, x, axis)?;
                self.push_binary(BinaryFunction::Sub, x, mean)?
            }
            false => x,
        };
        let squares = self.push_binary(BinaryFunction::Mul, centered, centered)?;
        let variance = self.push_reduce(ReduceFunction::Mean, squares, axis)?;
        let offset = self.push_unary(UnaryFunction::Offset(epsilon), variance)?;
        let r = self.push_unary(UnaryFunction::Rsqrt, offset)?;
        let y = self.push_binary(BinaryFunction::Mul, centered, r)?;
        Ok(vec![self.cast(y, dtype)?, r])
    }

    /// `r (dy - [center] mean(dy) - y mean(y dy))`.
    fn normalize_grad(
        &mut self,
        y: ValueId,
        r: ValueId,
        dy: ValueId,
        center: bool,
    ) -> Result<ValueId, OpError> {
        let (dtype, axis) = (self.graph.value(y).ty.dtype, self.last_dim(y));
        let (y, dy) = (self.cast(y, DType::F32)?, self.cast(dy, DType::F32)?);
        let products = self.push_binary(BinaryFunction::Mul, y, dy)?;
        let slope = self.push_reduce(ReduceFunction::Mean, products, axis)?;
        let along = self.push_binary(BinaryFunction::Mul, y, slope)?;
        let mut rest = dy;
        if center {
            let mean = self.push_reduce(ReduceFunction::Mean, dy, axis)?;
            rest = self.push_binary(BinaryFunction::Sub, dy, mean)?;
        }
        rest = self.push_binary(BinaryFunction::Sub, rest, along)?;
        let gradient = self.push_binary(BinaryFunction::Mul, r, rest)?;
        self.cast(gradient, dtype)
    }

    /// (log(sum(exp(x - max))) - (x - max) at the label, smoothed with its mean, or 0 where it is ignored; log(sum(exp(x)))).
    fn cross_entropy(
        &mut self,
        op: &CrossEntropy,
        x: ValueId,
        labels: ValueId,
    ) -> Result<Vec<ValueId>, OpError> {
        let (x, axis) = (self.cast(x, DType::F32)?, self.last_dim(x));
        let extent = self.graph.value(x).ty.shape[axis];
        let classes = op.classes.unwrap_or(extent);
        let is_class = self.is_class(extent, classes)?;
        // Padding is less than any score.
        let x = self.fill_elsewhere(is_class, x, f64::NEG_INFINITY)?;
        let (greatest, shifted, log) = self.shifted_and_log_sum(x, axis)?;
        let log_sum_exp = self.push_binary(BinaryFunction::Add, greatest, log)?;
        let shape = self.graph.value(labels).ty.shape.clone();
        let [log, log_sum_exp] = [log, log_sum_exp]
            .map(|kept| self.push_one(Op::Reshape(Reshape { shape: shape.clone() }), &[kept]));
        let (log, log_sum_exp) = (log?, log_sum_exp?);
        let mut target =
            self.push_one(Op::Pick(Pick { classes: op.classes }), &[shifted, labels])?;
        let smoothing = op.smoothing;
        if !smoothing.is_zero() {
            let spread = self.fill_elsewhere(is_class, shifted, 0.0)?;
            let mean = self.push_reduce(ReduceFunction::Mean, spread, axis)?;
            let mean = self.push_one(Op::Reshape(Reshape { shape }), &[mean])?;
            // The mean of the classes.
            let share = Scalar(smoothing.0 * (extent as f64 / classes as f64));
            let spread = self.push_unary(UnaryFunction::Scale(share), mean)?;
            target = self.push_unary(UnaryFunction::Scale(Scalar(1.0 - smoothing.0)), target)?;
            target = self.push_binary(BinaryFunction::Add, target, spread)?;
        }
        let loss = self.push_binary(BinaryFunction::Sub, log, target)?;
        let ignored = self.scalar_like(labels, IGNORED_LABEL as f64)?;
        let counted = self.push_binary(BinaryFunction::NotEqual, labels, ignored)?;
        let zero = self.scalar_like(loss, 0.0)?;
        let loss = self.push_one(Op::Where(Where {}), &[counted, loss, zero])?;
        Ok(vec![loss, log_sum_exp])
    }

    /// Returns a mask of the scores that are those of classes, out of `extent`; `None` where all are.
    fn is_class(&mut self, extent: usize, classes: usize) -> Result<Option<ValueId>, OpError> {
        if classes == extent {
            return Ok(None);
        }
        let ty = TensorType::new(DType::I32, [extent]);
        let place = self.push_one(Op::Iota(Iota { ty, dim: 0 }), &[])?;
        let end = self.scalar_like(place, classes as f64)?;
        self.push_binary(BinaryFunction::Less, place, end).map(Some)
    }

    /// x where it `is` something, elsewhere a number; x where all is.
    fn fill_elsewhere(
        &mut self,
        is: Option<ValueId>,
        x: ValueId,
        number: f64,
    ) -> Result<ValueId, OpError> {
        let Some(is) = is else { return Ok(x) };
        let number = self.scalar_like(x, number)?;
        self.push_one(Op::Where(Where {}), &[is, x, number])
    }

    fn last_dim(&self, value: ValueId) -> usize {
        self.graph.value(value).ty.shape.len().saturating_sub(1)
    }

    /// Casts a value to another precision; the same value if it has that already.
    fn cast(&mut self, x: ValueId, dtype: DType) -> Result<ValueId, OpError> {
        if self.graph.value(x).ty.dtype == dtype {
            return Ok(x);
        }
        self.push_one(Op::Cast(Cast { dtype }), &[x])
    }

    fn push_unary(&mut self, function: UnaryFunction, x: ValueId) -> Result<ValueId, OpError> {
        self.push_one(Op::Unary(Unary { function }), &[x])
    }

    fn push_binary(
        &mut self,
        function: BinaryFunction,
        a: ValueId,
        b: ValueId,
    ) -> Result<ValueId, OpError> {
        self.push_one(Op::Binary(Binary { function }), &[a, b])
    }

    /// A reduction that keeps the dim.
    fn push_reduce(
        &mut self,
        function: ReduceFunction,
        x: ValueId,
        axis: usize,
    ) -> Result<ValueId, OpError> {
        self.push_one(Op::Reduce(Reduce { function, axes: vec![axis], keep_dims: true }), &[x])
    }

    /// Returns the same elements in another shape; the same value if it has that shape already.
    fn reshape(&mut self, x: ValueId, shape: Vec<usize>) -> Result<ValueId, OpError> {
        if self.graph.value(x).ty.shape == shape {
            return Ok(x);
        }
        self.push_one(Op::Reshape(Reshape { shape }), &[x])
    }

    fn scalar_like(&mut self, value: ValueId, number: f64) -> Result<ValueId, OpError> {
        let ty = TensorType::new(self.graph.value(value).ty.dtype, []);
        self.push_one(Op::Full(Full { ty, value: Scalar(number) }), &[])
    }

    fn push_one(&mut self, op: Op, operands: &[ValueId]) -> Result<ValueId, OpError> {
        Ok(self.push(op, operands)?.swap_remove(0))
    }

    fn push(&mut self, op: Op, operands: &[ValueId]) -> Result<Vec<ValueId>, OpError> {
        self.graph.push_like(op, operands.to_vec(), self.node)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::array::Array;
    use crate::builder::{GraphBuilder, Tensor};
    use crate::evaluate::evaluate_outputs;
    use crate::ops::{LogSoftmaxGrad, NormalizeGrad, SoftmaxGrad};
    use crate::sbp::Sbp;

    /// Builds a graph of every op that decomposes, over the last dim of [3, 8] and (softmax) over the first.
    fn everything() -> Graph {
        let g = GraphBuilder::new("everything");
        let x = g.input("x", DType::F32, [3, 8]);
        let dy = g.input("dy", DType::F32, [3, 8]);
        let labels = g.input("labels", DType::I64, [3]);
        let few = g.input("few", DType::I64, [3]);
        let out = |name: &str, tensor: &Tensor| g.output(name, tensor);
        for axis in [0, 1] {
            let (y, log) = (x.softmax(axis), x.log_softmax(axis));
            let op = Op::SoftmaxGrad(SoftmaxGrad { axis });
            out(&format!("softmax_grad{axis}"), &g.apply(op, &[&y, &dy]));
            let op = Op::LogSoftmaxGrad(LogSoftmaxGrad { axis });
            out(&format!("log_softmax_grad{axis}"), &g.apply(op, &[&log, &dy]));
            out(&format!("softmax{axis}"), &y);
            out(&format!("log_softmax{axis}"), &log);
        }
        for center in [false, true] {
            let epsilon = Scalar(1e-5);
            let op = Op::Normalize(crate::ops::Normalize { center, epsilon });
            let results = g.apply_all(op, &[&x]);
            let op = Op::NormalizeGrad(NormalizeGrad { center });
            out(&format!("dx{center}"), &g.apply(op, &[&results[0], &results[1], &dy]));
            out(&format!("y{center}"), &results[0]);
            out(&format!("r{center}"), &results[1]);
        }
        for (classes, smoothing) in [(None, 0.0), (Some(6), 0.0), (Some(6), 0.1)] {
            let op = Op::CrossEntropy(CrossEntropy { smoothing: Scalar(smoothing), classes });
            // No label leads to padding.
            let labels = if classes.is_some() { &few } else { &labels };
            let results = g.apply_all(op, &[&x, labels]);
            out(&format!("loss{classes:?}{smoothing}"), &results[0]);
            out(&format!("l{classes:?}{smoothing}"), &results[1]);
        }
        g.finish().expect("fits")
    }

    fn feeds() -> BTreeMap<String, Array> {
        let wave = |scale: f64| {
            Array::from_fn([3, 8], move |i| ((i[0] * 8 + i[1]) as f64 * scale).sin() * 3.0)
        };
        let labels = Array::new([3], vec![7., -100., 0.]);
        let few = Array::new([3], vec![5., -100., 0.]);
        [("x", wave(0.7)), ("dy", wave(1.9)), ("labels", labels), ("few", few)]
            .map(|(name, array)| (name.to_string(), array))
            .into()
    }

    #[test]
    fn parts_compute_the_same() {
        let graph = everything();
        let parts = decompose_graph(&graph, |_| true).expect("fits");
        assert!(!parts.nodes.iter().any(|node| is_decomposable(&node.op)));
        let [whole, parts] = [graph, parts].map(|graph| {
            evaluate_outputs(&graph, &feeds(), &Default::default()).expect("all is fed")
        });
        assert_eq!(whole.len(), 20);
        for (name, array) in &whole {
            let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-9;
            let found = &parts[name];
            assert_eq!(found.shape, array.shape, "{name}");
            assert!(array.data.iter().zip(&found.data).all(near), "{name}: {array:?} {found:?}");
        }
    }

    #[test]
    fn every_part_may_split_the_dim() {
        let parts = decompose_graph(&everything(), |_| true).expect("fits");
        for node in &parts.nodes {
            let types = parts.operand_types(node);
            let rule = node.op.operation().rule(&types).expect("fits");
            let signatures = rule.signatures(&[2]);
            for (index, ty) in types.iter().enumerate() {
                for dim in (0..ty.shape.len()).filter(|&dim| ty.shape[dim] == 8) {
                    let splits =
                        |s: &crate::rule::Signature| s.operands[index].0[0] == Sbp::Split(dim);
                    assert!(signatures.iter().any(splits), "{:?} of {ty}", node.op);
                }
            }
        }
    }

    #[test]
    fn names_layouts_stages_and_sources_stay() {
        let g = GraphBuilder::new("kept");
        let x = g.input("x", DType::F32, [4, 8]);
        let pin: crate::sbp::NdSbp = "S(1)".parse().expect("an SBP");
        let y = g.in_stage(1, || x.softmax(1).named("y").pin(pin.clone()));
        g.output("out", &y);
        let graph = g.finish().expect("fits");
        let parts = decompose_graph(&graph, |_| true).expect("fits");
        let value = parts.value(parts.outputs[0].value);
        assert_eq!((value.name.as_deref(), &value.pin), (Some("y"), &Some(pin)));
        let original = &graph.nodes[1];
        for part in &parts.nodes[1..] {
            assert_eq!((part.part, &part.source), (original.part, &original.source));
        }
        assert_eq!(parts.stages, graph.stages);
        assert_eq!(decompose_graph(&graph, |_| false).expect("fits"), graph);
    }
}
