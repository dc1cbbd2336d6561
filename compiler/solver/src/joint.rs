//! Prepares a tariff for messages: labels that make or take a tensor in the same way are one class, and minima are found for classes.
//!
//! Each tariff is prepared once and shared, which halves the entries that a sweep reads of 128 layers of LLaMA 3 8B on 8x8. The rows of the producer
//! are independent of each other, so several are computed at once in a vector. The results have the same bits with any vector instructions of the
//! processor.

use std::rc::Rc;

use pulp::{Arch, Simd, WithSimd};

use super::share::Tariff;
use super::tables::LANES;

/// A tariff, and the classes of the labels of its members.
#[derive(Clone, Debug)]
pub(crate) struct Joint {
    /// The tariff that it prepares.
    pub tariff: Rc<Tariff>,
    /// The class of each label of each member: the row for the producer, the column for a reader. A label that takes the tensor for free has the
    /// column after all others.
    classes: Vec<Vec<u32>>,
    /// The prices by class of a reader and by row. Rows are padded to whole vectors, with infinite prices.
    prices: Vec<f64>,
    rows: usize,
}

impl From<Rc<Tariff>> for Joint {
    fn from(tariff: Rc<Tariff>) -> Self {
        Self::new(tariff)
    }
}

impl Joint {
    /// Takes all labels of a tariff; none is dropped.
    pub(crate) fn new(tariff: Rc<Tariff>) -> Self {
        let made = tariff.made.iter();
        let of_producer = made.map(|rows| rows.iter().map(|&row| row as u32).collect());
        let class = |column: &Option<usize>| column.unwrap_or(tariff.columns) as u32;
        let of_readers = tariff.taken.iter().map(|columns| columns.iter().map(class).collect());
        let classes = of_producer.chain(of_readers).collect();
        let rows = tariff.count_rows();
        let padded = rows.next_multiple_of(LANES);
        let mut prices = vec![f64::INFINITY; (tariff.columns + 1) * padded];
        for (column, prices) in prices.chunks_exact_mut(padded).enumerate() {
            let is_free = column == tariff.columns;
            let price = |row: usize| if is_free { 0.0 } else { tariff.price(row, column) };
            prices[..rows].iter_mut().enumerate().for_each(|(row, to)| *to = price(row));
        }
        Self { tariff, classes, prices, rows }
    }

    /// Returns the class of each label of a member.
    pub(crate) fn classes(&self, member: usize) -> &[u32] {
        &self.classes[member]
    }

    /// Returns the number of classes of a member.
    pub(crate) fn count_classes(&self, member: usize) -> usize {
        if member < self.count_producers() { self.rows } else { self.reader_classes() }
    }

    /// Returns the number of classes of a reader.
    fn reader_classes(&self) -> usize {
        self.tariff.columns + 1
    }

    fn count_producers(&self) -> usize {
        self.tariff.count_producers()
    }

    /// Computes, for each class of member `of`, the least sum of the share's cost and of the costs of the other members' classes. `costs` has those
    /// of all members, one after the other; those of `of` are not read.
    pub(crate) fn least_costs(
        &self,
        of: usize,
        costs: &[f64],
        groups: &mut Groups,
        best: &mut Vec<f64>,
    ) {
        groups.arch.dispatch(LeastShares { joint: self, of, costs, groups, best });
    }
}

/// Buffers for sets of readers, which are numbered as bits: the cost if all of a set take the same class. They are used again and again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Groups {
    /// The instructions that the processor has.
    pub arch: Arch,
    /// The number of classes of a reader.
    width: usize,
    /// The costs by set and class.
    sums: Vec<f64>,
    /// The best cost by vector of rows, set and row.
    best: Vec<f64>,
    /// The costs of the producer's labels, by row.
    extra: Vec<f64>,
}

impl Groups {
    /// Begins with the empty set alone.
    fn begin_sets(&mut self, width: usize) {
        self.width = width;
        self.sums.clear();
        self.sums.resize(width, 0.0);
    }

    /// Adds a reader, whose classes have these costs.
    #[inline(always)]
    fn add_reader(&mut self, costs: &[f64]) {
        let known = self.sums.len();
        self.sums.extend_from_within(..);
        for sums in self.sums[known..].chunks_exact_mut(self.width) {
            sums.iter_mut().zip(costs).for_each(|(sum, cost)| *sum += cost);
        }
    }

    /// Returns the number of sets.
    fn count_sets(&self) -> usize {
        self.sums.len() / self.width
    }

    /// Finds the best cost of each set of readers by row. Classes cost as much as `prices` says.
    #[inline(always)]
    fn find_best<S: Simd>(&mut self, simd: S, prices: &[S::f64s]) {
        let (sets, vectors) = (self.count_sets(), prices.len() / self.width);
        self.best.clear();
        self.best.resize(sets * vectors * S::F64_LANES, 0.0);
        let (all, _) = S::as_mut_simd_f64s(&mut self.best);
        for (vector, best) in all.chunks_exact_mut(sets).enumerate() {
            // The empty set costs nothing.
            for (set, sums) in self.sums.chunks_exact(self.width).enumerate().skip(1) {
                let mut least = simd.splat_f64s(f64::INFINITY);
                for (sum, prices) in sums.iter().zip(prices.chunks_exact(vectors)) {
                    let sum = simd.add_f64s(simd.splat_f64s(*sum), prices[vector]);
                    least = simd.min_f64s(sum, least);
                }
                // The group of the lowest reader takes the same; beside it all subsets of the others.
                let rest = set & (set - 1);
                let alone = set ^ rest;
                let mut part = rest;
                while part > 0 {
                    let sum = simd.add_f64s(best[alone | (rest & !part)], best[part]);
                    least = simd.min_f64s(sum, least);
                    part = (part - 1) & rest;
                }
                best[set] = least;
            }
        }
    }

    /// Adds the costs of the producer's labels, by row, to the best cost of each set.
    #[inline(always)]
    fn add_rows<S: Simd>(&mut self, simd: S, costs: &[f64], padded: usize) {
        self.extra.clear();
        self.extra.extend(costs);
        self.extra.resize(padded, f64::INFINITY);
        let sets = self.count_sets();
        let ((all, _), (extra, _)) =
            (S::as_mut_simd_f64s(&mut self.best), S::as_simd_f64s(&self.extra));
        for (best, &extra) in all.chunks_exact_mut(sets).zip(extra) {
            for best in best {
                *best = simd.add_f64s(*best, extra);
            }
        }
    }

    /// Returns the least cost of a class of one more reader, together with the others. Each set of these costs as much as `best` says, and the class
    /// as much as `prices` says, by row.
    #[inline(always)]
    fn with_class<S: Simd>(&self, simd: S, class: usize, prices: &[S::f64s]) -> f64 {
        let (all, _) = S::as_simd_f64s(&self.best);
        let mut least = simd.splat_f64s(f64::INFINITY);
        for (best, &price) in all.chunks_exact(self.count_sets()).zip(prices) {
            // Those that do not take the same are all others.
            for (sums, &rest) in self.sums.chunks_exact(self.width).zip(best.iter().rev()) {
                let taken = simd.add_f64s(simd.splat_f64s(sums[class]), price);
                least = simd.min_f64s(simd.add_f64s(taken, rest), least);
            }
        }
        simd.reduce_min_f64s(least)
    }
}

/// [`Joint::least_costs`], compiled for the instructions of the processor.
struct LeastShares<'a> {
    joint: &'a Joint,
    of: usize,
    costs: &'a [f64],
    groups: &'a mut Groups,
    best: &'a mut Vec<f64>,
}

impl WithSimd for LeastShares<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { joint, of, costs, groups, best } = self;
        let (producers, width) = (joint.count_producers(), joint.reader_classes());
        let (of_rows, of_readers) = costs.split_at(producers * joint.rows);
        groups.begin_sets(width);
        for (index, costs) in of_readers.chunks_exact(width).enumerate() {
            if index + producers != of {
                groups.add_reader(costs);
            }
        }
        let (prices, _) = S::as_simd_f64s(&joint.prices);
        groups.find_best(simd, prices);
        let vectors = prices.len() / width;
        best.clear();
        if of < producers {
            // What all readers cost is the last of each vector's sets.
            let vectors = groups.best.chunks_exact(groups.count_sets() * S::F64_LANES);
            let rows = vectors.flat_map(|sets| &sets[sets.len() - S::F64_LANES..]);
            best.extend(rows.take(joint.rows));
            return;
        }
        let of_rows = if producers == 1 { of_rows } else { &[0.0] };
        groups.add_rows(simd, of_rows, vectors * S::F64_LANES);
        // Loops, as a closure would not be compiled for what the processor has.
        for (class, prices) in prices.chunks_exact(vectors).enumerate().take(width - 1) {
            best.push(groups.with_class(simd, class, prices));
        }
        // What is free leaves the others as they are.
        let mut least = simd.splat_f64s(f64::INFINITY);
        for sets in S::as_simd_f64s(&groups.best).0.chunks_exact(groups.count_sets()) {
            least = simd.min_f64s(sets[sets.len() - 1], least);
        }
        best.push(simd.reduce_min_f64s(least));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::tests::{all, share};
    use crate::tables::lower_to;
    use crate::tables::tests::every_arch;

    /// Returns the least cost of the labels of each class.
    fn least_of_classes(joint: &Joint, member: usize, costs: &[f64]) -> Vec<f64> {
        let mut least = vec![f64::INFINITY; joint.count_classes(member)];
        for (&class, &cost) in joint.classes(member).iter().zip(costs) {
            lower_to(&mut least[class as usize], cost);
        }
        least
    }

    #[test]
    fn least_costs_are_those_of_all_labels() {
        let cost_of = |member: usize, label: usize| ((member * 7 + label * 5) % 6) as f64 - 2.0;
        for kept in [
            vec![vec![0, 1, 2], vec![0, 1, 2, 3], vec![0, 1, 2, 3], vec![0, 1, 2, 3]],
            vec![vec![0, 2], vec![0, 3], vec![1], vec![3, 2]],
            vec![vec![0, 1], vec![3], vec![3], vec![3]],
        ] {
            let mut tariff = (*share().tariff).clone();
            tariff.taken[1][3] = None;
            let lists: Vec<&[usize]> = kept.iter().map(Vec::as_slice).collect();
            let tariff = Rc::new(tariff.with_labels(&lists));
            let costs: Vec<Vec<f64>> = (0..4)
                .map(|member| (0..kept[member].len()).map(|label| cost_of(member, label)).collect())
                .collect();
            let joint = Joint::new(tariff.clone());
            let known: Vec<f64> =
                (0..4).flat_map(|of| least_of_classes(&joint, of, &costs[of])).collect();
            let mut best = Vec::new();
            let cases = (0..4).flat_map(|of| every_arch().into_iter().map(move |arch| (of, arch)));
            for (of, arch) in cases {
                let mut groups = Groups { arch, ..Groups::default() };
                joint.least_costs(of, &known, &mut groups, &mut best);
                for (label, &class) in joint.classes(of).iter().enumerate() {
                    let found = best[class as usize];
                    let cost = |labels: &[usize; 4]| -> f64 {
                        let others = (0..4).filter(|&m| m != of).map(|m| costs[m][labels[m]]);
                        tariff.cost(|member| labels[member]) + others.sum::<f64>()
                    };
                    let fits = |labels: &[usize; 4]| {
                        labels[of] == label && (0..4).all(|m| labels[m] < kept[m].len())
                    };
                    let best = all().filter(fits).map(|labels| cost(&labels));
                    assert_eq!(
                        found,
                        best.fold(f64::INFINITY, f64::min),
                        "{kept:?} {of} {label} {arch:?}"
                    );
                }
            }
        }
    }
}
