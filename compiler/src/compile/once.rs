//! Makes one plan from given decisions: it lowers them, places registers in memory, and asks the null device for the
//! seconds of a step.

use graphc_ir::graph::Graph;
use graphc_ir::text;
use graphc_plan::check::VerifiedPlan;
use graphc_plan::{
    Cluster, CompileOptions, CrossEntropyForm, PLAN_VERSION, Plan, PlannerReport, Predicted,
    Program, WeightsSource,
};

use super::Compiled;
use crate::decisions::{Decisions, Sharding};
use crate::error::CompileError;
use crate::lower::{Lowered, LoweringOptions, RunAhead, Streams, lower};
use crate::null_device::{Simulation, assign_channel_slots, simulate};

/// A plan that is not checked yet, and the decisions that it was made from.
pub(super) struct Draft {
    /// The plan, which is not checked.
    pub plan: Plan,
    /// The training graph with stages and rates.
    pub decisions: Decisions,
    /// The signature of every node.
    pub sharding: Sharding,
    /// The measurements of the null device.
    pub simulation: Simulation,
    /// The bytes by which the memory of the busiest rank was too short for two streams, if there is only one stream for that reason.
    pub short: Option<u64>,
}

impl Draft {
    /// Returns the bytes of the rank that needs most.
    pub(super) fn peak_bytes(&self) -> u64 {
        self.plan.programs.iter().map(|program| program.arena_bytes).max().unwrap_or(0)
    }

    /// Returns the draft whose step takes less time, or `self` if they are equal.
    pub(super) fn faster(self, other: Self) -> Self {
        let seconds = |draft: &Self| draft.simulation.step_seconds;
        if seconds(&other) < seconds(&self) { other } else { self }
    }

    /// Checks the plan like plans from files. The checks include the proof that no content is overwritten before it is read. No plan is emitted that
    /// does not pass them.
    pub(super) fn check_plan(self) -> Result<Compiled, CompileError> {
        let Self { plan, decisions, sharding, simulation, .. } = self;
        Ok(Compiled { plan: VerifiedPlan::check(plan)?, decisions, sharding, simulation })
    }
}

/// Returns the faster of two plans. If neither is one, it returns the error of the one that needs less memory.
pub(super) fn choose_better(
    known: Option<Result<Draft, CompileError>>,
    found: Result<Draft, CompileError>,
) -> Result<Draft, CompileError> {
    match (known, found) {
        (Some(Ok(known)), Ok(found)) => Ok(known.faster(found)),
        (Some(Err(known)), Err(found)) => Err(known.leaner(found)),
        (Some(known), Err(_)) => known,
        (_, found) => found,
    }
}

/// The part of a plan that describes it, beside the work of the ranks.
pub struct Header<'a> {
    /// The graph as the user wrote it.
    pub graph: &'a Graph,
    /// The options that it is compiled with.
    pub options: &'a CompileOptions,
    /// The machines.
    pub cluster: &'a Cluster,
    /// The source of weights.
    pub weights: Option<WeightsSource>,
    /// The report of the planner.
    pub planner: PlannerReport,
}

/// Makes the plan of these decisions, and executes it on the null device. The plan is not checked yet ([`VerifiedPlan::check`]).
///
/// # Errors
/// Returns an error if decisions contradict each other, if the plan would hang, or if a rank's memory is too small.
pub fn assemble_plan(
    header: Header<'_>,
    decisions: &Decisions,
    sharding: &Sharding,
) -> Result<(Plan, Simulation), CompileError> {
    let draft = assemble_draft(header, decisions.clone(), sharding.clone())?;
    Ok((draft.plan, draft.simulation))
}

/// Makes a draft of these decisions, like [`assemble_plan`]. Two streams need more memory than one, because tensors of communication beside kernels
/// live longer, and most if what is due soonest goes first. If the memory does not suffice for a choice of streams, the next one is taken,
/// which takes less.
///
/// # Errors
/// As [`assemble_plan`].
pub(super) fn assemble_draft(
    header: Header<'_>,
    decisions: Decisions,
    sharding: Sharding,
) -> Result<Draft, CompileError> {
    let Header { options, cluster, .. } = header;
    let lowered = |(streams, ahead)| {
        let how = LoweringOptions { placed: true, streams, ahead };
        lower(&decisions, &sharding, options, cluster, how)
    };
    let best = Streams::best(cluster);
    let mut plan = build_plan(header, &decisions, lowered((best, RunAhead::Far))?);
    let mut short = None;
    let lean =
        [(best, RunAhead::ByTime), (best, RunAhead::ByBytes), (Streams::One, RunAhead::ByTime)];
    for how in lean {
        let double = plan.programs.iter().any(|program| program.streams.len() > 1);
        match fits_memory(&plan) {
            Err(CompileError::Memory { needed, limit, .. }) if double => {
                short = Some(needed - limit)
            }
            _ => break,
        }
        replace_lowered(&mut plan, lowered(how)?);
    }
    fits_memory(&plan)?;
    let short = short.filter(|_| plan.programs.iter().all(|program| program.streams.len() == 1));
    assign_channel_slots(&mut plan)?;
    let simulation = simulate(&plan)?;
    plan.predicted.step_seconds = simulation.step_seconds;
    plan.predicted.bubble_fraction = simulation.bubble_fraction;
    Ok(Draft { plan, decisions, sharding, simulation, short })
}

/// Replaces the programs of a plan.
fn replace_lowered(plan: &mut Plan, lowered: Lowered) {
    plan.predicted.peak_memory_bytes = lowered.programs.iter().map(|p| p.arena_bytes).collect();
    (plan.tensors, plan.boxing) = (lowered.tensors, lowered.boxing);
    (plan.layouts, plan.channels) = (lowered.layouts, lowered.channels);
    (plan.programs, plan.ranks) = (lowered.programs, lowered.ranks);
}

/// Makes the plan without any measurements.
pub(super) fn build_plan(header: Header<'_>, decisions: &Decisions, lowered: Lowered) -> Plan {
    let Header { graph, options, cluster, weights, planner } = header;
    Plan {
        version: PLAN_VERSION,
        name: graph.name.clone(),
        world_size: options.mesh.iter().product(),
        mesh: options.mesh.clone(),
        stages: decisions.staging.stages,
        microbatches: decisions.rates.microbatches,
        recomputed: Vec::new(),
        regathered: false,
        cross_entropy: CrossEntropyForm::Auto,
        padded: false,
        training: !decisions.training.gradients.is_empty(),
        options: options.clone(),
        cluster: cluster.clone(),
        graph: text::print_graph(graph).lines().map(str::to_owned).collect(),
        weights,
        tensors: lowered.tensors,
        boxing: lowered.boxing,
        planner,
        pipeline: None,
        predicted: Predicted {
            step_seconds: 0.0,
            bubble_fraction: 0.0,
            peak_memory_bytes: lowered.programs.iter().map(|p| p.arena_bytes).collect(),
        },
        layouts: lowered.layouts,
        channels: lowered.channels,
        programs: lowered.programs,
        ranks: lowered.ranks,
    }
}

fn fits_memory(plan: &Plan) -> Result<(), CompileError> {
    let limit = plan.options.memory.unwrap_or(plan.cluster.device.memory);
    let arena = |rank: &usize| plan.programs[plan.ranks[*rank].program.index()].arena_bytes;
    let Some(rank) =
        (0..plan.ranks.len()).max_by_key(|rank| (arena(rank), plan.ranks.len() - rank))
    else {
        return Ok(());
    };
    if arena(&rank) <= limit {
        return Ok(());
    }
    let largest = largest_registers(&plan.programs[plan.ranks[rank].program.index()]);
    Err(CompileError::Memory { rank, needed: arena(&rank), limit, largest })
}

/// Lists the five largest registers.
fn largest_registers(program: &Program) -> Vec<(String, u64)> {
    let own = program.registers.iter().filter(|register| register.shares.is_none());
    let mut registers: Vec<(String, u64)> =
        own.map(|r| (r.name.clone(), r.slot_bytes * u64::from(r.slots))).collect();
    registers.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    registers.truncate(5);
    registers
}
