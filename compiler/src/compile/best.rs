//! The best plan of what the options leave open: stages and microbatches, the form of cross entropy, what memory lets
//! recompute and gather again. Each choice is a graph of its own, of which one plan is made ([`once`](super::once)).

use graphc_ir::graph::Graph;
use graphc_ir::plan::{Cluster, CompileOptions, Recompute, WeightsSource};

use super::forms::{Form, InMemory, all_forms, best_in_memory, decided};
use super::once::{Draft, Header, assemble};
use super::stages::{choose, chosen};
use super::{Compiled, Milestone};
use crate::error::CompileError;
use crate::passes::error::PassError;
use crate::passes::recompute::most_blocks;
use crate::pipeline::recompute_blocks;
use crate::planner::Planned;

/// Choices of stages and microbatches whose whole plan is made: of small models, or where the plans of better ones do not fit
/// the memory.
pub(super) const MOST_CHOICES: usize = 3;

/// Nodes of the user's graph times ranks up to which all of these are compiled, and the fastest is taken; beyond, the first
/// that fits.
const MOST_RANKED: usize = 50_000;

/// What is compiled: the graph and the options as the user gave them.
pub(super) struct Job<'a> {
    pub graph: &'a Graph,
    pub options: &'a CompileOptions,
    pub cluster: &'a Cluster,
    /// Where weights come from.
    pub weights: Option<WeightsSource>,
}

impl Job<'_> {
    /// Compiles with the best choice of what the options leave open.
    pub fn compile_best(
        &self,
        reached: &mut dyn FnMut(Milestone),
    ) -> Result<Compiled, CompileError> {
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
        Err(failed.unwrap_or_else(|| PassError::NoPipeline { layers: 0, error: None }.into()))
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
        attempt(prepared.iter().map(of).collect::<Result<_, PassError>>()?, blocks)
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
