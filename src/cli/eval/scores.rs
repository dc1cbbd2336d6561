//! Loss and metrics over a whole data set, in inference form: what `graphc eval` prints and `graphc train --eval-data`
//! logs.
//!
//! The plan is one of inference with the loss: dropout passes everything on, batch norm takes running statistics. The
//! rest of a last batch that is not full is filled with labels that are ignored. So every sample counts once and one plan
//! does for all batches. A loss against a target has no such label: there the plan gives the loss of each row, and those
//! of samples alone are added up. A sum of the first output has neither, and neither has a loss that the model computes
//! itself, of which the mean over the batches is taken: there the batch must divide the number of samples.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use graphc_compiler::compile::compile;
use graphc_compiler::passes::LOSS;
use graphc_compiler::passes::loss::declare_loss;
use graphc_data::{Dataset, LastBatch, Loader, Source, Split};
use graphc_ir::graph::Graph;
use graphc_ir::learning_rate::LrSchedule;
use graphc_plan::check::VerifiedPlan;
use graphc_plan::{
    Accumulation, Cluster, CompileOptions, Loss, Metric, Plan, ROW_LOSSES, SAMPLES, WeightsSource,
};
use graphc_runtime::{HostTensor, Session, StepHandle};
use serde_json::{Value, json};

use crate::cli::output::print_message;
use crate::cli::plans::warn_of_mixing;

/// Steps under way at once.
const DEPTH: usize = 4;

/// The scores of a model on a data set.
#[derive(Clone, Debug, PartialEq)]
struct Scores {
    /// The mean over all that the loss averages over.
    pub loss: f64,
    /// Labels that are not ignored; of losses without labels samples.
    pub samples: u64,
    /// Shares of these, by the name of the metric.
    pub shares: BTreeMap<&'static str, f64>,
}

impl Scores {
    /// Returns the scores as they are printed and logged. For sequences the perplexity is among them, the exponential of the loss.
    pub(crate) fn json(&self, is_sequence: bool) -> Value {
        let mut line = json!({ "loss": self.loss });
        for (name, share) in &self.shares {
            line[*name] = json!(share);
        }
        if is_sequence {
            line["perplexity"] = json!(self.loss.exp());
        }
        line["samples"] = json!(self.samples);
        line
    }
}

/// The options with which the same model is evaluated.
fn options_of(training: &CompileOptions) -> CompileOptions {
    let has_labels = training.loss.is_some_and(Loss::has_labels);
    let metrics = if has_labels { vec![Metric::Top1, Metric::Top5] } else { Vec::new() };
    CompileOptions {
        metrics,
        row_losses: true,
        // What an evaluation adds up is always given.
        fetch: vec![LOSS.into()],
        optimizer: None,
        skip_non_finite: false,
        ema: None,
        gradients: false,
        gradients_of: Vec::new(),
        lr_schedule: LrSchedule::default(),
        clip_norm: None,
        clip_value: None,
        groups: Vec::new(),
        keep_statistics: Vec::new(),
        accumulation: Accumulation::F32,
        ..training.clone()
    }
}

/// The plan that evaluates a graph which `options` trains.
pub(crate) fn plan_evaluation(
    graph: Graph,
    options: &CompileOptions,
    cluster: &Cluster,
    weights: Option<WeightsSource>,
) -> Result<VerifiedPlan> {
    let graph = match options.loss {
        Some(_) => graph,
        None => declare_loss(graph).context(
            "evaluation needs a loss: --loss with one that graphc computes, or --loss output:NAME with an output of the model",
        )?,
    };
    let compiled = compile(graph, &options_of(options), cluster, weights);
    Ok(compiled.context("cannot plan the evaluation")?.plan)
}

/// The plan that evaluates what a plan trains.
pub(crate) fn plan_of(plan: &Plan) -> Result<VerifiedPlan> {
    let graph = graphc_ir::text::parse_graph(&plan.graph.join("\n"))
        .context("the plan's graph cannot be read")?;
    self::plan_evaluation(graph, &plan.options, &plan.cluster, plan.weights.clone())
}

/// A session with the data that it is asked about.
pub(crate) struct Evaluation {
    /// The session.
    pub session: Session,
    loader: Loader,
    /// `None`: the model computes it.
    loss: Option<Loss>,
    is_sequence: bool,
}

impl Evaluation {
    /// Evaluates on what is held out of a source.
    pub(crate) fn new(session: Session, plan: &Plan, source: &Source) -> Result<Self> {
        let loss = plan.options.loss;
        let has_labels = loss.is_some_and(Loss::has_labels);
        let set = source.open_for(Split::Test, &session)?;
        if let Some(note) = set.note().filter(|_| session.leads()) {
            print_message("note", note);
        }
        let options = source.evaluation();
        let loader = Loader::for_session(Arc::clone(&set), &session, options)
            .with_context(|| format!("in {source}"))?;
        debug_assert_eq!(source.evaluation().last, LastBatch::Pad);
        let batch = loader.batch();
        let rows = session.outputs().get(ROW_LOSSES).is_some_and(|ty| ty.shape == [batch]);
        ensure!(
            has_labels || rows || set.samples().is_multiple_of(batch),
            cannot_fill(loss, batch, set.as_ref())
        );
        if session.leads() && set.samples() != batch {
            warn_of_mixing(plan, batch);
        }
        let labels = session.inputs().get("labels").map_or(0, |ty| ty.shape.len());
        Ok(Self { session, loader, loss, is_sequence: has_labels && labels == 2 })
    }

    /// Outputs go to the process of rank 0 alone.
    fn add_step(&self, (samples, step): (usize, StepHandle), sums: &mut ScoreSums) -> Result<()> {
        let outputs = step.wait()?;
        if self.session.leads() { sums.add(self.loss, samples, &outputs) } else { Ok(()) }
    }

    /// Whether it finds this.
    pub(crate) fn finds_metric(&self, metric: &str) -> bool {
        match metric {
            "loss" => true,
            "perplexity" => self.is_sequence,
            _ => self.loss.is_some_and(Loss::has_labels),
        }
    }

    /// Goes through all samples.
    pub(crate) fn run(&mut self) -> Result<Value> {
        let (mut sums, mut under_way) = (ScoreSums::default(), VecDeque::new());
        for batch in self.loader.epoch(0)? {
            let batch = batch?;
            under_way.push_back((batch.samples, self.session.step(batch.feeds)?));
            if under_way.len() == DEPTH
                && let Some(step) = under_way.pop_front()
            {
                self.add_step(step, &mut sums)?;
            }
        }
        under_way.into_iter().try_for_each(|step| self.add_step(step, &mut sums))?;
        Ok(sums.scores(self.loss).json(self.is_sequence))
    }
}

/// Explains why the last batch cannot be filled up, and which batch needs no filling.
fn cannot_fill(loss: Option<Loss>, batch: usize, set: &dyn Dataset) -> String {
    let (samples, rest) = (set.samples(), set.samples() % batch);
    let fitting = (1..=batch.min(samples)).rev().find(|part| samples % part == 0).unwrap_or(1);
    format!(
        "{} has {samples} samples, and batches of {batch} leave {rest}: {} cannot leave out what fills up a batch, so \
         take a --batch that divides them, {fitting} say",
        set.name(),
        loss.map_or("a loss that the model computes".into(), |loss| format!(
            "the loss {}",
            loss.name()
        ))
    )
}

/// Sums over the batches so far.
#[derive(Default)]
struct ScoreSums {
    loss: f64,
    samples: f64,
    counts: BTreeMap<&'static str, f64>,
}

impl ScoreSums {
    fn add(
        &mut self,
        loss: Option<Loss>,
        rows: usize,
        outputs: &BTreeMap<String, HostTensor>,
    ) -> Result<()> {
        let numbers = |name: &str| -> Result<Vec<f64>> {
            let output =
                outputs.get(name).with_context(|| format!("the plan has no output `{name}`"))?;
            Ok(output.to_f64())
        };
        let number = |name: &str| Ok::<f64, anyhow::Error>(numbers(name)?[0]);
        let has_labels = loss.is_some_and(Loss::has_labels);
        let samples = if has_labels { number(SAMPLES)? } else { rows as f64 };
        self.samples += samples;
        if outputs.contains_key(ROW_LOSSES) {
            // Behind the samples come rows that fill up the batch.
            self.loss += numbers(ROW_LOSSES)?.iter().take(rows).sum::<f64>();
        } else if samples > 0.0 {
            // A mean over no labels is none.
            self.loss += number(LOSS)? * if loss == Some(Loss::Sum) { 1.0 } else { samples };
        }
        for metric in [Metric::Top1, Metric::Top5].into_iter().filter(|_| has_labels) {
            *self.counts.entry(metric.name()).or_default() += number(metric.name())?;
        }
        Ok(())
    }

    fn scores(self, loss: Option<Loss>) -> Scores {
        let share = |sum: f64| sum / self.samples.max(1.0);
        Scores {
            loss: if loss == Some(Loss::Sum) { self.loss } else { share(self.loss) },
            samples: self.samples as u64,
            shares: self.counts.iter().map(|(&name, &count)| (name, share(count))).collect(),
        }
    }
}
