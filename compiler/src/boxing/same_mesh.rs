//! Traffic of an exchange on one mesh, whatever the number of ranks.
//!
//! The axes that split a dim cut it into parts by their coordinates, in either layout. Who needs what of whom is
//! then a product over dims. So the traffic of a rank follows from tables of each dim, without looking at other
//! ranks. The result is that of [`super::exchange::exchange_traffic`], which looks at all pairs.

use graphc_ir::mesh::unravel_position;
use graphc_ir::sbp::{NdSbp, Sbp};
use graphc_ir::shard::split_range;

use super::exchange::Traffic;

/// Two layouts of one tensor. `from` is not partial.
pub struct SameMesh<'a> {
    hierarchy: &'a [usize],
    from: &'a NdSbp,
    to: &'a NdSbp,
    dims: Vec<CutDim>,
    /// Receivers that differ in axes alone along which nothing is split for them: senders serve each.
    alike: usize,
}

/// First and last element, excluded.
type Range = (usize, usize);

/// One dim, as it is cut.
struct CutDim {
    /// Axes that split it before.
    from: Vec<usize>,
    /// Axes that split it afterwards.
    to: Vec<usize>,
    /// Those of `to` along which senders are copies of each other: a receiver is served by the copy beside it.
    beside: Vec<usize>,
    /// The parts before.
    before: Vec<Range>,
    /// The parts afterwards.
    after: Vec<Range>,
    /// By part before and coordinates of `beside`: receivers that need some of it, and their elements.
    sent: Vec<(usize, usize)>,
    /// By part afterwards: parts before that hold some of it.
    received: Vec<usize>,
}

impl<'a> SameMesh<'a> {
    /// Layouts of a tensor of these extents on a mesh.
    pub fn new(hierarchy: &'a [usize], from: &'a NdSbp, to: &'a NdSbp, extents: &[usize]) -> Self {
        let dims = extents.iter().enumerate();
        let dims = dims.map(|(dim, &length)| CutDim::new(hierarchy, from, to, (dim, length)));
        let free =
            |axis: &usize| to.0[*axis] == Sbp::Broadcast && matches!(from.0[*axis], Sbp::Split(_));
        let alike = (0..hierarchy.len()).filter(free).map(|axis| hierarchy[axis]).product();
        Self { hierarchy, from, to, dims: dims.collect(), alike }
    }

    /// Traffic of the busiest rank; bytes are elements.
    pub fn busiest_traffic(&self) -> Traffic {
        let ranks = self.hierarchy.iter().product();
        let of = |position| self.of_rank(&unravel_position(position, self.hierarchy));
        (0..ranks).map(of).fold(Traffic::default(), Traffic::elementwise_max)
    }

    /// Traffic of the first rank.
    pub fn of_first(&self) -> Traffic {
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

    /// Whether a rank holds the value itself afterwards, not the identity.
    fn holds_value(&self, at: &[usize]) -> bool {
        self.to.0.iter().zip(at).all(|(sbp, &at)| !sbp.is_partial() || at == 0)
    }

    /// Receivers for each that the tables of dims know of: none where the copy beside them holds the identity.
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

    /// The place of a rank in `sent`.
    fn sent_index(&self, hierarchy: &[usize], at: &[usize]) -> usize {
        let width = count_ranks(hierarchy, &self.beside);
        ravel_axes(hierarchy, &self.from, at) * width + ravel_axes(hierarchy, &self.beside, at)
    }

    /// Elements that a rank holds before and afterwards.
    fn count_kept(&self, hierarchy: &[usize], at: &[usize]) -> usize {
        let held = self.before[ravel_axes(hierarchy, &self.from, at)];
        count_overlap(held, self.after[ravel_axes(hierarchy, &self.to, at)])
    }
}

/// In how many blocks a dim is cut that no split of either layout cuts, where all splits are even.
pub fn count_blocks(hierarchy: &[usize], from: &NdSbp, to: &NdSbp, dim: usize) -> usize {
    let [before, after] =
        [from, to].map(|sbp| count_ranks(hierarchy, &splitting_axes(hierarchy, sbp, dim)));
    least_common_multiple(before, after)
}

/// The axes that split a dim.
fn splitting_axes(hierarchy: &[usize], sbp: &NdSbp, dim: usize) -> Vec<usize> {
    (0..hierarchy.len()).filter(|&axis| sbp.0[axis] == Sbp::Split(dim)).collect()
}

/// The parts of a dim that axes split one after the other, in order.
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

/// Elements that two ranges have in common.
fn count_overlap(a: Range, b: Range) -> usize {
    a.1.min(b.1).saturating_sub(a.0.max(b.0))
}

/// Ranks of some axes.
fn count_ranks(hierarchy: &[usize], axes: &[usize]) -> usize {
    axes.iter().map(|&axis| hierarchy[axis]).product()
}

/// The place of coordinates among those of some axes.
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
    use graphc_ir::plan::Layout;
    use graphc_ir::types::DType;

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
