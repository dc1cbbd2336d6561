//! An equal-cost cut of the ops, in topological order, into stages.
//!
//! Two passes over the possible cuts: the first finds the least cost that the most expensive stage can have, the
//! second, among cuts within a tenth of it, the one over whose boundaries the fewest bytes cross.

use graphc_ir::graph::Graph;

use super::is_source;
use crate::passes::error::PassError;

/// How much more than the least the most expensive stage may cost where that saves bytes.
const SLACK: f64 = 1.1;

/// The stage of each node that computes; `None` for sources.
///
/// # Errors
/// Where there are fewer ops than stages.
pub(super) fn cut(graph: &Graph, stages: usize) -> Result<Vec<Option<usize>>, PassError> {
    let ops: Vec<usize> =
        (0..graph.nodes.len()).filter(|&node| !is_source(&graph.nodes[node].op)).collect();
    if ops.len() < stages {
        return Err(PassError::TooManyStages { ops: ops.len(), stages });
    }
    let total = running_costs(graph, &ops);
    let limit = least_maximum(&total, stages) * SLACK;
    let starts = cheapest_cut(&total, &crossing_bytes(graph, &ops), stages, limit);
    let mut result = vec![None; graph.nodes.len()];
    for (position, &node) in ops.iter().enumerate() {
        result[node] = Some(starts.iter().filter(|&&start| start <= position).count() - 1);
    }
    Ok(result)
}

/// The sum of the costs of the ops before each position: their FLOPs.
fn running_costs(graph: &Graph, ops: &[usize]) -> Vec<f64> {
    let mut total = vec![0.0];
    for &op in ops {
        let node = &graph.nodes[op];
        let operation = node.op.operation();
        let rule = operation.rule(&graph.operand_types(node));
        let cost = rule.map_or(0.0, |rule| operation.flops(&rule));
        total.push(total[total.len() - 1] + cost);
    }
    total
}

/// For each position the bytes of values that are made before it and read from it on.
fn crossing_bytes(graph: &Graph, ops: &[usize]) -> Vec<f64> {
    let mut position = vec![None; graph.nodes.len()];
    for (index, &op) in ops.iter().enumerate() {
        position[op] = Some(index);
    }
    let mut changes = vec![0.0; ops.len() + 2];
    for (value, readers) in graph.values.iter().zip(graph.consumers()) {
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

/// The least cost of the most expensive of `stages` ranges of at least one op each: `best[i]` is that of the first
/// `i` ops.
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

/// The first op of each of the stages whose costs are within the limit and whose boundaries the fewest bytes cross;
/// of several the first.
fn cheapest_cut(total: &[f64], bytes: &[f64], stages: usize, limit: f64) -> Vec<usize> {
    let n = total.len() - 1;
    let mut best = vec![vec![(f64::INFINITY, 0); n + 1]; stages];
    for end in (1..=n).filter(|&end| total[end] <= limit) {
        best[0][end] = (0.0, 0);
    }
    for stage in 1..stages {
        for end in stage + 1..=n {
            for start in (stage..end).rev().take_while(|&s| total[end] - total[s] <= limit) {
                let crossing = best[stage - 1][start].0 + bytes[start];
                if crossing < best[stage][end].0 {
                    best[stage][end] = (crossing, start);
                }
            }
        }
    }
    let mut starts = vec![0; stages];
    let mut end = n;
    for stage in (1..stages).rev() {
        starts[stage] = best[stage][end].1;
        end = starts[stage];
    }
    starts
}
