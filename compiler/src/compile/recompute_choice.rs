//! Chooses the ops that `--recompute auto` computes again: as few as the memory allows, and first those that cost
//! least for the memory that they free.
//!
//! A plan with everything computed again, for which memory is mostly not short, gives the prices: seconds of each op,
//! and bytes of each tensor. [`super::amounts`] puts all ops in a row by these prices, and finds how far along the
//! row a plan must go to fit.
//!
//! Only the chosen plan is lowered. It may not fit the memory then, or lose 2 % of a step because there is none for a
//! second stream. In that case the same is done in less memory, with what is known of the plans so far. If a step
//! still takes 2 % longer than the planner says, the plan with everything computed again is lowered as well, and the
//! null device decides.
//!
//! A plan in which nothing is computed again may also fit at a price, by other layouts or by gathering again. It is
//! then compared with the plan found here.
//!
//! Where memory is short even with everything computed again, the prices of one plan say little about the next. For
//! models of few blocks (at most eight), selective recomputation of the first blocks is then planned as well, from
//! one block to all.
//!
//! Which ops are computed again and how tensors lie is one problem, which is taken apart here.
//! `compiler/examples/recompute_subsets.rs` solves it whole for small models, by one plan for every set of ops, and
//! says how far off these plans are. Bounds hold for the ops that the plan computes again; no bound covers every
//! choice of ops.

use std::collections::BTreeSet;

use graphc_plan::{CompileOptions, CrossEntropyForm, RecomputedOps};

use super::amounts::{Costs, FullRecompute, KnownPlans, Row, plan_least_amount, with_names};
use super::choice::{Choice, CompileRequest};
use super::fit::{PlanAttempt, loses_time};
use super::forms::{Form, FormPlan, best_in_memory, form_decisions, lower_reported_bound};
use super::limits;
use super::once::{Draft, choose_better};
use crate::decisions::Decisions;
use crate::error::CompileError;
use crate::passes::error::PassError;
use crate::passes::recompute::{Blocks, Extent, OpPlace};
use crate::pipeline::decide_recomputed;
use crate::planner::{Planned, Purpose, account_by_node, relaxed_bound};

/// Forms with some ops recomputed, and the best plan of them.
struct RecomputedForms {
    forms: Vec<Form<()>>,
    ops: BTreeSet<OpPlace>,
    chosen: FormPlan,
}

impl CompileRequest<'_> {
    /// Makes the plan with as little recomputation as the memory allows. If memory is not short without recomputation, nothing is recomputed.
    /// Otherwise the ops are recomputed that are cheapest for the memory they free ([`Row`]), unless short memory costs less without recomputation.
    pub(super) fn plan_least_recompute(
        &self,
        prepared: &[Form<()>],
        choice: &Choice,
    ) -> Result<Draft, CompileError> {
        let nothing = self.choose_form(prepared, choice, Purpose::Plan);
        let suffices = nothing.as_ref().is_ok_and(|chosen| !costs_of(chosen).are_short());
        let nothing = nothing.and_then(|chosen| self.fit_chosen(prepared, choice, chosen));
        match nothing {
            Ok(_) if !suffices => {}
            Err(ref error) if error.is_memory() => {}
            other => return other,
        }
        let something = self.plan_some_recompute(prepared, choice);
        choose_better(nothing.ok().map(Ok), something)
    }

    /// Makes the plan with as little recomputation as the memory allows, but with some. If the plan does not fit after lowering, more is recomputed,
    /// with less memory for the planner.
    fn plan_some_recompute(
        &self,
        prepared: &[Form<()>],
        choice: &Choice,
    ) -> Result<Draft, CompileError> {
        let forms = recomputed_forms(prepared, &self.resolve(choice), Extent::Full)?;
        let chosen = self.choose_form(&forms, choice, Purpose::Plan)?;
        let row =
            self.build_row(&prepared[chosen.at].decisions, &forms[chosen.at], &chosen, choice)?;
        let amounts = row.amounts(self.memory_limit(choice));
        let ops = row.ops(amounts.full_amount());
        let is_short = costs_of(&chosen).are_short();
        let blocks = cheap_of_blocks(&prepared[chosen.at].decisions);
        let mut known = KnownPlans::new(&amounts, RecomputedForms { forms, ops, chosen });
        let mut attempt = |choice: &Choice| {
            let limit = self.memory_limit(choice);
            let plan = |amount: usize, purpose| {
                self.plan_recomputed(prepared, choice, row.ops(amount), purpose)
            };
            let assemble =
                |again: &RecomputedForms| self.assemble_recomputed(prepared, choice, again);
            let costs = |again: &RecomputedForms| costs_of(&again.chosen);
            let found = plan_least_amount(&row.amounts(limit), &mut known, plan, costs, assemble);
            PlanAttempt { counted: limit, found }
        };
        let first = attempt(choice);
        let fits = |of: &PlanAttempt| of.found.is_ok();
        let best = self.fit_after_lowering(choice, first, |less| Some(attempt(less)).filter(fits));
        // What computes more again has more to hide communication behind, and more memory for it: that is priced by rule, and
        // measured on the null device alone.
        let all = known.full_plan().filter(|_| best.as_ref().is_ok_and(loses_time));
        let all = all.map(|all| self.assemble_recomputed(prepared, choice, all));
        let best = match all {
            Some(all) => choose_better(Some(best), all),
            None => best,
        };
        match is_short && blocks.len() <= limits::FEW_BLOCKS {
            true => self.recompute_first_blocks(prepared, choice, &blocks, best),
            false => best,
        }
    }

    /// Makes the plans in which the cheap ops of the first blocks are recomputed, of one block to all. Returns the best of them and of `best`.
    fn recompute_first_blocks(
        &self,
        prepared: &[Form<()>],
        choice: &Choice,
        blocks: &[Vec<OpPlace>],
        best: Result<Draft, CompileError>,
    ) -> Result<Draft, CompileError> {
        let plan = |first: &[Vec<OpPlace>]| {
            let ops = first.iter().flatten().copied().collect();
            let again = self.plan_recomputed(prepared, choice, ops, Purpose::Plan)?;
            self.assemble_recomputed(prepared, choice, &again)
        };
        let plans = (1..=blocks.len()).map(|count| plan(&blocks[..count]));
        plans.fold(best, |best, other| choose_better(Some(best), other))
    }

    /// Finds the best plan with these ops recomputed.
    fn plan_recomputed(
        &self,
        prepared: &[Form<()>],
        choice: &Choice,
        ops: BTreeSet<OpPlace>,
        purpose: Purpose,
    ) -> Result<RecomputedForms, CompileError> {
        let forms = recomputed_forms(prepared, &self.resolve(choice), Extent::Ops(&ops))?;
        let chosen = self.choose_form(&forms, choice, purpose)?;
        Ok(RecomputedForms { forms, ops, chosen })
    }

    fn assemble_recomputed(
        &self,
        prepared: &[Form<()>],
        choice: &Choice,
        again: &RecomputedForms,
    ) -> Result<Draft, CompileError> {
        let RecomputedForms { forms, ops, chosen } = again;
        let mut draft = self.assemble_chosen(forms, chosen)?;
        // What is proven with less memory is not proven with all of it.
        let is_less = self.memory_limit(choice) < self.memory();
        for form in forms.iter().filter(|_| is_less) {
            let bound = relaxed_bound(&form.decisions, &self.resolve(choice), self.cluster)?;
            lower_reported_bound(&mut draft.plan.planner, bound);
        }
        draft.plan.recomputed = name_recomputed(prepared, draft.plan.cross_entropy, ops);
        Ok(draft)
    }

    /// Makes the row of all ops that may be recomputed, by the plan of the form with everything recomputed.
    fn build_row(
        &self,
        nothing: &Decisions,
        everything: &Form<()>,
        chosen: &FormPlan,
        choice: &Choice,
    ) -> Result<Row, PassError> {
        let decisions = chosen.regathered[chosen.at].as_ref().unwrap_or(&everything.decisions);
        let (planned, options) = (&chosen.planned, self.resolve(choice));
        let account = account_by_node(decisions, &planned.sharding, self.cluster, &options);
        let (seconds, schedule) = (account.seconds, options.schedule);
        Row::new(nothing, &FullRecompute { decisions, planned, seconds, schedule })
    }

    /// Chooses the best form.
    fn choose_form(
        &self,
        forms: &[Form<()>],
        choice: &Choice,
        purpose: Purpose,
    ) -> Result<FormPlan, CompileError> {
        let options = self.resolve(choice);
        best_in_memory(&form_decisions(forms), &options, self.cluster, Vec::new(), purpose)
    }
}

/// Lists the ops that selective recomputation recomputes, by block of a graph without recomputation.
fn cheap_of_blocks(decisions: &Decisions) -> Vec<Vec<OpPlace>> {
    Blocks::new(&decisions.training, &decisions.rates).cheap_ops(&decisions.training)
}

/// Returns the forms with recomputation to this extent.
fn recomputed_forms(
    prepared: &[Form<()>],
    options: &CompileOptions,
    extent: Extent<'_>,
) -> Result<Vec<Form<()>>, PassError> {
    let of = |form: &Form<()>| {
        let decisions = decide_recomputed(&form.decisions, options, extent)?;
        Ok(Form { decisions, ..form.clone() })
    };
    prepared.iter().map(of).collect()
}

/// Returns the costs of a plan.
fn costs_of(chosen: &FormPlan) -> Costs {
    let Planned { relaxed, report, memory, .. } = &chosen.planned;
    Costs { relaxed: *relaxed, seconds: report.objective_seconds, memory: memory.clone() }
}

/// Returns the ops that are recomputed in a form, with their names.
fn name_recomputed(
    prepared: &[Form<()>],
    cross_entropy: CrossEntropyForm,
    ops: &BTreeSet<OpPlace>,
) -> Vec<RecomputedOps> {
    let form = prepared.iter().find(|form| form.cross_entropy == cross_entropy);
    form.map_or_else(Vec::new, |form| with_names(&form.decisions, ops))
}
