//! The traffic of an exchange between meshes that share no rank, worked out dim by dim.
//!
//! What one rank sends another is a product over dims: in each dim, the elements that both hold. Ranks along an axis that splits one dim hold the
//! same of all other dims, so the most that any rank sends or receives is a product of the most in each dim. The work grows with the parts
//! of dims, not with the pairs of ranks. The result is that of [`exchange_traffic`](super::exchange::exchange_traffic).
//!
//! Receivers take turns among senders that hold copies: the receiver at a position takes from the copy of that number, modulo the number of
//! copies. This is a product over the axes of receivers too, if the positions that an axis skips divide the number of copies, or are its multiples.

use std::ops::Range;

use graphc_ir::sbp::Sbp;
use graphc_ir::shard::split_range;
use graphc_plan::Layout;

use super::exchange::Traffic;

/// A part of a dim that the ranks at some coordinates hold.
struct DimPart {
    range: Range<usize>,
    /// The number of the turn of these ranks, among the turns along the axes that split the dim.
    turn: usize,
}

/// Returns the traffic of the busiest rank, or `None` if turns are no product over axes. The meshes must share no rank.
pub(super) fn factored_traffic(from: &Layout, to: &Layout, microbatches: usize) -> Option<Traffic> {
    let turns = count_turns(from, to)?;
    let none = vec![1; from.hierarchy.len()];
    let element = Traffic { messages: 1, bytes: from.dtype.size() as u64 };
    let (mut received, mut sent) = (element, element);
    for dim in 0..from.shape.len() {
        let held = list_parts(from, dim, microbatches, &none);
        let need = list_parts(to, dim, microbatches, &turns);
        let (most_received, most_sent) = most_of_dim(&held, &need);
        received = received.times(most_received);
        sent = sent.times(most_sent);
    }
    for (&extent, sbp) in from.hierarchy.iter().zip(&from.sbp.0) {
        if sbp.is_partial() {
            received = received.times(Traffic { messages: extent, bytes: extent as u64 });
        }
    }
    for ((&extent, &turns), sbp) in to.hierarchy.iter().zip(&turns).zip(&to.sbp.0) {
        if *sbp == Sbp::Broadcast {
            let copies = extent / turns;
            sent = sent.times(Traffic { messages: copies, bytes: copies as u64 });
        }
    }
    Some(received.elementwise_max(sent))
}

/// Returns the number of turns along each axis of the receivers, by which they choose among copies.
fn count_turns(from: &Layout, to: &Layout) -> Option<Vec<usize>> {
    let axes = from.hierarchy.iter().zip(&from.sbp.0);
    let copies: usize =
        axes.filter(|(_, sbp)| **sbp == Sbp::Broadcast).map(|(&extent, _)| extent).product();
    let mut stride: usize = 1;
    let mut turns = vec![1; to.hierarchy.len()];
    for (turns, &extent) in turns.iter_mut().zip(&to.hierarchy).rev() {
        if !stride.is_multiple_of(copies) {
            let left = copies / stride;
            let divides = left.is_multiple_of(extent) || extent.is_multiple_of(left);
            if !copies.is_multiple_of(stride) || !divides {
                return None;
            }
            *turns = left.min(extent);
        }
        stride *= extent;
    }
    Some(turns)
}

/// Lists the parts of a dim in the first microbatch, in ascending order, for all coordinates along the axes that split it.
fn list_parts(layout: &Layout, dim: usize, microbatches: usize, turns: &[usize]) -> Vec<DimPart> {
    let extent = layout.shape[dim];
    let first = match layout.microbatch_dim == Some(dim) {
        true => split_range(extent, microbatches, 0),
        false => 0..extent,
    };
    let mut parts = vec![DimPart { range: first, turn: 0 }];
    let axes = layout.hierarchy.iter().zip(turns).zip(&layout.sbp.0);
    for ((&extent, &turns), _) in axes.filter(|(_, sbp)| **sbp == Sbp::Split(dim)) {
        let cut = |part: DimPart| {
            (0..extent).map(move |at| {
                let range = split_range(part.range.len(), extent, at);
                let (start, end) = (part.range.start + range.start, part.range.start + range.end);
                DimPart { range: start..end, turn: part.turn * turns + at % turns }
            })
        };
        parts = parts.into_iter().flat_map(cut).collect();
    }
    parts
}

/// Returns the most that a receiver gets in a dim, and the most that a sender sends to the receivers of one turn, of elements of one byte.
fn most_of_dim(held: &[DimPart], need: &[DimPart]) -> (Traffic, Traffic) {
    let turns = need.iter().map(|part| part.turn + 1).max().unwrap_or(1);
    let mut of_senders = vec![Traffic::default(); turns * held.len()];
    let mut most = Traffic::default();
    for part in need {
        let mut received = Traffic::default();
        let first = held.partition_point(|held| held.range.end <= part.range.start);
        for (at, other) in held.iter().enumerate().skip(first) {
            if other.range.start >= part.range.end {
                break;
            }
            let end = other.range.end.min(part.range.end);
            let elements = end.saturating_sub(other.range.start.max(part.range.start));
            if elements > 0 {
                received.add_message(elements as u64);
                of_senders[part.turn * held.len() + at].add_message(elements as u64);
            }
        }
        most = most.elementwise_max(received);
    }
    (most, of_senders.into_iter().fold(Traffic::default(), Traffic::elementwise_max))
}

#[cfg(test)]
mod tests {
    use graphc_ir::types::DType;

    use super::super::exchange::exchange_traffic;
    use super::*;

    /// Makes layouts of a shape in all SBPs, on the ranks of a mesh from `first` on.
    fn layouts(first: u32, mesh: &[usize], shape: &[usize], time: Option<usize>) -> Vec<Layout> {
        let mut sbps = vec![String::new()];
        for _ in mesh {
            let digits = ["B", "S(0)", "S(1)", "P(sum)"];
            let longer = |sbp: String| digits.map(|digit| format!("{sbp}, {digit}"));
            sbps = sbps.into_iter().flat_map(longer).collect();
        }
        let layout = |sbp: String| Layout {
            shape: shape.to_vec(),
            dtype: DType::F32,
            microbatch_dim: time,
            ranks: (first..first + mesh.iter().product::<usize>() as u32).collect(),
            hierarchy: mesh.to_vec(),
            sbp: sbp[2..].parse().expect("an SBP"),
        };
        sbps.into_iter().map(layout).collect()
    }

    #[test]
    fn products_over_dims_are_what_is_counted_rank_by_rank() {
        let meshes: [&[usize]; 9] =
            [&[1], &[2], &[6], &[8], &[2, 2], &[2, 4], &[4, 2], &[3, 4], &[2, 3, 2]];
        let (mut known, mut left) = (0, 0);
        for shape in [[16, 8], [10, 7], [2, 5]] {
            for (a, b) in meshes.iter().flat_map(|a| meshes.iter().map(move |b| (a, b))) {
                for time in [None, Some(0)] {
                    let from = layouts(0, a, &shape, time);
                    let to = layouts(20, b, &shape, time);
                    for (from, to) in from.iter().flat_map(|f| to.iter().map(move |t| (f, t))) {
                        let Some(found) = factored_traffic(from, to, 3) else {
                            left += 1;
                            continue;
                        };
                        known += 1;
                        assert_eq!(found, exchange_traffic(from, to, 3), "{from:?} {to:?}");
                    }
                }
            }
        }
        // Turns among three copies are no product over axes of two and four.
        assert!(known > 5 * left && left > 0, "{known} of {}", known + left);
    }

    #[test]
    fn meshes_of_powers_of_two_are_always_products() {
        for (a, b) in [([512, 2], [512, 2]), ([64, 8], [128, 4]), ([2, 4], [256, 2])] {
            let (from, to) =
                (layouts(0, &a, &[1024, 64], None), layouts(4096, &b, &[1024, 64], None));
            let pairs = from.iter().flat_map(|from| to.iter().map(move |to| (from, to)));
            assert!(pairs.into_iter().all(|(from, to)| factored_traffic(from, to, 1).is_some()));
        }
    }
}
