//! `graphc train`: steps through a data file, losses to a metrics file.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use anyhow::{Context, Result, ensure};
use graphc_compiler::import::weights::Weights;
use graphc_compiler::passes::clipping::GRAD_NORM;
use graphc_compiler::passes::loss_scale::{LOSS_SCALE, SKIPPED, scales};
use graphc_ir::check::VerifiedPlan;
use graphc_ir::plan::{CompileOptions, Plan, RegisterKind, TensorKind};
use graphc_runtime::data::{Batches, MetricsWriter, save_safetensors};
use graphc_runtime::{HostTensor, Session, StepHandle};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::args::TrainArgs;
use super::checkpoints::{Saver, compare, resumed, resumed_options};
use super::compile::{Planned, inputs, is_plan, load_valid_plan, plan_model, plan_weights};
use super::contradictions::check_options;
use super::data::{samples, session_weights};
use super::output::{check_distinct, print};
use super::ranks::Ranks;
use super::run::session_options;
use super::start;

/// Steps under way at once.
const DEPTH: usize = 4;

/// Runs the command.
pub fn run(args: &TrainArgs) -> Result<()> {
    Ranks::run(|ranks| train(args, ranks))
}

fn train(args: &TrainArgs, ranks: &Ranks) -> Result<()> {
    ensure!(args.steps > 0, "--steps is at least 1");
    let options = session_options(&args.runtime)?;
    check_files(args)?;
    let (tensors, rows) = samples(&args.data)?;
    // A checkpoint brings its own seed.
    let seed = args.runtime.seed.or(args.checkpoints.resume.is_none().then_some(options.seed));
    ranks.agree(seed, (&args.data, &tensors), args.weights_from.as_deref())?;
    let checkpoint = match ranks.leads() {
        true => resumed(&args.checkpoints, &args.runtime, args.steps)?,
        false => None,
    };
    let checkpoint = ranks.checkpoint(checkpoint)?;
    let options = resumed_options(options, checkpoint.as_ref());
    let first_step = options.first_step;
    let mut saver = Saver::new(&args.checkpoints, first_step, args.steps)?;
    ensure!(rows != Some(0), "{} holds no samples", args.data.display());
    let (plan, weights) = ranks.plan(|| planned(args, rows))?;
    let weights = session_weights(&plan, &weights)?;
    let mut session = ranks.session(&plan, &weights, options)?;
    let batches = Batches::new(tensors, session.inputs())
        .with_context(|| format!("in {}", args.data.display()))?;
    if let Some(path) = &args.weights_from {
        start::load(path, &mut session)?;
    }
    if let Some(checkpoint) = &checkpoint {
        if ranks.leads() {
            compare(checkpoint, &session);
        }
        session.load_checkpoint(checkpoint)?;
    }
    saver.as_mut().map_or(Ok(()), |saver| saver.claim(&session))?;
    let mut finished = Finished {
        step: first_step,
        outputs: BTreeMap::new(),
        scales: scales(&plan),
        options: plan.options.clone(),
        metrics: match ranks.leads() {
            true => metrics(args, checkpoint.is_some().then_some(first_step))?,
            false => None,
        },
        bar: if ranks.leads() { progress(first_step, args.steps)? } else { ProgressBar::hidden() },
    };
    steps(first_step..args.steps, (&mut session, ranks), &batches, saver, &mut finished)?;
    finished.bar.finish_and_clear();
    write_results(args, &plan, (&mut session, ranks), &finished.outputs)?;
    // The others must not leave before rank 0 has what it writes.
    ranks.barrier()?;
    if args.metrics.is_none() && first_step < args.steps && ranks.leads() {
        print(&(finished.line()? + "\n"))?;
    }
    Ok(())
}

/// The plan and the weights of its model.
fn planned(args: &TrainArgs, rows: Option<usize>) -> Result<(VerifiedPlan, Weights)> {
    if !is_plan(&args.model) {
        let Planned { plan, weights, .. } = plan_model(&args.model, &args.shared, rows, true)?;
        return Ok((plan, weights));
    }
    let plan = load_valid_plan(&args.model)?;
    check_options(&args.model, &plan, &args.shared)?;
    let path = args.model.display();
    ensure!(plan.training, "{path} is an inference plan: compile with --optimizer");
    let weights = plan_weights(&plan)?;
    Ok((plan, weights))
}

/// Takes the steps, some of them at once, and saves where it is due.
fn steps(
    steps: Range<u64>,
    (session, ranks): (&mut Session, &Ranks),
    batches: &Batches,
    mut saver: Option<Saver>,
    finished: &mut Finished,
) -> Result<()> {
    let mut under_way: VecDeque<StepHandle> = VecDeque::new();
    for step in steps {
        under_way.push_back(session.step(batches.feeds(step))?);
        let saver = saver.as_mut().filter(|saver| saver.due(step + 1));
        // What a checkpoint holds the metrics must hold too: a resumed run does not write them again.
        let depth = if saver.is_some() { 0 } else { DEPTH - 1 };
        while under_way.len() > depth
            && let Some(handle) = under_way.pop_front()
        {
            finished.take(handle)?;
        }
        if let Some(saver) = saver {
            saver.save(session, ranks)?;
        }
    }
    under_way.into_iter().try_for_each(|handle| finished.take(handle))
}

fn check_files(args: &TrainArgs) -> Result<()> {
    let [model, cluster] = inputs(&args.model, &args.shared);
    let outputs = [
        ("--metrics", args.metrics.as_deref()),
        ("--weights", args.weights.as_deref()),
        ("--outputs", args.outputs.as_deref()),
    ];
    let read = [
        model,
        cluster,
        ("--data", Some(args.data.as_path())),
        ("--weights-from", args.weights_from.as_deref()),
    ];
    check_distinct(&read, &outputs)
}

/// The metrics file: anew, or what it holds of the steps before that at which training goes on.
fn metrics(args: &TrainArgs, resumed: Option<u64>) -> Result<Option<MetricsWriter>> {
    let Some(path) = &args.metrics else { return Ok(None) };
    Ok(Some(match resumed {
        Some(step) => MetricsWriter::resume(path, step)?,
        None => MetricsWriter::create(path)?,
    }))
}

/// The last finished step.
struct Finished {
    step: u64,
    outputs: BTreeMap<String, HostTensor>,
    /// Whether the plan scales its loss.
    scales: bool,
    /// What the plan was compiled with.
    options: CompileOptions,
    metrics: Option<MetricsWriter>,
    bar: ProgressBar,
}

impl Finished {
    fn take(&mut self, handle: StepHandle) -> Result<()> {
        self.outputs = handle.wait()?;
        let (loss, line) = (self.loss()?, self.metrics_of(self.step)?);
        if let Some(metrics) = &mut self.metrics {
            metrics.write(&line)?;
        }
        self.bar.set_message(format!("loss {loss:.4}"));
        self.bar.inc(1);
        self.step += 1;
        Ok(())
    }

    fn loss(&self) -> Result<f32> {
        self.number("loss")?.context("the plan has no output `loss`")
    }

    /// An output that is a number, if the plan has it.
    fn number(&self, name: &str) -> Result<Option<f32>> {
        let of = |tensor: &HostTensor| -> Result<f32> { Ok(tensor.to_f32()?[0]) };
        self.outputs.get(name).map(of).transpose()
    }

    /// The line of metrics of a step: with the learning rate where that has a schedule, with the norm of the gradients where
    /// that is clipped; where the loss is scaled (f16) with the scale, and whether the update was skipped.
    fn metrics_of(&self, step: u64) -> Result<Value> {
        let mut line = json!({ "step": step, "loss": self.loss()? });
        if !self.options.lr_schedule.is_constant() {
            line["lr"] = json!(self.options.learning_rate(step));
        }
        if self.options.clip_norm.is_some() {
            line[GRAD_NORM] = json!(self.number(GRAD_NORM)?);
        }
        if self.scales
            && let (Some(scale), Some(skipped)) = (self.number(LOSS_SCALE)?, self.number(SKIPPED)?)
        {
            line["loss_scale"] = json!(scale);
            line["skipped"] = json!(skipped != 0.0);
        }
        Ok(line)
    }

    fn line(&self) -> Result<String> {
        Ok(self.metrics_of(self.step - 1)?.to_string())
    }
}

fn progress(first_step: u64, steps: u64) -> Result<ProgressBar> {
    let bar = ProgressBar::new(steps);
    bar.set_position(first_step);
    bar.set_style(ProgressStyle::with_template("{bar:32} {pos}/{len} steps, {msg} [{elapsed}]")?);
    Ok(bar)
}

fn write_results(
    args: &TrainArgs,
    plan: &Plan,
    (session, ranks): (&mut Session, &Ranks),
    outputs: &BTreeMap<String, HostTensor>,
) -> Result<()> {
    if let Some(path) = args.outputs.as_ref().filter(|_| !outputs.is_empty() && ranks.leads()) {
        save_safetensors(path, outputs)?;
    }
    if let Some(path) = &args.weights {
        let weights = parameters(plan)
            .into_iter()
            .map(|name| Ok((name.clone(), session.variable(&name)?)))
            .collect::<Result<BTreeMap<_, _>>>()?;
        if ranks.leads() {
            save_safetensors(path, &weights)?;
        }
    }
    Ok(())
}

/// The names of the model's variables.
fn parameters(plan: &Plan) -> Vec<String> {
    let registers = plan.programs.iter().flat_map(|program| &program.registers);
    let mut names: Vec<String> = registers
        .filter_map(|register| match &register.kind {
            RegisterKind::Variable { name, role: TensorKind::Parameter, .. } => Some(name.clone()),
            _ => None,
        })
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}
