//! The progress of a training: the last finished step, what the metrics file says of it, and the bar on the terminal.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use graphc::report::number_of;
use graphc_compiler::passes::clipping::GRAD_NORM;
use graphc_compiler::passes::loss_scale::{LOSS_SCALE, SKIPPED, has_loss_scale};
use graphc_plan::{CompileOptions, Plan, SAMPLES};
use graphc_runtime::data::{EventWriter, MetricsWriter};
use graphc_runtime::{HostTensor, Session, StepHandle};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::feeding::Feeder;
use crate::cli::args::{Measure, TrainArgs};
use crate::cli::output::{print_message, say_notes};

/// The last finished step.
pub(super) struct Finished {
    /// The next one.
    step: u64,
    /// The outputs of the last step.
    pub outputs: BTreeMap<String, HostTensor>,
    /// Whether the plan scales its loss.
    scales: bool,
    /// The options with which the plan was compiled.
    options: CompileOptions,
    ignores: bool,
    /// Whether the exponential of the loss is said.
    perplexity: bool,
    /// Whether samples and seconds are said.
    speed: bool,
    /// Steps whose update was not made.
    skipped: u64,
    /// The number of them that have come last, without one between them whose update was made.
    skipped_in_a_row: u64,
    /// The number that may come in a row.
    most_skips: Option<u64>,
    metrics: Option<MetricsWriter>,
    events: Option<EventWriter>,
    /// The last step's line.
    line: Value,
    pace: ProgressPace,
    epoch: Option<u64>,
    /// Whether this process speaks for all.
    leads: bool,
}

/// Steps in a row that may change nothing where nothing is said: from its first value the scale of a loss reaches its
/// floor in 16.
const MOST_SKIPS: u64 = 50;

/// A training whose loss, or the norm of whose gradients, is not finite.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}, and weights after it are of no use", self.describe_number())]
pub(super) struct Diverged {
    /// The step.
    pub step: u64,
    /// Its loss.
    pub loss: f32,
    /// The norm of its gradients, where it is known.
    pub norm: Option<f32>,
}

impl Diverged {
    /// The number that is not finite, with its step.
    pub(super) fn describe_number(&self) -> String {
        let Self { step, loss, norm } = self;
        match norm {
            Some(norm) if loss.is_finite() => {
                format!("the norm of the gradients of step {step} is {norm}, its loss {loss}")
            }
            Some(norm) => {
                format!("the loss of step {step} is {loss}, the norm of its gradients {norm}")
            }
            None => format!("the loss of step {step} is {loss}"),
        }
    }
}

/// A training that goes on without changing anything.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "{skipped} steps in a row up to step {step} have changed nothing{}, more than --max-skips {most} allows: {REMEDIES}, or allow more",
    of_scale(.scale)
)]
pub(super) struct TooManySkipped {
    /// The last of them.
    pub step: u64,
    /// The number of steps that changed nothing.
    pub skipped: u64,
    /// The number that may come in a row.
    pub most: u64,
    /// The scale of the loss, where it is scaled.
    pub scale: Option<f32>,
}

fn of_scale(scale: &Option<f32>) -> String {
    scale.map_or(String::new(), |scale| {
        format!(", as their gradients overflow with a loss scaled by {scale}")
    })
}

/// A step that has begun.
pub(super) struct UnderWay {
    /// The moment before its batch was asked for.
    pub begun: Instant,
    /// The step that is waited for.
    pub handle: StepHandle,
}

/// The ways in which a training that goes wrong is mended.
pub(super) const REMEDIES: &str = "lower --lr, add --warmup or --clip-norm, look for wrong numbers in the data and for batches whose \
                            labels are all ignored";

/// The ways to go on with one that is not mended.
pub(super) const WAYS_ON: &str =
    "skip such steps with --on-nan skip, or go on all the same with --on-nan ignore";

/// The bar, samples a second, seconds of a step.
struct ProgressPace {
    bar: ProgressBar,
    batch: usize,
    /// The moment when the last step had finished.
    last: Option<Instant>,
    /// The moment when the first step had finished, and how many have since.
    since: Option<(Instant, u64)>,
    /// The lines that are printed where no bar is shown.
    lines: Option<ProgressLines>,
}

/// Lines that are said now and then.
struct ProgressLines {
    next: Instant,
}

/// The time until the first line is due, and the time from one line to the next.
const LINES: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(60)];

impl ProgressLines {
    fn after_begin(begin: Instant) -> Self {
        Self { next: begin + LINES[0] }
    }

    /// Whether one is due, which is then said.
    fn are_due(&mut self, now: Instant) -> bool {
        let due = now >= self.next;
        if due {
            self.next = now + LINES[1];
        }
        due
    }
}

impl Finished {
    /// Prepares the record of a training that begins at `first_step` of `steps`. The process that leads writes metrics, anew or behind
    /// those of earlier steps, and shows the bar.
    pub(super) fn new(
        args: &TrainArgs,
        plan: &Plan,
        feeder: &Feeder,
        (first_step, steps): (u64, u64),
        (leads, resumes): (bool, bool),
    ) -> Result<Self> {
        let bar = if leads { create_bar(first_step, steps)? } else { ProgressBar::hidden() };
        Ok(Self {
            step: first_step,
            outputs: BTreeMap::new(),
            scales: has_loss_scale(plan),
            options: plan.options.clone(),
            ignores: args.shared.hyperparameters.ignores_non_finite(),
            perplexity: args.shared.hyperparameters.measure.contains(&Measure::Perplexity),
            speed: args.shared.hyperparameters.measure.contains(&Measure::Speed),
            skipped: 0,
            skipped_in_a_row: 0,
            most_skips: most_skips(args),
            metrics: if leads { open_metrics(args, resumes.then_some(first_step))? } else { None },
            events: if leads { open_events(args, first_step)? } else { None },
            line: Value::Null,
            pace: ProgressPace::new(bar, feeder.batch_size(), leads),
            epoch: feeder.steps_per_epoch(),
            leads,
        })
    }

    /// Waits for the next step; returns when it had ended. Its line is written unless an evaluation is added to it.
    pub(super) fn wait_for_step(&mut self, step: UnderWay, evaluates: bool) -> Result<Instant> {
        self.outputs = step.handle.wait()?;
        let ended = Instant::now();
        let seconds = self.pace.seconds_since(step.begun);
        if !self.outputs.is_empty() {
            self.line = self.metrics_of(self.step)?;
            if self.speed {
                self.line["samples"] = json!(self.pace.batch);
                self.line["seconds"] = json!(seconds);
            }
            self.count_skipped();
            self.pace.advance_bar(self.loss()?, self.skipped);
            if !evaluates {
                self.write()?;
            }
            self.check_loss()?;
            self.check_skipped()?;
        }
        self.step += 1;
        self.pace.bar.suspend(say_notes);
        Ok(ended)
    }

    /// Adds what an evaluation has found to the last step's line, and writes it.
    pub(super) fn add_scores(&mut self, scores: &Value) -> Result<()> {
        if self.outputs.is_empty() {
            return Ok(());
        }
        if self.leads {
            let steps = number_of(self.step as usize, "step", "steps");
            let text = format!("evaluation after {steps}: {}", list_scores(scores));
            self.pace.bar.suspend(|| print_message("note", &text));
        }
        self.line["eval"] = scores.clone();
        self.write()
    }

    /// The line of the last step.
    pub(super) fn line(&self) -> String {
        self.line.to_string()
    }

    /// Takes the bar away, and says how many steps were left out, where that was asked for.
    pub(super) fn clear(&self) {
        self.pace.bar.finish_and_clear();
        if self.skipped > 0 && (self.options.skip_non_finite || self.skipped_in_a_row > 0) {
            print_message(
                "note",
                &format!("{} steps changed nothing: they were skipped", self.skipped),
            );
        }
    }

    fn is_skipped(&self) -> bool {
        self.line["skipped"].as_bool().unwrap_or(false)
    }

    fn count_skipped(&mut self) {
        let is_skipped = self.is_skipped();
        self.skipped += u64::from(is_skipped);
        self.skipped_in_a_row = if is_skipped { self.skipped_in_a_row + 1 } else { 0 };
    }

    fn write(&mut self) -> Result<()> {
        if let Some(metrics) = &mut self.metrics {
            metrics.write(&self.line)?;
        }
        if let Some(events) = &mut self.events {
            // After an evaluation, `self.step` is the next one.
            let step = self.line["step"].as_u64().unwrap_or(self.step);
            events.write(step, &list_numbers("", &self.line))?;
        }
        Ok(())
    }

    /// Judges loss and gradients. A step of f16 whose gradients overflow is not made and does no harm, as a smaller scale helps
    /// the next one; but no scale makes a loss finite that is not.
    fn check_loss(&self) -> Result<()> {
        let (loss, step, norm) = (self.loss()?, self.step, self.number(GRAD_NORM)?);
        let does_no_harm = self.is_skipped() && (loss.is_finite() || self.options.skip_non_finite);
        let is_finite = loss.is_finite() && norm.is_none_or(f32::is_finite);
        if is_finite || does_no_harm || self.ignores {
            return Ok(());
        }
        Err(Diverged { step, loss, norm }.into())
    }

    fn check_skipped(&self) -> Result<()> {
        let (step, skipped) = (self.step, self.skipped_in_a_row);
        match self.most_skips {
            Some(most) if skipped > most => {
                Err(TooManySkipped { step, skipped, most, scale: self.number(LOSS_SCALE)? }.into())
            }
            _ => Ok(()),
        }
    }

    fn loss(&self) -> Result<f32> {
        self.number("loss")?.context("the plan has no output `loss`")
    }

    /// An output that is a number, if the plan has it.
    fn number(&self, name: &str) -> Result<Option<f32>> {
        let of = |tensor: &HostTensor| -> Result<f32> { Ok(tensor.to_f32()?[0]) };
        self.outputs.get(name).map(of).transpose()
    }

    /// The line of metrics of a step but for its speed: with its epoch where there are epochs, with what is measured,
    /// with the learning rate where that has a schedule, with the norm of the gradients where that is clipped; where the
    /// loss is scaled (f16) with the scale, there and where steps may be left out with whether this one was.
    fn metrics_of(&self, step: u64) -> Result<Value> {
        let mut line = json!({ "step": step, "loss": self.loss()? });
        if let Some(steps) = self.epoch {
            line["epoch"] = json!(step / steps);
        }
        let samples = self.number(SAMPLES)?.unwrap_or_default();
        for metric in self.options.metrics.iter().map(|metric| metric.name()) {
            // Of no labels there is no share.
            let share = |hits: f32| f64::from(hits) / f64::from(samples);
            line[metric] = json!(self.number(metric)?.map(share));
        }
        if self.perplexity {
            line["perplexity"] = json!(f64::from(self.loss()?).exp());
        }
        if !self.options.lr_schedule.is_constant() {
            line["lr"] = json!(self.options.learning_rate(step));
        }
        if self.options.clip_norm.is_some() {
            line[GRAD_NORM] = json!(self.number(GRAD_NORM)?);
        }
        if self.scales {
            line["loss_scale"] = json!(self.number(LOSS_SCALE)?);
        }
        if self.scales || self.options.skip_non_finite {
            line["skipped"] = json!(self.number(SKIPPED)?.is_some_and(|skipped| skipped != 0.0));
        }
        Ok(line)
    }
}

impl ProgressPace {
    fn new(bar: ProgressBar, batch: usize, leads: bool) -> Self {
        let lines = (leads && bar.is_hidden()).then(|| ProgressLines::after_begin(Instant::now()));
        Self { bar, batch, last: None, since: None, lines }
    }

    /// Seconds of a step that has just finished: since it began, but not before the end of the step before it.
    fn seconds_since(&mut self, begun: Instant) -> f64 {
        let now = Instant::now();
        let since = self.last.replace(now).map_or(begun, |last| last.max(begun));
        now.duration_since(since).as_secs_f64()
    }

    fn advance_bar(&mut self, loss: f32, skipped: u64) {
        // The first step touches all memory for the first time: it says nothing of the pace.
        let now = Instant::now();
        let (since, steps) = self.since.get_or_insert((now, 0));
        let seconds = now.duration_since(*since).as_secs_f64();
        let pace = (*steps * self.batch as u64) as f64 / seconds;
        *steps += 1;
        let pace = if pace.is_finite() { format!(", {pace:.0} samples/s") } else { String::new() };
        let skipped = if skipped > 0 { format!(", {skipped} skipped") } else { String::new() };
        let message = format!("loss {loss:.4}{pace}{skipped}");
        self.bar.inc(1);
        if self.lines.as_mut().is_some_and(|lines| lines.are_due(now)) {
            let (done, all) = (self.bar.position(), self.bar.length().unwrap_or_default());
            print_message("note", &format!("{done} of {all} steps, {message}"));
        }
        self.bar.set_message(message);
    }
}

/// Lists what an evaluation has found, in a sentence.
fn list_scores(scores: &Value) -> String {
    let one = |(name, value): (&String, &Value)| match value.as_f64().filter(|_| !value.is_u64()) {
        Some(number) => format!("{name} {number:.4}"),
        None => format!("{name} {value}"),
    };
    scores.as_object().into_iter().flatten().map(one).collect::<Vec<_>>().join(", ")
}

/// The outputs of a session that are one number, as losses and metrics are.
pub(super) fn number_outputs(session: &Session) -> Vec<String> {
    let numbers = session.outputs().iter().filter(|(_, ty)| ty.elements() == 1);
    numbers.map(|(name, _)| name.clone()).collect()
}

/// Refuses a number of skipped steps of a plan that skips none.
pub(super) fn check_skips(args: &TrainArgs, plan: &Plan) -> Result<()> {
    ensure!(
        args.max_skips.is_none() || has_loss_scale(plan) || plan.options.skip_non_finite,
        "--max-skips: no step of this plan is ever skipped; f16 skips steps whose gradients overflow, --on-nan skip those whose loss \
         is not finite"
    );
    Ok(())
}

fn most_skips(args: &TrainArgs) -> Option<u64> {
    let ignores = args.shared.hyperparameters.ignores_non_finite();
    args.max_skips.or((!ignores).then_some(MOST_SKIPS))
}

/// The metrics file: anew, or what it holds of the steps before that at which training goes on.
fn open_metrics(args: &TrainArgs, resumed: Option<u64>) -> Result<Option<MetricsWriter>> {
    let Some(path) = &args.metrics else { return Ok(None) };
    let Some(step) = resumed else { return Ok(Some(MetricsWriter::create(path)?)) };
    let metrics = MetricsWriter::resume(path, step)?;
    let next = metrics.last_step().map_or(0, |last| last + 1);
    if next < step {
        let path = path.display();
        print_message(
            "warning",
            &format!("{path} has no lines of the steps {next} to {}", step - 1),
        );
    }
    Ok(Some(metrics))
}

/// The event file of a training that begins at this step.
fn open_events(args: &TrainArgs, first_step: u64) -> Result<Option<EventWriter>> {
    let folder = args.tensorboard.as_deref();
    Ok(folder.map(|folder| EventWriter::create(folder, first_step)).transpose()?)
}

/// The numbers of a line of metrics by name, those of an evaluation as `eval/loss`.
fn list_numbers(within: &str, line: &Value) -> Vec<(String, f64)> {
    let mut numbers = Vec::new();
    for (name, value) in line.as_object().into_iter().flatten() {
        let path = format!("{within}{name}");
        match value {
            Value::Number(number) if path != "step" => {
                numbers.push((path, number.as_f64().unwrap_or(f64::NAN)));
            }
            Value::Bool(flag) => numbers.push((path, f64::from(u8::from(*flag)))),
            Value::Object(_) => numbers.extend(list_numbers(&format!("{path}/"), value)),
            _ => {}
        }
    }
    numbers
}

fn create_bar(first_step: u64, steps: u64) -> Result<ProgressBar> {
    let bar = ProgressBar::new(steps);
    bar.set_position(first_step);
    let template = "{bar:32} {pos}/{len} steps, {msg} [{elapsed}, {eta} left]";
    bar.set_style(ProgressStyle::with_template(template)?);
    bar.reset_eta();
    Ok(bar)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_due_after_half_a_minute_and_then_each_minute() {
        let begin = Instant::now();
        let mut lines = ProgressLines::after_begin(begin);
        let seconds = [1, 29, 30, 31, 89, 90, 100, 200, 201];
        let due = seconds.map(|at| lines.are_due(begin + Duration::from_secs(at)));
        assert_eq!(due, [false, false, true, false, false, true, false, true, false]);
    }

    #[test]
    fn numbers_of_a_line_have_names() {
        let line = json!({ "step": 3, "loss": 1.5, "skipped": true, "top1": null, "eval": { "loss": 2, "samples": 64 } });
        let named = |name: &str, value| (name.to_owned(), value);
        let expected = [
            named("loss", 1.5),
            named("skipped", 1.0),
            named("eval/loss", 2.0),
            named("eval/samples", 64.0),
        ];
        assert_eq!(list_numbers("", &line), expected);
    }

    #[test]
    fn an_evaluation_is_told_in_a_line() {
        let scores = json!({ "loss": 1.23456, "top1": 0.5, "samples": 64 });
        assert_eq!(list_scores(&scores), "loss 1.2346, top1 0.5000, samples 64");
        assert_eq!(list_scores(&json!({ "loss": null })), "loss null");
    }
}
