//! How a run went: losses and pace of a metrics file, and what a profile has measured beside what was predicted.

use std::collections::{BTreeMap, BTreeSet};

use graphc_ir::plan::{Actor, Plan, Program};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::PageError;
use super::costs::{Class, op};

/// Lines of a metrics file that a page keeps: of more, evenly spaced ones.
const MOST_STEPS: usize = 4000;

/// Fields of metrics that say nothing as a curve.
const NO_CURVES: [&str; 4] = ["step", "epoch", "samples", "seconds"];

/// The curve that `samples` and `seconds` of a step make.
const PACE: &str = "samples/s";

/// How a run went.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Went {
    /// Steps that were kept.
    pub steps: Vec<u64>,
    /// By name: the number of each kept step, null where it has none.
    pub curves: BTreeMap<String, Vec<Option<f64>>>,
    /// Steps of the file.
    pub count: usize,
    /// How fast it was, where the file has samples and seconds of steps.
    pub pace: Option<Pace>,
    /// What was measured.
    pub measured: Option<Measured>,
}

/// Samples per second of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pace {
    /// What the plan predicts.
    pub predicted: f64,
    /// All samples by all seconds, without the first step, which touches all memory for the first time.
    pub measured: f64,
}

/// Measured beside predicted.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Seconds of a step: predicted and measured.
    pub step: (f64, f64),
    /// Kernels by op, and collectives by kind: name, predicted and measured seconds of one rank's step.
    pub rows: Vec<(String, f64, f64)>,
    /// Single actors: name, predicted and measured seconds of one action.
    pub actors: Vec<(String, f64, f64)>,
}

/// A file of measured seconds: of the actions of one rank's step.
#[derive(Debug, Deserialize)]
struct File {
    step_seconds: f64,
    actors: Vec<OneActor>,
    #[serde(default)]
    collectives: Vec<OneCollective>,
}

#[derive(Debug, Deserialize)]
struct OneActor {
    name: String,
    #[serde(default)]
    op: String,
    seconds: f64,
}

#[derive(Debug, Deserialize)]
struct OneCollective {
    kind: String,
    seconds: f64,
}

/// Reads the lines of a metrics file: JSON objects with a `step`, whose other numbers are curves. A step is predicted to take
/// `step_seconds`.
///
/// # Errors
/// [`PageError::Metrics`] with the line that is none.
pub fn metrics(text: &str, step_seconds: f64) -> Result<Went, PageError> {
    let (mut lines, mut timed) = (Vec::new(), Vec::new());
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |reason: String| PageError::Metrics { line: index + 1, reason };
        let value: Value = serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
        let step = value["step"].as_u64().ok_or_else(|| wrong("it has no `step`".into()))?;
        timed.extend(samples_and_seconds(&value));
        lines.push((step, numbers(&value)));
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
    Ok(Went { steps, curves, count, pace: pace(&timed, step_seconds), measured: None })
}

/// Samples and seconds of a step, where its line has both and neither is 0.
fn samples_and_seconds(line: &Value) -> Option<(f64, f64)> {
    let number = |name: &str| line[name].as_f64().filter(|number| *number > 0.0);
    Some((number("samples")?, number("seconds")?))
}

fn pace(timed: &[(f64, f64)], step_seconds: f64) -> Option<Pace> {
    let steady = timed.get(1..).filter(|rest| !rest.is_empty()).unwrap_or(timed);
    let (samples, _) = timed.last().filter(|_| step_seconds > 0.0)?;
    let sums = steady.iter().fold((0.0, 0.0), |sums, one| (sums.0 + one.0, sums.1 + one.1));
    Some(Pace { predicted: samples / step_seconds, measured: sums.0 / sums.1 })
}

/// The finite numbers of a line, those of an evaluation under its name, and its pace.
fn numbers(value: &Value) -> Vec<(String, f64)> {
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

/// Puts a file of measured seconds beside what the plan predicts of the program whose actors have the most names in common.
///
/// # Errors
/// [`PageError::Measured`] where the file is none.
pub fn measured(
    plan: &Plan,
    classes: &[Class],
    step_seconds: f64,
    text: &str,
) -> Result<Measured, PageError> {
    let file = read(text)?;
    let program = closest(plan, &file);
    let actors = plan.programs[program].actors.iter();
    let known: BTreeMap<&str, &Actor> = actors.map(|actor| (actor.name.as_str(), actor)).collect();
    let class = classes.iter().find(|class| program_of(plan, class) == program);
    let step = (step_seconds, file.step_seconds);
    Ok(Measured { step, rows: rows(&file, &known, class), actors: one_by_one(&file, &known) })
}

fn read(text: &str) -> Result<File, PageError> {
    let wrong = |reason: String| PageError::Measured { reason };
    let file: File = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    let numbers = file.actors.iter().map(|actor| actor.seconds);
    let all = numbers.chain(file.collectives.iter().map(|one| one.seconds));
    match all.chain([file.step_seconds]).find(|s| !s.is_finite() || *s < 0.0) {
        Some(number) => Err(wrong(format!("{number} is no number of seconds"))),
        None => Ok(file),
    }
}

/// Seconds of kernels by op and of collectives by kind, predicted and measured, those that take longest first.
fn rows(
    file: &File,
    known: &BTreeMap<&str, &Actor>,
    class: Option<&Class>,
) -> Vec<(String, f64, f64)> {
    let mut rows: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    if let Some(class) = class {
        for (name, _, _, _, seconds) in &class.kernels {
            rows.entry(name.clone()).or_default().0 += seconds;
        }
        for (_, kind, _, _, seconds) in &class.communication {
            rows.entry((*kind).into()).or_default().0 += seconds;
        }
    }
    for one in &file.actors {
        let actor = known.get(one.name.as_str());
        let word = actor.map_or_else(|| one.op.clone(), |actor| op(actor));
        rows.entry(word).or_default().1 += one.seconds;
    }
    for one in &file.collectives {
        rows.entry(one.kind.clone()).or_default().1 += one.seconds;
    }
    let mut rows: Vec<_> = rows.into_iter().map(|(name, (a, b))| (name, a, b)).collect();
    rows.sort_by(|a, b| (b.1 + b.2).total_cmp(&(a.1 + a.2)));
    rows
}

/// Seconds of one action of each measured actor of the plan: predicted, and the mean of what was measured.
fn one_by_one(file: &File, known: &BTreeMap<&str, &Actor>) -> Vec<(String, f64, f64)> {
    let mut actors: BTreeMap<&str, (f64, f64, usize)> = BTreeMap::new();
    for one in &file.actors {
        if let Some(actor) = known.get(one.name.as_str()) {
            let sum = actors.entry(&one.name).or_insert((actor.seconds, 0.0, 0));
            (sum.1, sum.2) = (sum.1 + one.seconds, sum.2 + 1);
        }
    }
    let mean = |(name, (a, b, n)): (&str, (f64, f64, usize))| (name.into(), a, b / n as f64);
    actors.into_iter().map(mean).collect()
}

fn program_of(plan: &Plan, class: &Class) -> usize {
    plan.ranks[class.rank as usize].program.index()
}

/// The program that has the most of the measured names.
fn closest(plan: &Plan, file: &File) -> usize {
    let names: BTreeSet<&str> = file.actors.iter().map(|actor| actor.name.as_str()).collect();
    let common = |program: &Program| {
        program.actors.iter().filter(|actor| names.contains(actor.name.as_str())).count()
    };
    let counts: Vec<usize> = plan.programs.iter().map(common).collect();
    let most = counts.iter().max().copied().unwrap_or(0);
    counts.iter().position(|&count| count == most).unwrap_or(0)
}
