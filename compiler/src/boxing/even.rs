//! Traffic of an exchange on one mesh where all splits are even, whatever the number of ranks.
//!
//! The axes that split a dim cut it into blocks by their coordinates, in either layout. Who needs what of whom is
//! then a product over dims. So the traffic of a rank follows from tables of each dim, without looking at other
//! ranks. The result is that of [`super::exchange::exchange_traffic`], which looks at all pairs.

use graphc_ir::mesh::unravel;
use graphc_ir::sbp::{NdSbp, Sbp};

use super::exchange::Traffic;

/// Two layouts of one tensor of even splits. `from` is not partial.
pub struct Even<'a> {
    hierarchy: &'a [usize],
    from: &'a NdSbp,
    to: &'a NdSbp,
    dims: Vec<Dim>,
    /// Receivers that differ in axes alone along which nothing is split for them: senders serve each.
    alike: usize,
}

/// One dim, as it is cut.
struct Dim {
    /// Blocks of the whole dim.
    blocks: usize,
    /// Axes that split it before.
    from: Vec<usize>,
    /// Axes that split it afterwards.
    to: Vec<usize>,
    /// Those of `to` along which senders are copies of each other: a receiver is served by the copy beside it.
    beside: Vec<usize>,
    /// By part before and coordinates of `beside`: receivers that need some of it, and their blocks.
    sent: Vec<(usize, usize)>,
    /// By part afterwards: parts before that hold some of it.
    received: Vec<usize>,
}

impl<'a> Even<'a> {
    /// Layouts of a tensor of `rank` dims on a mesh.
    pub fn new(hierarchy: &'a [usize], from: &'a NdSbp, to: &'a NdSbp, rank: usize) -> Self {
        let dims = (0..rank).map(|dim| Dim::new(hierarchy, from, to, dim)).collect();
        let free =
            |axis: &usize| to.0[*axis] == Sbp::Broadcast && matches!(from.0[*axis], Sbp::Split(_));
        let alike = (0..hierarchy.len()).filter(free).map(|axis| hierarchy[axis]).product();
        Self { hierarchy, from, to, dims, alike }
    }

    /// Blocks of each dim.
    pub fn blocks(&self) -> Vec<usize> {
        self.dims.iter().map(|dim| dim.blocks).collect()
    }

    /// Traffic of the busiest rank; bytes are blocks.
    pub fn traffic(&self) -> Traffic {
        let ranks = self.hierarchy.iter().product();
        let of = |position| self.of_rank(&unravel(position, self.hierarchy));
        (0..ranks).map(of).fold(Traffic::default(), Traffic::most)
    }

    /// Traffic of the first rank.
    pub fn of_first(&self) -> Traffic {
        self.of_rank(&vec![0; self.hierarchy.len()])
    }

    fn of_rank(&self, at: &[usize]) -> Traffic {
        let takes = self.takes(at);
        let own: usize = self.dims.iter().map(|dim| dim.overlap(self.hierarchy, at)).product();
        let own = if takes { own } else { 0 };
        let (mut messages, mut blocks) = (self.served(at), self.served(at));
        let (mut received, mut needed) = (usize::from(takes), usize::from(takes));
        for dim in &self.dims {
            let sent = dim.sent[dim.part(self.hierarchy, at)];
            (messages, blocks) = (messages * sent.0, blocks * sent.1);
            received *= dim.received[index(self.hierarchy, &dim.to, at)];
            needed *= dim.blocks / extent(self.hierarchy, &dim.to);
        }
        let less = usize::from(own > 0);
        let traffic = |messages: usize, blocks: usize| Traffic {
            messages: messages - less,
            bytes: (blocks - own) as u64,
        };
        traffic(messages, blocks).most(traffic(received, needed))
    }

    /// Whether a rank holds the value itself afterwards, not the identity.
    fn takes(&self, at: &[usize]) -> bool {
        self.to.0.iter().zip(at).all(|(sbp, &at)| !sbp.is_partial() || at == 0)
    }

    /// Receivers for each that the tables of dims know of: none where the copy beside them holds the identity.
    fn served(&self, at: &[usize]) -> usize {
        let mut axes = self.from.0.iter().zip(&self.to.0).zip(at);
        let beside_nobody = |((from, to), at): ((&Sbp, &Sbp), &usize)| {
            *from == Sbp::Broadcast && to.is_partial() && *at > 0
        };
        if axes.any(beside_nobody) { 0 } else { self.alike }
    }
}

impl Dim {
    fn new(hierarchy: &[usize], from: &NdSbp, to: &NdSbp, dim: usize) -> Self {
        let axes = |sbp: &NdSbp| -> Vec<usize> {
            (0..hierarchy.len()).filter(|&axis| sbp.0[axis] == Sbp::Split(dim)).collect()
        };
        let (before, after) = (axes(from), axes(to));
        let beside: Vec<usize> =
            after.iter().copied().filter(|&axis| from.0[axis] == Sbp::Broadcast).collect();
        let (parts, needs) = (extent(hierarchy, &before), extent(hierarchy, &after));
        let blocks = least_common_multiple(parts, needs);
        let width = extent(hierarchy, &beside);
        let (mut sent, mut received) = (vec![(0, 0); parts * width], vec![0; needs]);
        let after_extents: Vec<usize> = after.iter().map(|&axis| hierarchy[axis]).collect();
        for (need, received) in received.iter_mut().enumerate() {
            let at = unravel(need, &after_extents);
            let beside = (0..after.len())
                .filter(|&axis| beside.contains(&after[axis]))
                .fold(0, |index, axis| index * after_extents[axis] + at[axis]);
            // Others have nothing in common with it.
            let size = blocks / needs;
            let (first, last) = (need * size, (need + 1) * size - 1);
            for part in first / (blocks / parts)..=last / (blocks / parts) {
                let common = overlap(blocks, (part, parts), (need, needs));
                if common > 0 {
                    *received += 1;
                    let (messages, blocks) = &mut sent[part * width + beside];
                    (*messages, *blocks) = (*messages + 1, *blocks + common);
                }
            }
        }
        Self { blocks, from: before, to: after, beside, sent, received }
    }

    /// The place of a rank in `sent`.
    fn part(&self, hierarchy: &[usize], at: &[usize]) -> usize {
        let width = extent(hierarchy, &self.beside);
        index(hierarchy, &self.from, at) * width + index(hierarchy, &self.beside, at)
    }

    /// Blocks that a rank holds before and afterwards.
    fn overlap(&self, hierarchy: &[usize], at: &[usize]) -> usize {
        let of = |axes: &[usize]| (index(hierarchy, axes, at), extent(hierarchy, axes));
        overlap(self.blocks, of(&self.from), of(&self.to))
    }
}

/// Blocks that part `a.0` of `a.1` has in common with part `b.0` of `b.1`.
fn overlap(blocks: usize, a: (usize, usize), b: (usize, usize)) -> usize {
    let range = |(part, parts): (usize, usize)| {
        let size = blocks / parts;
        (part * size, (part + 1) * size)
    };
    let (a, b) = (range(a), range(b));
    a.1.min(b.1).saturating_sub(a.0.max(b.0))
}

/// Ranks of some axes.
fn extent(hierarchy: &[usize], axes: &[usize]) -> usize {
    axes.iter().map(|&axis| hierarchy[axis]).product()
}

/// The place of coordinates among those of some axes.
fn index(hierarchy: &[usize], axes: &[usize], at: &[usize]) -> usize {
    axes.iter().fold(0, |index, &axis| index * hierarchy[axis] + at[axis])
}

fn least_common_multiple(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}
