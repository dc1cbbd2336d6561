//! Advises how to train a model on a number of ranks: on which mesh, and in how many stages and microbatches ([`advise_ways`]). It also finds the
//! fewest ranks on which the model fits ([`least_ranks`]).
//!
//! Meshes have one axis of all ranks, or two axes of which the second lies inside a node ([`list_meshes`]). For each mesh the layers are priced as
//! `--stages auto --microbatches auto` does ([`stages`](super::stages)). The ways that are best by these prices get whole plans, and the null device
//! measures their steps. All other ways keep the price of their layers, which is less exact than a whole plan: see `stages`.
//!
//! That a model does not fit is proven only if its variables alone need more memory than all ranks have. Otherwise the result is only that the
//! planner found no plan.

use graphc_ir::graph::Graph;
use graphc_ir::mesh::MOST_RANKS;
use graphc_ir::op::Op;
use graphc_plan::{Cluster, CompileOptions, PipelineReport};

use super::Compiled;
use super::choice::{Choice, CompileRequest};
use super::conflict::staged_has_plan;
use super::limits;
use super::stages::{Chooser, microbatch_counts};
use crate::cost::model_flops_utilization;
use crate::error::CompileError;
use crate::null_device::Shares;
use crate::pipeline::prepare_graph;
use crate::side_by_side::map_in_own_threads;

/// The least share of a step that links or waiting must take to be the limit.
const BINDING: f64 = 0.1;

/// The amount of work for an advice.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// The number of ways that are reported.
    pub ways: usize,
    /// The number of whole plans that are made, of the best ways that have one.
    pub plans: usize,
}

/// A mesh with numbers of stages and microbatches.
#[derive(Debug)]
pub struct Way {
    /// The mesh of all ranks.
    pub mesh: Vec<usize>,
    /// The costs of its layers: stages, microbatches, and seconds of a step.
    pub choice: PipelineReport,
    /// The whole plan, or the reason why there is none; `None` if none was tried.
    pub planned: Option<Result<Figures, CompileError>>,
}

/// The figures of a whole plan.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Seconds of a step.
    pub step_seconds: f64,
    /// Bytes of the busiest rank.
    pub memory_bytes: u64,
    /// The share of the machines' peak that the model's FLOPs take.
    pub mfu: Option<f64>,
    /// The shares of the ranks' time.
    pub shares: Shares,
    /// The share of the planner's objective that its bound leaves open.
    pub gap: f64,
    /// Whether something is recomputed or gathered again because memory is short.
    pub is_short: bool,
}

/// The limit that keeps a step from being shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binds {
    /// Ranks wait for each other, as in a pipeline's bubble.
    Bubble,
    /// Ranks wait for communication.
    Links,
    /// Tensors are recomputed or gathered again because memory is short.
    Memory,
    /// Kernels compute nearly all the time.
    Kernels,
}

impl Figures {
    /// Returns the strongest limit.
    pub fn binding_limit(&self) -> Binds {
        let Shares { communication, waiting, .. } = self.shares;
        match waiting >= communication {
            _ if waiting.max(communication) < BINDING && self.is_short => Binds::Memory,
            _ if waiting.max(communication) < BINDING => Binds::Kernels,
            true => Binds::Bubble,
            false => Binds::Links,
        }
    }

    fn new(compiled: &Compiled) -> Self {
        let Compiled { plan, decisions, simulation, .. } = compiled;
        Self {
            step_seconds: simulation.step_seconds,
            memory_bytes: plan.predicted.peak_memory_bytes.iter().copied().max().unwrap_or(0),
            mfu: model_flops_utilization(plan, decisions, simulation.step_seconds),
            shares: simulation.shares,
            gap: plan.planner.gap,
            is_short: plan.regathered || !plan.recomputed.is_empty(),
        }
    }
}

impl Way {
    /// Returns the seconds of a step, from the whole plan if there is one.
    pub fn seconds(&self) -> f64 {
        match &self.planned {
            Some(Ok(figures)) => figures.step_seconds,
            Some(Err(_)) | None => self.choice.seconds,
        }
    }

    /// Returns the rank in the order: ways with a plan come first, those that are known to have none last.
    fn sort_priority(&self) -> u8 {
        match &self.planned {
            Some(Ok(_)) => 0,
            None => 1,
            Some(Err(_)) => 2,
        }
    }
}

/// A callback for the progress of an advice: the number of parts of its work that are done, and of all parts.
pub(crate) type Reached<'a> = &'a mut dyn FnMut(usize, usize);

/// Lists the meshes of a number of ranks that are considered: one axis, and two axes of which the second divides a node. If the machines have
/// constants for each axis, only meshes of as many axes are listed, if there are any.
pub(crate) fn list_meshes(ranks: usize, cluster: &Cluster) -> Vec<Vec<usize>> {
    let node = ranks_per_node(cluster).unwrap_or(ranks);
    let inner = (2..=node.min(ranks / 2))
        .filter(|inner| ranks.is_multiple_of(*inner) && node.is_multiple_of(*inner));
    let mut all = vec![vec![ranks]];
    all.extend(inner.map(|inner| vec![ranks / inner, inner]));
    if all.iter().any(|mesh| mesh.len() == cluster.axes.len()) {
        all.retain(|mesh| mesh.len() == cluster.axes.len());
    }
    all
}

/// Returns the number of ranks of a node, if the machines tell it.
fn ranks_per_node(cluster: &Cluster) -> Option<usize> {
    cluster.levels.first().map(|level| level.size).filter(|&size| size > 0)
}

/// Finds the best ways to train on a number of ranks, those with the shortest steps first. Everything that the options leave open is chosen; their
/// mesh is ignored.
///
/// # Errors
/// Returns an error if no way has a plan, or if the options do not fit the graph: that of the way that needs least memory.
pub fn advise_ways(
    graph: &Graph,
    options: &CompileOptions,
    cluster: &Cluster,
    (ranks, depth): (usize, Depth),
    reached: Reached<'_>,
) -> Result<Vec<Way>, CompileError> {
    let meshes = list_meshes(ranks, cluster);
    let parts = meshes.len() + depth.plans;
    let (mut ways, mut failed) = (Vec::new(), None);
    let mut best = f64::INFINITY;
    for (at, mesh) in meshes.into_iter().enumerate() {
        let options = on_mesh(&mesh).resolve(options);
        match price_choices(graph, &options, cluster, limits::ADVICE_WORSE * best) {
            Ok(choices) => {
                best = choices.iter().map(|choice| choice.seconds).fold(best, f64::min);
                let way = |choice| Way { mesh: mesh.clone(), choice, planned: None };
                ways.extend(choices.into_iter().map(way));
            }
            Err(error) => failed = Some(error.or_leaner(failed)),
        }
        reached(at + 1, parts);
    }
    sort_ways(&mut ways);
    ways.truncate(depth.ways);
    let most = ways.len().min(limits::ADVICE_PLANS * depth.plans);
    let (mut made, mut tried) = (0, 0);
    while made < depth.plans && tried < most {
        let wave = &mut ways[tried..most.min(tried + depth.plans - made)];
        tried += wave.len();
        let plan = |way: &Way| {
            let options = on_mesh(&way.mesh).resolve(options);
            let request = CompileRequest { graph, options: &options, cluster, weights: None };
            request.compile_pipeline(&way.choice).map(|compiled| Figures::new(&compiled))
        };
        let planned = map_in_own_threads(wave.iter().collect(), plan);
        for (way, planned) in wave.iter_mut().zip(planned) {
            made += usize::from(planned.is_ok());
            way.planned = Some(planned);
        }
        reached(parts - depth.plans + made, parts);
    }
    reached(parts, parts);
    sort_ways(&mut ways);
    match made > 0 || depth.plans == 0 && !ways.is_empty() {
        true => Ok(ways),
        false => {
            let errors = ways.into_iter().filter_map(|way| way.planned?.err());
            Err(errors
                .fold(failed, |known, error| Some(error.or_leaner(known)))
                .expect("one is known"))
        }
    }
}

/// Makes the choice of a mesh.
fn on_mesh(mesh: &[usize]) -> Choice {
    Choice { mesh: Some(mesh.to_vec()), ..Choice::default() }
}

/// Orders ways by seconds, after their [`Way::sort_priority`], and equal ones by mesh, stages and microbatches.
fn sort_ways(ways: &mut [Way]) {
    let size = |way: &Way| (way.choice.stages, way.choice.microbatches);
    ways.sort_by(|a, b| {
        let seconds = a.seconds().total_cmp(&b.seconds());
        let names = || (&a.mesh, size(a)).cmp(&(&b.mesh, size(b)));
        a.sort_priority().cmp(&b.sort_priority()).then(seconds).then_with(names)
    });
}

/// Finds the choices of stages and microbatches on a mesh that may fit the memory, by the prices of their layers.
fn price_choices(
    graph: &Graph,
    options: &CompileOptions,
    cluster: &Cluster,
    known: f64,
) -> Result<Vec<PipelineReport>, CompileError> {
    let choices = Chooser::new(graph, options, cluster)?.find_choices(known)?;
    let mut all: Vec<PipelineReport> = Vec::new();
    for choice in choices.ranked.into_iter().chain(choices.unfit) {
        let same = |known: &PipelineReport| {
            (known.stages, known.microbatches) == (choice.stages, choice.microbatches)
        };
        if !all.iter().any(same) {
            all.push(choice);
        }
    }
    Ok(all)
}

/// The fewest ranks, of those that were tried, on which a model has a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Least {
    /// The mesh of these ranks, in one stage; `None` if no number that was tried suffices.
    pub mesh: Option<Vec<usize>>,
    /// The microbatches of that plan.
    pub microbatches: usize,
    /// The bytes of all variables: weights, and the states that the optimizer keeps.
    pub variables: u64,
    /// The number of ranks below which no plan fits, because the variables alone need more than their memory.
    pub proven: usize,
    /// The numbers of ranks for which a plan was searched, in that order.
    pub tried: Vec<usize>,
}

/// Finds the fewest ranks on which a model has a plan in one stage, with everything recomputed and gathered again that may be. The numbers that are
/// tried are powers of two inside a node, and whole nodes by twos and threes. It is assumed that more ranks have a plan if fewer do, so the search
/// goes up from the ranks that the variables need, and then halves what is between.
///
/// # Errors
/// Returns an error if the options do not fit the graph.
pub fn least_ranks(
    graph: &Graph,
    options: &CompileOptions,
    cluster: &Cluster,
) -> Result<Least, CompileError> {
    let variables = count_variable_bytes(graph, options)?;
    let limit = options.memory.unwrap_or(cluster.device.memory).max(1);
    let proven = usize::try_from(variables.div_ceil(limit)).unwrap_or(usize::MAX).max(1);
    let numbers: Vec<usize> =
        list_rank_counts(cluster).into_iter().filter(|&n| n >= proven).collect();
    let mut tried = Vec::new();
    let mut fits = |at: usize| {
        tried.push(numbers[at]);
        let has_plan = staged_has_plan(
            graph.clone(),
            &single_stage_options(graph, options, cluster, numbers[at]),
            cluster,
        );
        match has_plan {
            Ok(()) => Ok(true),
            Err(error) if error.is_memory() => Ok(false),
            Err(error) => Err(error),
        }
    };
    let (mut low, mut high, mut stride) = (0, None, 1);
    while low < numbers.len() && high.is_none() {
        let at = (low + stride - 1).min(numbers.len() - 1);
        match fits(at)? {
            true => high = Some(at),
            false => (low, stride) = (at + 1, 2 * stride),
        }
    }
    while let Some(known) = high.filter(|&known| low < known) {
        let middle = low.midpoint(known);
        match fits(middle)? {
            true => high = Some(middle),
            false => low = middle + 1,
        }
    }
    let found = high.map(|at| single_stage_options(graph, options, cluster, numbers[at]));
    let microbatches = found.as_ref().map_or(1, |found| found.microbatches);
    Ok(Least { mesh: found.map(|found| found.mesh), microbatches, variables, proven, tried })
}

/// Lists the numbers of ranks that are tried, in ascending order.
fn list_rank_counts(cluster: &Cluster) -> Vec<usize> {
    let node = ranks_per_node(cluster).unwrap_or(1);
    let powers = std::iter::successors(Some(1usize), |n| n.checked_mul(2)).take(18);
    let inside = powers.clone().filter(|&n| n < node);
    let whole = powers.flat_map(|n| [2 * n * node, 3 * n * node]).chain([node]);
    let mut all: Vec<usize> = inside.chain(whole).filter(|&n| n <= MOST_RANKS).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Returns the options for a number of ranks in one stage. If the number of microbatches is left open, it is the greatest that is priced.
fn single_stage_options(
    graph: &Graph,
    options: &CompileOptions,
    cluster: &Cluster,
    ranks: usize,
) -> CompileOptions {
    let mesh = match ranks_per_node(cluster) {
        Some(node) if ranks > node && ranks.is_multiple_of(node) => vec![ranks / node, node],
        _ => vec![ranks],
    };
    let options = Choice { stages: Some(1), ..on_mesh(&mesh) }.resolve(options);
    let microbatches = microbatch_counts(graph, &options, 1).first().copied().unwrap_or(1);
    Choice { microbatches: Some(microbatches), ..Choice::default() }.resolve(&options)
}

/// Counts the bytes of all variables of the training graph.
fn count_variable_bytes(graph: &Graph, options: &CompileOptions) -> Result<u64, CompileError> {
    let alone = Choice { mesh: Some(vec![1]), ..Choice::of_pipeline(1, 1) }.resolve(options);
    let decisions = prepare_graph(graph.clone(), &alone)?;
    let graph = decisions.graph();
    let variables = graph.nodes.iter().filter(|node| matches!(node.op, Op::Variable(_)));
    Ok(variables.map(|node| graph.value(node.results[0]).ty.bytes() as u64).sum())
}

#[cfg(test)]
mod tests {
    use graphc_ir::builder::GraphBuilder;
    use graphc_ir::ops::Init;
    use graphc_ir::types::DType;
    use graphc_plan::{Loss, Optimizer, Recompute};

    use super::*;
    use crate::cluster::preset;

    /// Makes a graph of four products of 64 by 64, each of 16 KiB, trained with momentum.
    fn products() -> (Graph, CompileOptions) {
        let g = GraphBuilder::new("products");
        let x = g.input("x", DType::F32, [32, 64]);
        let weight = |name: &str| g.variable(name, DType::F32, [64, 64], Init::Weights);
        let y = ["a", "b", "c", "d"].iter().fold(x, |x, name| x.matmul(&weight(name)).relu());
        g.output("y", &y);
        let sgd = Optimizer::Sgd { lr: 0.1, momentum: 0.9, nesterov: false, weight_decay: 0.0 };
        let options = CompileOptions {
            loss: Some(Loss::Sum),
            optimizer: Some(sgd),
            auto_stages: true,
            auto_microbatches: true,
            recompute: Recompute::Auto,
            ..CompileOptions::default()
        };
        (g.finish().expect("fits"), options)
    }

    #[test]
    fn the_second_axis_of_a_mesh_divides_a_node() {
        let cluster = preset("dgx-h100").expect("a preset");
        let expected: [&[usize]; 4] = [&[64], &[32, 2], &[16, 4], &[8, 8]];
        assert_eq!(list_meshes(64, &cluster), expected);
        assert_eq!(list_meshes(12, &cluster), [vec![12], vec![6, 2], vec![3, 4]]);
        assert_eq!(list_meshes(1, &cluster), [vec![1]]);
        assert_eq!(list_rank_counts(&cluster)[..8], [1, 2, 4, 8, 16, 24, 32, 48]);
    }

    #[test]
    fn the_first_way_has_the_shortest_step_of_those_with_plans() {
        let (graph, options) = products();
        let cluster = preset("dgx-h100").expect("a preset");
        let mut parts = Vec::new();
        let depth = Depth { ways: 5, plans: 3 };
        let mut reached = |done, all| parts.push((done, all));
        let ways = advise_ways(&graph, &options, &cluster, (4, depth), &mut reached).expect("fits");
        assert_eq!((ways.len(), parts.last()), (5, Some(&(5, 5))));
        let planned = |way: &&Way| matches!(way.planned, Some(Ok(_)));
        assert_eq!(ways.iter().filter(planned).count(), 3);
        let seconds: Vec<f64> = ways[..3].iter().map(Way::seconds).collect();
        assert!(seconds.is_sorted(), "{seconds:?}");
        assert!(ways.iter().all(|way| way.mesh.iter().product::<usize>() == 4), "{ways:?}");
        // The plan of the way itself.
        let Way { mesh, choice, .. } = &ways[0];
        let (stages, microbatches) = (choice.stages, choice.microbatches);
        let alone = CompileOptions {
            mesh: mesh.clone(),
            stages,
            microbatches,
            auto_stages: false,
            auto_microbatches: false,
            ..options
        };
        if stages == 1 {
            let compiled = crate::compile::compile(graph, &alone, &cluster, None).expect("fits");
            assert_eq!(compiled.simulation.step_seconds, ways[0].seconds());
        }
    }

    #[test]
    fn the_fewest_ranks_have_a_plan_and_half_of_them_have_none() {
        let (graph, options) = products();
        let cluster = preset("dgx-h100").expect("a preset");
        // Of 128 KiB of weights and momenta.
        let options = CompileOptions { memory: Some(40 << 10), ..options };
        let least = least_ranks(&graph, &options, &cluster).expect("it can be planned");
        assert_eq!((least.variables, least.proven), (128 << 10, 4));
        let mesh = least.mesh.clone().expect("some number suffices");
        let ranks: usize = mesh.iter().product();
        let has_plan = |ranks| {
            staged_has_plan(
                graph.clone(),
                &single_stage_options(&graph, &options, &cluster, ranks),
                &cluster,
            )
        };
        assert!(ranks >= 4 && has_plan(ranks).is_ok(), "{least:?}");
        assert!(ranks == 4 || has_plan(ranks / 2).is_err_and(|e| e.is_memory()), "{least:?}");
        // Not even a row of a weight fits.
        let options = CompileOptions { memory: Some(64), ..options };
        let least = least_ranks(&graph, &options, &cluster).expect("it can be planned");
        assert_eq!((least.mesh, least.proven), (None, 2048));
    }
}
