//! Computes the table over its neighbours that is left when a variable is minimised away.
//!
//! Many labels of a neighbour are the same to the variable, because they make or take a tensor in the same layout. Only the first of these is
//! computed, and its result holds for all of them.

use std::rc::Rc;

use pulp::{Arch, Simd, WithSimd};

use super::share::Tariff;
use super::tables::{CostTable, LANES, LabelAxis};

/// Costs over several variables.
#[derive(Clone, Debug)]
pub(crate) struct CostFactor {
    /// The variables.
    pub scope: Vec<usize>,
    /// The costs of labels.
    pub costs: FactorCosts,
}

/// Costs by the labels of a factor's variables.
#[derive(Clone, Debug)]
pub(crate) enum FactorCosts {
    /// A table, in the order of the scope.
    Table(Rc<CostTable>),
    /// The tariff of a tensor that several variables read. The scope has the members of a share.
    Share(Rc<Tariff>),
}

impl FactorCosts {
    /// Returns the address of the costs, which identifies them, because equal costs are kept once.
    pub(crate) fn address(&self) -> *const () {
        match self {
            Self::Table(table) => Rc::as_ptr(table).cast(),
            Self::Share(tariff) => Rc::as_ptr(tariff).cast(),
        }
    }
}

/// The best label of a variable, by the labels of others.
#[derive(Clone, Debug)]
pub(crate) struct Best {
    /// The classes of the labels of each other variable.
    axes: Vec<LabelAxis>,
    /// The best labels, by the classes of the others; those of the last change fastest.
    labels: Vec<u16>,
}

impl Best {
    /// Returns the best label, given the labels of the others.
    pub(crate) fn best_label(&self, others: impl Iterator<Item = usize>) -> usize {
        let class =
            |at: usize, (axis, label): (&LabelAxis, usize)| at * axis.count + axis.class(label);
        usize::from(self.labels[self.axes.iter().zip(others).fold(0, class)])
    }
}

/// Computes the table that is left when a variable is minimised away, and its best labels. Of equal labels the first is best.
pub(crate) fn minimise_variable(
    arch: Arch,
    domains: &[usize],
    variable: usize,
    scope: &[usize],
    factors: &[CostFactor],
) -> (CostTable, Best) {
    let own = Alike::new(domains, variable, factors);
    let alike: Vec<Alike> = scope.iter().map(|&v| Alike::new(domains, v, factors)).collect();
    let terms: Vec<FactorTable> = factors
        .iter()
        .map(|factor| FactorTable::new((variable, &own), (scope, &alike), factor))
        .collect();
    let least = LeastSums { terms: &terms, own: own.firsts.len(), alike: &alike };
    let (table, best) = arch.dispatch(least);
    let labels: Vec<u16> = best.into_iter().map(|best| own.firsts[best] as u16).collect();
    let axes: Vec<LabelAxis> = alike.into_iter().map(|alike| alike.axis).collect();
    (CostTable::new(axes.clone(), table), Best { axes, labels })
}

/// The least sum of all terms by the classes of the others, and the first class of the variable that has it. It is compiled for the instructions of
/// the processor.
struct LeastSums<'a> {
    terms: &'a [FactorTable],
    /// The number of classes of the variable.
    own: usize,
    /// The classes of the others.
    alike: &'a [Alike],
}

impl WithSimd for LeastSums<'_> {
    type Output = (Vec<f64>, Vec<usize>);

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Self::Output {
        let size: usize = self.alike.iter().map(|alike| alike.firsts.len()).product();
        let (mut table, mut labels) = (Vec::with_capacity(size), Vec::with_capacity(size));
        let mut index = vec![0; self.alike.len()];
        let vectors = padded_length(self.own) / S::F64_LANES;
        let mut sums = vec![simd.splat_f64s(0.0); vectors];
        for _ in 0..size {
            sums.fill(simd.splat_f64s(0.0));
            for term in self.terms {
                let (costs, _) = S::as_simd_f64s(term.costs_at(&index, self.own));
                for (sum, &cost) in sums.iter_mut().zip(costs) {
                    *sum = simd.add_f64s(*sum, cost);
                }
            }
            let mut least = simd.splat_f64s(f64::INFINITY);
            for &sum in &sums {
                least = simd.min_f64s(sum, least);
            }
            let least = simd.reduce_min_f64s(least);
            let all: &[f64] = pulp::bytemuck::cast_slice(&sums);
            let best = all.iter().position(|&sum| sum == least).unwrap_or(0);
            table.push(least);
            labels.push(best);
            advance_index(&mut index, self.alike);
        }
        (table, labels)
    }
}

/// Returns the number of costs by class of the variable, rounded up to whole vectors.
fn padded_length(own: usize) -> usize {
    own.next_multiple_of(LANES)
}

/// Moves to the next classes; those of the last variable change first.
fn advance_index(index: &mut [usize], alike: &[Alike]) {
    for (at, alike) in index.iter_mut().zip(alike).rev() {
        *at += 1;
        if *at < alike.firsts.len() {
            return;
        }
        *at = 0;
    }
}

/// The classes of labels of a variable that are the same to all factors.
struct Alike {
    axis: LabelAxis,
    /// The first label of each class.
    firsts: Vec<usize>,
}

impl Alike {
    fn new(domains: &[usize], variable: usize, factors: &[CostFactor]) -> Self {
        let count = domains[variable];
        let mut axis = LabelAxis::new(std::iter::repeat_n(0, count), 1);
        for factor in factors {
            let Some(at) = factor.scope.iter().position(|&v| v == variable) else { continue };
            if axis.count == count {
                break;
            }
            let (refined, _) = match &factor.costs {
                FactorCosts::Table(table) => axis.refine_with(&table.axes[at]),
                FactorCosts::Share(tariff) => {
                    axis.refine_with(&LabelAxis::by_key(tariff.labels_of(at)).0)
                }
            };
            axis = refined;
        }
        Self { firsts: axis.first_labels(), axis }
    }
}

/// A factor as a table by the classes of the other variables. The classes of the variable that is minimised away are stored side by side, so several
/// are added at once, and the minimum over a tensor's readers is found once for each of their classes.
struct FactorTable {
    costs: Vec<f64>,
    /// The number of entries from a class to the next, for each variable of the scope; 0 if the factor does not have the variable.
    strides: Vec<usize>,
}

impl FactorTable {
    fn new(
        (variable, own): (usize, &Alike),
        (scope, alike): (&[usize], &[Alike]),
        factor: &CostFactor,
    ) -> Self {
        let mut strides = vec![0; scope.len()];
        let mut size = padded_length(own.firsts.len());
        let here = |at: &usize| factor.scope.contains(&scope[*at]);
        for at in (0..scope.len()).filter(here) {
            (strides[at], size) = (size, size * alike[at].firsts.len());
        }
        let mut costs = vec![f64::INFINITY; size];
        let seen = FactorView::new(variable, scope, factor);
        // Of the scope those that the factor has, as odometers, the first the fastest.
        let turning: Vec<usize> = (0..scope.len()).filter(here).collect();
        let mut index = vec![0; scope.len()];
        let mut labels: Vec<usize> = alike.iter().map(|alike| alike.firsts[0]).collect();
        for costs in costs.chunks_exact_mut(padded_length(own.firsts.len())) {
            seen.write_costs(&labels, &own.firsts, costs);
            for &at in &turning {
                index[at] = (index[at] + 1) % alike[at].firsts.len();
                labels[at] = alike[at].firsts[index[at]];
                if index[at] > 0 {
                    break;
                }
            }
        }
        Self { costs, strides }
    }

    /// Returns the costs for these classes of the others. The padding costs infinitely much.
    #[inline(always)]
    fn costs_at(&self, index: &[usize], own: usize) -> &[f64] {
        let first: usize = index.iter().zip(&self.strides).map(|(at, stride)| at * stride).sum();
        &self.costs[first..][..padded_length(own)]
    }
}

/// A factor from the view of the variable that is minimised away, given the labels of the others.
enum FactorView<'a> {
    /// The distance to the entries, by label of the variable, and by the labels of the others at these positions.
    Table {
        entries: &'a [f64],
        own: Vec<usize>,
        others: Vec<(usize, Vec<usize>)>,
    },
    Made {
        tariff: &'a Tariff,
        rows: &'a [usize],
        readers: Vec<usize>,
    },
    Read {
        tariff: &'a Tariff,
        own: usize,
        places: Vec<usize>,
    },
}

impl<'a> FactorView<'a> {
    fn new(variable: usize, scope: &[usize], factor: &'a CostFactor) -> Self {
        let place = |of: usize| scope.iter().position(|&v| v == of).unwrap_or(usize::MAX);
        let tariff = match &factor.costs {
            FactorCosts::Share(tariff) => tariff,
            FactorCosts::Table(table) => {
                let steps = |axis: usize| {
                    let stride = table.stride(axis);
                    let classes = table.axes[axis].classes.iter();
                    classes.map(move |&class| class as usize * stride).collect::<Vec<usize>>()
                };
                let is_own = |axis: &usize| factor.scope[*axis] == variable;
                let axes = 0..factor.scope.len();
                let own = axes.clone().find(is_own).expect("the factor has the variable");
                let others = axes.filter(|axis| !is_own(axis));
                let others = others.map(|axis| (place(factor.scope[axis]), steps(axis))).collect();
                return FactorView::Table { entries: &table.entries, own: steps(own), others };
            }
        };
        let places: Vec<usize> = factor.scope.iter().map(|&member| place(member)).collect();
        let own = factor.scope.iter().position(|&member| member == variable);
        let own = own.expect("the factor has the variable");
        match &tariff.made {
            Some(rows) if own == 0 => {
                FactorView::Made { tariff, rows, readers: places[1..].to_vec() }
            }
            _ => FactorView::Read { tariff, own: own - tariff.count_producers(), places },
        }
    }

    /// Writes the costs of these labels, given the labels `index` of the others.
    fn write_costs(&self, index: &[usize], labels: &[usize], costs: &mut [f64]) {
        let costs = costs.iter_mut().zip(labels);
        match self {
            FactorView::Table { entries, own, others } => {
                let base: usize = others.iter().map(|(place, steps)| steps[index[*place]]).sum();
                costs.for_each(|(cost, &label)| *cost = entries[base + own[label]]);
            }
            FactorView::Made { tariff, rows, readers } => {
                let mut taken = Vec::new();
                for (columns, &place) in tariff.taken.iter().zip(readers) {
                    take_column(&mut taken, columns[index[place]]);
                }
                let price = |row: usize| taken.iter().map(|&c| tariff.price(row, c)).sum::<f64>();
                costs.for_each(|(cost, &label)| *cost = price(rows[label]));
            }
            FactorView::Read { tariff, own, places } => {
                let first = tariff.count_producers();
                let row = tariff.made.as_ref().map_or(0, |rows| rows[index[places[0]]]);
                let mut taken = Vec::new();
                for (at, columns) in tariff.taken.iter().enumerate() {
                    if at != *own {
                        take_column(&mut taken, columns[index[places[at + first]]]);
                    }
                }
                let paid: f64 = taken.iter().map(|&column| tariff.price(row, column)).sum();
                let columns = &tariff.taken[*own];
                for (cost, &label) in costs {
                    let more = columns[label].filter(|column| !taken.contains(column));
                    *cost = paid + more.map_or(0.0, |column| tariff.price(row, column));
                }
            }
        }
    }
}

fn take_column(taken: &mut Vec<usize>, column: Option<usize>) {
    if let Some(column) = column
        && !taken.contains(&column)
    {
        taken.push(column);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::tests::every_arch;

    /// The number of labels of variables 0 to 3.
    const DOMAINS: [usize; 4] = [3, 4, 6, 5];

    fn table(scope: [usize; 2], cost: impl Fn(usize, usize) -> usize) -> CostFactor {
        let [rows, columns] = scope.map(|variable| DOMAINS[variable]);
        let axes = [rows, columns].map(LabelAxis::one_per_label);
        let table = CostTable::of_pair(axes, |row, column| cost(row, column) as f64);
        CostFactor { scope: scope.to_vec(), costs: FactorCosts::Table(Rc::new(table)) }
    }

    /// Makes factors to which some labels are the same: of variable 2 labels 0 and 3, 1 and 4, 2 and 5; of variable 3 the even ones and the odd ones.
    fn factors() -> Vec<CostFactor> {
        let column = |label: usize| (label % 3).checked_sub(1);
        let tariff = Tariff {
            made: Some(vec![0, 1, 0]),
            taken: vec![vec![Some(0), Some(1), None, Some(1)], (0..6).map(column).collect()],
            prices: vec![3.0, 2.0, 1.0, 5.0],
            columns: 2,
        };
        vec![
            table([1, 2], |a, b| (a * 5 + b % 3 * 7) % 6),
            table([1, 3], |a, b| (a * 3 + b % 2 * 4) % 7),
            CostFactor { scope: vec![0, 1, 2], costs: FactorCosts::Share(Rc::new(tariff)) },
        ]
    }

    /// Returns the cost of the labels of all variables.
    fn cost(labels: &[usize; 4]) -> f64 {
        let of = |factor: &CostFactor| match &factor.costs {
            FactorCosts::Table(table) => {
                table.cost_at(labels[factor.scope[0]], labels[factor.scope[1]])
            }
            FactorCosts::Share(tariff) => tariff.cost(|place| labels[factor.scope[place]]),
        };
        factors().iter().map(of).sum()
    }

    #[test]
    fn labels_that_are_alike_have_what_each_would_find() {
        let scope = [0, 2, 3];
        let by = |arch: Arch| minimise_variable(arch, &DOMAINS, 1, &scope, &factors());
        let (table, best) = by(Arch::new());
        for arch in every_arch() {
            let (other, labels) = by(arch);
            assert_eq!((&other, &labels.labels), (&table, &best.labels), "{arch:?}");
        }
        for at in 0..3 * 6 * 5 {
            let labels = [at / 30, at / 5 % 6, at % 5];
            let with = |own: usize| cost(&[labels[0], own, labels[1], labels[2]]);
            let least = (0..4).map(with).fold(f64::INFINITY, f64::min);
            let places = labels.iter().zip(&table.axes).enumerate();
            let places = places.map(|(at, (&label, axis))| axis.class(label) * table.stride(at));
            let (found, label) =
                (table.entries[places.sum::<usize>()], best.best_label(labels.into_iter()));
            assert_eq!((found, with(label)), (least, least), "{at}");
            assert!((0..label).all(|before| with(before) > least), "{at}: the first");
        }
    }

    #[test]
    fn labels_are_told_apart_by_any_factor() {
        let classes = |variable: usize| Alike::new(&DOMAINS, variable, &factors()).axis.classes;
        assert_eq!(classes(2), [0, 1, 2, 0, 1, 2]);
        assert_eq!(classes(3), [0, 1, 0, 1, 0]);
        assert_eq!(classes(0), [0, 1, 0]);
        assert_eq!(classes(1), [0, 1, 2, 3]);
    }
}
