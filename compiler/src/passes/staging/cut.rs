//! Cuts the ops, in topological order, into stages of equal cost.
//!
//! The first pass over the possible cuts finds the least cost that the most expensive stage can have. Only cuts
//! within a tenth of it count from then on, and if possible those in which no stage costs less than half of the mean.
//! Of these the pass takes, in turn:
//!
//! 1. the cut whose boundaries the fewest bytes cross;
//! 2. the one that goes through the fewest layers, so that stages are alike and a layer that is computed again is of
//!    one stage;
//! 3. the one whose most expensive stage costs least;
//! 4. the most even one.
//!
//! Where stages cost the same, the later ones have more ops, since the earlier ones keep more microbatches.

use std::ops::RangeInclusive;

use graphc_ir::graph::Graph;

use crate::passes::error::PassError;
use crate::passes::layers::find_layers;

/// The most that the most expensive stage may cost, as a multiple of the least, where that saves bytes.
const SLACK: f64 = 1.1;

/// The share of the mean that a stage costs at the least, where that can be: next to nothing crosses the boundary
/// before the op that makes the loss, but a stage of that op alone would leave its ranks idle.
const LEAST_SHARE: f64 = 0.5;

/// Parts of the cost of all ops in which costs are counted.
const PARTS: f64 = (1u32 << 24) as f64;

/// Returns the stage of each node that computes; `None` for sources.
///
/// # Errors
/// Returns an error if there are fewer ops than stages.
pub(super) fn cut_stages(graph: &Graph, stages: usize) -> Result<Vec<Option<usize>>, PassError> {
    let ops: Vec<usize> = (0..graph.nodes.len())
        .filter(|&node| !graph.nodes[node].op.operation().is_source())
        .collect();
    if ops.len() < stages {
        return Err(PassError::TooManyStages { ops: ops.len(), stages });
    }
    let total = running_costs(graph, &ops);
    let limit = least_maximum(&total, stages) * SLACK;
    let prices = StageCutPrices {
        total,
        bytes: crossing_bytes(graph, &ops),
        inside: find_inside_layers(graph, &ops),
    };
    let starts = prices.best_cut(stages, limit);
    let mut result = vec![None; graph.nodes.len()];
    for (position, &node) in ops.iter().enumerate() {
        result[node] = Some(starts.iter().filter(|&&start| start <= position).count() - 1);
    }
    Ok(result)
}

/// Returns the sum of the costs of the ops before each position: their FLOPs as a share of those of all, in whole numbers. These are small enough
/// that sums of their squares are exact, so that rounding never tells equal costs apart.
fn running_costs(graph: &Graph, ops: &[usize]) -> Vec<f64> {
    let flops = |&op: &usize| {
        let node = &graph.nodes[op];
        let operation = node.op.operation();
        let rule = operation.rule(&graph.operand_types(node));
        rule.map_or(0.0, |rule| operation.flops(&rule))
    };
    let costs: Vec<f64> = ops.iter().map(flops).collect();
    let all = costs.iter().sum::<f64>().max(f64::MIN_POSITIVE);
    let mut total = vec![0.0];
    for cost in costs {
        total.push(total[total.len() - 1] + (cost / all * PARTS).ceil());
    }
    total
}

/// Returns, for each position, the bytes of values that are made before it and read from it on.
fn crossing_bytes(graph: &Graph, ops: &[usize]) -> Vec<f64> {
    let mut position = vec![None; graph.nodes.len()];
    for (index, &op) in ops.iter().enumerate() {
        position[op] = Some(index);
    }
    let mut changes = vec![0.0; ops.len() + 2];
    for (value, readers) in graph.values.iter().zip(graph.list_consumers()) {
        let readers = readers.iter().filter_map(|reader| position[reader.index()]);
        let (Some(made), Some(last)) = (position[value.producer.index()], readers.max()) else {
            continue;
        };
        changes[made + 1] += value.ty.bytes() as f64;
        changes[last + 1] -= value.ty.bytes() as f64;
    }
    changes
        .iter()
        .scan(0.0, |sum, change| {
            *sum += change;
            Some(*sum)
        })
        .collect()
}

/// Returns the least cost of the most expensive of `stages` ranges of at least one op each. The table `best[i]` holds that of the first `i` ops.
fn least_maximum(total: &[f64], stages: usize) -> f64 {
    let n = total.len() - 1;
    let mut best = total.to_vec();
    for stage in 1..stages {
        let mut next = vec![f64::INFINITY; n + 1];
        for end in stage + 1..=n {
            // The cost of the last range falls with its start, that of the others rises: search where they meet.
            let starts: Vec<usize> = (stage..end).collect();
            let meet = starts.partition_point(|&start| best[start] < total[end] - total[start]);
            for start in [meet.saturating_sub(1), meet.min(starts.len() - 1)].map(|i| starts[i]) {
                next[end] = next[end].min(best[start].max(total[end] - total[start]));
            }
        }
        best = next;
    }
    best[n]
}

/// Returns, for each position, whether it is inside a layer: a cut there gives the layer to two stages.
fn find_inside_layers(graph: &Graph, ops: &[usize]) -> Vec<bool> {
    let of = find_layers(graph, |_| true).of;
    let mut last = None;
    let mut inside = vec![false; ops.len()];
    for (position, &op) in ops.iter().enumerate() {
        inside[position] = of[op].is_some() && of[op] == last;
        last = of[op].or(last);
    }
    inside
}

/// The prices by which cuts are chosen.
struct StageCutPrices {
    /// The sum of the costs of the ops before each position.
    total: Vec<f64>,
    /// The bytes that cross each position.
    bytes: Vec<f64>,
    /// Whether each position is inside a layer.
    inside: Vec<bool>,
}

/// The cost of ranges together, compared in this order.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
struct StageCutCost {
    bytes: f64,
    layers: usize,
    /// The cost of the most expensive range, or the sum of the squares of all.
    uneven: f64,
}

impl StageCutPrices {
    /// Returns the first op of each stage of the best cut.
    fn best_cut(&self, stages: usize, limit: f64) -> Vec<usize> {
        let mean = self.total[self.total.len() - 1] / stages as f64;
        let cuts = [LEAST_SHARE * mean, 0.0].map(|least| self.cut_evenly(stages, least..=limit));
        let found = cuts.into_iter().flatten().next();
        found.expect("the least maximum is that of a cut")
    }

    /// Returns the first op of each stage of the best cut whose costs lie in a range; `None` if there is no such cut.
    fn cut_evenly(&self, stages: usize, costs: RangeInclusive<f64>) -> Option<Vec<usize>> {
        let (_, most) = self.cut_within(stages, &costs, f64::max, |cost| cost)?;
        let costs = *costs.start()..=most;
        self.cut_within(stages, &costs, |a, b| a + b, |cost| cost * cost).map(|(starts, _)| starts)
    }

    /// Returns the first op of each stage of the best cut whose costs lie in a range, and its unevenness: that of the stages, joined by `join`.
    /// `None` if there is no such cut.
    fn cut_within(
        &self,
        stages: usize,
        costs: &RangeInclusive<f64>,
        join: impl Fn(f64, f64) -> f64,
        uneven: impl Fn(f64) -> f64,
    ) -> Option<(Vec<usize>, f64)> {
        let (total, n) = (&self.total, self.total.len() - 1);
        let mut best: Vec<Vec<Option<(StageCutCost, usize)>>> = vec![vec![None; n + 1]; stages];
        for end in (1..=n).filter(|&end| costs.contains(&total[end])) {
            let rank = StageCutCost { bytes: 0.0, layers: 0, uneven: uneven(total[end]) };
            best[0][end] = Some((rank, 0));
        }
        for stage in 1..stages {
            for end in stage + 1..=n {
                let cost = |start: usize| total[end] - total[start];
                let starts = (stage..end).rev().skip_while(|&start| cost(start) < *costs.start());
                for start in starts.take_while(|&start| cost(start) <= *costs.end()) {
                    let Some((before, _)) = best[stage - 1][start] else { continue };
                    let rank = StageCutCost {
                        bytes: before.bytes + self.bytes[start],
                        layers: before.layers + usize::from(self.inside[start]),
                        uneven: join(before.uneven, uneven(cost(start))),
                    };
                    if best[stage][end].is_none_or(|(known, _)| rank <= known) {
                        best[stage][end] = Some((rank, start));
                    }
                }
            }
        }
        let (rank, _) = best[stages - 1][n]?;
        let mut starts = vec![0; stages];
        let mut end = n;
        for stage in (1..stages).rev() {
            (_, starts[stage]) = best[stage][end]?;
            end = starts[stage];
        }
        Some((starts, rank.uneven))
    }
}
