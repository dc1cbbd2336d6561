//! `graphc check`: values of a model that another program computed, beside graphc's own, and the first that differs.
//!
//! Each value of the file that the graph has becomes an output, so the ops between them are computed one by one. Then the model is planned
//! as it is run, where several ops may be one, and its outputs are compared once more: what differs there alone is graphc's own.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context, Result, bail, ensure};
use graphc::report::number_of;
use graphc_compiler::compile::compile;
use graphc_compiler::planner::UNLIMITED;
use graphc_import::weights::Weights;
use graphc_ir::graph::{Graph, Output, Source};
use graphc_ir::ids::ValueId;
use graphc_ir::op::Op;
use graphc_plan::check::VerifiedPlan;
use graphc_plan::{Cluster, CompileOptions};
use graphc_runtime::data::Batches;
use graphc_runtime::{HostTensor, Session};
use serde_json::{Value, json};

use super::args::{CheckArgs, Format, compile_options};
use super::clusters::shared_cluster;
use super::data_files::{DataExtents, read_tensors, session_weights};
use super::models::read_model;
use super::output::{print_escaped, print_message};
use super::plans::is_plan;
use super::start::session_options;
use super::verify::{number_distance, output_tolerance};

/// Tensors by name.
type Tensors = BTreeMap<String, HostTensor>;

/// The most names that a line lists.
const LISTED: usize = 5;

/// The size from which a number hides something, as a mask of scores does. Such numbers are no measure for others.
const MASK: f64 = 1e8;

/// Nodes above a value among which a weight is looked for, which says in which layer the value is.
const MOST_ABOVE: usize = 64;

/// Runs the command.
pub(super) fn run_check(args: &CheckArgs) -> Result<()> {
    check_args(args)?;
    let (expected, types) = read_tensors(&args.against)?;
    let (fed, types) = match &args.inputs {
        Some(inputs) => read_tensors(inputs)?,
        None => (expected.clone(), types),
    };
    let (imported, dims) =
        read_model(&args.model, &args.shared, Some(DataExtents::of_batch(&types)))?;
    for warning in &imported.warnings {
        print_message("warning", warning);
    }
    let checker = Checker {
        args,
        options: compile_options(&args.shared, dims)?,
        cluster: shared_cluster(&args.shared, args.runtime.device)?,
        weights: imported.weights,
        modules: imported.modules,
        fed,
        expected,
    };
    let graph = imported.graph;
    let (values, strangers) = select_values(&graph, &checker.expected);
    ensure!(
        !values.is_empty(),
        "{} has no value of {}: its tensors must have the names of the model's values",
        args.against.display(),
        args.model.display()
    );
    let each = Graph { outputs: values, ..graph.clone() };
    let mut found = checker.compare(&each, CheckedForm::Each)?;
    let named = |output: &Output| checker.expected.contains_key(&output.name);
    if graph.outputs.iter().any(named) {
        found.compared.extend(checker.compare(&graph, CheckedForm::Planned)?.compared);
    }
    match args.shared.format {
        Format::Text => print_escaped(&render_text(&found, &strangers))?,
        Format::Json => print_escaped(
            &(serde_json::to_string_pretty(&render_json(&found, &strangers))? + "\n"),
        )?,
    }
    match found.first_difference() {
        None => Ok(()),
        Some(first) => bail!("{}", first.describe_difference(found.tolerance)),
    }
}

fn check_args(args: &CheckArgs) -> Result<()> {
    ensure!(
        !is_plan(&args.model),
        "{} is a plan: check takes the model, and `graphc verify` a plan beside its model",
        args.model.display()
    );
    if args.shared.loss.is_some() || args.shared.optimizer.is_some() {
        bail!("check does inference: --loss and --optimizer belong to train");
    }
    Ok(())
}

/// The values of a graph that a file has, in the graph's order, as outputs, and the names of the file that are none of the graph's values.
fn select_values(graph: &Graph, expected: &Tensors) -> (Vec<Output>, Vec<String>) {
    let own: BTreeMap<&str, ValueId> =
        graph.outputs.iter().map(|output| (output.name.as_str(), output.value)).collect();
    let named = graph.iter().flat_map(|(_, node)| &node.results).filter_map(|&value| {
        let name = graph.value(value).name.as_deref()?;
        (!own.contains_key(name)).then_some((name, value))
    });
    let mut all: Vec<(&str, ValueId)> = named.chain(own.clone()).collect();
    all.sort_by_key(|&(name, value)| (value, name));
    let known: BTreeSet<&str> = all.iter().map(|&(name, _)| name).collect();
    let strangers = expected.keys().filter(|name| !known.contains(name.as_str()));
    let computed = |&(name, value): &(&str, ValueId)| {
        expected.contains_key(name) && !graph.producer(value).op.is_given()
    };
    let outputs = all.iter().copied().filter(computed);
    let outputs = outputs.map(|(name, value)| Output { name: name.into(), value }).collect();
    (outputs, strangers.cloned().collect())
}

/// The form in which a model is computed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CheckedForm {
    /// Each value is kept, so that it can be compared.
    Each,
    /// The model is computed as `graphc run` does it.
    Planned,
}

/// A value beside what the file has.
struct Compared {
    name: String,
    op: &'static str,
    /// The place at which the model defines it.
    place: String,
    /// The author's module that it is in.
    module: Option<String>,
    /// The nearest weight above it.
    weight: Option<String>,
    form: CheckedForm,
    /// The greatest difference, and as a share of the largest element.
    apart: [f64; 2],
    /// The reason that a comparison is impossible.
    misfit: Option<String>,
    differs: bool,
}

impl Compared {
    /// Describes in words where and by how much it differs.
    fn describe_difference(&self, tolerance: f64) -> String {
        let Self { name, op, place, .. } = self;
        let mut said = match self.form {
            CheckedForm::Each => format!("the first value that differs is `{name}`"),
            CheckedForm::Planned => format!(
                "all values agree, but `{name}` differs where ops are joined as `graphc run` joins them (please report this)"
            ),
        };
        let _ = write!(said, ": {op} ({place})");
        if let Some(module) = &self.module {
            let _ = write!(said, ", in the module {module}");
        }
        if let Some(weight) = &self.weight {
            let _ = write!(said, ", behind the weight `{weight}`");
        }
        let [absolute, share] = self.apart;
        match &self.misfit {
            Some(misfit) => said + ", " + misfit,
            None => {
                said + &format!(
                    ", by {absolute:.1e}, {share:.1e} of its largest element, with a tolerance of {tolerance:.0e}"
                )
            }
        }
    }
}

/// The findings of a check.
struct CheckFindings {
    compared: Vec<Compared>,
    tolerance: f64,
}

impl CheckFindings {
    fn first_difference(&self) -> Option<&Compared> {
        self.compared.iter().find(|compared| compared.differs)
    }
}

struct Checker<'a> {
    args: &'a CheckArgs,
    options: CompileOptions,
    cluster: Cluster,
    weights: Weights,
    modules: BTreeMap<String, String>,
    fed: Tensors,
    expected: Tensors,
}

impl Checker<'_> {
    /// The outputs of a graph that the file has, beside these.
    fn compare(&self, graph: &Graph, form: CheckedForm) -> Result<CheckFindings> {
        let mut cluster = self.cluster.clone();
        cluster.device.memory = UNLIMITED;
        let plan = compile(graph.clone(), &self.options, &cluster, None)
            .with_context(|| format!("cannot plan {}", self.args.model.display()))?
            .plan;
        let tolerance = self.args.tolerance.unwrap_or_else(|| output_tolerance(&plan));
        let outputs = self.run_plan(&plan)?;
        let beside = |output: &Output| {
            let expected = self.expected.get(&output.name)?;
            let found = outputs.get(&output.name)?;
            let compared = compare_value(graph, output, (found, expected), (form, tolerance));
            Some(Compared { module: self.module_of(graph, output.value), ..compared })
        };
        Ok(CheckFindings { compared: graph.outputs.iter().filter_map(beside).collect(), tolerance })
    }

    /// The author's module that a value is in.
    fn module_of(&self, graph: &Graph, value: ValueId) -> Option<String> {
        match &graph.producer(value).source {
            Source::Onnx { name, .. } => self.modules.get(name).cloned(),
            Source::Derived | Source::Rust { .. } | Source::Text { .. } => None,
        }
    }

    /// The outputs of a plan on the first batch of the inputs.
    fn run_plan(&self, plan: &VerifiedPlan) -> Result<Tensors> {
        let weights = session_weights(plan, self.weights.clone())?;
        let options = session_options(&self.args.runtime);
        let mut session = Session::new(plan, &weights, options)?;
        let file = self.args.inputs.as_deref().unwrap_or(&self.args.against);
        let batches = Batches::new(self.fed.clone(), session.inputs(), session.samples())
            .with_context(|| format!("in {}", file.display()))?;
        Ok(session.step(batches.feeds(0))?.wait()?)
    }
}

/// A value beside what the file has of it.
fn compare_value(
    graph: &Graph,
    output: &Output,
    (found, expected): (&HostTensor, &HostTensor),
    (form, tolerance): (CheckedForm, f64),
) -> Compared {
    let node = graph.producer(output.value);
    let misfit = (found.shape() != expected.shape())
        .then(|| format!("which is {}, and the file has {}", found.ty(), expected.ty()));
    let apart = match misfit {
        Some(_) => [f64::INFINITY; 2],
        None => {
            let (found, expected) = (found.to_f64(), expected.to_f64());
            [absolute_difference(&found, &expected), relative_difference(&found, &expected)]
        }
    };
    let tolerance = if found.dtype().is_float() { tolerance } else { 0.0 };
    Compared {
        name: output.name.clone(),
        op: node.op.name(),
        place: node.source.to_string(),
        module: None,
        weight: weight_above(graph, output.value),
        form,
        apart,
        differs: misfit.is_some() || apart[1] > tolerance,
        misfit,
    }
}

/// The greatest difference of two elements; infinite where one of them alone is no number.
fn absolute_difference(found: &[f64], expected: &[f64]) -> f64 {
    found.iter().zip(expected).map(|(f, e)| number_distance(*f, *e)).fold(0.0, f64::max)
}

/// The greatest difference as a share of the largest element; of 1 if all elements are 0. An element that is so large that it hides others,
/// as a mask is, is compared with itself.
fn relative_difference(found: &[f64], expected: &[f64]) -> f64 {
    let ordinary = expected.iter().map(|x| x.abs()).filter(|&x| x < MASK).fold(0.0, f64::max);
    let scale = if ordinary == 0.0 { 1.0 } else { ordinary };
    let apart = |(f, e): (&f64, &f64)| match number_distance(*f, *e) {
        0.0 => 0.0,
        apart if e.is_finite() => apart / if e.abs() < MASK { scale } else { e.abs() },
        _ => f64::INFINITY,
    };
    found.iter().zip(expected).map(apart).fold(0.0, f64::max)
}

/// The weight that is read last of all that a value is computed of, as far as the ops right above it say.
fn weight_above(graph: &Graph, value: ValueId) -> Option<String> {
    let mut open = BTreeSet::from([value]);
    for _ in 0..MOST_ABOVE {
        let value = open.pop_last()?;
        let node = graph.producer(value);
        for &operand in &node.operands {
            if let Op::Variable(variable) = &graph.producer(operand).op
                && variable.trainable
            {
                return Some(variable.name.clone());
            }
        }
        open.extend(&node.operands);
    }
    None
}

fn render_text(found: &CheckFindings, strangers: &[String]) -> String {
    let mut text = String::new();
    for compared in &found.compared {
        let Compared { name, op, place, apart: [absolute, share], .. } = compared;
        let verdict = if compared.differs { "differs" } else { "agrees" };
        let planned = if compared.form == CheckedForm::Planned { " as planned" } else { "" };
        let _ = writeln!(
            text,
            "{verdict:8} {absolute:8.1e} {share:8.1e}  `{name}`{planned}: {op} ({place})"
        );
    }
    let differ = found.compared.iter().filter(|compared| compared.differs).count();
    let all = number_of(found.compared.len(), "value", "values");
    let _ = writeln!(
        text,
        "{all} compared, {differ} differ: the greatest difference, and as a share of the largest element (at most {:.0e})",
        found.tolerance
    );
    if !strangers.is_empty() {
        let listed = strangers.iter().take(LISTED).map(|name| format!("`{name}`"));
        let more = if strangers.len() > LISTED { ", .." } else { "" };
        let _ = writeln!(
            text,
            "{} of the file not compared, which graphc computes when it reads the model, or under another name: {}{more}",
            strangers.len(),
            listed.collect::<Vec<_>>().join(", ")
        );
    }
    text
}

fn render_json(found: &CheckFindings, strangers: &[String]) -> Value {
    let value = |compared: &Compared| {
        json!({
            "name": compared.name,
            "op": compared.op,
            "place": compared.place,
            "module": compared.module,
            "weight": compared.weight,
            "as_planned": compared.form == CheckedForm::Planned,
            // What is no number is null.
            "absolute": compared.apart[0],
            "relative": compared.apart[1],
            "misfit": compared.misfit,
            "differs": compared.differs,
        })
    };
    json!({
        "tolerance": found.tolerance,
        "values": found.compared.iter().map(value).collect::<Vec<_>>(),
        "first_difference": found.first_difference().map(|first| &first.name),
        "not_compared": strangers,
    })
}

#[cfg(test)]
mod tests {
    use super::relative_difference;

    #[test]
    fn what_hides_scores_is_no_measure_for_the_others() {
        for mask in [f64::NEG_INFINITY, f64::from(f32::MIN), -1e9] {
            assert_eq!(relative_difference(&[mask, 1.0, 2.5], &[mask, 1.0, 2.0]), 0.25);
            assert_eq!(relative_difference(&[mask, 1.0, 2.0], &[mask, 1.0, 2.0]), 0.0);
            assert!(relative_difference(&[0.0, 1.0, 2.0], &[mask, 1.0, 2.0]) >= 1.0);
        }
        assert_eq!(relative_difference(&[1e-9, 0.0], &[0.0, 0.0]), 1e-9);
        assert_eq!(relative_difference(&[f64::NAN], &[1.0]), f64::INFINITY);
    }
}
