//! Makes the page of `graphc report`: a plan, or two, as one file that a browser shows without anything else.
//!
//! [`build_page`] reads its data off the plan, the passes made again (layers, phases, what is recomputed), the null
//! device's trace and the planner's alternatives. [`html`] writes the page, with the data as one JSON block that the
//! page's own script draws. Nothing here reads or writes files.
//!
//! `tests/report` opens pages in headless Chromium over the DevTools protocol on a pipe, without further crates,
//! where one is installed. With `GRAPHC_IMAGES=1` it writes the guide's images. Start reading with [`Page`], then
//! `assets/main.js`.

use std::time::Duration;

use graphc_compiler::compile::prepare_again;
use graphc_compiler::decisions::Decisions;
use graphc_compiler::error::CompileError;
use graphc_compiler::null_device::{NullDeviceError, simulate, trace};
use graphc_compiler::passes::error::PassError;
use graphc_ir::graph::Graph;
use graphc_plan::check::VerifiedPlan;
use graphc_plan::{Cluster, CompileOptions, Plan};
use serde::Serialize;
use serde_json::Value;

use super::Difference;
use crate::profile::{Profile, ProfileError};
use doing::Makers;
use table::InternTable;
use timeline::Names;
use why::Time;

mod costs;
mod doing;
mod events;
mod failed;
mod graph;
mod html;
mod layers;
mod memory;
mod parts;
mod places;
mod registers;
mod summary;
mod table;
mod timeline;
mod waits;
mod went;
mod why;

pub use costs::{Class, StepCosts};
pub use failed::Failed;
pub use graph::Ops;
pub use html::write_html;
pub use layers::{Layer, Tensor};
pub use memory::Memory;
pub use places::{PlanPlaces, Stage};
pub use registers::Touched;
pub use summary::Summary;
pub use timeline::{Lane, Timeline};
pub use waits::Wait;
pub use went::{MeasuredCosts, RunPace, Went};
pub use why::{PricedWish, Why};

/// The version of the data block.
pub(crate) const PAGE_VERSION: u32 = 3;

/// All that a page shows: the schema of its data block, which `docs/report.md` describes.
#[derive(Clone, Debug, Serialize)]
pub struct Page {
    /// The version of the schema.
    pub version: u32,
    /// One plan, or two beside each other; none where there is no plan.
    pub plans: Vec<PlanPage>,
    /// The reason why there is no plan.
    pub failed: Option<Failed>,
    /// The differences of two plans.
    pub difference: Option<Differs>,
    /// The course of a run of the first plan.
    pub went: Option<Went>,
}

/// The part of a page about one plan.
#[derive(Clone, Debug, Serialize)]
pub struct PlanPage {
    /// Its name: that of the graph.
    pub name: String,
    /// The file that it is in.
    pub file: String,
    /// The figures at the top.
    pub summary: Summary,
    /// The places of everything.
    pub places: PlanPlaces,
    /// The costs of a step.
    pub costs: StepCosts,
    /// The simulated step.
    pub timeline: Timeline,
    /// Bytes over the step.
    pub memory: Memory,
    /// Names of parts of the model, which actors and ops refer to.
    pub parts: Vec<String>,
    /// The graph of the forward pass.
    pub graph: Ops,
    /// Alternatives of the heaviest tensors, those for which there was time.
    pub why: Vec<Why>,
    /// Tensors for which there was none.
    pub unexplained: Vec<String>,
    /// The seconds in which alternatives were begun, where there was an end.
    pub why_seconds: Option<f64>,
    /// The user's wishes, and what there is without each.
    pub asked: Vec<PricedWish>,
}

/// The differences between two plans, each entry with its name, before and after.
#[derive(Clone, Debug, Serialize)]
pub struct Differs {
    /// Options and other inputs.
    pub inputs: Vec<(String, Value, Value)>,
    /// Figures.
    pub figures: Vec<(&'static str, f64, f64)>,
    /// Collectives per step.
    pub collectives: Vec<(&'static str, usize, usize)>,
    /// The layouts of tensors.
    pub tensors: Vec<(String, Option<String>, Option<String>)>,
}

/// The input of a page besides plans.
#[derive(Clone, Debug, Default)]
pub struct PageOptions {
    /// Heaviest tensors whose alternatives are planned; `None`: a few.
    pub explain: Option<usize>,
    /// The time in which alternatives are begun, of all plans together; `None`: without end.
    pub within: Option<Duration>,
    /// The text of a metrics file of a run of the first plan.
    pub metrics: Option<String>,
    /// Measured seconds of the first plan.
    pub measured: Option<Profile>,
}

/// The reason why there is no page.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// The plan's graph or options are none.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// The plan hangs.
    #[error(transparent)]
    NullDevice(#[from] NullDeviceError),
    /// A line of the metrics is none.
    #[error(
        "line {line} of the metrics: {reason}; write one JSON object a step, as `graphc train --metrics` does"
    )]
    Metrics {
        /// The line, from 1.
        line: usize,
        /// The fault.
        reason: String,
    },
    /// A line of the metrics is of a run of another plan.
    #[error(
        "line {line} of the metrics is of another plan: {reason}; give those of a run of this one"
    )]
    OtherRun {
        /// The line, from 1.
        line: usize,
        /// The difference.
        reason: String,
    },
    /// The measured seconds are of another plan.
    #[error(transparent)]
    Measured(#[from] ProfileError),
}

graphc_ir::readable_debug!(PageError);

/// Reads a page off a plan, or off two that stand beside each other, each with the name of its file.
///
/// # Errors
/// Returns an error if a plan hangs or its graph cannot be read, if the metrics are none, or if metrics or measured seconds are of another
/// plan.
pub fn build_page(
    plans: &[(&str, &VerifiedPlan)],
    options: &PageOptions,
) -> Result<Page, PageError> {
    let each: Vec<&Plan> = plans.iter().map(|(_, plan)| &***plan).collect();
    let tensors = why::choose_explained(&each, options.explain);
    let decisions = plans.iter().map(|(_, plan)| prepare_again(plan));
    let decisions: Vec<Decisions> = decisions.collect::<Result<_, _>>()?;
    let shown = plans.iter().zip(&decisions);
    let shown = shown.map(|((file, plan), decisions)| plan_page(file, plan, decisions));
    let mut shown: Vec<PlanPage> = shown.collect::<Result<_, _>>()?;
    let each: Vec<(&Plan, &Decisions)> = each.into_iter().zip(&decisions).collect();
    add_reasons(&mut shown, &each, &tensors, options);
    let difference = match plans {
        [(_, before), (_, after)] => Some(list_differences(Difference::new(before, after))),
        _ => None,
    };
    let step = shown.first().map_or(0.0, |first| first.summary.step_seconds);
    let mut went = None;
    if let (Some(text), [(_, plan), ..]) = (&options.metrics, plans) {
        went = Some(went::read_metrics(plan, text, step)?);
    }
    if let (Some(profile), [(_, plan), ..]) = (&options.measured, plans) {
        went.get_or_insert_default().measured = Some(went::compare_measured(plan, step, profile)?);
    }
    Ok(Page { version: PAGE_VERSION, plans: shown, failed: None, difference, went })
}

/// The page of a graph, with the name of its file, that has no plan.
pub fn page_without_plan(
    model: (&str, &Graph),
    options: &CompileOptions,
    cluster: &Cluster,
    error: &CompileError,
) -> Page {
    let failed = Some(failed::explain_failure(model, options, cluster, error));
    Page { version: PAGE_VERSION, plans: Vec::new(), failed, difference: None, went: None }
}

fn list_differences(difference: Difference) -> Differs {
    let Difference { inputs, figures, collectives, tensors } = difference;
    Differs { inputs, figures, collectives, tensors }
}

/// Adds to the pages of plans why `tensors` of each lie as they do, and what was asked for, as far as there is time.
fn add_reasons(
    shown: &mut [PlanPage],
    plans: &[(&Plan, &Decisions)],
    tensors: &[Vec<String>],
    options: &PageOptions,
) {
    let time = Time::from_now(options.within);
    for (number, (page, (plan, decisions))) in shown.iter_mut().zip(plans).enumerate() {
        let time = time.share(plans.len() - number);
        page.asked = why::price_wishes(plan, decisions, options.explain, &time);
    }
    let all = why::explain_tensors(plans, tensors, &time);
    for ((page, why), tensors) in shown.iter_mut().zip(all).zip(tensors) {
        page.unexplained = tensors[why.len()..].to_vec();
        page.why_seconds = options.within.map(|within| within.as_secs_f64());
        page.why = why;
    }
}

/// The page of a plan, but for the reasons of what is as it is.
fn plan_page(
    file: &str,
    plan: &VerifiedPlan,
    decisions: &Decisions,
) -> Result<PlanPage, PageError> {
    let (simulation, traced) = (simulate(plan)?, trace(plan, 1)?);
    let ran = events::collect_runs(plan, &traced);
    let makers = Makers::new(decisions);
    let mut paths = InternTable::default();
    let (mut places, parts, graph) = places::list_places(plan, decisions, &mut paths);
    let mut names = Names { makers: &makers, parts: &parts, paths: &mut paths };
    let timeline =
        timeline::pack_timeline(plan, &ran, &mut names, &mut places, traced.step_seconds);
    Ok(PlanPage {
        name: plan.name.clone(),
        file: file.into(),
        summary: summary::summarise_plan(plan, decisions, &simulation),
        places,
        costs: costs::sum_costs(plan, &timeline::shown_classes(&ran), traced.step_seconds),
        timeline,
        memory: memory::sum_memory(plan, &ran),
        parts: paths.all,
        graph,
        why: Vec::new(),
        unexplained: Vec::new(),
        why_seconds: None,
        asked: Vec::new(),
    })
}
