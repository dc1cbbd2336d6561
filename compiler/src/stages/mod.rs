//! How many stages and microbatches, and where to cut: what `--stages auto` and `--microbatches auto` leave to graphc.
//!
//! For each number of stages that divides the first mesh axis and each sensible number of microbatches the layers of the
//! model are priced on the submesh of one stage: [`short`] leaves two of each run of equal layers, [`price`] plans what is
//! left on the submesh and sums what each layer costs and keeps, and [`cuts`] finds the best cut of the whole chain.
//! Start reading with [`choose`]. Nothing here plans the whole model: that is done for the choice, afterwards.

mod cuts;
mod price;
mod short;

use graphc_ir::graph::Graph;
use graphc_ir::ids::StageId;
use graphc_ir::op::Op;
use graphc_ir::plan::{Cluster, CompileOptions, PipelineReport, Recompute};

use crate::error::CompileError;
use crate::passes::layers::{Layers, layers};
use crate::pipeline::with_loss;
use crate::schedule::under_way;

use cuts::{Chain, cut};
use price::{PriceError, Prices, price};
use short::short;

/// Numbers of microbatches that are tried with each number of stages.
const MOST_MICROBATCHES: usize = 4;

/// Shares of the memory of the fastest plan that layers are priced at where that does not fit.
const MEMORY_SHARES: [f64; 3] = [0.6, 0.35, 0.2];

/// The choices, best first: what is tried where a better one turns out not to fit the memory. `seconds` of each is what
/// its layers cost, `bound_seconds` what no choice goes below whatever the memory, by the same costs of layers.
///
/// # Errors
/// Where the options do not fit the graph, or nothing fits the memory.
pub fn choose(
    graph: &Graph,
    options: &CompileOptions,
    cluster: &Cluster,
) -> Result<Vec<PipelineReport>, CompileError> {
    let graph = with_loss(graph.clone(), options)?;
    let found = layers(&graph, |_| true);
    let annotated = graph.nodes.iter().any(|node| node.stage.is_some());
    let given = if annotated { Some(graph.stages.len()) } else { None };
    let model =
        short(&graph, &found).map_err(|error| CompileError::Op { pass: "stages", error })?;
    let mut choices = Vec::new();
    let mut bound = f64::INFINITY;
    let mut least: Option<PriceError> = None;
    for stages in stage_counts(options, given, found.count) {
        for microbatches in microbatch_counts(&graph, options, stages) {
            let resolved = CompileOptions { stages, microbatches, ..fixed(options) };
            let chooser = Chooser { options: &resolved, cluster, model: &model };
            match chooser.best(&mut bound) {
                Ok(Some(choice)) => choices.push(choice),
                Ok(None) => {}
                Err(error) => least = least.or(Some(error)),
            }
        }
    }
    choices.sort_by(|a, b| {
        let size = |report: &PipelineReport| (report.stages, report.microbatches);
        a.seconds.total_cmp(&b.seconds).then_with(|| size(a).cmp(&size(b)))
    });
    if choices.is_empty() {
        let error = least.map(|error| error.to_string());
        return Err(CompileError::NoPipeline { layers: found.count, error });
    }
    for choice in &mut choices {
        choice.bound_seconds = bound.min(choice.seconds);
    }
    Ok(choices)
}

/// The options with nothing left open.
fn fixed(options: &CompileOptions) -> CompileOptions {
    CompileOptions { auto_stages: false, auto_microbatches: false, ..options.clone() }
}

/// The graph and the options of a choice. Where the user's nodes have stages they keep them.
///
/// # Errors
/// Where the loss does not fit the graph.
pub fn chosen(
    graph: &Graph,
    options: &CompileOptions,
    choice: &PipelineReport,
) -> Result<(Graph, CompileOptions), CompileError> {
    let (stages, microbatches) = (choice.stages, choice.microbatches);
    let resolved = CompileOptions { stages, microbatches, ..fixed(options) };
    let mut graph = graph.clone();
    if choice.stages > 1 && graph.nodes.iter().all(|node| node.stage.is_none()) {
        let Layers { of, .. } = layers(&with_loss(graph.clone(), options)?, |_| true);
        let range_of: Vec<usize> = choice
            .layers
            .iter()
            .enumerate()
            .flat_map(|(range, &count)| std::iter::repeat_n(range, count))
            .collect();
        for (node, layer) in graph.nodes.iter_mut().zip(of) {
            let range = layer.and_then(|layer| range_of.get(layer).copied());
            node.stage = range.map(StageId::new);
        }
        graph.stages = vec![None; choice.layers.len()];
    }
    Ok((graph, resolved))
}

/// Numbers of stages: those that divide the first axis, with a layer at least for each of their chunks.
fn stage_counts(options: &CompileOptions, given: Option<usize>, layers: usize) -> Vec<usize> {
    let chunks = options.schedule.chunks();
    if let Some(ranges) = given {
        return vec![ranges / chunks];
    }
    if !options.auto_stages {
        return vec![options.stages];
    }
    let first = options.mesh.first().copied().unwrap_or(1);
    let fits = |&stages: &usize| {
        let chunked = chunks == 1 || stages > 1;
        first.is_multiple_of(stages) && chunked && stages * chunks <= layers.max(1)
    };
    (1..=first).filter(fits).collect()
}

/// Numbers of microbatches: divisors of the batch, from one sample for each rank of the first axis of a stage on, each
/// about half the one before.
fn microbatch_counts(graph: &Graph, options: &CompileOptions, stages: usize) -> Vec<usize> {
    if !options.auto_microbatches {
        return vec![options.microbatches];
    }
    let batch = batch(graph);
    let ranks = options.mesh.first().map_or(1, |first| (first / stages).max(1));
    let grouped = options.schedule.chunks() > 1;
    let fits = |m: &usize| batch.is_multiple_of(*m) && (!grouped || m.is_multiple_of(stages));
    let mut counts = Vec::new();
    let mut most = (batch / ranks).max(1);
    while counts.len() < MOST_MICROBATCHES {
        let Some(count) = (1..=most).rev().find(fits) else { break };
        counts.push(count);
        most = count / 2;
    }
    counts
}

/// What divides the first dim of every input.
fn batch(graph: &Graph) -> usize {
    let extents = graph.nodes.iter().filter_map(|node| match &node.op {
        Op::Input(input) => input.ty.shape.first().copied(),
        _ => None,
    });
    extents.fold(0, greatest_common_divisor).max(1)
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

struct Chooser<'a> {
    options: &'a CompileOptions,
    cluster: &'a Cluster,
    model: &'a short::Short,
}

impl Chooser<'_> {
    /// The best cut for these numbers of stages and microbatches; `bound` falls to what layers cost where memory is no
    /// matter. First with all activations kept, unless all are to be recomputed, then with less memory for the layers.
    fn best(&self, bound: &mut f64) -> Result<Option<PipelineReport>, PriceError> {
        let limit = self.options.memory.unwrap_or(self.cluster.device.memory);
        let mut failed = None;
        let ways: &[Recompute] = match self.options.recompute {
            Recompute::Auto => &[Recompute::None, Recompute::Full],
            Recompute::Full => &[Recompute::Full],
            Recompute::None => &[Recompute::None],
        };
        for &recompute in ways {
            let options = CompileOptions { recompute, ..self.options.clone() };
            let free = match price(self.model, &options, self.cluster, None) {
                Ok(prices) => prices,
                Err(error) => {
                    failed = Some(error);
                    continue;
                }
            };
            if let Some(cut) = self.cut(&free, u64::MAX) {
                *bound = bound.min(cut.seconds);
            }
            if let Some(report) = self.cut(&free, limit) {
                return Ok(Some(report));
            }
            for share in MEMORY_SHARES {
                let less = (free.peak as f64 * share) as u64;
                let Ok(prices) = price(self.model, &options, self.cluster, Some(less)) else {
                    break;
                };
                if let Some(report) = self.cut(&prices, limit) {
                    return Ok(Some(report));
                }
            }
        }
        failed.map_or(Ok(None), Err)
    }

    fn cut(&self, prices: &Prices, limit: u64) -> Option<PipelineReport> {
        let CompileOptions { stages, microbatches, schedule, .. } = *self.options;
        let all = |costs: &[cuts::LayerCost]| -> Vec<cuts::LayerCost> {
            self.model.stands.iter().map(|&layer| costs[layer]).collect()
        };
        let layers = all(&prices.layers);
        let boundaries: Vec<f64> =
            self.model.stands.iter().map(|&layer| prices.boundaries[layer]).collect();
        let under_way = under_way(schedule, stages, microbatches);
        let chain = Chain {
            layers: &layers,
            boundaries: &boundaries,
            stages,
            chunks: schedule.chunks(),
            microbatches,
            under_way: &under_way,
            limit,
        };
        let cut = cut(&chain)?;
        Some(PipelineReport {
            stages,
            microbatches,
            layers: cut.layers,
            seconds: cut.seconds,
            bound_seconds: 0.0,
        })
    }
}
