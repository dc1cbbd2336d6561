//! Views of values: the dims of another value in another order, some of them merged.

use graphc_ir::ids::ValueId;
use graphc_ir::sbp::{NdSbp, Sbp};

/// A view of `base`: its dim `i` is made of the dims `dims[i]` of `base`, the first of them slowest. Every dim of the base is in one of them; a dim
/// of extent 1 may be made of none.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::passes) struct BaseView {
    /// The value that is viewed.
    pub base: ValueId,
    /// The dims of the base that make up each dim of the view.
    pub dims: Vec<Vec<usize>>,
}

impl BaseView {
    /// Makes the view that shows a value of this rank as it is.
    pub(crate) fn whole(base: ValueId, rank: usize) -> Self {
        Self { base, dims: (0..rank).map(|dim| vec![dim]).collect() }
    }

    /// Makes the view of a value from a base that has its dims in this order.
    pub(crate) fn from_order(base: ValueId, order: &[usize]) -> Self {
        let mut dims = vec![Vec::new(); order.len()];
        order.iter().enumerate().for_each(|(at, &dim)| dims[dim] = vec![at]);
        Self { base, dims }
    }

    /// Returns the dims of the view in the order in which they stand in a base of these extents. Dims of extent 1 stay behind those that they follow.
    /// `None` if another dim comes between parts of one.
    pub(crate) fn order_in_base(&self, extents: &[usize]) -> Option<Vec<usize>> {
        let mut keys = Vec::new();
        for (dim, group) in self.dims.iter().enumerate() {
            let own = group.iter().copied().find(|&part| extents[part] != 1);
            let before = keys.last().and_then(|&(part, _)| part);
            keys.push((own.or(before), dim));
        }
        keys.sort_unstable();
        let order: Vec<usize> = keys.into_iter().map(|(_, dim)| dim).collect();
        let of_base: Vec<usize> = order.iter().flat_map(|&dim| self.dims[dim].clone()).collect();
        is_ascending(&of_base, extents).then_some(order)
    }

    /// Whether the view shows the elements of a base of these extents in the order in which they stand.
    pub(crate) fn keeps_order(&self, extents: &[usize]) -> bool {
        is_ascending(&self.seen_order(), extents)
    }

    /// Whether each dim of the view is one dim of the base.
    pub(crate) fn is_permuted(&self) -> bool {
        self.dims.iter().all(|group| group.len() == 1)
    }

    /// Returns the layout of a base of these extents that gives the view this layout; `None` if a dim that is split is not one dim of the base.
    pub(crate) fn base_layout(&self, seen: &NdSbp, extents: &[usize]) -> Option<NdSbp> {
        let of = |&sbp: &Sbp| match sbp {
            Sbp::Split(dim) => {
                let mut group = self.dims.get(dim)?.iter().filter(|&&dim| extents[dim] != 1);
                let (only, None) = (*group.next()?, group.next()) else { return None };
                Some(Sbp::Split(only))
            }
            other => Some(other),
        };
        seen.0.iter().map(of).collect::<Option<Vec<Sbp>>>().map(NdSbp)
    }

    /// Returns the dims of the base in the order in which the view shows them.
    pub(crate) fn seen_order(&self) -> Vec<usize> {
        self.dims.concat()
    }

    /// Permutes the dims of the view.
    pub(crate) fn transposed(&self, permutation: &[usize]) -> Self {
        let dims = permutation.iter().map(|&dim| self.dims[dim].clone()).collect();
        Self { base: self.base, dims }
    }

    /// The view with the dims of the base behind each other as they are seen: `shape` is that of the base, in which
    /// some may have been cut in parts by `cut`.
    fn regroup_dims(&self, parts: &[Vec<usize>], groups: &[Vec<(usize, usize)>]) -> Self {
        let first = |dim: usize| parts[..dim].iter().map(Vec::len).sum::<usize>();
        let of = |group: &Vec<(usize, usize)>| {
            group.iter().map(|&(dim, part)| first(dim) + part).collect()
        };
        Self { base: self.base, dims: groups.iter().map(of).collect() }
    }
}

/// Whether dims in this order leave the elements of a tensor where they are. Dims of extent 1 may stand anywhere.
pub(in crate::passes) fn is_ascending(order: &[usize], extents: &[usize]) -> bool {
    order.iter().filter(|&&dim| extents[dim] != 1).is_sorted()
}

/// A view that has been reshaped, whose base may have been reshaped so that its dims are in parts.
#[derive(Debug, PartialEq)]
pub(in crate::passes) struct Reshaped {
    /// The shape of the base.
    pub shape: Vec<usize>,
    /// The view. Its base is still the one from before the reshape.
    pub view: BaseView,
}

impl Reshaped {
    /// Merges dims of the base that stand, and are viewed, one behind the other.
    pub(crate) fn merge_dims(self) -> Self {
        let Self { shape, view } = self;
        let follows = |dim: usize| {
            let pair = [dim.wrapping_sub(1), dim];
            view.dims.iter().any(|group| group.windows(2).any(|two| two == pair))
        };
        let mut place = Vec::new();
        let mut merged: Vec<usize> = Vec::new();
        for (dim, &extent) in shape.iter().enumerate() {
            match merged.last_mut().filter(|_| follows(dim)) {
                Some(last) => *last *= extent,
                None => merged.push(extent),
            }
            place.push(merged.len() - 1);
        }
        let of = |group: &Vec<usize>| {
            group.iter().filter(|&&dim| !follows(dim)).map(|&dim| place[dim]).collect()
        };
        let view = BaseView { base: view.base, dims: view.dims.iter().map(of).collect() };
        Self { shape: merged, view }
    }
}

/// Reshapes the view of a base of this shape; `None` if the new dims are not products of dims of the base or of parts of them.
pub(in crate::passes) fn reshape_view(
    view: &BaseView,
    base: &[usize],
    target: &[usize],
) -> Option<Reshaped> {
    if base.contains(&0) || target.contains(&0) {
        return None;
    }
    // Of each dim of the base the parts that it is cut in, and of each dim of the target the parts that it takes.
    let mut parts: Vec<Vec<usize>> = vec![Vec::new(); base.len()];
    let mut groups: Vec<Vec<(usize, usize)>> = vec![Vec::new(); target.len()];
    let mut targets = target.iter().copied().enumerate().filter(|&(_, extent)| extent > 1);
    let mut open = targets.next();
    for dim in view.seen_order() {
        let mut left = base[dim];
        while left > 1 {
            let (group, wanted) = open?;
            let taken = match (left % wanted, wanted % left) {
                (0, _) => wanted,
                (_, 0) => left,
                _ => return None,
            };
            groups[group].push((dim, parts[dim].len()));
            parts[dim].push(taken);
            left /= taken;
            open = if wanted == taken { targets.next() } else { Some((group, wanted / taken)) };
        }
    }
    // Dims of extent 1 are seen nowhere: the base is left without them.
    let shape = parts.concat();
    open.is_none().then(|| Reshaped { shape, view: view.regroup_dims(&parts, &groups) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(dims: &[&[usize]]) -> BaseView {
        BaseView { base: ValueId::new(0), dims: dims.iter().map(|group| group.to_vec()).collect() }
    }

    #[test]
    fn a_reshape_merges_and_cuts_the_dims_that_are_seen() {
        // [8, 12, 32] seen as [12, 8, 32].
        let seen = view(&[&[1], &[0], &[2]]);
        let base = [8, 12, 32];
        let of = |target: &[usize]| reshape_view(&seen, &base, target);
        let flat = of(&[96, 32]).expect("merged");
        assert_eq!(flat, Reshaped { shape: base.to_vec(), view: view(&[&[1, 0], &[2]]) });
        let heads = of(&[12, 32, 8]).expect("32 is 4 by 8");
        assert_eq!(heads.shape, [8, 12, 4, 8]);
        assert_eq!(heads.view, view(&[&[1], &[0, 2], &[3]]));
        let ones = of(&[1, 12, 8, 1, 32]).expect("extents of 1 are made of nothing");
        assert_eq!(ones.view.dims, [vec![], vec![1], vec![0], vec![], vec![2]]);
        assert_eq!(of(&[64, 48]), None, "64 takes 12 and a part of 8 that is none");
    }

    #[test]
    fn dims_that_are_seen_as_they_stand_may_be_one() {
        // [2, 4, 3, 5, 6] seen as [8, 6, 3, 5].
        let shape = vec![2, 4, 3, 5, 6];
        let parts = Reshaped { shape, view: view(&[&[0, 1], &[4], &[2], &[3]]) };
        let expected = view(&[&[0], &[3], &[1], &[2]]);
        assert_eq!(parts.merge_dims(), Reshaped { shape: vec![8, 3, 5, 6], view: expected });
        let apart = Reshaped { shape: vec![2, 3, 4], view: view(&[&[0, 2], &[], &[1]]) };
        let same = Reshaped { shape: vec![2, 3, 4], view: view(&[&[0, 2], &[], &[1]]) };
        assert_eq!(apart.merge_dims(), same);
    }

    #[test]
    fn a_base_that_is_arranged_says_how() {
        let base = [8, 3, 5, 6];
        let seen = view(&[&[0], &[3], &[1], &[], &[2]]);
        assert_eq!(seen.order_in_base(&base), Some(vec![0, 2, 3, 4, 1]));
        assert_eq!(view(&[&[0], &[3, 1], &[2]]).order_in_base(&base), None);
        assert!(!seen.keeps_order(&base) && seen.keeps_order(&[8, 1, 1, 6]));
        let layout = |text: &str| seen.base_layout(&text.parse().expect("an SBP"), &base);
        assert_eq!(layout("S(1),B"), "S(3),B".parse().ok());
        assert_eq!(layout("S(3)"), None, "it is made of nothing");
    }

    #[test]
    fn what_was_merged_comes_apart_again() {
        let flat = view(&[&[1, 0], &[2]]);
        let apart = reshape_view(&flat, &[8, 12, 32], &[12, 8, 32]).expect("the same dims");
        assert_eq!(apart.view, view(&[&[1], &[0], &[2]]));
        assert_eq!(apart.view.transposed(&[1, 0, 2]), BaseView::whole(ValueId::new(0), 3));
    }
}
