//! Plans alternatives of the heaviest tensors as the page is written, to show why they lie as they do, for as long as there is time.

use std::time::{Duration, Instant};

use graphc_compiler::decisions::Decisions;
use graphc_compiler::planner;
use graphc_ir::types::format_bytes_briefly;
use graphc_plan::{CompileOptions, Plan, Strategy, TensorEntry, TensorKind};
use serde::Serialize;

use crate::report::alternatives::{Alternative, LayoutChoice, explain_while};

/// Tensors that are explained where nobody says how many.
const USUAL: usize = 6;

/// Other tensors that are named where a layout changes them.
const NAMED: usize = 6;

/// Wishes that are priced.
const MOST_ASKED: usize = 8;

/// The reasons why one tensor lies as it does.
#[derive(Clone, Debug, Serialize)]
pub struct Why {
    /// The tensor.
    pub tensor: String,
    /// The layouts in which it may be made.
    pub choices: Vec<Reason>,
    /// The layouts that the backward pass may read it in; empty where that is no choice.
    pub backward: Vec<Reason>,
    /// The number of layouts for which there was no time.
    pub unplanned: usize,
    /// The reason why there are no alternatives, if so.
    pub error: Option<String>,
}

/// The time in which alternatives are begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Time {
    begun: Instant,
    within: Option<Duration>,
}

impl Time {
    /// Begins the time now; it has no end if `within` is `None`.
    pub(super) fn from_now(within: Option<Duration>) -> Self {
        Self { begun: Instant::now(), within }
    }

    fn is_left(&self) -> bool {
        self.within.is_none_or(|within| self.begun.elapsed() < within)
    }

    /// One of so many equal shares of what is left.
    pub(super) fn share(&self, shares: usize) -> Self {
        let left = self.within.map(|within| within.saturating_sub(self.begun.elapsed()));
        Self::from_now(left.map(|left| left / shares.max(1) as u32))
    }
}

/// A layout that a tensor may have.
#[derive(Clone, Debug, Serialize)]
pub struct Reason {
    /// The layout, and for the backward pass whether it is kept or gathered again so.
    pub layout: String,
    /// Whether it is the plan's.
    pub chosen: bool,
    /// Seconds of the best plan with it.
    pub seconds: Option<f64>,
    /// The number of other tensors that then lie in other ways.
    pub changes: usize,
    /// The first of them.
    pub changed: Vec<String>,
    /// The reason why there is no plan with it.
    pub error: Option<String>,
}

/// Something that the user asked for, and what is to be had without it.
#[derive(Clone, Debug, Serialize)]
pub struct PricedWish {
    /// The pin, the strategy or the limit.
    pub what: String,
    /// Seconds of the best plan without it, all else as it was asked for.
    pub seconds: Option<f64>,
    /// The reason why there is no plan without it.
    pub error: Option<String>,
}

/// Prices what the user asked for, where alternatives are planned at all and there is time.
pub(super) fn price_wishes(
    plan: &Plan,
    decisions: &Decisions,
    explained: Option<usize>,
    time: &Time,
) -> Vec<PricedWish> {
    if explained == Some(0) {
        return Vec::new();
    }
    let price = |(what, options): (String, CompileOptions)| {
        let planned = planner::plan_signatures(decisions, &options, &plan.cluster);
        let seconds = planned.as_ref().ok().map(|planned| planned.report.objective_seconds);
        PricedWish { what, seconds, error: planned.err().map(|error| error.to_string()) }
    };
    let wishes = leave_out_wishes(&plan.options).into_iter().take(MOST_ASKED);
    wishes.take_while(|_| time.is_left()).map(price).collect()
}

/// Returns each wish by name, with the options that leave it out.
fn leave_out_wishes(options: &CompileOptions) -> Vec<(String, CompileOptions)> {
    let mut all = Vec::new();
    for (index, pin) in options.pins.iter().enumerate() {
        let mut fewer = options.clone();
        fewer.pins.remove(index);
        all.push((format!("the pin {}={}", pin.pattern, pin.sbp), fewer));
    }
    if options.strategy != Strategy::Auto {
        let name = serde_json::to_value(options.strategy).unwrap_or_default();
        let name = name.as_str().unwrap_or_default();
        let fewer = CompileOptions { strategy: Strategy::Auto, ..options.clone() };
        all.push((format!("the strategy {name}"), fewer));
    }
    if let Some(limit) = options.memory {
        let fewer = CompileOptions { memory: None, ..options.clone() };
        all.push((format!("the limit of memory of {}", format_bytes_briefly(limit)), fewer));
    }
    all
}

/// Explains tensors of plans, as many as there is time for, but one of each at least. As many of one plan as of another, so that those of
/// one model can be held against each other.
pub(super) fn explain_tensors(
    plans: &[(&Plan, &Decisions)],
    tensors: &[Vec<String>],
    time: &Time,
) -> Vec<Vec<Why>> {
    let mut all = vec![Vec::new(); plans.len()];
    let most = tensors.iter().map(Vec::len).max().unwrap_or(0);
    for round in 0..most {
        if round > 0 && !time.is_left() {
            break;
        }
        for (number, (plan, decisions)) in plans.iter().enumerate() {
            let Some(tensor) = tensors[number].get(round) else { continue };
            let time = time.share(plans.len() - number);
            all[number].push(explain_one(plan, decisions, tensor, &time));
        }
    }
    all
}

/// The tensors of each plan that are explained: `asked` of the heaviest, a few where nobody says how many. Two plans of one model
/// explain the same ones, so that they can be held against each other.
pub(super) fn choose_explained(plans: &[&Plan], asked: Option<usize>) -> Vec<Vec<String>> {
    let count = asked.unwrap_or(USUAL);
    let own = |plan: &Plan| -> Vec<String> {
        heaviest_tensors(plan, count).into_iter().map(str::to_owned).collect()
    };
    let Some(first) = plans.first() else { return Vec::new() };
    let has = |plan: &Plan, name: &String| plan.tensors.iter().any(|entry| entry.name == *name);
    let shared: Vec<String> =
        own(first).into_iter().filter(|name| plans.iter().all(|plan| has(plan, name))).collect();
    match shared.is_empty() {
        true => plans.iter().map(|plan| own(plan)).collect(),
        false => vec![shared; plans.len()],
    }
}

/// The largest parameters and the largest activations, half of each, of as many names as shapes.
fn heaviest_tensors(plan: &Plan, count: usize) -> Vec<&str> {
    let of = |kind: TensorKind, count: usize| {
        let mut all: Vec<&TensorEntry> =
            plan.tensors.iter().filter(|entry| entry.kind == kind).collect();
        let bytes =
            |entry: &TensorEntry| entry.shape.iter().product::<usize>() * entry.dtype.size();
        all.sort_by_key(|entry| std::cmp::Reverse(bytes(entry)));
        let mut different: Vec<&TensorEntry> = Vec::new();
        for entry in all {
            let known = |other: &&TensorEntry| other.shape == entry.shape && other.sbp == entry.sbp;
            if different.len() < count && !different.iter().any(known) {
                different.push(entry);
            }
        }
        different.into_iter().map(|entry| entry.name.as_str())
    };
    let weights = count.div_ceil(2);
    let chosen = of(TensorKind::Parameter, weights);
    chosen.chain(of(TensorKind::Activation, count - weights)).collect()
}

fn explain_one(plan: &Plan, decisions: &Decisions, tensor: &str, time: &Time) -> Why {
    let mut why = Why {
        tensor: tensor.into(),
        choices: Vec::new(),
        backward: Vec::new(),
        unplanned: 0,
        error: None,
    };
    match explain_while(plan, decisions, tensor, &|| time.is_left()) {
        Err(error) => why.error = Some(error.to_string()),
        Ok(explained) => {
            let backward = explained.backward.as_ref().map_or(0, |one| one.choice.unplanned);
            why.unplanned = explained.choice.unplanned + backward;
            why.choices = list_reasons(&explained.choice, |layout| layout.to_string());
            if let Some(backward) = &explained.backward {
                let again = |layout: &_| explained.for_backward(layout);
                why.backward = list_reasons(&backward.choice, again);
            }
        }
    }
    why
}

fn list_reasons(
    choice: &LayoutChoice,
    name: impl Fn(&graphc_ir::sbp::NdSbp) -> String,
) -> Vec<Reason> {
    let reason = |alternative: &Alternative| {
        let (seconds, changed) = match &alternative.outcome {
            Ok((seconds, changed)) => (Some(*seconds), changed.as_slice()),
            Err(_) => (None, &[][..]),
        };
        Reason {
            layout: name(&alternative.sbp),
            chosen: choice.chosen.as_ref() == Some(&alternative.sbp),
            seconds,
            changes: changed.len(),
            changed: changed.iter().take(NAMED).cloned().collect(),
            error: alternative.outcome.as_ref().err().cloned(),
        }
    };
    let mut reasons: Vec<Reason> = choice.all.iter().map(reason).collect();
    let cost = |reason: &Reason| reason.seconds.unwrap_or(f64::INFINITY);
    reasons.sort_by(|a, b| cost(a).total_cmp(&cost(b)));
    reasons
}
