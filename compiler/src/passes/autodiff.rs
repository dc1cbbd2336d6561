//! Reverse-mode differentiation over [`write_gradients`].
//!
//! Nodes are visited from the loss backwards; each hands the gradients of its results on to those of its operands that
//! depend on a trained variable. What several readers contribute to one value is summed where the value is made, in
//! the order in which they are visited, so that a tied weight has its gradient in its own stage.

use std::collections::BTreeSet;

use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::gradients::{GradientNode, write_gradients};
use graphc_ir::graph::{Graph, Node, Output};
use graphc_ir::ids::ValueId;
use graphc_ir::op::Op;
use graphc_ir::ops::Init;
use graphc_plan::{CompileOptions, TensorKind};

use super::loss_scale::{LOSS_SCALE, SKIPPED, add_scale_variable};
use super::wanted::{WantedGradient, find_wanted, is_trained};
use super::{GRADIENT, LOSS, find_output, name_is_free};
use crate::decisions::{Phase, TrainingGraph};
use crate::passes::error::PassError;

const PASS: &str = "autodiff";

/// Appends the gradient of the loss by every trained variable on which it depends, named `grad.<variable>`. A variable on which the loss does not
/// depend has no gradient and is not updated. In inference the graph stays as it is. With `scales` the gradients are those of the loss times its
/// scale, which is a variable. If the graph is to have updates alone, its gradients are inputs. Gradients by other tensors that are asked for
/// ([`CompileOptions::gradients_of`]) take the places of outputs, and are never scaled.
///
/// # Errors
/// Returns an error if nothing can be trained, an op has no gradient, or an input that is to be a gradient is missing.
pub(crate) fn append_gradients(
    graph: Graph,
    options: &CompileOptions,
    scales: bool,
) -> Result<TrainingGraph, PassError> {
    let training = options.differentiates_loss();
    let has_loss = training || options.loss.is_some();
    let loss = find_output(&graph, LOSS).filter(|_| has_loss);
    let forward = graph.nodes.len();
    let (graph, gradients) = match loss.filter(|_| training) {
        Some(loss) if options.optimizer.is_some() => {
            differentiate_loss(graph, loss, options, scales)?
        }
        // Nothing updates the variables: who compiles wants the gradients themselves.
        Some(loss) => {
            (output_gradients(differentiate_loss(graph, loss, options, false)?), Vec::new())
        }
        None if options.updates_alone => take_given_gradients(graph)?,
        None => (graph, Vec::new()),
    };
    let phase = |(index, node): (usize, &Node)| match node.op.operation().updates() {
        [] if index < forward => Phase::Forward,
        [] => Phase::Backward,
        // The user's own states become what they become at the end of the step.
        _ => Phase::Update,
    };
    let phases: Vec<Phase> = graph.nodes.iter().enumerate().map(phase).collect();
    let kinds = tensor_kinds(&graph, &phases);
    Ok(TrainingGraph { graph, phases, kinds, loss, gradients })
}

/// Takes inputs of the graph as the gradients of its trained variables.
fn take_given_gradients(graph: Graph) -> Result<(Graph, Gradients), PassError> {
    let mut gradients = Vec::new();
    for node in &graph.nodes {
        let Op::Variable(variable) = &node.op else { continue };
        if !variable.trainable {
            continue;
        }
        let name = format!("{GRADIENT}{}", variable.name);
        let input = graph.nodes.iter().find(|node| match &node.op {
            Op::Input(input) => input.name == name && input.ty == variable.ty,
            _ => false,
        });
        let missing = || PassError::GradientMissing { name: name.clone(), ty: variable.ty.clone() };
        gradients.push((node.results[0], input.ok_or_else(missing)?.results[0]));
    }
    Ok((graph, gradients))
}

/// Makes the gradients outputs of the graph.
fn output_gradients((mut graph, gradients): (Graph, Gradients)) -> Graph {
    for (variable, value) in gradients {
        let name = format!("{GRADIENT}{}", graph.display_name(variable));
        graph.outputs.push(Output { name, value });
    }
    graph
}

fn tensor_kinds(graph: &Graph, phases: &[Phase]) -> Vec<TensorKind> {
    let kind = |index: usize| {
        let value = ValueId::new(index);
        let phase = phases[graph.value(value).producer.index()];
        match &graph.producer(value).op {
            Op::Variable(variable) if matches!(variable.init, Init::Table(_)) => TensorKind::Table,
            Op::Variable(_) if phase == Phase::Forward => TensorKind::Parameter,
            // The scale of the loss.
            Op::Variable(_) => TensorKind::State,
            Op::Input(_) => TensorKind::Input,
            _ if phase == Phase::Update => TensorKind::Parameter,
            _ if graph.outputs.iter().any(|output| output.value == value) => TensorKind::Output,
            _ if phase == Phase::Forward => TensorKind::Activation,
            _ => TensorKind::Gradient,
        }
    };
    (0..graph.values.len()).map(kind).collect()
}

/// Returns, for each value, whether it depends on a wanted value, or on a variable if these are trained, through floating-point numbers and
/// functions that have a gradient.
fn find_dependents(graph: &Graph, wanted: &[WantedGradient], trains: bool) -> Vec<bool> {
    let mut depends = vec![false; graph.values.len()];
    wanted.iter().for_each(|gradient| depends[gradient.tensor.index()] = true);
    for node in &graph.nodes {
        let trained = trains && is_trained(node);
        let learns = !matches!(&node.op, Op::Unary(unary) if !unary.function.has_gradient());
        if trained || learns && node.operands.iter().any(|operand| depends[operand.index()]) {
            for result in &node.results {
                depends[result.index()] = graph.value(*result).ty.dtype.is_float();
            }
        }
    }
    depends
}

type Gradients = Vec<(ValueId, ValueId)>;

fn differentiate_loss(
    graph: Graph,
    loss: ValueId,
    options: &CompileOptions,
    scales: bool,
) -> Result<(Graph, Gradients), PassError> {
    let (wanted, trains) = (find_wanted(&graph, options), options.trains_variables());
    let depends = find_dependents(&graph, &wanted, trains);
    for name in [LOSS_SCALE, SKIPPED].iter().filter(|_| scales) {
        name_is_free(PASS, &graph, name)?;
    }
    if trains && !find_dependents(&graph, &[], true)[loss.index()] {
        return Err(PassError::NothingToTrain { loss: graph.display_name(loss) });
    }
    check_custom_ops(&graph, &depends, loss)?;
    let (nodes, name) = (graph.nodes.clone(), graph.display_name(loss));
    let mut reverse = Reverse {
        contributions: vec![Vec::new(); graph.values.len()],
        builder: GraphBuilder::from_graph(graph),
        depends,
        named: BTreeSet::new(),
        scale: None,
    };
    let (mut gradients, mut found) = (Vec::new(), Vec::new());
    for node in nodes.iter().rev() {
        if node.results.contains(&loss) {
            let first = reverse.builder.beside_node(node, || {
                let of = reverse.builder.tensor(loss);
                if scales {
                    let scale = add_scale_variable(&reverse.builder);
                    reverse.scale = Some(scale.clone());
                    scale.cast(of.ty().dtype)
                } else {
                    of.full_like(1.0)
                }
            });
            reverse.contributions[loss.index()].push(first);
        }
        for wanted in wanted.iter().filter(|wanted| node.results.contains(&wanted.tensor)) {
            let gradient = reverse.of_wanted(node, wanted);
            found.push((wanted, gradient));
        }
        match &node.op {
            Op::Variable(variable) if variable.trainable && trains => {
                gradients.extend(reverse.of_variable(node, &variable.name));
            }
            _ => reverse.visit_node(node),
        }
    }
    gradients.reverse();
    let mut graph =
        reverse.builder.finish().map_err(|errors| PassError::Build { pass: PASS, errors })?;
    for (wanted, gradient) in found {
        wanted.set_output(&mut graph, gradient, (options, &name))?;
    }
    Ok((graph, gradients))
}

/// Checks that the loss depends on no trained variable through an op of the user's without a gradient, which would leave it as it is.
fn check_custom_ops(graph: &Graph, depends: &[bool], loss: ValueId) -> Result<(), PassError> {
    let mut read = vec![false; graph.values.len()];
    read[loss.index()] = true;
    for node in graph.nodes.iter().rev() {
        if !node.results.iter().any(|result| read[result.index()]) {
            continue;
        }
        let learning = |value: &&ValueId| depends[value.index()];
        if let (Op::Custom(custom), Some(&value)) = (&node.op, node.operands.iter().find(learning))
            && !custom.differentiable
        {
            let (op, value) = (custom.name.clone(), graph.display_name(value));
            return Err(PassError::CustomGradient { op, value, place: node.source.clone() });
        }
        node.operands.iter().filter(learning).for_each(|operand| read[operand.index()] = true);
    }
    Ok(())
}

struct Reverse {
    builder: GraphBuilder,
    /// The gradients that its readers give each value of the forward graph.
    contributions: Vec<Vec<Tensor>>,
    depends: Vec<bool>,
    /// The gradients that have names.
    named: BTreeSet<ValueId>,
    /// The factor of the loss that is differentiated, where it has one.
    scale: Option<Tensor>,
}

impl Reverse {
    fn visit_node(&mut self, node: &Node) {
        let reached = |value: &ValueId| !self.contributions[value.index()].is_empty();
        if !node.results.iter().any(reached)
            || !node.operands.iter().any(|v| self.depends[v.index()])
        {
            return;
        }
        let of_operands = self.builder.beside_node(node, || {
            let gradients: Vec<Option<Tensor>> =
                node.results.iter().map(|&result| self.sum_contributions(result)).collect();
            let handles = |ids: &[ValueId]| -> Vec<Tensor> {
                ids.iter().map(|&id| self.builder.tensor(id)).collect()
            };
            let (operands, results) = (handles(&node.operands), handles(&node.results));
            let wanted: Vec<bool> =
                node.operands.iter().map(|operand| self.depends[operand.index()]).collect();
            let (operands, results, gradients) = (&operands, &results, &gradients);
            let wanted = &wanted;
            write_gradients(&node.op, &GradientNode { operands, results, gradients, wanted })
        });
        for (operand, gradient) in node.operands.iter().zip(of_operands) {
            if self.depends[operand.index()] {
                self.contributions[operand.index()].extend(gradient);
            }
        }
    }

    /// Returns the sum of the gradients that the readers of a value give it.
    fn sum_contributions(&self, value: ValueId) -> Option<Tensor> {
        let contributions = self.contributions[value.index()].iter().cloned();
        contributions.reduce(|sum, gradient| sum.add(&gradient))
    }

    /// Returns the gradient by a tensor that is asked for, if the loss depends on it.
    fn of_wanted(&self, node: &Node, wanted: &WantedGradient) -> Option<ValueId> {
        let gradient = self.builder.beside_node(node, || {
            let gradient = self.sum_contributions(wanted.tensor)?;
            let gradient = match &self.scale {
                Some(scale) => gradient.cast(scale.ty().dtype).div(scale),
                None => gradient,
            };
            Some(wanted.copy_gradient(&self.builder, &gradient))
        })?;
        gradient.id()
    }

    /// Returns a variable with its gradient, which gets a name.
    fn of_variable(&mut self, node: &Node, name: &str) -> Option<(ValueId, ValueId)> {
        let variable = self.builder.tensor(node.results[0]);
        let gradient = self.builder.beside_node(node, || {
            let gradient = self.sum_contributions(node.results[0])?.cast(variable.ty().dtype);
            // Two variables may have one gradient: those of a + b. Each names its own.
            let taken = gradient.id().is_some_and(|id| self.named.contains(&id));
            let gradient = if taken { gradient.reshape(&variable.shape()) } else { gradient };
            Some(gradient.named(&format!("{GRADIENT}{name}")))
        })?;
        self.named.extend(gradient.id());
        Some((variable.id()?, gradient.id()?))
    }
}

#[cfg(test)]
mod tests {
    use graphc_ir::ops::{Custom, UnaryFunction};
    use graphc_ir::types::DType;
    use graphc_plan::Loss;

    use super::*;

    /// Differentiates a function of `w x` that is the loss.
    fn differentiate(of: impl Fn(&GraphBuilder, &Tensor) -> Tensor) -> Result<(), PassError> {
        let g = GraphBuilder::new("model");
        let x = g.input("x", DType::F32, [4]);
        let w = g.variable("w", DType::F32, [4], Init::Fill(1.0.into()));
        g.output(LOSS, &of(&g, &x.mul(&w)).sum(&[0], false));
        let options =
            CompileOptions { loss: Some(Loss::Sum), gradients: true, ..CompileOptions::default() };
        append_gradients(g.finish().expect("a graph"), &options, false).map(drop)
    }

    #[test]
    fn an_op_without_a_gradient_before_the_loss_is_refused() {
        let op = Custom::new("own", "d -> d");
        let own = |g: &GraphBuilder, y: &Tensor| g.custom(&op, &[y]).swap_remove(0);
        let error = differentiate(own).expect_err("it has none").to_string();
        assert!(error.contains("`own`") && error.contains("differentiable()"), "{error}");
        let beside = |g: &GraphBuilder, y: &Tensor| y.add(&own(g, &y.detach()));
        differentiate(beside).expect("nothing is to be learned through it");
        let op = Custom::new("own", "d -> d").differentiable();
        let own = |g: &GraphBuilder, y: &Tensor| g.custom(&op, &[y]).swap_remove(0);
        differentiate(own).expect("it has one");
    }

    #[test]
    fn a_loss_of_which_nothing_is_learned_is_refused() {
        for function in [UnaryFunction::Detach, UnaryFunction::Round, UnaryFunction::Sign] {
            let found = differentiate(|_, y| y.unary(function));
            assert!(matches!(found, Err(PassError::NothingToTrain { .. })), "{function:?}");
        }
    }
}
