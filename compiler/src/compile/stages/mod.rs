//! Chooses the numbers of stages and microbatches, and where to cut, for `--stages auto` and `--microbatches auto`
//! (after Alpa: Zheng et al., arXiv 2201.12023, section 5).
//!
//! All stages have submeshes of one size, slices of the first mesh axis. For each number of stages that divides this
//! axis, and for each sensible number of microbatches, the layers are priced once on the submesh of a stage. `short`
//! leaves two of each run of equal layers, because the first reads something else than the others. `price` plans this
//! short model and sums what each layer costs and keeps. `cuts` finds the best cut of the whole chain.
//!
//! Numbers of stages are priced side by side, with results in order. For each, fewer and fewer microbatches are
//! priced as long as that pays.
//!
//! Where no cut of a choice fits, but it would be the best with more memory, its layers are priced again in less
//! memory. Layers never cost less for that, so this goes on only while it may pay. As in whole plans, each tensor may
//! then be gathered again for the backward pass. For such prices a gap of 2 % is enough (`planner::Purpose::Prices`).
//! Memory that is clearly too much is passed over. A choice that fits only at such a price must be a tenth better
//! than one whose layers fit as they are. Whole plans that are short of memory take long to find, and cost more than
//! their layers say.
//!
//! The prices of layers leave two things out. Between layers of different stages only the sending of what crosses is
//! priced, and layouts may change with the cut. The reported bound is the least of the same objective over all
//! choices as if memory were endless. So it bounds the choice by these prices, not the plan.
//!
//! The planner makes and bounds the plan of the choice as usual. Where it does not fit, the next choice is taken. For
//! a small graph ([`limits::is_small`]) whole plans of the best three choices are made. So are plans of three that would be
//! better but whose layers do not fit, since a whole plan may need less. The null device says which takes the
//! shortest step: it knows bubble and overlap as they are.
//!
//! A choice whose layers take half as long again as those of the best is not planned whole ([`limits::MOST_BEHIND`]). So one
//! stage of a small graph is priced first, and the layers of pipelines only as far as they may take less than that. If
//! the whole batch fits the memory in one stage, parts of it are not priced: parts come one after the other. If no
//! layer stands for others, the short model is the whole one. Then the whole plan of one stage is its price, and the
//! same search is not made twice ([`Chooser::with_whole_plan`]).
//!
//! For a large graph, a single stage is compiled first if its layers do not fit but would be better than what fits. A
//! pipeline has its bubble, and a whole plan knows better what to keep: `llama3_405b` on 64x8 H100 takes 43 s a step
//! in one stage, and 79 s in the eight that its layers speak for. The known time of that step spares most of the
//! pricing in less memory. Another choice is priced again, and compiled, only where its layers promise a tenth less.
//!
//! Start reading with [`Chooser`]. Nothing here plans the whole model: the caller does, and says how long the steps of
//! these plans take.

mod cuts;
mod price;
mod priced;
mod short;

use graphc_ir::graph::Graph;
use graphc_plan::{Cluster, CompileOptions, PipelineReport, Recompute};

use super::choice::Choice;
use super::limits;
use crate::error::CompileError;
use crate::passes::error::PassError;
use crate::passes::layers::find_layers;
use crate::passes::loss::attach_loss;
use crate::passes::samples::common_batch;
use crate::planner::UNLIMITED;
use crate::schedule::{MOST_MICROBATCHES, under_way};
use crate::side_by_side::map_side_by_side;

use cuts::{LayerChain, cut_chain};
use price::{LayerPrices, PriceLimits, price_layers};
use priced::{PricedPipeline, PricedWays, sort_choices};
use short::shorten_model;

/// The choices of stages and microbatches that are worth a whole plan.
#[derive(Debug)]
pub struct Choices {
    /// The choices, best first. If a better one turns out not to fit the memory, the next is tried. `seconds` of each are those of its layers.
    /// `bound_seconds` is a bound of all choices that were looked at, whatever the memory, by the same costs.
    pub ranked: Vec<PipelineReport>,
    /// Choices that would be better than these if they fitted, by their layers whatever the memory. For a large graph these have one stage: there are
    /// no bubbles of a pipeline, and the planner chooses what is kept for the whole model at once. (llama3_405b on 64x8 H100: 43 s a step in one
    /// stage, where 8 stages take 79.)
    pub unfit: Vec<PipelineReport>,
    /// The error if no whole plan of them fits, if their layers tell it.
    pub none: Option<CompileError>,
}

impl Choices {
    /// Returns the choices of which whole plans are made, as long as none is found that rules out others. They are fewer with less effort.
    pub(super) fn choices_to_plan(
        &self,
        options: &CompileOptions,
    ) -> impl Iterator<Item = &PipelineReport> {
        let most = limits::whole_plans(options);
        self.ranked.iter().take(most).chain(self.unfit.iter().take(most))
    }
}

/// Finds the choices, without making any whole plan.
///
/// # Errors
/// Returns an error if the options do not fit the graph, or if nothing fits the memory.
pub fn choose_stages(
    graph: &Graph,
    options: &CompileOptions,
    cluster: &Cluster,
) -> Result<Choices, CompileError> {
    Chooser::new(graph, options, cluster)?.find_choices(f64::INFINITY)
}

/// Applies a choice to the graph and the options. If the user's nodes have stages, they keep them.
///
/// # Errors
/// Returns an error if the loss does not fit the graph.
pub fn apply_choice(
    graph: &Graph,
    options: &CompileOptions,
    choice: &PipelineReport,
) -> Result<(Graph, CompileOptions), PassError> {
    let choice = Choice::of_report(choice);
    Ok((choice.cut_graph(graph, options)?, choice.resolve(options)))
}

/// Lists the numbers of stages: those that divide the first axis, with at least one layer for each of their chunks.
fn stage_counts(options: &CompileOptions, given: Option<usize>, layers: usize) -> Vec<usize> {
    let chunks = options.schedule.chunks_per_stage();
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

/// Lists the numbers of microbatches. They are divisors of the batch. The first leaves one sample for each rank of the first axis of a stage; each is
/// about half the one before, down to 1.
pub(super) fn microbatch_counts(
    graph: &Graph,
    options: &CompileOptions,
    stages: usize,
) -> Vec<usize> {
    if !options.auto_microbatches {
        return vec![options.microbatches];
    }
    let batch = common_batch(graph);
    let ranks = options.mesh.first().map_or(1, |first| (first / stages).max(1));
    let grouped = options.schedule.chunks_per_stage() > 1;
    let fits = |m: &usize| batch.is_multiple_of(*m) && (!grouped || m.is_multiple_of(stages));
    let of = |most: usize| (1..=most).rev().find(fits);
    std::iter::successors(of((batch / ranks).clamp(1, MOST_MICROBATCHES)), |count| of(count / 2))
        .collect()
}

/// Whether a choice that is known to take at least `seconds` may be better than `best`.
pub(super) fn may_pay(seconds: f64, best: f64) -> bool {
    seconds * (1.0 + limits::SHORT_MEMORY_MARGIN) < best
}

/// Returns the most seconds that all layers can take for a step of all microbatches on the ranks of one stage, as a multiple of the seconds of a step
/// of the pipeline. The stages of a pipeline take at least as long as if all took the same time (see [`cuts`]).
fn layers_per_step(options: &CompileOptions) -> f64 {
    let [stages, microbatches, chunks] =
        [options.stages, options.microbatches, options.schedule.chunks_per_stage()]
            .map(|count| count as f64);
    microbatches * chunks * stages / (stages + chunks * microbatches - 1.0)
}

/// Chooses stages and microbatches. [`Chooser::in_one_stage`] gives the choices of which whole plans are made first, and [`Chooser::find_choices`]
/// all others that may be better than these.
pub(super) struct Chooser<'a> {
    graph: Graph,
    options: &'a CompileOptions,
    cluster: &'a Cluster,
    model: short::Short,
    /// The number of layers of the model.
    layers: usize,
    is_small: bool,
    all: Vec<PricedPipeline>,
    /// The reason why there is no choice, if everything failed.
    cause: Option<Box<CompileError>>,
}

impl<'a> Chooser<'a> {
    /// Prices the layers whatever the memory.
    ///
    /// # Errors
    /// Returns an error if the options do not fit the graph.
    pub(super) fn new(
        graph: &Graph,
        options: &'a CompileOptions,
        cluster: &'a Cluster,
    ) -> Result<Self, PassError> {
        Self::with_whole_plan(graph, options, cluster, |_| None)
    }

    /// Prices the layers like [`Chooser::new`]. If the short model of a small graph is the whole model, `plan_whole` is asked for the plan of one
    /// stage. It returns the planner's seconds of this plan, or `None` if there is none or memory is short for it. Then the layers are priced.
    ///
    /// # Errors
    /// Returns an error if the options do not fit the graph.
    pub(super) fn with_whole_plan(
        graph: &Graph,
        options: &'a CompileOptions,
        cluster: &'a Cluster,
        plan_whole: impl FnOnce(&PipelineReport) -> Option<f64>,
    ) -> Result<Self, PassError> {
        let is_small = limits::is_small(graph, options);
        let annotated = graph.nodes.iter().any(|node| node.stage().is_some());
        let given = annotated.then_some(graph.stages.len());
        let graph = attach_loss(graph.clone(), options)?;
        let found = find_layers(&graph, |_| true);
        let model = shorten_model(&graph, &found)
            .map_err(|error| PassError::Op { pass: "stages", error })?;
        let (layers, all, cause) = (found.count, Vec::new(), None);
        let mut chooser = Self { graph, options, cluster, model, layers, is_small, all, cause };
        let mut counts = stage_counts(options, given, layers);
        if is_small
            && counts[0] == 1
            && let Some(priced) = chooser.price_whole(plan_whole)
        {
            chooser.all.push(priced);
            counts.remove(0);
        }
        if is_small && counts.len() > 1 && counts[0] == 1 {
            counts.remove(0);
            chooser.price_side_by_side(vec![1]);
        }
        chooser.price_side_by_side(counts);
        Ok(chooser)
    }

    /// Prices one stage by its whole plan. `None` if the layers are to be priced.
    fn price_whole(
        &self,
        plan_whole: impl FnOnce(&PipelineReport) -> Option<f64>,
    ) -> Option<PricedPipeline> {
        if self.layers == 0 || self.model.graph.nodes.len() < self.graph.nodes.len() {
            return None;
        }
        let CompileOptions { auto_microbatches, microbatches, .. } = *self.options;
        let microbatches = if auto_microbatches { 1 } else { microbatches };
        let layers = vec![self.layers];
        let mut free =
            PipelineReport { stages: 1, microbatches, layers, seconds: 0.0, bound_seconds: 0.0 };
        free.seconds = plan_whole(&free)?;
        let options = Choice::of_pipeline(1, microbatches).resolve(self.options);
        let choice = Some(free.clone());
        // What its layers keep counts only where they do not fit.
        Some(PricedPipeline { options, free, peak: 0, resident: 0, choice, short: false })
    }

    /// Prices these numbers of stages side by side.
    fn price_side_by_side(&mut self, counts: Vec<usize>) {
        let most = self.most_seconds();
        let priced = map_side_by_side(counts, |stages| self.of_stages(stages, most));
        for priced in priced {
            match priced {
                Ok(priced) => self.all.extend(priced),
                Err(found) => self.cause = self.cause.take().or(Some(Box::new(found))),
            }
        }
    }

    /// Returns the seconds of layers from which on no whole plan of a choice is made.
    fn most_seconds(&self) -> f64 {
        if self.is_small { limits::MOST_BEHIND * self.best_seconds() } else { f64::INFINITY }
    }

    /// Returns the choices of one stage that are worth a whole plan although their layers do not fit the memory: see [`Choices::unfit`].
    pub(super) fn in_one_stage(&self) -> Vec<PipelineReport> {
        match self.is_small {
            true => Vec::new(),
            false => self.list_unfit(self.best_seconds(), self.bound()),
        }
    }

    /// Finds the choices that may be better than a plan whose steps take `known` seconds.
    ///
    /// # Errors
    /// Returns an error if nothing fits the memory.
    pub(super) fn find_choices(mut self, known: f64) -> Result<Choices, CompileError> {
        self.with_less_memory(known);
        let bound = self.bound();
        let unfit = self.list_unfit(self.best_seconds(), bound);
        let fit = self.all.into_iter().filter(|priced| priced.choice.is_some());
        let ranked = sort_choices(fit.collect(), bound);
        let (layers, cause) = (self.layers, self.cause);
        let none = ranked.is_empty().then_some(CompileError::NoPipeline { layers, cause });
        match none {
            Some(error) if unfit.is_empty() => Err(error),
            none => Ok(Choices { ranked, unfit, none }),
        }
    }

    /// Returns a lower bound of the seconds of all choices, whatever the memory.
    fn bound(&self) -> f64 {
        self.all.iter().map(|priced| priced.free.seconds).fold(f64::INFINITY, f64::min)
    }

    /// Returns the seconds by which the best choice so far is compared.
    fn best_seconds(&self) -> f64 {
        self.all.iter().map(PricedPipeline::compared_seconds).fold(f64::INFINITY, f64::min)
    }

    /// Lists the choices that would take less than `best` seconds, but whose layers do not fit the memory by themselves. Whole plans keep less than
    /// layers that were planned with any of a few amounts of memory.
    fn list_unfit(&self, best: f64, bound: f64) -> Vec<PipelineReport> {
        let is_worth = |priced: &&PricedPipeline| match (self.is_small, &priced.choice) {
            (true, choice) => choice.is_none(),
            (false, _) => priced.options.stages == 1 && !priced.fits_memory(),
        };
        let unfit = self.all.iter().filter(is_worth).filter(|priced| priced.free.seconds < best);
        let unlimited = |priced: &PricedPipeline| match self.is_small {
            true => priced.with_unlimited_memory(),
            false => self.with_most_again(priced).with_unlimited_memory(),
        };
        sort_choices(unfit.map(unlimited).collect(), bound)
    }

    /// Returns the prices of the same stages and microbatches with the most recomputation. If less recomputation does not fit, that of the whole plan
    /// is nearer to this.
    fn with_most_again<'b>(&'b self, priced: &'b PricedPipeline) -> &'b PricedPipeline {
        let size = |of: &PricedPipeline| (of.options.stages, of.options.microbatches);
        let same = self.all.iter().filter(|other| size(other) == size(priced));
        same.max_by(|one, other| one.free.seconds.total_cmp(&other.free.seconds)).unwrap_or(priced)
    }

    fn memory_limit(&self) -> u64 {
        self.options.memory.unwrap_or(self.cluster.device.memory)
    }

    /// Prices a number of stages, with fewer and fewer microbatches as long as that pays. Choices that take `most_seconds` are left out.
    fn of_stages(
        &self,
        stages: usize,
        most_seconds: f64,
    ) -> Result<Vec<PricedPipeline>, CompileError> {
        let counts = microbatch_counts(&self.graph, self.options, stages);
        let mut all: Vec<PricedPipeline> = Vec::new();
        if stages == 1 && self.is_small && counts.len() > 1 {
            let whole = self.price_ways((1, 1), most_seconds);
            // Parts are computed one after the other: they take no less time than the whole, only less memory.
            if whole.priced.first().is_some_and(PricedPipeline::fits_memory) {
                return Ok(whole.priced);
            }
        }
        let most = limits::microbatch_counts(self.options);
        let (mut last, mut priced, mut error) = (f64::INFINITY, 0, None);
        for microbatches in counts {
            let found = self.price_ways((stages, microbatches), most_seconds);
            let least = found.least_seconds();
            all.extend(found.priced);
            error = error.or(found.error);
            priced += usize::from(least.is_finite());
            if least > last || priced == most {
                break;
            }
            last = least;
        }
        match error {
            Some(error) if all.is_empty() => Err(error),
            _ => Ok(all),
        }
    }

    /// Prices numbers of stages and microbatches with each way of recomputation, up to the first that fits the memory.
    fn price_ways(&self, (stages, microbatches): (usize, usize), most_seconds: f64) -> PricedWays {
        let ways: &[Recompute] = match self.options.recompute {
            Recompute::Auto => &[Recompute::None, Recompute::Selective, Recompute::Full],
            Recompute::Selective => &[Recompute::Selective],
            Recompute::Full => &[Recompute::Full],
            Recompute::None => &[Recompute::None],
        };
        let mut all = PricedWays::default();
        for &recompute in ways {
            let choice = Choice::of_pipeline(stages, microbatches);
            let options = Choice { recompute: Some(recompute), ..choice }.resolve(self.options);
            match self.price_pipeline(options, most_seconds) {
                Ok(found) => {
                    // What computes more again costs no less.
                    let is_last = found.as_ref().is_none_or(PricedPipeline::fits_memory);
                    all.priced.extend(found);
                    if is_last {
                        break;
                    }
                }
                // A model that cannot be cut in so many parts may be in fewer.
                Err(found) => all.error = all.error.or(Some(found)),
            }
        }
        all
    }

    /// Prices a pipeline. `None` if it takes `most_seconds` or cannot be cut.
    fn price_pipeline(
        &self,
        options: CompileOptions,
        most_seconds: f64,
    ) -> Result<Option<PricedPipeline>, CompileError> {
        let most = most_seconds * layers_per_step(&options);
        let prices = price_layers(
            &self.model,
            &options,
            self.cluster,
            PriceLimits { seconds: most, ..PriceLimits::NONE },
        )?;
        let Some(prices) = prices else { return Ok(None) };
        let free = self.find_cut(&options, &prices, UNLIMITED);
        let choice = self.find_cut(&options, &prices, self.memory_limit());
        let priced = |free: PipelineReport| {
            let layers = self.model.stands.iter().map(|&layer| prices.layers[layer].resident);
            let resident = layers.sum::<u64>() / options.stages as u64;
            PricedPipeline { options, free, peak: prices.peak, resident, choice, short: false }
        };
        Ok(free.map(priced).filter(|priced| priced.free.seconds < most_seconds))
    }

    /// Prices again, with less memory for the layers, the choices that do not fit but would be better than those that do, and better than what is
    /// known. Layers cost no less with less memory, so the other choices need no look. In each wave at most the last choice is priced in vain.
    fn with_less_memory(&mut self, known: f64) {
        let mut best = known.min(self.best_seconds());
        let all = &self.all;
        let mut order: Vec<usize> = (0..all.len()).filter(|&i| all[i].choice.is_none()).collect();
        order.sort_by(|&a, &b| all[a].free.seconds.total_cmp(&all[b].free.seconds));
        for wave in order.chunks(limits::WAVE) {
            let wave: Vec<usize> = wave
                .iter()
                .copied()
                .take_while(|&index| may_pay(self.all[index].free.seconds, best))
                .collect();
            let in_less = |index: usize| self.in_less_memory(&self.all[index], best);
            let found = map_side_by_side(wave.clone(), in_less);
            for (index, choice) in wave.into_iter().zip(found) {
                let priced = &mut self.all[index];
                if !may_pay(priced.free.seconds, best) {
                    return;
                }
                priced.short = choice.is_some();
                priced.choice = choice;
                best = best.min(priced.compared_seconds());
            }
        }
    }

    /// Finds the best cut of layers that were priced with so much less memory that it fits, unless it then takes so much longer that it is no better
    /// than the best that is known.
    fn in_less_memory(&self, priced: &PricedPipeline, best: f64) -> Option<PipelineReport> {
        let may_fit =
            |share: &f64| priced.resident as f64 * share * share <= self.memory_limit() as f64;
        for share in limits::MEMORY_SHARES.into_iter().filter(may_fit) {
            let less = (priced.peak as f64 * share) as u64;
            let limits = PriceLimits { memory: Some(less), ..PriceLimits::NONE };
            let prices =
                price_layers(&self.model, &priced.options, self.cluster, limits).ok()??;
            let choice = self.find_cut(&priced.options, &prices, self.memory_limit());
            if choice.is_some() {
                return choice;
            }
            // With even less memory layers cost no less.
            let free = self.find_cut(&priced.options, &prices, UNLIMITED)?;
            if !may_pay(free.seconds, best) {
                return None;
            }
        }
        None
    }

    fn find_cut(
        &self,
        options: &CompileOptions,
        prices: &LayerPrices,
        limit: u64,
    ) -> Option<PipelineReport> {
        let CompileOptions { stages, microbatches, schedule, .. } = *options;
        let stands = &self.model.stands;
        let layers: Vec<cuts::LayerCost> = stands.iter().map(|&l| prices.layers[l]).collect();
        let boundaries: Vec<f64> = stands.iter().map(|&l| prices.boundaries[l]).collect();
        let under_way = under_way(schedule, stages, microbatches);
        let chain = LayerChain {
            layers: &layers,
            boundaries: &boundaries,
            stages,
            chunks: schedule.chunks_per_stage(),
            microbatches,
            under_way: &under_way,
            limit,
        };
        let cut = cut_chain(&chain)?;
        Some(PipelineReport {
            stages,
            microbatches,
            layers: cut.layers,
            seconds: cut.seconds,
            bound_seconds: 0.0,
        })
    }
}
