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

use graphc_ir::plan::{CompileOptions, CrossEntropyForm, RecomputedOps};

use super::amounts::{Costs, FullRecompute, KnownPlans, Row, plan_least_amount, with_names};
use super::best::{CompileJob, PlanAttempt, choose_better, loses_time};
use super::forms::{Form, InMemory, best_in_memory, form_decisions, lower_reported_bound};
use super::once::Draft;
use crate::decisions::Decisions;
use crate::error::CompileError;
use crate::passes::error::PassError;
use crate::passes::recompute::{Blocks, Extent, OpPlace};
use crate::pipeline::decide_recomputed;
use crate::planner::{Care, Planned, account_by_node, relaxed_bound};

/// The most blocks of a model for which selective recomputation of the first blocks is planned as well, if memory is short although everything is
/// recomputed. Each amount then has other layouts, and what is cheapest for its bytes in one plan is not so in the next: without these plans the GPT
/// of the references on 2x2 takes 2 to 3 % longer in 260 and 280 KiB. With more blocks they would take too long.
const FEW_BLOCKS: usize = 8;

/// Forms with some ops recomputed, and the best plan of them.
struct RecomputedForms {
    forms: Vec<Form<()>>,
    ops: BTreeSet<OpPlace>,
    chosen: InMemory,
}

impl CompileJob<'_> {
    /// Makes the plan with as little recomputation as the memory allows. If memory is not short without recomputation, nothing is recomputed.
    /// Otherwise the ops are recomputed that are cheapest for the memory they free ([`Row`]), unless short memory costs less without recomputation.
    pub(super) fn plan_least_recompute(
        &self,
        prepared: &[Form<()>],
        options: &CompileOptions,
    ) -> Result<Draft, CompileError> {
        let nothing = self.choose_form(prepared, options, Care::Plan);
        let suffices = nothing.as_ref().is_ok_and(|chosen| !costs_of(chosen).are_short());
        let nothing = nothing.and_then(|chosen| self.fit_chosen(prepared, options, chosen));
        match nothing {
            Ok(_) if !suffices => {}
            Err(ref error) if error.is_memory() => {}
            other => return other,
        }
        let something = self.plan_some_recompute(prepared, options);
        choose_better(nothing.ok().map(Ok), something)
    }

    /// Makes the plan with as little recomputation as the memory allows, but with some. If the plan does not fit after lowering, more is recomputed,
    /// with less memory for the planner.
    fn plan_some_recompute(
        &self,
        prepared: &[Form<()>],
        options: &CompileOptions,
    ) -> Result<Draft, CompileError> {
        let forms = recomputed_forms(prepared, options, Extent::Full)?;
        let chosen = self.choose_form(&forms, options, Care::Plan)?;
        let row =
            self.build_row(&prepared[chosen.at].decisions, &forms[chosen.at], &chosen, options)?;
        let amounts = row.amounts(self.memory_limit(options));
        let ops = row.ops(amounts.full_amount());
        let is_short = costs_of(&chosen).are_short();
        let blocks = cheap_of_blocks(&prepared[chosen.at].decisions);
        let mut known = KnownPlans::new(&amounts, RecomputedForms { forms, ops, chosen });
        let mut attempt = |options: &CompileOptions| {
            let limit = self.memory_limit(options);
            let plan = |amount: usize, care| {
                self.plan_recomputed(prepared, options, row.ops(amount), care)
            };
            let assemble =
                |again: &RecomputedForms| self.assemble_recomputed(prepared, options, again);
            let costs = |again: &RecomputedForms| costs_of(&again.chosen);
            let found = plan_least_amount(&row.amounts(limit), &mut known, plan, costs, assemble);
            PlanAttempt { counted: limit, found }
        };
        let first = attempt(options);
        let fits = |of: &PlanAttempt| of.found.is_ok();
        let best = self.fit_after_lowering(options, first, |less| Some(attempt(less)).filter(fits));
        // What computes more again has more to hide communication behind, and more memory for it: that is priced by rule, and
        // measured on the null device alone.
        let all = known.full_plan().filter(|_| best.as_ref().is_ok_and(loses_time));
        let all = all.map(|all| self.assemble_recomputed(prepared, options, all));
        let best = match all {
            Some(all) => choose_better(Some(best), all),
            None => best,
        };
        let few = if is_short && blocks.len() <= FEW_BLOCKS { blocks.len() } else { 0 };
        let others = (1..=few).map(|few| {
            let ops = blocks[..few].iter().flatten().copied().collect();
            let again = self.plan_recomputed(prepared, options, ops, Care::Plan)?;
            self.assemble_recomputed(prepared, options, &again)
        });
        others.fold(best, |best, other| choose_better(Some(best), other))
    }

    /// Finds the best plan with these ops recomputed.
    fn plan_recomputed(
        &self,
        prepared: &[Form<()>],
        options: &CompileOptions,
        ops: BTreeSet<OpPlace>,
        care: Care,
    ) -> Result<RecomputedForms, CompileError> {
        let forms = recomputed_forms(prepared, options, Extent::Ops(&ops))?;
        let chosen = self.choose_form(&forms, options, care)?;
        Ok(RecomputedForms { forms, ops, chosen })
    }

    fn assemble_recomputed(
        &self,
        prepared: &[Form<()>],
        options: &CompileOptions,
        again: &RecomputedForms,
    ) -> Result<Draft, CompileError> {
        let RecomputedForms { forms, ops, chosen } = again;
        let mut draft = self.assemble_chosen(forms, chosen)?;
        // What is proven with less memory is not proven with all of it.
        let is_less = self.memory_limit(options) < self.memory_limit(self.options);
        for form in forms.iter().filter(|_| is_less) {
            let bound = relaxed_bound(&form.decisions, options, self.cluster)?;
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
        chosen: &InMemory,
        options: &CompileOptions,
    ) -> Result<Row, PassError> {
        let decisions = chosen.regathered[chosen.at].as_ref().unwrap_or(&everything.decisions);
        let (planned, schedule) = (&chosen.planned, options.schedule);
        let seconds = account_by_node(decisions, &planned.sharding, self.cluster, options).seconds;
        Row::new(nothing, &FullRecompute { decisions, planned, seconds, schedule })
    }

    /// Chooses the best form.
    fn choose_form(
        &self,
        forms: &[Form<()>],
        options: &CompileOptions,
        care: Care,
    ) -> Result<InMemory, CompileError> {
        best_in_memory(&form_decisions(forms), options, self.cluster, Vec::new(), care)
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
fn costs_of(chosen: &InMemory) -> Costs {
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
