//! Makes a plan that finds the first tensor of a training step that is not finite.
//!
//! The plan computes the training's forward pass and counts in each tensor. It is the graph of a plan with its loss,
//! in the mode of training. Each tensor of floating-point numbers has two counts as outputs: elements that are not
//! finite, and elements that are no number. Counts are taken where a tensor lies and added over ranks and
//! microbatches, so nothing is gathered. Nothing is updated.
//!
//! `src/cli/train/diagnosis.rs` uses it after a training has failed: it repeats the steps since the last checkpoint, bit for bit, and then executes the bad
//! step with this plan. Keeping the variables of the previous step would cost memory and time in every training that goes well.

use std::collections::{BTreeSet, VecDeque};

use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::graph::{Graph, Source};
use graphc_ir::ids::ValueId;
use graphc_ir::learning_rate::LrSchedule;
use graphc_ir::op::Op;
use graphc_ir::ops::NonFinite;
use graphc_ir::text;
use graphc_ir::types::TensorType;
use graphc_plan::check::VerifiedPlan;
use graphc_plan::{CompileOptions, Plan, Strategy};

use crate::compile::compile;
use crate::error::CompileError;
use crate::passes::LOSS;
use crate::passes::error::PassError;
use crate::passes::loss::attach_loss;

const PASS: &str = "counting what is not finite";

/// A plan that looks for tensors that are not finite.
#[derive(Clone, Debug)]
pub struct FiniteCheck {
    /// The plan. It takes the feeds of the training, and has its variables.
    pub plan: VerifiedPlan,
    tensors: Vec<Counted>,
}

/// A tensor, with the outputs that count in it.
#[derive(Clone, Debug)]
struct Counted {
    name: String,
    op: &'static str,
    operands: Vec<String>,
    written: Source,
    ty: TensorType,
    outputs: [String; 2],
}

/// A tensor that is not finite.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("`{name}` ({op}{}, {ty}{}), of whose {} elements {} not finite, {nan} of them no number (NaN)", format_operands(.operands), format_source(.written), .ty.elements(), format_count(*.count))]
pub struct NotFinite {
    /// Its name, or its number in the graph.
    pub name: String,
    /// The op that makes it.
    pub op: &'static str,
    /// The operands of the op by name, where the tensor has no name of its own, a few; of an operand without a name those that it is made of.
    pub operands: Vec<String>,
    /// The source location of that op.
    pub written: Source,
    /// Its type.
    pub ty: TensorType,
    /// The number of elements that are infinite or no number.
    pub count: u64,
    /// The number of these that are no number.
    pub nan: u64,
}

/// The most operands that a message names.
const NAMED: usize = 3;

fn format_operands(operands: &[String]) -> String {
    let named: Vec<String> = operands.iter().take(NAMED).map(|name| format!("`{name}`")).collect();
    match named.is_empty() {
        true => String::new(),
        false => {
            format!(" of {}{}", named.join(", "), if operands.len() > NAMED { ", .." } else { "" })
        }
    }
}

fn format_source(source: &Source) -> String {
    match source {
        Source::Derived | Source::Text { .. } => String::new(),
        written => format!(", {written}"),
    }
}

fn format_count(count: u64) -> String {
    if count == 1 { "1 is".into() } else { format!("{count} are") }
}

impl FiniteCheck {
    /// Makes the check for a plan that trains. It runs on the same ranks, sharded as in ZeRO-3, which needs the least memory and no search. If that
    /// is not possible, the planner chooses.
    ///
    /// # Errors
    /// Returns an error if the plan's graph does not compile with the counts.
    pub fn from_plan(plan: &Plan) -> Result<Self, CompileError> {
        let graph = text::parse_graph(&plan.graph.join("\n"))
            .map_err(|error| PassError::PlanGraph { error: error.to_string() })?;
        let own = CompileOptions { gradients_of: Vec::new(), ..plan.options.clone() };
        let (graph, tensors) = add_counts(attach_loss(graph, &own)?)?;
        let options = derive_options(plan, &graph);
        let with = |strategy: Strategy| {
            let options = CompileOptions { strategy, ..options.clone() };
            compile(graph.clone(), &options, &plan.cluster, plan.weights.clone())
        };
        let compiled = with(Strategy::Zero3).or_else(|_| with(Strategy::Auto))?;
        Ok(Self { plan: compiled.plan, tensors })
    }

    /// Returns the first tensor, in the order of the graph, that is not finite in a step. `count` gives the number in an output.
    pub fn first_not_finite(&self, count: impl Fn(&str) -> Option<f64>) -> Option<NotFinite> {
        let number = |output: &str| count(output).unwrap_or_default() as u64;
        self.tensors.iter().find_map(|tensor| {
            let Counted { name, op, operands, written, ty, outputs } = tensor.clone();
            let [count, nan] = outputs.map(|output| number(&output));
            (count > 0).then_some(NotFinite { name, op, operands, written, ty, count, nan })
        })
    }
}

/// Derives the options from those of the plan, without what only a training needs. Gradients are asked for, because training mode comes with them.
fn derive_options(plan: &Plan, graph: &Graph) -> CompileOptions {
    let stages = if graph.stages.is_empty() { 1 } else { plan.options.stages };
    CompileOptions {
        stages,
        microbatches: plan.microbatches,
        auto_stages: false,
        auto_microbatches: false,
        schedule: if stages == 1 {
            CompileOptions::default().schedule
        } else {
            plan.options.schedule
        },
        loss: None,
        label_smoothing: 0.0,
        metrics: Vec::new(),
        fetch: Vec::new(),
        optimizer: None,
        gradients: true,
        gradients_of: Vec::new(),
        skip_non_finite: false,
        ema: None,
        lr_schedule: LrSchedule::default(),
        clip_norm: None,
        clip_value: None,
        groups: Vec::new(),
        pins: Vec::new(),
        ..plan.options.clone()
    }
}

/// Replaces the outputs of the graph by the loss and the counts.
fn add_counts(graph: Graph) -> Result<(Graph, Vec<Counted>), PassError> {
    let loss = graph.outputs.iter().find(|output| output.name == LOSS);
    let loss = loss.map(|output| output.value).ok_or(PassError::NoOutput)?;
    let values = (0..graph.values.len()).map(ValueId::new);
    let counted: Vec<ValueId> = values.filter(|&value| is_counted(&graph, value)).collect();
    let stem = free_stem(&graph);
    let like = Graph { outputs: Vec::new(), ..graph };
    let builder = GraphBuilder::from_graph(like.clone());
    builder.output(LOSS, &builder.tensor(loss));
    let mut tensors = Vec::new();
    for value in counted {
        let tensor = describe_tensor(&like, value, &stem);
        let [all, nan] = builder.beside_node(like.producer(value), || {
            let x = builder.tensor(value);
            // Clipping makes infinities finite, and leaves what is no number.
            [count_non_finite(&x), count_non_finite(&x.clip(-1.0, 1.0))]
        });
        builder.output(&tensor.outputs[0], &all);
        builder.output(&tensor.outputs[1], &nan);
        tensors.push(tensor);
    }
    let graph = builder.finish().map_err(|errors| PassError::Build { pass: PASS, errors })?;
    Ok((graph, tensors))
}

/// Whether elements of a value are counted. The results of updates are not, because they are made after the loss.
fn is_counted(graph: &Graph, value: ValueId) -> bool {
    let updates = !graph.producer(value).op.operation().updates().is_empty();
    graph.value(value).ty.dtype.is_float() && !updates
}

/// Returns a stem for names of outputs with which no name of the graph begins.
fn free_stem(graph: &Graph) -> String {
    let names = || graph.values.iter().filter_map(|value| value.name.as_deref());
    let free = |stem: &String| !names().any(|name| name.starts_with(stem.as_str()));
    let stems = (0..).map(|number| format!("not_finite{number}"));
    stems.into_iter().find(free).expect("a graph has finitely many names")
}

fn describe_tensor(graph: &Graph, value: ValueId, stem: &str) -> Counted {
    let node = graph.producer(value);
    Counted {
        name: graph.display_name(value),
        op: node.op.name(),
        operands: if graph.value(value).name.is_some() {
            Vec::new()
        } else {
            name_operands(graph, value)
        },
        written: node.source.clone(),
        ty: graph.value(value).ty.clone(),
        outputs: ["all", "nan"].map(|what| format!("{stem}.{what}.{}", value.index())),
    }
}

/// The nearest tensors with a name of which a value is made, each once, one more than a message names.
fn name_operands(graph: &Graph, value: ValueId) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let mut open: VecDeque<ValueId> = graph.producer(value).operands.iter().copied().collect();
    let mut seen = BTreeSet::new();
    while let Some(next) = open.pop_front().filter(|_| names.len() <= NAMED) {
        if !seen.insert(next) {
            continue;
        }
        match &graph.value(next).name {
            Some(name) => names.push(name.clone()),
            None => open.extend(&graph.producer(next).operands),
        }
    }
    names
}

fn count_non_finite(x: &Tensor) -> Tensor {
    x.builder().apply(Op::NonFinite(NonFinite {}), &[x])
}
