//! Tells how a run went: losses and pace of a metrics file, and measured beside predicted seconds of a profile.

use std::collections::{BTreeMap, BTreeSet};

use graphc_plan::{Action, Plan};
use serde::Serialize;
use serde_json::Value;

use super::PageError;
use super::places::{RankRun, ranks_of_class};
use crate::profile::{Profile, ProfileError, ProgramProfile};

/// Lines of a metrics file that a page keeps: of more, evenly spaced ones.
const MOST_STEPS: usize = 4000;

/// Fields of metrics that say nothing as a curve.
const NO_CURVES: [&str; 4] = ["step", "epoch", "samples", "seconds"];

/// Fields of metrics that an output of the plan gives.
const OF_OUTPUTS: [&str; 6] = ["loss", "top1", "top5", "grad_norm", "loss_scale", "skipped"];

/// The curve that `samples` and `seconds` of a step make.
const PACE: &str = "samples/s";

/// The course of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Went {
    /// Steps that were kept.
    pub steps: Vec<u64>,
    /// The numbers of each kept step by name, null where a step has none.
    pub curves: BTreeMap<String, Vec<Option<f64>>>,
    /// Steps of the file.
    pub count: usize,
    /// The pace of the run, where the file has samples and seconds of steps.
    pub pace: Option<RunPace>,
    /// The measured seconds.
    pub measured: Option<MeasuredCosts>,
}

/// Samples per second of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunPace {
    /// The seconds that the plan predicts.
    pub predicted: f64,
    /// All samples by all seconds, without the first step, which touches all memory for the first time.
    pub measured: f64,
}

/// Measured beside predicted.
#[derive(Clone, Debug, Serialize)]
pub struct MeasuredCosts {
    /// Seconds of a step: predicted and measured.
    pub step: (f64, f64),
    /// The rows by op, and of collectives by kind: name, predicted and measured seconds of a step, the mean of all ranks.
    pub rows: Vec<(String, f64, f64)>,
    /// The rows of each kind of ranks, where there are several.
    pub ranks: Vec<MeasuredRanks>,
    /// Single actors: name, predicted and measured seconds of one action.
    pub actors: Vec<(String, f64, f64)>,
}

/// Rows of the ranks of one program.
#[derive(Clone, Debug, Serialize)]
pub struct MeasuredRanks {
    /// The ranks.
    pub ranks: Vec<RankRun>,
    /// The rows: name, predicted and measured seconds of a step of one of them.
    pub rows: Vec<(String, f64, f64)>,
}

/// Reads the lines of a metrics file: JSON objects with a `step`, whose other numbers are curves. A step is predicted to take
/// `step_seconds`.
///
/// # Errors
/// [`PageError::Metrics`] with the line that is none, [`PageError::OtherRun`] with one that no run of the plan writes.
pub(super) fn read_metrics(plan: &Plan, text: &str, step_seconds: f64) -> Result<Went, PageError> {
    let (mut lines, mut timed) = (Vec::new(), Vec::new());
    let made = RunProperties::from_plan(plan);
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |reason: String| PageError::Metrics { line: index + 1, reason };
        let value: Value = serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
        let step = value["step"].as_u64().ok_or_else(|| wrong("it has no `step`".into()))?;
        if let Some(reason) = made.contradiction(&value) {
            return Err(PageError::OtherRun { line: index + 1, reason });
        }
        timed.extend(samples_and_seconds(&value));
        lines.push((step, finite_numbers(&value)));
    }
    let count = lines.len();
    let every = count.div_ceil(MOST_STEPS).max(1);
    let kept: Vec<_> =
        lines.into_iter().enumerate().filter(|(i, _)| i % every == 0 || i + 1 == count).collect();
    let mut curves: BTreeMap<String, Vec<Option<f64>>> = BTreeMap::new();
    for (at, (_, (_, numbers))) in kept.iter().enumerate() {
        for (name, number) in numbers {
            let curve = curves.entry(name.clone()).or_insert_with(|| vec![None; kept.len()]);
            curve[at] = Some(*number);
        }
    }
    let steps = kept.into_iter().map(|(_, (step, _))| step).collect();
    Ok(Went { steps, curves, count, pace: compare_pace(&timed, step_seconds), measured: None })
}

/// The properties of lines of a run of a plan. A line does not name its plan, so this is what is known of it.
struct RunProperties<'a> {
    outputs: BTreeSet<&'a str>,
    /// Samples of a step.
    batch: Option<usize>,
}

impl<'a> RunProperties<'a> {
    fn from_plan(plan: &'a Plan) -> Self {
        let (mut outputs, mut batch) = (BTreeSet::new(), None);
        for program in &plan.programs {
            for actor in &program.actors {
                if let Action::Fetch { output, .. } = &actor.action {
                    outputs.insert(output.as_str());
                }
                if let Action::Feed { samples, .. } = &actor.action {
                    let register = &program.registers[actor.outputs[0].index()];
                    let shape = &plan.layouts[register.layout.index()].shape;
                    batch = batch.or(samples.dim(shape.len()).map(|dim| shape[dim]));
                }
            }
        }
        Self { outputs, batch }
    }

    /// Names what a line has that no run of the plan writes.
    fn contradiction(&self, line: &Value) -> Option<String> {
        let other = OF_OUTPUTS
            .iter()
            .find(|name| !line[**name].is_null() && !self.outputs.contains(**name));
        if let Some(name) = other {
            return Some(format!("it has `{name}`, and the plan has no such output"));
        }
        let (samples, batch) = (line["samples"].as_u64()?, self.batch? as u64);
        (samples != batch)
            .then(|| format!("its step is of {samples} samples, the plan's of {batch}"))
    }
}

/// Samples and seconds of a step, where its line has both and neither is 0.
fn samples_and_seconds(line: &Value) -> Option<(f64, f64)> {
    let number = |name: &str| line[name].as_f64().filter(|number| *number > 0.0);
    Some((number("samples")?, number("seconds")?))
}

fn compare_pace(timed: &[(f64, f64)], step_seconds: f64) -> Option<RunPace> {
    let steady = timed.get(1..).filter(|rest| !rest.is_empty()).unwrap_or(timed);
    let (samples, _) = timed.last().filter(|_| step_seconds > 0.0)?;
    let sums = steady.iter().fold((0.0, 0.0), |sums, one| (sums.0 + one.0, sums.1 + one.1));
    Some(RunPace { predicted: samples / step_seconds, measured: sums.0 / sums.1 })
}

/// The finite numbers of a line, those of an evaluation under its name, and its pace.
fn finite_numbers(value: &Value) -> Vec<(String, f64)> {
    let pace = samples_and_seconds(value).map(|(samples, seconds)| samples / seconds);
    let mut all: Vec<(String, f64)> = pace.map(|pace| (PACE.into(), pace)).into_iter().collect();
    for (name, value) in value.as_object().into_iter().flatten() {
        if let Some(number) = value.as_f64().filter(|_| !NO_CURVES.contains(&name.as_str())) {
            all.push((name.clone(), number));
        }
        if let Some(inner) = value.as_object() {
            let named = |(inner, value): (&String, &Value)| {
                Some((format!("{name} {inner}"), value.as_f64()?))
            };
            all.extend(inner.iter().filter_map(named));
        }
    }
    all
}

/// Puts measured seconds beside what the plan predicts.
///
/// # Errors
/// Returns an error if the measured seconds are of another plan.
pub(super) fn compare_measured(
    plan: &Plan,
    step_seconds: f64,
    profile: &Profile,
) -> Result<MeasuredCosts, ProfileError> {
    let kinds = profile.by_kind(plan)?.into_iter();
    let ranks = match profile.programs.as_slice() {
        [] | [_] => Vec::new(),
        several => several
            .iter()
            .map(|part| rows_of_program(plan, profile, part))
            .collect::<Result<_, _>>()?,
    };
    Ok(MeasuredCosts {
        step: (step_seconds, profile.step_seconds),
        rows: kinds.map(|(kind, sum)| (kind, sum.predicted, sum.measured)).collect(),
        ranks,
        actors: profile.by_actor(plan)?,
    })
}

/// Predicted and measured seconds of a rank of one program.
fn rows_of_program(
    plan: &Plan,
    profile: &Profile,
    part: &ProgramProfile,
) -> Result<MeasuredRanks, ProfileError> {
    let programs: Vec<usize> = plan.ranks.iter().map(|rank| rank.program.index()).collect();
    let count = programs.iter().filter(|&&program| program == part.program).count();
    // Sums over kinds are means of all ranks; those of other programs have no part in these.
    let all = plan.world_size as f64 / count.max(1) as f64;
    let alone = Profile { programs: vec![part.clone()], ..profile.clone() };
    let rows = alone.by_kind(plan)?.into_iter();
    let rows = rows.map(|(kind, sum)| (kind, sum.predicted * all, sum.measured * all)).collect();
    Ok(MeasuredRanks { ranks: ranks_of_class(&programs, part.program), rows })
}
