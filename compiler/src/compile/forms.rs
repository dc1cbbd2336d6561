//! Plans the forms that a graph can have, and takes the cheapest.
//!
//! Cross entropy can be one op, which keeps the classes whole, or parts, between which the classes may be split. Split classes save the exchange of
//! scores, and cost a few kernels. Classes can also be padded or not ([`prepare_variants`]). There is only one form if one rank, a fixed strategy or
//! pins leave no choice.
//!
//! The form that the shapes favour is planned first, and the other only as far as it may be cheaper. Labels (candidates of a node) whose bound is no
//! better than the first plan are dropped. When none is left, the form is given up. If memory is short, the memory prices of the first form may show
//! that the second is no better (`planner::outbid_form`).
//!
//! The objective that is reported is the lesser of both, and so is the bound. `Plan::cross_entropy` and `Plan::padded` say which form was taken, so
//! the same graph can be made again.
//!
//! The passes, candidates, prices and elimination of the second form are done in parallel with the work for the first (`side_by_side`). The outcome
//! never depends on the number of threads.

use std::sync::OnceLock;
use std::sync::mpsc::channel;

use graphc_ir::graph::Graph;
use graphc_ir::op::Op;
use graphc_plan::{Cluster, CompileOptions, CrossEntropyForm, Loss, PlannerReport, PlannerStatus};

use super::choice::Choice;
use super::once::Draft;
use crate::decisions::Decisions;
use crate::error::CompileError;
use crate::passes::error::PassError;
use crate::pipeline::{Common, decide_regathered};
use crate::planner::{
    Planned, PlannerError, PriorKnowledge, Purpose, outbid_form, plan_below,
    plan_if_memory_suffices, relaxed_bound,
};
use crate::side_by_side::side_by_side;

/// A prepared graph, with further data about it.
#[derive(Clone, Debug)]
pub(super) struct Form<T> {
    /// The form of cross entropy; [`CrossEntropyForm::Auto`] if there is only one.
    pub cross_entropy: CrossEntropyForm,
    /// The decisions of the passes.
    pub decisions: Decisions,
    /// Further data of the caller.
    pub with: T,
}

/// Prepares the forms of a graph. The form that its shapes favour comes first. `prepare` takes the options of each form. If `unasked` gives the form
/// that options which ask for none mean, both are prepared in parallel.
///
/// # Errors
/// Returns an error if the graph or the options do not allow a pass.
pub(super) fn prepare_forms<T: Send>(
    graph: &Graph,
    options: &CompileOptions,
    unasked: Option<CrossEntropyForm>,
    prepare: impl Fn(&CompileOptions) -> Result<(Decisions, T), PassError> + Sync,
) -> Result<Vec<Form<T>>, PassError> {
    let alone = |(decisions, with)| Form { cross_entropy: CrossEntropyForm::Auto, decisions, with };
    if !may_differ(graph, options) {
        return Ok(vec![alone(prepare(options)?)]);
    }
    let of = |form| prepare(&Choice::of_form(form).resolve(options));
    let (form, first, second) = match unasked {
        Some(form) => {
            let (first, second) = side_by_side(|| of(form), || of(other_form(form)));
            (form, first?, second?)
        }
        None => {
            let first = prepare(options)?;
            let nodes = &first.0.graph().nodes;
            let form = match nodes.iter().any(|node| matches!(node.op, Op::CrossEntropy(_))) {
                true => CrossEntropyForm::Whole,
                false => CrossEntropyForm::Parts,
            };
            (form, first, of(other_form(form))?)
        }
    };
    if second.0.graph() == first.0.graph() {
        return Ok(vec![alone(first)]);
    }
    let named = |cross_entropy, (decisions, with)| Form { cross_entropy, decisions, with };
    Ok(vec![named(form, first), named(other_form(form), second)])
}

/// Returns the other form: whole for parts, and parts for whole.
fn other_form(form: CrossEntropyForm) -> CrossEntropyForm {
    match form {
        CrossEntropyForm::Whole => CrossEntropyForm::Parts,
        CrossEntropyForm::Parts | CrossEntropyForm::Auto => CrossEntropyForm::Whole,
    }
}

/// Whether there may be two forms, because the planner is free to split what a cross entropy reads over several ranks.
fn may_differ(graph: &Graph, options: &CompileOptions) -> bool {
    let is_open = options.cross_entropy == CrossEntropyForm::Auto;
    let has_one = options.loss == Some(Loss::CrossEntropy)
        || graph.nodes.iter().any(|node| matches!(node.op, Op::CrossEntropy(_)));
    let ranks: usize = options.mesh.iter().product();
    is_open && has_one && options.strategy.is_planned() && ranks > 1
}

/// Returns the index of the best form and its plan, whose bound is that of all forms.
///
/// # Errors
/// Returns an error if no form can be planned: that of the form that needs least memory.
pub(super) fn best_form(
    forms: &[&Decisions],
    options: &CompileOptions,
    cluster: &Cluster,
    purpose: Purpose,
) -> Result<(usize, Planned), PlannerError> {
    best_form_below(forms, options, cluster, (f64::INFINITY, purpose))
}

/// Returns the best form like [`best_form`], if a plan of it takes less than `ceiling` seconds. If none does, it returns any plan that takes as long or
/// longer.
///
/// # Errors
/// As [`best_form`].
pub(super) fn best_form_below(
    forms: &[&Decisions],
    options: &CompileOptions,
    cluster: &Cluster,
    (ceiling, purpose): (f64, Purpose),
) -> Result<(usize, Planned), PlannerError> {
    let mut best = BestForm::new(forms, options, cluster);
    for (at, decisions) in forms.iter().enumerate() {
        if !best.outbids(decisions)? {
            let before = best.prior_knowledge();
            let before = PriorKnowledge { ceiling: before.ceiling.min(ceiling), ..before };
            best.offer(at, plan_below(decisions, options, cluster, before, purpose))?;
        }
    }
    best.into_best()
}

/// The best form with its plan. If memory is short, the decisions are those in which the planner may choose another layout of each tensor for the
/// backward pass ([`all_regathered`]).
#[derive(Clone, Debug)]
pub(super) struct FormPlan {
    /// The index of the form.
    pub at: usize,
    /// Its plan.
    pub planned: Planned,
    /// The decisions of each form that replace those of the form, if they are others.
    pub regathered: Vec<Option<Decisions>>,
}

/// Returns the best form. If memory is short, the planner also chooses what is kept for the backward pass. `short` has, for each form, the decisions
/// that were made with more memory. If that did not suffice for the plan of fewest seconds, this plan is not searched for again.
///
/// # Errors
/// Returns an error if no form can be planned: that of the form that needs least memory.
pub(super) fn best_in_memory(
    forms: &[&Decisions],
    options: &CompileOptions,
    cluster: &Cluster,
    mut short: Vec<Option<Decisions>>,
    purpose: Purpose,
) -> Result<FormPlan, CompileError> {
    let mut best = BestForm::new(forms, options, cluster);
    let mut ahead = match forms {
        [first, second] if short.is_empty() => {
            plan_both_if_memory_suffices([first, second], options, cluster)
        }
        _ => Vec::new(),
    }
    .into_iter();
    short.resize(forms.len(), None);
    let mut is_short: Vec<bool> = short.iter().map(Option::is_some).collect();
    for (at, decisions) in forms.iter().enumerate() {
        let found = match (ahead.next(), is_short[at]) {
            (Some(found), _) => found.transpose(),
            (None, true) => None,
            (None, false) => {
                let before = best.prior_knowledge();
                plan_if_memory_suffices(decisions, options, cluster, || Some(before)).transpose()
            }
        };
        if let Some(found) = found {
            best.offer(at, found)?;
            continue;
        }
        is_short[at] = true;
        let before = PriorKnowledge { warm_start: None, ..best.prior_knowledge() };
        let (this, others) = short[at..].split_first_mut().expect("there is one for each form");
        let decisions = regather_once(this, decisions, options)?;
        let plan = || plan_below(decisions, options, cluster, before, purpose);
        let (Some(&next), Some(known)) = (forms.get(at + 1), others.first_mut()) else {
            best.offer(at, plan())?;
            continue;
        };
        let (found, outbid) = plan_and_outbid(plan, next, known, (options, cluster));
        best.offer(at, found)?;
        if let Some(bound) = outbid? {
            best.bound = best.bound.min(bound);
            break;
        }
    }
    // What was made ready and not planned does not count.
    let regathered = short.into_iter().zip(is_short);
    let regathered = regathered.map(|(decisions, is_short)| decisions.filter(|_| is_short));
    let (at, planned) = best.into_best()?;
    Ok(FormPlan { at, planned, regathered: regathered.collect() })
}

/// Returns the best form like [`best_in_memory`], if memory is not short for the plan of fewest seconds of any form; `None` if it is.
///
/// # Errors
/// Returns an error if no form can be planned.
pub(super) fn best_if_memory_suffices(
    forms: &[&Decisions],
    options: &CompileOptions,
    cluster: &Cluster,
) -> Result<Option<FormPlan>, PlannerError> {
    let found = match forms {
        [first, second] => plan_both_if_memory_suffices([first, second], options, cluster),
        _ => {
            let plan = |form: &&Decisions| {
                plan_if_memory_suffices(form, options, cluster, || Some(PriorKnowledge::NOTHING))
            };
            forms.iter().map(plan).collect()
        }
    };
    let mut best = BestForm::new(forms, options, cluster);
    let mut planned = 0;
    for found in found.into_iter().filter_map(Result::transpose) {
        best.offer(planned, found)?;
        planned += 1;
    }
    if planned < forms.len() {
        return Ok(None);
    }
    let (at, planned) = best.into_best()?;
    Ok(Some(FormPlan { at, planned, regathered: vec![None; forms.len()] }))
}

/// Plans a form when memory is short, and computes the bound of the next form if that is not to be planned ([`outbid_form`]). The work on the next
/// form that does not need the plan is done in parallel.
fn plan_and_outbid(
    plan: impl FnOnce() -> Result<Planned, PlannerError>,
    next: &Decisions,
    known: &mut Option<Decisions>,
    (options, cluster): (&CompileOptions, &Cluster),
) -> (Result<Planned, PlannerError>, Result<Option<f64>, CompileError>) {
    let (tell, told) = channel();
    let first = || {
        let found = plan();
        // Who is told nothing waits for nothing, as this end is gone then.
        let tell = tell;
        let rival = found.as_ref().ok().and_then(|found| found.rival.clone());
        rival.map(|rival| tell.send(rival));
        found
    };
    let second = move || {
        let decisions = regather_once(known, next, options)?;
        Ok(outbid_form(decisions, options, cluster, || told.recv().ok())?)
    };
    side_by_side(first, second)
}

/// Makes the decisions of each form for short memory, or `None` if they do not differ from those of the form.
///
/// # Errors
/// Returns an error if an op does not take its operands.
pub(super) fn all_regathered(
    forms: &[&Decisions],
    options: &CompileOptions,
) -> Result<Vec<Option<Decisions>>, PassError> {
    forms.iter().map(|decisions| decide_regathered(decisions, options)).collect()
}

/// Plans two forms if there is enough memory, or only the first if there is not. All work before the search for the second is done in parallel with
/// the work for the first.
fn plan_both_if_memory_suffices(
    forms: [&Decisions; 2],
    options: &CompileOptions,
    cluster: &Cluster,
) -> Vec<Result<Option<Planned>, PlannerError>> {
    let first: OnceLock<Result<Option<Planned>, PlannerError>> = OnceLock::new();
    let (tell, told) = channel();
    let plan_first = || {
        let found =
            plan_if_memory_suffices(forms[0], options, cluster, || Some(PriorKnowledge::NOTHING));
        // Who is told nothing waits for nothing, as this end is gone then.
        let tell = tell;
        let suffices = matches!(first.get_or_init(|| found), Ok(Some(_)));
        suffices && tell.send(()).is_ok()
    };
    let known = &first;
    let before = move || {
        told.recv().ok()?;
        known.get()?.as_ref().ok()?.as_ref().map(Planned::prior_knowledge)
    };
    let plan_second = || plan_if_memory_suffices(forms[1], options, cluster, before);
    let (suffices, second) = side_by_side(plan_first, plan_second);
    let second = suffices.then_some(second);
    first.into_inner().into_iter().chain(second).collect()
}

/// Returns the decisions for short memory, and makes them if they are not known yet. They are `decisions` themselves if no tensor can have another
/// layout.
fn regather_once<'a>(
    known: &'a mut Option<Decisions>,
    decisions: &'a Decisions,
    options: &CompileOptions,
) -> Result<&'a Decisions, CompileError> {
    if known.is_none() {
        *known = decide_regathered(decisions, options)?;
    }
    Ok(known.as_ref().unwrap_or(decisions))
}

/// The best of the forms that were planned so far.
struct BestForm<'a> {
    forms: &'a [&'a Decisions],
    options: &'a CompileOptions,
    cluster: &'a Cluster,
    best: Option<(usize, Planned)>,
    failed: Option<PlannerError>,
    /// A lower bound of the seconds of every plan of any form so far.
    bound: f64,
}

impl<'a> BestForm<'a> {
    fn new(forms: &'a [&'a Decisions], options: &'a CompileOptions, cluster: &'a Cluster) -> Self {
        Self { forms, options, cluster, best: None, failed: None, bound: f64::INFINITY }
    }

    /// Returns the seconds of the best form so far.
    fn best_seconds(&self) -> f64 {
        self.best.as_ref().map_or(f64::INFINITY, |(_, known)| known.report.objective_seconds)
    }

    /// Returns the plan of the best form so far.
    fn best_plan(&self) -> Option<&Planned> {
        self.best.as_ref().map(|(_, planned)| planned)
    }

    /// Returns what is known before the next form is planned.
    fn prior_knowledge(&self) -> PriorKnowledge<'_> {
        self.best_plan().map_or(PriorKnowledge::NOTHING, Planned::prior_knowledge)
    }

    /// Whether another form need not be planned, because the best so far is no worse. If so, the bound proven for it counts.
    fn outbids(&mut self, other: &Decisions) -> Result<bool, PlannerError> {
        let Some(rival) = self.best_plan().and_then(|best| best.rival.clone()) else {
            return Ok(false);
        };
        let bound = outbid_form(other, self.options, self.cluster, || Some(rival))?;
        self.bound = bound.map_or(self.bound, |bound| self.bound.min(bound));
        Ok(bound.is_some())
    }

    fn offer(
        &mut self,
        at: usize,
        found: Result<Planned, PlannerError>,
    ) -> Result<(), PlannerError> {
        match found {
            Ok(planned) => {
                self.bound = self.bound.min(planned.report.bound_seconds);
                if planned.report.objective_seconds < self.best_seconds() || self.best.is_none() {
                    self.best = Some((at, planned));
                }
            }
            Err(error @ PlannerError::Memory { .. }) => {
                // What needs more than there is in any plan does not count.
                let proven = matches!(error, PlannerError::Memory { least: Some(_), .. });
                if !proven && self.forms.len() > 1 {
                    let bound = relaxed_bound(self.forms[at], self.options, self.cluster)?;
                    self.bound = self.bound.min(bound);
                }
                self.failed = Some(leaner_error(self.failed.take(), error));
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn into_best(self) -> Result<(usize, Planned), PlannerError> {
        match (self.best, self.failed) {
            (Some((at, mut planned)), _) => {
                lower_reported_bound(&mut planned.report, self.bound);
                Ok((at, planned))
            }
            (None, Some(error)) => Err(error),
            (None, None) => unreachable!("there is at least one form"),
        }
    }
}

/// Returns the error of the form that needs less memory.
fn leaner_error(known: Option<PlannerError>, error: PlannerError) -> PlannerError {
    let needed = |error: &PlannerError| match error {
        PlannerError::Memory { needed, .. } => *needed,
        _ => u64::MAX,
    };
    known.into_iter().chain([error]).min_by_key(needed).expect("there is one")
}

/// Lowers the reported bound to `bound`, below which no plan of any form is known to be.
pub(super) fn lower_reported_bound(report: &mut PlannerReport, bound: f64) {
    if bound >= report.bound_seconds {
        return;
    }
    report.bound_seconds = bound;
    let gap = (report.objective_seconds - bound) / report.objective_seconds.max(f64::MIN_POSITIVE);
    let optimal = report.status == PlannerStatus::Optimal && gap <= 1e-6;
    report.status = if optimal { PlannerStatus::Optimal } else { PlannerStatus::Gap };
    report.gap = if optimal { 0.0 } else { gap.max(0.0) };
}

/// The forms of a graph with padded classes, or those without.
#[derive(Clone, Debug)]
pub(super) struct Variant {
    /// Whether classes are padded.
    pub padded: bool,
    /// The forms, with no further data.
    pub forms: Vec<Form<()>>,
}

impl Variant {
    /// Says in a plan of this variant whether its classes are padded.
    pub(super) fn name_padding(
        &self,
        draft: Result<Draft, CompileError>,
    ) -> Result<Draft, CompileError> {
        let mut draft = draft?;
        draft.plan.padded = self.padded;
        Ok(draft)
    }
}

/// Prepares the variants of a graph that are to be planned. If the machines multiply odd rows slowly and padding classes pays, as far as that is
/// known before layouts are, the padded variant is planned. If the planner is free to split classes over several ranks, the other is planned too,
/// because a weight that is to be padded must be whole.
///
/// # Errors
/// Returns an error if the graph or the options do not allow a pass.
pub(super) fn prepare_variants(
    graph: &Graph,
    options: &CompileOptions,
    cluster: &Cluster,
) -> Result<Vec<Variant>, PassError> {
    let of = |padded, common: &Common| {
        let unasked = common.form_unasked(options);
        let forms = prepare_forms(graph, options, unasked, |options| {
            Ok((common.decide_form(options)?, ()))
        })?;
        Ok(Variant { padded, forms })
    };
    let bare = Common::new(graph.clone(), options, None)?;
    if cluster.device.matmul_unaligned == 1.0 {
        return Ok(vec![of(false, &bare)?]);
    }
    let padded = Common::new(graph.clone(), options, Some(cluster))?;
    if padded.graph() == bare.graph() {
        return Ok(vec![of(false, &bare)?]);
    }
    let ranks: usize = options.mesh.iter().product();
    let may_split = options.strategy.is_planned() && ranks > 1;
    let bare = may_split.then(|| of(false, &bare)).transpose()?;
    Ok([of(true, &padded)?].into_iter().chain(bare).collect())
}

/// Lists the decisions of each form.
pub(super) fn form_decisions<T>(forms: &[Form<T>]) -> Vec<&Decisions> {
    forms.iter().map(|form| &form.decisions).collect()
}

#[cfg(test)]
mod tests {
    use graphc_ir::builder::GraphBuilder;
    use graphc_ir::ops::Init;
    use graphc_ir::types::DType;
    use graphc_plan::Optimizer;

    use super::*;
    use crate::cluster::preset;

    /// Makes a graph that computes scores of classes with one matrix, to be trained on two ranks.
    fn classifier(samples: usize, classes: usize) -> (Graph, CompileOptions) {
        let g = GraphBuilder::new("classifier");
        let x = g.input("x", DType::F32, [samples, 16]);
        let w = g.variable("w", DType::F32, [16, classes], Init::Weights);
        g.output("scores", &x.matmul(&w));
        let sgd = Optimizer::Sgd { lr: 0.1, momentum: 0.0, nesterov: false, weight_decay: 0.0 };
        let options = CompileOptions {
            mesh: vec![2],
            loss: Some(Loss::CrossEntropy),
            optimizer: Some(sgd),
            ..CompileOptions::default()
        };
        (g.finish().expect("fits"), options)
    }

    #[test]
    fn forms_side_by_side_are_those_one_after_the_other() {
        for (samples, classes, first) in
            [(64, 8, CrossEntropyForm::Whole), (8, 64, CrossEntropyForm::Parts)]
        {
            let (graph, options) = classifier(samples, classes);
            let common = Common::new(graph.clone(), &options, None).expect("fits");
            assert_eq!(common.form_unasked(&options), Some(first));
            let of = |unasked| {
                let prepare = |options: &CompileOptions| Ok((common.decide_form(options)?, ()));
                let forms = prepare_forms(&graph, &options, unasked, prepare).expect("fits");
                let named = forms.into_iter().map(|form| (form.cross_entropy, form.decisions));
                let named = named.map(|(form, decisions)| (form, decisions.graph().clone()));
                named.collect::<Vec<_>>()
            };
            let (one_by_one, at_once) = (of(None), of(Some(first)));
            assert_eq!((one_by_one.len(), one_by_one[0].0), (2, first));
            assert!(one_by_one == at_once);
        }
    }

    #[test]
    fn a_form_that_is_made_ready_beside_the_first_is_planned_as_after_it() {
        let (graph, options) = classifier(64, 8);
        let cluster = preset("p3.16xlarge").expect("a preset");
        let forms =
            prepare_variants(&graph, &options, &cluster).expect("fits").swap_remove(0).forms;
        let [first, second] = form_decisions(&forms)[..] else { panic!("there are two forms") };
        let at_once = plan_both_if_memory_suffices([first, second], &options, &cluster);
        let [Ok(Some(known)), Ok(Some(found))] = &at_once[..] else {
            panic!("memory suffices for both")
        };
        let before = || Some(known.prior_knowledge());
        let after = plan_if_memory_suffices(second, &options, &cluster, before).expect("fits");
        let after = after.expect("memory suffices");
        assert_eq!(found.sharding.nodes, after.sharding.nodes);
        assert_eq!(found.report, after.report);
        // Where memory is short for the first nothing is said of the second.
        let short = Choice::of_memory(1).resolve(&options);
        let found = plan_both_if_memory_suffices([first, second], &short, &cluster);
        assert!(matches!(&found[..], [Ok(None)]), "{}", found.len());
    }
}
