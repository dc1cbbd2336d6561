//! Computes the traffic of an exchange on one mesh, without a look at all pairs of ranks.
//!
//! The axes that split a dim cut it into parts by their coordinates, in either layout. So the ranks that a rank takes something from are a product
//! over dims, and the traffic of a rank follows from a table of each dim. The result is that of [`super::exchange::exchange_traffic`], which looks at
//! all pairs.

use graphc_ir::mesh::unravel_position;
use graphc_ir::sbp::{NdSbp, Sbp};
use graphc_ir::shard::split_range;

use super::exchange::Traffic;

/// An exchange between two layouts of one tensor. `from` is not partial.
pub(super) struct SameMesh<'a> {
    hierarchy: &'a [usize],
    from: &'a NdSbp,
    to: &'a NdSbp,
    dims: Vec<CutDim>,
    /// The number of receivers that need the same part, because they differ only in axes that split nothing after the exchange. A sender serves each
    /// of them.
    alike: usize,
}

/// A range of elements: the first, and one past the last.
type Range = (usize, usize);

/// One dim, and its parts in both layouts.
struct CutDim {
    /// The axes that split it before the exchange.
    from: Vec<usize>,
    /// The axes that split it after the exchange.
    to: Vec<usize>,
    /// The axes of `to` along which senders are copies of each other. A receiver is served by the copy at its own coordinate.
    beside: Vec<usize>,
    /// The parts before the exchange.
    before: Vec<Range>,
    /// The parts after the exchange.
    after: Vec<Range>,
    /// The number of receivers that need some of a part, and the number of elements that they need, by the part before the exchange and the
    /// coordinates along `beside`.
    sent: Vec<(usize, usize)>,
    /// The number of parts before the exchange that hold some of a part, by the part after it.
    received: Vec<usize>,
}

impl<'a> SameMesh<'a> {
    /// Takes two layouts of a tensor of these extents on a mesh.
    pub(super) fn new(
        hierarchy: &'a [usize],
        from: &'a NdSbp,
        to: &'a NdSbp,
        extents: &[usize],
    ) -> Self {
        let dims = extents.iter().enumerate();
        let dims = dims.map(|(dim, &length)| CutDim::new(hierarchy, from, to, (dim, length)));
        let free =
            |axis: &usize| to.0[*axis] == Sbp::Broadcast && matches!(from.0[*axis], Sbp::Split(_));
        let alike = (0..hierarchy.len()).filter(free).map(|axis| hierarchy[axis]).product();
        Self { hierarchy, from, to, dims: dims.collect(), alike }
    }

    /// Returns the traffic of the busiest rank, in elements instead of bytes.
    pub(super) fn busiest_traffic(&self) -> Traffic {
        let ranks = self.hierarchy.iter().product();
        let of = |position| self.of_rank(&unravel_position(position, self.hierarchy));
        (0..ranks).map(of).fold(Traffic::default(), Traffic::elementwise_max)
    }

    /// Returns the traffic of the first rank, in elements instead of bytes.
    pub(super) fn of_first(&self) -> Traffic {
        self.of_rank(&vec![0; self.hierarchy.len()])
    }

    fn of_rank(&self, at: &[usize]) -> Traffic {
        let takes = self.holds_value(at);
        let own: usize = self.dims.iter().map(|dim| dim.count_kept(self.hierarchy, at)).product();
        let own = if takes { own } else { 0 };
        let (mut messages, mut elements) = (self.count_served(at), self.count_served(at));
        let (mut received, mut needed) = (usize::from(takes), usize::from(takes));
        for dim in &self.dims {
            let sent = dim.sent[dim.sent_index(self.hierarchy, at)];
            (messages, elements) = (messages * sent.0, elements * sent.1);
            let need = ravel_axes(self.hierarchy, &dim.to, at);
            received *= dim.received[need];
            needed *= dim.after[need].1 - dim.after[need].0;
        }
        let less = usize::from(own > 0);
        let traffic = |messages: usize, elements: usize| Traffic {
            messages: messages - less,
            bytes: (elements - own) as u64,
        };
        traffic(messages, elements).elementwise_max(traffic(received, needed))
    }

    /// Whether a rank holds the value itself after the exchange, and not the identity.
    fn holds_value(&self, at: &[usize]) -> bool {
        self.to.0.iter().zip(at).all(|(sbp, &at)| !sbp.is_partial() || at == 0)
    }

    /// Returns the number of receivers for each that the tables of dims count. It is 0 if the receivers of this copy hold the identity.
    fn count_served(&self, at: &[usize]) -> usize {
        let mut axes = self.from.0.iter().zip(&self.to.0).zip(at);
        let beside_nobody = |((from, to), at): ((&Sbp, &Sbp), &usize)| {
            *from == Sbp::Broadcast && to.is_partial() && *at > 0
        };
        if axes.any(beside_nobody) { 0 } else { self.alike }
    }
}

impl CutDim {
    fn new(hierarchy: &[usize], from: &NdSbp, to: &NdSbp, (dim, length): (usize, usize)) -> Self {
        let [from_axes, to_axes] = [from, to].map(|sbp| splitting_axes(hierarchy, sbp, dim));
        let beside: Vec<usize> =
            to_axes.iter().copied().filter(|&axis| from.0[axis] == Sbp::Broadcast).collect();
        let [before, after] = [&from_axes, &to_axes].map(|axes| split_dim(hierarchy, axes, length));
        let width = count_ranks(hierarchy, &beside);
        let (mut sent, mut received) = (vec![(0, 0); before.len() * width], vec![0; after.len()]);
        let extents: Vec<usize> = to_axes.iter().map(|&axis| hierarchy[axis]).collect();
        for (need, received) in received.iter_mut().enumerate() {
            let at = unravel_position(need, &extents);
            let beside = (0..to_axes.len())
                .filter(|&axis| beside.contains(&to_axes[axis]))
                .fold(0, |index, axis| index * extents[axis] + at[axis]);
            // Others have nothing in common with it.
            let first = before.partition_point(|part| part.1 <= after[need].0);
            let near = before.iter().enumerate().skip(first);
            for (part, &held) in near.take_while(|(_, part)| part.0 < after[need].1) {
                let common = count_overlap(held, after[need]);
                if common > 0 {
                    *received += 1;
                    let (messages, elements) = &mut sent[part * width + beside];
                    (*messages, *elements) = (*messages + 1, *elements + common);
                }
            }
        }
        Self { from: from_axes, to: to_axes, beside, before, after, sent, received }
    }

    /// Returns the index of a rank in `sent`.
    fn sent_index(&self, hierarchy: &[usize], at: &[usize]) -> usize {
        let width = count_ranks(hierarchy, &self.beside);
        ravel_axes(hierarchy, &self.from, at) * width + ravel_axes(hierarchy, &self.beside, at)
    }

    /// Counts the elements that a rank holds both before and after the exchange.
    fn count_kept(&self, hierarchy: &[usize], at: &[usize]) -> usize {
        let held = self.before[ravel_axes(hierarchy, &self.from, at)];
        count_overlap(held, self.after[ravel_axes(hierarchy, &self.to, at)])
    }
}

/// Returns the number of blocks into which a dim is cut so that no split of either layout cuts a block, if all splits are even.
pub(super) fn count_blocks(hierarchy: &[usize], from: &NdSbp, to: &NdSbp, dim: usize) -> usize {
    let [before, after] =
        [from, to].map(|sbp| count_ranks(hierarchy, &splitting_axes(hierarchy, sbp, dim)));
    least_common_multiple(before, after)
}

/// Lists the axes that split a dim.
fn splitting_axes(hierarchy: &[usize], sbp: &NdSbp, dim: usize) -> Vec<usize> {
    (0..hierarchy.len()).filter(|&axis| sbp.0[axis] == Sbp::Split(dim)).collect()
}

/// Splits a dim along axes, one after the other, and returns its parts in order.
fn split_dim(hierarchy: &[usize], axes: &[usize], length: usize) -> Vec<Range> {
    axes.iter().fold(vec![(0, length)], |parts, &axis| {
        let cut = |&(start, end): &Range| {
            (0..hierarchy[axis]).map(move |at| {
                let range = split_range(end - start, hierarchy[axis], at);
                (start + range.start, start + range.end)
            })
        };
        parts.iter().flat_map(cut).collect()
    })
}

/// Counts the elements that two ranges have in common.
fn count_overlap(a: Range, b: Range) -> usize {
    a.1.min(b.1).saturating_sub(a.0.max(b.0))
}

/// Counts the ranks along some axes.
fn count_ranks(hierarchy: &[usize], axes: &[usize]) -> usize {
    axes.iter().map(|&axis| hierarchy[axis]).product()
}

/// Returns the index of coordinates among those of some axes.
fn ravel_axes(hierarchy: &[usize], axes: &[usize], at: &[usize]) -> usize {
    axes.iter().fold(0, |index, &axis| index * hierarchy[axis] + at[axis])
}

fn least_common_multiple(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

#[cfg(test)]
mod tests {
    use graphc_ir::types::DType;
    use graphc_plan::Layout;

    use super::super::exchange::exchange_traffic;
    use super::*;

    #[test]
    fn uneven_traffic_is_what_all_pairs_say() {
        // Of the last dims some ranks hold nothing.
        for (mesh, extents) in [(vec![4], [7, 2]), (vec![2, 3], [10, 7]), (vec![3, 2, 2], [17, 3])]
        {
            let digits = [Sbp::Broadcast, Sbp::Split(0), Sbp::Split(1), Sbp::PARTIAL];
            let many = vec![digits.len(); mesh.len()];
            let all: Vec<Layout> = (0..many.iter().product())
                .map(|at| {
                    unravel_position(at, &many).into_iter().map(|digit| digits[digit]).collect()
                })
                .map(|sbp| Layout {
                    microbatch_dim: None,
                    shape: extents.to_vec(),
                    dtype: DType::U8,
                    ranks: (0..mesh.iter().product::<usize>() as u32).collect(),
                    hierarchy: mesh.clone(),
                    sbp: NdSbp(sbp),
                })
                .collect();
            for from in all.iter().filter(|from| !from.sbp.is_partial()) {
                for to in &all {
                    let traffic =
                        SameMesh::new(&mesh, &from.sbp, &to.sbp, &extents).busiest_traffic();
                    let expected = exchange_traffic(from, to, 1);
                    assert_eq!(traffic, expected, "{} {}", from.sbp, to.sbp);
                }
            }
        }
    }

    #[test]
    fn the_work_grows_with_the_ranks_and_not_with_their_pairs() {
        let sbp = |name: &str| -> NdSbp { name.parse().expect("an SBP") };
        for (from, to) in
            [("S(0), S(0)", "S(1), S(1)"), ("S(0), S(1)", "S(1), S(0)"), ("S(0), B", "B, S(0)")]
        {
            let (from, to) = (sbp(from), sbp(to));
            for ranks in [64, 256, 1024] {
                let mesh = [ranks / 8, 8];
                let both = SameMesh::new(&mesh, &from, &to, &[128_255, 8191]);
                // Each entry is looked at once, and each pair of parts that meet.
                let entries = |dim: &CutDim| dim.sent.len() + dim.after.len();
                let pairs = |dim: &CutDim| dim.received.iter().sum::<usize>();
                let work: usize = both.dims.iter().map(|dim| entries(dim) + pairs(dim)).sum();
                assert!(work <= 6 * ranks, "{work} for {ranks} ranks from {from} to {to}");
            }
        }
    }
}
