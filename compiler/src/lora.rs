//! Low-rank adaptation (Hu et al., arXiv 2106.09685). A model's weights stay as they are. Beside each product with one of some chosen weights, a
//! product with two narrow matrices is learned.
//!
//! The shapes are those of Hugging Face's PEFT. For a weight that takes `inputs` to `outputs`, `NAME.lora_a` is `[rank, inputs]` and begins uniform
//! in +-1/sqrt(inputs), and `NAME.lora_b` is `[outputs, rank]` and begins with zeros. So at first the model computes what it did before. The added
//! term is `alpha / rank` times the product with both.

use std::collections::BTreeMap;

use graphc_ir::graph::{Graph, Node, Output};
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::{Op, OpError};
use graphc_ir::ops::{
    Binary, BinaryFunction, Init, MatMul, Transpose, Unary, UnaryFunction, Variable,
};
use graphc_ir::pattern::{matches_pattern, nearest_pattern};
use graphc_ir::scalar::Scalar;
use graphc_ir::text::suggest_name;
use graphc_ir::types::TensorType;

/// The reason why a graph cannot be adapted.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LoraError {
    /// A pattern that fits no variable.
    #[error(
        "no variable has a name like `{pattern}`{}",
        suggest_name(nearest.as_deref())
    )]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The name that comes nearest.
        nearest: Option<String>,
    },
    /// A weight that is not read by matrix products alone, as their second operand.
    #[error(
        "`{name}` ({ty}) cannot be adapted: {reason}; choose weights of matrix products alone, as those of linear layers are"
    )]
    Weight {
        /// The variable.
        name: String,
        /// Its type.
        ty: TensorType,
        /// The reason.
        reason: String,
    },
    /// A rank of 0.
    #[error("the rank of an adaptation is at least 1")]
    Rank,
    /// An op that does not fit, which is a fault of graphc.
    #[error(transparent)]
    Op(#[from] OpError),
}

graphc_ir::readable_debug!(LoraError);

/// Adds an adaptation of this rank beside every product with a weight whose name fits one of the patterns, in which `*` stands for any characters.
/// Only the new matrices are trained; `choose_trained` of the crate `graphc-import` adds other variables, such as a head.
///
/// ```
/// use graphc_compiler::lora;
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_nn::{Linear, Module};
/// use graphc_ir::types::DType;
///
/// let g = GraphBuilder::new("model");
/// let x = g.input("x", DType::F32, [4, 16]);
/// let hidden = Linear::new(&g, "attn.q", 16, 16).forward(&x);
/// g.output("y", &Linear::new(&g, "head", 16, 3).forward(&hidden));
/// let adapted = lora::adapt(&g.finish()?, &["*.q.weight"], 2, 4.0)?;
/// let a = adapted.find("attn.q.weight.lora_a").expect("it is there");
/// assert_eq!(adapted.value(a).ty.shape, [2, 16]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns an error if a pattern fits no variable, if one that fits is not read by matrix products alone, or if `rank` is 0.
pub fn adapt(
    graph: &Graph,
    patterns: &[&str],
    rank: usize,
    alpha: f64,
) -> Result<Graph, LoraError> {
    if rank == 0 {
        return Err(LoraError::Rank);
    }
    check_patterns(graph, patterns)?;
    let mut adapting = Adapting {
        old: graph,
        new: graph.clone_empty(),
        values: Vec::with_capacity(graph.values.len()),
        weights: BTreeMap::new(),
        rank,
        scale: alpha / rank as f64,
    };
    for (id, node) in graph.iter() {
        adapting.copy_node(id, node, patterns)?;
    }
    adapting.finish()
}

fn check_patterns(graph: &Graph, patterns: &[&str]) -> Result<(), LoraError> {
    let variable = |node: &Node| match &node.op {
        Op::Variable(variable) => Some(variable.name.clone()),
        _ => None,
    };
    let names: Vec<String> = graph.nodes.iter().filter_map(variable).collect();
    let unknown = |pattern: &&&str| !names.iter().any(|name| matches_pattern(pattern, name));
    let Some(pattern) = patterns.iter().find(unknown) else { return Ok(()) };
    let nearest = nearest_pattern(pattern, names.iter().map(String::as_str));
    Err(LoraError::Pattern { pattern: (*pattern).into(), nearest })
}

/// The graph under construction.
struct Adapting<'a> {
    old: &'a Graph,
    new: Graph,
    /// The values of the new graph that replace those of the old one, by the number of the latter.
    values: Vec<ValueId>,
    /// The weights that are adapted and their transposes, by their values in the old graph.
    weights: BTreeMap<ValueId, Weight>,
    rank: usize,
    scale: f64,
}

/// A weight that is adapted, or its transpose.
#[derive(Clone)]
struct Weight {
    /// The variable, as a value of the old graph.
    variable: ValueId,
    /// Whether it is the transpose.
    turned: bool,
    /// The two narrow matrices, and whether the second dim of the weight takes inputs. `None` until a product has determined this dim.
    pair: Option<([ValueId; 2], bool)>,
}

impl Adapting<'_> {
    fn copy_node(&mut self, id: NodeId, node: &Node, patterns: &[&str]) -> Result<(), LoraError> {
        let operands = node.operands.iter().map(|&old| self.values[old.index()]).collect();
        let op = match &node.op {
            Op::Variable(variable) => {
                Op::Variable(Variable { trainable: false, ..variable.clone() })
            }
            op => op.clone(),
        };
        let mut results = self.new.push_like(op, operands, node)?;
        if let Op::Variable(variable) = &node.op
            && patterns.iter().any(|pattern| matches_pattern(pattern, &variable.name))
        {
            let weight = Weight { variable: node.results[0], turned: false, pair: None };
            self.weights.insert(node.results[0], weight);
        }
        let adapted = |operand: &ValueId| self.weights.contains_key(operand);
        if let Some(at) = node.operands.iter().position(adapted) {
            self.adapt_reader(at, node, &mut results)?;
        }
        for (&old, &new) in self.old.node(id).results.iter().zip(&results) {
            let from = self.old.value(old);
            let to = &mut self.new.values[new.index()];
            (to.name, to.pin) = (from.name.clone(), from.pin.clone());
        }
        self.values.extend(results);
        Ok(())
    }

    /// Adapts a reader of an adapted weight. A product gets the product with the narrow matrices added; a transpose becomes an adapted weight.
    fn adapt_reader(
        &mut self,
        at: usize,
        node: &Node,
        results: &mut [ValueId],
    ) -> Result<(), LoraError> {
        let weight = self.weights[&node.operands[at]].clone();
        match (&node.op, at) {
            (Op::MatMul(product), 1) if !self.weights.contains_key(&node.operands[0]) => {
                let inputs_last = product.transpose_b != weight.turned;
                let [a, b] = self.find_narrow_pair(&weight, inputs_last)?;
                let x = self.values[node.operands[0].index()];
                let narrow = MatMul { transpose_a: product.transpose_a, transpose_b: true };
                let narrow = self.new.push_like(Op::MatMul(narrow), vec![x, a], node)?[0];
                let wide = MatMul { transpose_a: false, transpose_b: true };
                let wide = self.new.push_like(Op::MatMul(wide), vec![narrow, b], node)?[0];
                let scale = Unary { function: UnaryFunction::Scale(Scalar(self.scale)) };
                let scaled = self.new.push_like(Op::Unary(scale), vec![wide], node)?[0];
                let add = Binary { function: BinaryFunction::Add };
                results[0] =
                    self.new.push_like(Op::Binary(add), vec![results[0], scaled], node)?[0];
                Ok(())
            }
            (Op::Transpose(Transpose { permutation }), _) if *permutation == [1, 0] => {
                let turned = Weight { turned: !weight.turned, ..weight };
                self.weights.insert(node.results[0], turned);
                Ok(())
            }
            (op, _) => Err(self.refuse(weight.variable, format!("`{}` reads it", op.name()))),
        }
    }

    /// Finds or makes the narrow matrices of a weight. `inputs_last` tells whether its second dim takes inputs, or its first.
    fn find_narrow_pair(
        &mut self,
        weight: &Weight,
        inputs_last: bool,
    ) -> Result<[ValueId; 2], LoraError> {
        let known = self.weights[&weight.variable].pair;
        if let Some((pair, last)) = known {
            return match last == inputs_last {
                true => Ok(pair),
                false => {
                    let reason = "products read it in both directions".to_owned();
                    Err(self.refuse(weight.variable, reason))
                }
            };
        }
        let old = self.old.value(weight.variable);
        let (name, ty) = (self.old.display_name(weight.variable), old.ty.clone());
        let [first, second] = ty.shape[..] else {
            return Err(self.refuse(weight.variable, "it is no matrix".into()));
        };
        let (inputs, outputs) = if inputs_last { (second, first) } else { (first, second) };
        let bound = 1.0 / (inputs.max(1) as f64).sqrt();
        let uniform = Init::Uniform { low: Scalar(-bound), high: Scalar(bound) };
        let [a_type, b_type] = [[self.rank, inputs], [outputs, self.rank]]
            .map(|shape| TensorType::new(ty.dtype, shape));
        let a = self.add_matrix(format!("{name}.lora_a"), a_type, uniform, weight.variable)?;
        let zeros = Init::Fill(Scalar(0.0));
        let b = self.add_matrix(format!("{name}.lora_b"), b_type, zeros, weight.variable)?;
        if let Some(weight) = self.weights.get_mut(&weight.variable) {
            weight.pair = Some(([a, b], inputs_last));
        }
        Ok([a, b])
    }

    /// Appends a variable that is trained, at the stage and placement of a variable of the old graph.
    fn add_matrix(
        &mut self,
        name: String,
        ty: TensorType,
        init: Init,
        beside: ValueId,
    ) -> Result<ValueId, OpError> {
        let op = Variable { name: name.clone(), ty, init, trainable: true };
        let value = self.new.push_like(Op::Variable(op), Vec::new(), self.old.producer(beside))?[0];
        self.new.values[value.index()].name = Some(name);
        Ok(value)
    }

    fn refuse(&self, weight: ValueId, reason: String) -> LoraError {
        let (name, ty) = (self.old.display_name(weight), self.old.value(weight).ty.clone());
        LoraError::Weight { name, ty, reason }
    }

    fn finish(mut self) -> Result<Graph, LoraError> {
        let unread = |weight: &&Weight| !weight.turned && weight.pair.is_none();
        if let Some(weight) = self.weights.values().find(unread) {
            return Err(self.refuse(weight.variable, "no matrix product reads it".into()));
        }
        let output = |output: &Output| Output {
            name: output.name.clone(),
            value: self.values[output.value.index()],
        };
        let outputs: Vec<Output> = self.old.outputs.iter().map(output).collect();
        self.new.outputs = outputs;
        Ok(self.new)
    }
}
