//! How far a training is: the last finished step, what the metrics file says of it, and the bar on the terminal.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use graphc_compiler::passes::clipping::GRAD_NORM;
use graphc_compiler::passes::loss_scale::{LOSS_SCALE, SKIPPED, scales};
use graphc_ir::plan::{CompileOptions, Plan};
use graphc_runtime::data::MetricsWriter;
use graphc_runtime::{HostTensor, StepHandle};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::args::{OnNan, TrainArgs};
use super::feeding::Feeder;

/// The last finished step.
pub struct Finished {
    /// The next one.
    step: u64,
    /// What the last gave.
    pub outputs: BTreeMap<String, HostTensor>,
    /// Whether the plan scales its loss.
    scales: bool,
    /// What the plan was compiled with.
    options: CompileOptions,
    on_nan: OnNan,
    metrics: Option<MetricsWriter>,
    /// The last step's line.
    line: Value,
    pace: Pace,
    epoch: Option<u64>,
}

/// The bar, and samples a second.
struct Pace {
    bar: ProgressBar,
    batch: usize,
    /// When the first step had finished, and how many since.
    since: Option<(Instant, u64)>,
}

impl Finished {
    /// Before `first_step` of `steps`. Who leads writes metrics, anew or behind those of earlier steps, and shows the bar.
    pub fn new(
        args: &TrainArgs,
        plan: &Plan,
        feeder: &Feeder,
        (first_step, steps): (u64, u64),
        (leads, resumes): (bool, bool),
    ) -> Result<Self> {
        let bar = if leads { bar(first_step, steps)? } else { ProgressBar::hidden() };
        Ok(Self {
            step: first_step,
            outputs: BTreeMap::new(),
            scales: scales(plan),
            options: plan.options.clone(),
            on_nan: args.on_nan,
            metrics: if leads { metrics(args, resumes.then_some(first_step))? } else { None },
            line: Value::Null,
            pace: Pace { bar, batch: feeder.batch(), since: None },
            epoch: feeder.epoch(),
        })
    }

    /// Waits for the next step. Its line is written unless an evaluation is added to it.
    pub fn take(&mut self, handle: StepHandle, evaluates: bool) -> Result<()> {
        self.outputs = handle.wait()?;
        // Outputs go to the process of rank 0 alone.
        if !self.outputs.is_empty() {
            self.line = self.metrics_of(self.step)?;
            self.pace.step(self.loss()?);
            if !evaluates {
                self.write()?;
            }
            self.check_loss()?;
        }
        self.step += 1;
        Ok(())
    }

    /// Adds what an evaluation has found to the last step's line, and writes it.
    pub fn evaluated(&mut self, scores: Value) -> Result<()> {
        if self.outputs.is_empty() {
            return Ok(());
        }
        self.line["eval"] = scores;
        self.write()
    }

    /// The line of the last step.
    pub fn line(&self) -> String {
        self.line.to_string()
    }

    /// Takes the bar away.
    pub fn clear(&self) {
        self.pace.bar.finish_and_clear();
    }

    fn write(&mut self) -> Result<()> {
        match &mut self.metrics {
            Some(metrics) => Ok(metrics.write(&self.line)?),
            None => Ok(()),
        }
    }

    /// A step whose update was not made, as in f16 some are, does no harm.
    fn check_loss(&self) -> Result<()> {
        let (loss, step) = (self.loss()?, self.step);
        let skipped = self.line["skipped"].as_bool().unwrap_or(false);
        if loss.is_finite() || skipped || self.on_nan == OnNan::Ignore {
            return Ok(());
        }
        let norm = match self.line.get(GRAD_NORM) {
            Some(norm) => format!(", the norm of its gradients {norm}"),
            None => String::new(),
        };
        bail!(
            "the loss of step {step} is {loss}{norm}, and weights after it are of no use: lower --lr, add --warmup or \
             --clip-norm, look for wrong numbers in the data, or go on all the same with --on-nan ignore"
        )
    }

    fn loss(&self) -> Result<f32> {
        self.number("loss")?.context("the plan has no output `loss`")
    }

    /// An output that is a number, if the plan has it.
    fn number(&self, name: &str) -> Result<Option<f32>> {
        let of = |tensor: &HostTensor| -> Result<f32> { Ok(tensor.to_f32()?[0]) };
        self.outputs.get(name).map(of).transpose()
    }

    /// The line of metrics of a step: with its epoch where there are epochs, with the learning rate where that has a schedule,
    /// with the norm of the gradients where that is clipped; where the loss is scaled (f16) with the scale, and whether the
    /// update was skipped.
    fn metrics_of(&self, step: u64) -> Result<Value> {
        let mut line = json!({ "step": step, "loss": self.loss()? });
        if let Some(steps) = self.epoch {
            line["epoch"] = json!(step / steps);
        }
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
}

impl Pace {
    fn step(&mut self, loss: f32) {
        // The first step touches all memory for the first time: it says nothing of the pace.
        let now = Instant::now();
        let (since, steps) = self.since.get_or_insert((now, 0));
        let seconds = now.duration_since(*since).as_secs_f64();
        let pace = (*steps * self.batch as u64) as f64 / seconds;
        *steps += 1;
        let pace = if pace.is_finite() { format!(", {pace:.0} samples/s") } else { String::new() };
        self.bar.set_message(format!("loss {loss:.4}{pace}"));
        self.bar.inc(1);
    }
}

/// The metrics file: anew, or what it holds of the steps before that at which training goes on.
fn metrics(args: &TrainArgs, resumed: Option<u64>) -> Result<Option<MetricsWriter>> {
    let Some(path) = &args.metrics else { return Ok(None) };
    Ok(Some(match resumed {
        Some(step) => MetricsWriter::resume(path, step)?,
        None => MetricsWriter::create(path)?,
    }))
}

fn bar(first_step: u64, steps: u64) -> Result<ProgressBar> {
    let bar = ProgressBar::new(steps);
    bar.set_position(first_step);
    let template = "{bar:32} {pos}/{len} steps, {msg} [{elapsed}, {eta} left]";
    bar.set_style(ProgressStyle::with_template(template)?);
    bar.reset_eta();
    Ok(bar)
}
