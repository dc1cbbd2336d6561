//! A share made ready for messages: labels that make or take a tensor alike are one class, and what is least is found for classes.
//!
//! All loops go over rows of equal, even length that lie one behind the other.

use super::share::Share;
use super::tables::lower;

/// Numbers that are added and compared at once; rows are as long as a multiple of it.
const LANES: usize = 4;

/// A share with the classes of the labels of its members.
#[derive(Clone, Debug)]
pub struct Joint {
    /// What it is of.
    pub share: Share,
    /// By member and label: the row of the producer, the column of a reader; what is free is the column after all others.
    classes: Vec<Vec<u32>>,
    /// By row and class of a reader.
    prices: Vec<f64>,
    rows: usize,
    /// Classes of a reader, with some that no label has.
    width: usize,
}

impl Joint {
    /// Nothing is dropped.
    pub fn new(share: Share) -> Self {
        let producer = share.producer.iter();
        let of_producer = producer.map(|(_, rows)| rows.iter().map(|&row| row as u32).collect());
        let class = |column: &Option<usize>| column.unwrap_or(share.columns) as u32;
        let readers = share.readers.iter();
        let of_readers = readers.map(|(_, columns)| columns.iter().map(class).collect());
        let classes = of_producer.chain(of_readers).collect();
        let (rows, width) = (share.rows(), (share.columns + 1).next_multiple_of(LANES));
        let mut prices = vec![0.0; rows * width];
        for (row, prices) in prices.chunks_exact_mut(width).enumerate() {
            prices[..share.columns].copy_from_slice(share.of_row(row));
        }
        Self { share, classes, prices, rows, width }
    }

    /// The class of each label of a member.
    pub fn classes(&self, member: usize) -> &[u32] {
        &self.classes[member]
    }

    /// The number of classes of a member.
    pub fn count(&self, member: usize) -> usize {
        if member < self.producers() { self.rows } else { self.width }
    }

    fn producers(&self) -> usize {
        usize::from(self.share.producer.is_some())
    }

    /// For each class of member `of` the least of the cost and of what the other members' classes cost (`costs`, all members one behind
    /// the other; those of `of` are not read).
    pub fn least(&self, of: usize, costs: &[f64], groups: &mut Groups, best: &mut Vec<f64>) {
        let producers = self.producers();
        let (of_rows, of_readers) = costs.split_at(producers * self.rows);
        groups.begin(self.width);
        for (index, costs) in of_readers.chunks_exact(self.width).enumerate() {
            if index + producers != of {
                groups.add(costs);
            }
        }
        best.clear();
        let rows = self.prices.chunks_exact(self.width);
        if of < producers {
            best.extend(rows.map(|prices| groups.all_at_best(prices)));
            return;
        }
        best.resize(self.width, f64::INFINITY);
        let mut free = f64::INFINITY;
        for (row, prices) in rows.enumerate() {
            let extra = of_rows.get(row).copied().unwrap_or(0.0);
            if extra.is_finite() {
                lower(&mut free, groups.all_at_best(prices) + extra);
                groups.join(prices, extra, best);
            }
        }
        best[self.share.columns] = free;
    }
}

/// Sets of readers as bits, with what it costs all of a set to take the same. Memory that is used again and again.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    width: usize,
    /// By set and class.
    sums: Vec<f64>,
    /// By set: what it costs at best.
    best: Vec<f64>,
}

impl Groups {
    /// The empty set alone.
    fn begin(&mut self, width: usize) {
        self.width = width;
        self.sums.clear();
        self.sums.resize(width, 0.0);
    }

    /// One more reader, whose classes cost as much as `costs` says.
    fn add(&mut self, costs: &[f64]) {
        let known = self.sums.len();
        self.sums.extend_from_within(..);
        for sums in self.sums[known..].chunks_exact_mut(self.width) {
            sums.iter_mut().zip(costs).for_each(|(sum, cost)| *sum += cost);
        }
    }

    /// What all readers cost at best where a class costs as much as `prices` says; what each set costs so is in `best`.
    fn all_at_best(&mut self, prices: &[f64]) -> f64 {
        self.best.clear();
        self.best.push(0.0);
        for (set, sums) in self.sums.chunks_exact(self.width).enumerate().skip(1) {
            let mut least = least_sum(sums, prices);
            // The group of the lowest reader takes the same; beside it all subsets of the others.
            let rest = set & (set - 1);
            let alone = set ^ rest;
            let mut part = rest;
            while part > 0 {
                lower(&mut least, self.best[alone | (rest & !part)] + self.best[part]);
                part = (part - 1) & rest;
            }
            self.best.push(least);
        }
        self.best[self.best.len() - 1]
    }

    /// What each class costs one more reader, together with the others, of which each set costs as much as `best` says, and a row of the
    /// producer, which costs `extra`. What is free is not right.
    fn join(&self, prices: &[f64], extra: f64, by_class: &mut [f64]) {
        let others = self.best.iter().rev();
        for (sums, others) in self.sums.chunks_exact(self.width).zip(others) {
            let rest = others + extra;
            if rest.is_infinite() {
                continue;
            }
            for ((least, sum), price) in by_class.iter_mut().zip(sums).zip(prices) {
                lower(least, sum + price + rest);
            }
        }
    }
}

/// The least sum of numbers at the same place of two rows.
fn least_sum(a: &[f64], b: &[f64]) -> f64 {
    let mut lanes = [f64::INFINITY; LANES];
    for (a, b) in a.as_chunks::<LANES>().0.iter().zip(b.as_chunks::<LANES>().0) {
        for lane in 0..LANES {
            lower(&mut lanes[lane], a[lane] + b[lane]);
        }
    }
    let mut least = f64::INFINITY;
    lanes.iter().for_each(|&lane| lower(&mut least, lane));
    least
}

#[cfg(test)]
mod tests {
    use super::super::share::tests::{all, share};
    use super::*;

    /// The least of the costs of the labels of each class.
    fn least_of_classes(joint: &Joint, member: usize, costs: &[f64]) -> Vec<f64> {
        let mut least = vec![f64::INFINITY; joint.count(member)];
        for (&class, &cost) in joint.classes(member).iter().zip(costs) {
            lower(&mut least[class as usize], cost);
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
            let mut share = share();
            share.readers[1].1[3] = None;
            let share = share.with_labels(&kept);
            let costs: Vec<Vec<f64>> = (0..4)
                .map(|member| (0..kept[member].len()).map(|label| cost_of(member, label)).collect())
                .collect();
            let joint = Joint::new(share.clone());
            let known: Vec<f64> =
                (0..4).flat_map(|of| least_of_classes(&joint, of, &costs[of])).collect();
            let (mut groups, mut best) = (Groups::default(), Vec::new());
            for of in 0..4 {
                joint.least(of, &known, &mut groups, &mut best);
                for (label, &class) in joint.classes(of).iter().enumerate() {
                    let found = best[class as usize];
                    let cost = |labels: &[usize; 4]| -> f64 {
                        let others = (0..4).filter(|&m| m != of).map(|m| costs[m][labels[m]]);
                        share.cost(|v| labels[v]) + others.sum::<f64>()
                    };
                    let fits = |labels: &[usize; 4]| {
                        labels[of] == label && (0..4).all(|m| labels[m] < kept[m].len())
                    };
                    let best = all().filter(fits).map(|labels| cost(&labels));
                    assert_eq!(found, best.fold(f64::INFINITY, f64::min), "{kept:?} {of} {label}");
                }
            }
        }
    }

    #[test]
    fn the_least_sum_is_that_of_all_places() {
        let number = |at: usize| ((at * 37) % 101) as f64;
        for length in [4, 8, 12] {
            let a: Vec<f64> = (0..length).map(number).collect();
            let b: Vec<f64> = (0..length).map(|at| number(at + 50)).collect();
            let least = (0..length).map(|at| a[at] + b[at]).fold(f64::INFINITY, f64::min);
            assert_eq!(least_sum(&a, &b), least, "{length}");
        }
    }
}
