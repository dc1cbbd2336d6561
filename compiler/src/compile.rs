//! The whole way from a user's graph to a plan, in one function: [`compile`].

use graphc_ir::check::{PlanErrors, VerifiedPlan};
use graphc_ir::graph::Graph;
use graphc_ir::plan::{
    Cluster, CompileOptions, CrossEntropyForm, PLAN_VERSION, Plan, PlannerReport, Predicted,
    Program, Recompute, WeightsSource,
};
use graphc_ir::text;

use crate::conflict::{Conflict, explained};
use crate::decisions::{Decisions, Sharding};
use crate::error::CompileError as Prepare;
use crate::forms::{Form, FormError, InMemory, best_form, best_in_memory, forms};
use crate::lower::{LowerError, Lowered, Lowering, lower};
use crate::null_device::{
    NullDeviceError, Simulation, assign_channel_slots, simulate, step_seconds,
};
use crate::passes::recompute::most_blocks;
use crate::pipeline::{PASSES, prepare, prepare_until, recompute_blocks};
use crate::planner::{PlanError, Planned, UNLIMITED};
use crate::stages::{choose, chosen};

/// A plan and what was decided on the way to it.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The plan, proven sound: a session takes it as it is.
    pub plan: VerifiedPlan,
    /// The training graph with stages and rates.
    pub decisions: Decisions,
    /// The signature of every node.
    pub sharding: Sharding,
    /// What the null device measured.
    pub simulation: Simulation,
}

/// A plan that is not checked yet, and what was decided on the way to it.
struct Draft {
    plan: Plan,
    decisions: Decisions,
    sharding: Sharding,
    simulation: Simulation,
}

impl Draft {
    /// No plan is emitted that does not pass the checks for plans from files: among them is the proof that no content is
    /// overwritten before it is read.
    fn checked(self) -> Result<Compiled, CompileError> {
        let Self { plan, decisions, sharding, simulation } = self;
        Ok(Compiled { plan: VerifiedPlan::check(plan)?, decisions, sharding, simulation })
    }
}

/// Why a graph cannot be compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The graph and the options do not fit.
    #[error(transparent)]
    Prepare(#[from] crate::error::CompileError),
    /// A pin cannot be fulfilled, or the memory does not suffice.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// What a step costs on these machines is no number.
    #[error(
        "the plan found takes {seconds} seconds a step: a fault of the compiler's, or of the cluster's figures"
    )]
    NotFinite {
        /// What the planner reports.
        seconds: f64,
    },
    /// Passes contradict each other.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// The plan would hang.
    #[error(transparent)]
    NullDevice(#[from] NullDeviceError),
    /// The plan does not hold together: a fault of the compiler's.
    #[error("the compiler made a plan that does not hold together:\n{0}")]
    Invariants(#[from] PlanErrors),
    /// The arena of a rank does not fit in its memory.
    #[error(
        "rank {rank} needs {needed} bytes, but has {limit}, {} too few; its largest tensors are {}",
        needed - limit, tensors(.largest)
    )]
    Memory {
        /// The rank.
        rank: usize,
        /// Bytes of its arena.
        needed: u64,
        /// Bytes that it may use.
        limit: u64,
        /// The largest registers, with all their slots.
        largest: Vec<(String, u64)>,
    },
    /// Pins, the strategy and the limit of memory cannot all be kept.
    #[error("{cause}\n{conflict}")]
    Conflict {
        /// What conflicts.
        conflict: Conflict,
        /// What is wrong where these alone are asked for.
        cause: Box<CompileError>,
    },
}

impl From<FormError> for CompileError {
    fn from(error: FormError) -> Self {
        match error {
            FormError::Prepare(error) => error.into(),
            FormError::Plan(error) => error.into(),
        }
    }
}

impl CompileError {
    /// Whether more memory would help.
    pub fn is_memory(&self) -> bool {
        match self {
            Self::Memory { .. } | Self::Plan(PlanError::Memory { .. }) => true,
            Self::Conflict { cause, .. } => cause.is_memory(),
            _ => false,
        }
    }

    /// Bytes that the leanest plan found needs on its busiest rank, where that is too much.
    pub fn memory_needed(&self) -> Option<u64> {
        match self {
            Self::Memory { needed, .. } | Self::Plan(PlanError::Memory { needed, .. }) => {
                Some(*needed)
            }
            Self::Conflict { cause, .. } => cause.memory_needed(),
            _ => None,
        }
    }
}

fn tensors(largest: &[(String, u64)]) -> String {
    let name = |(name, bytes): &(String, u64)| format!("`{name}` of {bytes} bytes");
    largest.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// What a plan says about itself besides what ranks do.
pub struct Header<'a> {
    /// The graph as the user wrote it.
    pub graph: &'a Graph,
    /// What it is compiled with.
    pub options: &'a CompileOptions,
    /// The machines.
    pub cluster: &'a Cluster,
    /// Where weights come from.
    pub weights: Option<WeightsSource>,
    /// What the planner reached.
    pub planner: PlannerReport,
}

/// The plan of what was decided, and what the null device measured when it executed the plan. Two streams need more
/// memory than one, as what runs beside kernels lives longer: where it does not suffice for them the plan has one. It is not
/// checked yet ([`VerifiedPlan::check`]).
///
/// # Errors
/// Where decisions contradict each other, the plan would hang, or a rank's memory is too small.
pub fn assemble(
    header: Header<'_>,
    decisions: &Decisions,
    sharding: &Sharding,
) -> Result<(Plan, Simulation), CompileError> {
    let Header { options, cluster, .. } = header;
    let lowered = |overlap: bool| {
        let how = Lowering { placed: true, overlap };
        lower(decisions, sharding, options, cluster, how)
    };
    let mut plan = unchecked(header, decisions, lowered(cluster.overlaps())?);
    if fits_memory(&plan).is_err() && plan.programs.iter().any(|p| p.streams.len() > 1) {
        replace_lowered(&mut plan, lowered(false)?);
    }
    fits_memory(&plan)?;
    assign_channel_slots(&mut plan)?;
    let simulation = simulate(&plan)?;
    plan.predicted.step_seconds = simulation.step_seconds;
    plan.predicted.bubble_fraction = simulation.bubble_fraction;
    Ok((plan, simulation))
}

/// Puts other programs into a plan.
fn replace_lowered(plan: &mut Plan, lowered: Lowered) {
    plan.predicted.peak_memory_bytes = lowered.programs.iter().map(|p| p.arena_bytes).collect();
    (plan.tensors, plan.boxing) = (lowered.tensors, lowered.boxing);
    (plan.layouts, plan.channels) = (lowered.layouts, lowered.channels);
    (plan.programs, plan.ranks) = (lowered.programs, lowered.ranks);
}

/// The plan without anything measured.
fn unchecked(header: Header<'_>, decisions: &Decisions, lowered: Lowered) -> Plan {
    let Header { graph, options, cluster, weights, planner } = header;
    Plan {
        version: PLAN_VERSION,
        name: graph.name.clone(),
        world_size: options.mesh.iter().product(),
        mesh: options.mesh.clone(),
        stages: decisions.staging.stages,
        microbatches: decisions.rates.microbatches,
        recomputed_blocks: 0,
        regathered: false,
        cross_entropy: CrossEntropyForm::Auto,
        training: !decisions.training.gradients.is_empty(),
        options: options.clone(),
        cluster: cluster.clone(),
        graph: text::print(graph).lines().map(str::to_owned).collect(),
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

/// Seconds of a step of what a graph compiles to, by its [`sketch`].
///
/// # Errors
/// What the graph, the options or the machines do not allow.
pub fn predict(
    graph: Graph,
    options: &CompileOptions,
    cluster: &Cluster,
) -> Result<f64, CompileError> {
    Ok(step_seconds(&sketch(graph, options, cluster)?)?)
}

/// The plan as far as the time of its steps needs it: ranks do the same in the same order, but nothing is
/// placed in memory, and no limit of memory is kept. It takes a fraction of the time of [`compile`], and cannot run.
/// Options that leave open what memory decides take the whole way.
///
/// # Errors
/// What the graph, the options or the machines do not allow.
pub fn sketch(
    graph: Graph,
    options: &CompileOptions,
    cluster: &Cluster,
) -> Result<Plan, CompileError> {
    // Memory may decide what is left open.
    let open = options.auto_stages || options.auto_microbatches;
    if open || options.recompute == Recompute::Auto {
        return Ok(compile(graph, options, cluster, None)?.plan.into_plan());
    }
    let options = CompileOptions { memory: Some(UNLIMITED), ..options.clone() };
    let forms = all_forms(&graph, &options)?;
    let (at, planned) = best_form(&decided(&forms), &options, cluster)?;
    let (decisions, Planned { sharding, report: planner, .. }) = (&forms[at].decisions, planned);
    let how = Lowering { placed: false, overlap: cluster.overlaps() };
    let lowered = lower(decisions, &sharding, &options, cluster, how)?;
    let header = Header { graph: &graph, options: &options, cluster, weights: None, planner };
    let mut plan = unchecked(header, decisions, lowered);
    plan.cross_entropy = forms[at].cross_entropy;
    assign_channel_slots(&mut plan)?;
    Ok(plan)
}

fn all_forms(graph: &Graph, options: &CompileOptions) -> Result<Vec<Form<()>>, Prepare> {
    forms(graph, options, |options| Ok((prepare(graph.clone(), options)?, ())))
}

fn decided<T>(forms: &[Form<T>]) -> Vec<&Decisions> {
    forms.iter().map(|form| &form.decisions).collect()
}

/// The graph as it is after a pass, in the form that is planned: see [`prepare_until`].
///
/// # Errors
/// What the graph or the options do not allow, and a name that no pass has.
pub fn emit_after(
    graph: Graph,
    options: &CompileOptions,
    cluster: &Cluster,
    pass: &str,
) -> Result<Graph, CompileError> {
    let early = PASSES.iter().take_while(|&&known| known != "decompose").any(|&p| p == pass);
    let open = options.auto_stages || options.auto_microbatches;
    let forms = match early || open || !PASSES.contains(&pass) {
        true => Vec::new(),
        // Where this fails the pass may not.
        false => all_forms(&graph, options).unwrap_or_default(),
    };
    let chosen = match forms.len() > 1 {
        true => best_form(&decided(&forms), options, cluster).ok().map(|(at, _)| at),
        false => None,
    };
    let cross_entropy = chosen.map_or(options.cross_entropy, |at| forms[at].cross_entropy);
    let options = CompileOptions { cross_entropy, ..options.clone() };
    Ok(prepare_until(graph, &options, pass)?)
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
    let largest = largest(&plan.programs[plan.ranks[rank].program.index()]);
    Err(CompileError::Memory { rank, needed: arena(&rank), limit, largest })
}

/// The five largest registers.
fn largest(program: &Program) -> Vec<(String, u64)> {
    let own = program.registers.iter().filter(|register| register.shares.is_none());
    let mut registers: Vec<(String, u64)> =
        own.map(|r| (r.name.clone(), r.slot_bytes * u64::from(r.slots))).collect();
    registers.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    registers.truncate(5);
    registers
}

/// Compiles a graph for a mesh of machines. The same input gives the same plan, byte for byte.
///
/// # Errors
/// What the graph, the options or the machines do not allow.
pub fn compile(
    graph: Graph,
    options: &CompileOptions,
    cluster: &Cluster,
    weights: Option<WeightsSource>,
) -> Result<Compiled, CompileError> {
    compile_observed(graph, options, cluster, weights, &mut |_| ())
}

/// How far a compilation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Milestone {
    /// All passes before the planner are done.
    Prepared,
    /// The planner has chosen every signature.
    Planned,
}

/// [`compile`], telling `reached` how far it is: the caller has the clock.
///
/// # Errors
/// What the graph, the options or the machines do not allow; where pins, the strategy and memory do not go together, a
/// smallest set of them that does not.
pub fn compile_observed(
    graph: Graph,
    options: &CompileOptions,
    cluster: &Cluster,
    weights: Option<WeightsSource>,
    reached: &mut dyn FnMut(Milestone),
) -> Result<Compiled, CompileError> {
    let job = Job { graph: &graph, options, cluster, weights };
    job.compile_best(reached).map_err(|error| explained(&graph, options, cluster, error))
}

/// Whether [`compile`] succeeds; its error is not explained.
pub(crate) fn try_compile(
    graph: &Graph,
    options: &CompileOptions,
    cluster: &Cluster,
) -> Result<(), CompileError> {
    Job { graph, options, cluster, weights: None }.compile_best(&mut |_| ()).map(drop)
}

/// Choices of stages and microbatches whose whole plan is made: of small models, or where the plans of better ones do not fit
/// the memory.
pub(crate) const MOST_CHOICES: usize = 3;

/// Nodes of the user's graph times ranks up to which all of these are compiled, and the fastest is taken; beyond, the first
/// that fits.
const MOST_RANKED: usize = 50_000;

/// What is compiled: the graph and the options as the user gave them.
struct Job<'a> {
    graph: &'a Graph,
    options: &'a CompileOptions,
    cluster: &'a Cluster,
    weights: Option<WeightsSource>,
}

impl Job<'_> {
    /// Compiles with the best choice of what the options leave open.
    fn compile_best(&self, reached: &mut dyn FnMut(Milestone)) -> Result<Compiled, CompileError> {
        let Self { graph, options, cluster, .. } = self;
        if !options.auto_stages && !options.auto_microbatches {
            return self.compile((*graph).clone(), options, reached)?.checked();
        }
        // Layers are priced on their own; of the best few choices the null device knows what the whole takes.
        let ranks: usize = options.mesh.iter().product();
        let is_small = graph.nodes.len() * ranks <= MOST_RANKED;
        let (mut best, mut failed): (Option<Draft>, _) = (None, None);
        for choice in choose(graph, options, cluster)?.into_iter().take(MOST_CHOICES) {
            let (staged, resolved) = chosen(graph, options, &choice)?;
            match self.compile(staged, &resolved, reached) {
                Ok(mut draft) => {
                    draft.plan.pipeline = Some(choice);
                    let seconds = |known: &Draft| known.simulation.step_seconds;
                    if best.as_ref().is_none_or(|known| seconds(&draft) < seconds(known)) {
                        best = Some(draft);
                    }
                    if !is_small {
                        break;
                    }
                }
                Err(error) if error.is_memory() => failed = failed.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        if let Some(best) = best {
            return best.checked();
        }
        Err(failed.unwrap_or_else(|| Prepare::NoPipeline { layers: 0, error: None }.into()))
    }

    /// Compiles a graph whose stages are decided, with options that leave nothing open.
    fn compile(
        &self,
        staged: Graph,
        options: &CompileOptions,
        reached: &mut dyn FnMut(Milestone),
    ) -> Result<Draft, CompileError> {
        let prepared = all_forms(&staged, options)?;
        reached(Milestone::Prepared);
        let cluster = self.cluster;
        let attempt = |mut forms: Vec<Form<()>>, recomputed_blocks: usize| {
            let InMemory { at, planned, regathered } =
                best_in_memory(&decided(&forms), options, cluster)?;
            let Form { decisions, cross_entropy, .. } = forms.swap_remove(at);
            let is_regathered = regathered.is_some();
            let decisions = regathered.unwrap_or(decisions);
            let Planned { sharding, report: planner, .. } = planned;
            if !planner.objective_seconds.is_finite() {
                return Err(CompileError::NotFinite { seconds: planner.objective_seconds });
            }
            let weights = self.weights.clone();
            let header =
                Header { graph: self.graph, options: self.options, cluster, weights, planner };
            let (mut plan, simulation) = assemble(header, &decisions, &sharding)?;
            plan.recomputed_blocks = recomputed_blocks;
            plan.regathered = is_regathered;
            plan.cross_entropy = cross_entropy;
            Ok(Draft { plan, decisions, sharding, simulation })
        };
        let draft = match options.recompute {
            Recompute::Auto => fewest_blocks(prepared, options, attempt),
            Recompute::None => attempt(prepared, 0),
            Recompute::Full => {
                let blocks = blocks_of(&prepared);
                attempt(prepared, blocks)
            }
        };
        reached(Milestone::Planned);
        draft
    }
}

/// Blocks that can be computed again, in the form that has most.
fn blocks_of(forms: &[Form<()>]) -> usize {
    let of = |form: &Form<()>| most_blocks(&form.decisions.training, &form.decisions.rates);
    forms.iter().map(of).max().unwrap_or(0)
}

/// The plan in which as few blocks are computed again as the memory allows: none if that fits, else, as fewer blocks
/// need more memory, the least number by bisection; the error is that of all blocks where not even they fit.
fn fewest_blocks(
    prepared: Vec<Form<()>>,
    options: &CompileOptions,
    attempt: impl Fn(Vec<Form<()>>, usize) -> Result<Draft, CompileError>,
) -> Result<Draft, CompileError> {
    let most = blocks_of(&prepared);
    let with = |blocks| {
        let of = |form: &Form<()>| {
            let decisions = recompute_blocks(&form.decisions, options, blocks)?;
            Ok(Form { decisions, ..form.clone() })
        };
        attempt(prepared.iter().map(of).collect::<Result<_, Prepare>>()?, blocks)
    };
    match with(0) {
        Err(error) if error.is_memory() && most > 0 => {}
        other => return other,
    }
    let mut best = with(most)?;
    let (mut too_few, mut enough) = (0, most);
    while enough - too_few > 1 {
        let middle = usize::midpoint(too_few, enough);
        match with(middle) {
            Ok(draft) => (best, enough) = (draft, middle),
            Err(error) if error.is_memory() => too_few = middle,
            Err(error) => return Err(error),
        }
    }
    Ok(best)
}
