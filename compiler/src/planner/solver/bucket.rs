//! What is left when a variable is minimised away: a table over those that it meets.
//!
//! Many labels of a neighbour are the same to the variable, as they make or take a tensor in the same layout. Of these the first is looked
//! at for all: what is found is exactly what each of them would find.

use std::collections::HashMap;

use super::share::Share;
use super::tables::{Table, first_least, mixed};

/// Costs over several variables.
#[derive(Clone, Debug)]
pub struct Factor {
    /// The variables.
    pub scope: Vec<usize>,
    /// What they cost.
    pub costs: Costs,
}

/// Costs by the labels of a factor's variables.
#[derive(Clone, Debug)]
pub enum Costs {
    /// Row-major in the order of the scope.
    Table(Table),
    /// Of a tensor that several variables read.
    Share(Share),
}

/// The table that is left when a variable is minimised away, and its best labels. Of equals the first.
pub fn minimise(
    domains: &[usize],
    variable: usize,
    scope: &[usize],
    factors: &[Factor],
) -> (Vec<f64>, Vec<u16>) {
    let own = Alike::new(domains, variable, factors);
    let alike: Vec<Alike> = scope.iter().map(|&v| Alike::new(domains, v, factors)).collect();
    let size: usize = alike.iter().map(|alike| alike.firsts.len()).product();
    let terms: Vec<Term> = factors
        .iter()
        .map(|factor| Term::new(domains, (variable, &own), (scope, &alike), factor))
        .collect();
    let (table, best) = least(&terms, own.firsts.len(), &alike);
    let labels: Vec<u16> = best.into_iter().map(|best| own.firsts[best] as u16).collect();
    if size == scope.iter().map(|&v| domains[v]).product::<usize>() {
        return (table, labels);
    }
    let places = places(&alike);
    let labels = places.iter().map(|&place| labels[place]).collect();
    (places.iter().map(|&place| table[place]).collect(), labels)
}

/// By the classes of the others the least sum of all terms, and the first of so many own classes that has it.
fn least(terms: &[Term], own: usize, alike: &[Alike]) -> (Vec<f64>, Vec<usize>) {
    let size: usize = alike.iter().map(|alike| alike.firsts.len()).product();
    let (mut table, mut labels) = (Vec::with_capacity(size), Vec::with_capacity(size));
    let mut index = vec![0; alike.len()];
    let mut sums = vec![0.0; own];
    for _ in 0..size {
        sums.fill(0.0);
        for term in terms {
            let costs = term.of(&index, own);
            sums.iter_mut().zip(costs).for_each(|(sum, cost)| *sum += cost);
        }
        let best = first_least(&sums);
        table.push(sums[best]);
        labels.push(best);
        advance(&mut index, alike);
    }
    (table, labels)
}

/// The next classes, the last variable first.
fn advance(index: &mut [usize], alike: &[Alike]) {
    for (at, alike) in index.iter_mut().zip(alike).rev() {
        *at += 1;
        if *at < alike.firsts.len() {
            return;
        }
        *at = 0;
    }
}

/// For all labels, row-major, where their classes are among all classes.
fn places(alike: &[Alike]) -> Vec<usize> {
    let longer = |places: Vec<usize>, alike: &Alike| -> Vec<usize> {
        let of = |place: usize| {
            alike.classes.iter().map(move |&class| place * alike.firsts.len() + class)
        };
        places.into_iter().flat_map(of).collect()
    };
    alike.iter().fold(vec![0], longer)
}

/// Labels of a variable that are alike in all factors.
struct Alike {
    /// The first label of each class.
    firsts: Vec<usize>,
    /// By label: its class.
    classes: Vec<usize>,
}

impl Alike {
    fn new(domains: &[usize], variable: usize, factors: &[Factor]) -> Self {
        let count = domains[variable];
        let mut all = Self { firsts: vec![0], classes: vec![0; count] };
        for factor in factors.iter().filter(|factor| factor.scope.contains(&variable)) {
            if all.firsts.len() == count {
                break;
            }
            let seen: Vec<usize> = match &factor.costs {
                Costs::Table(table) => Slices::new(domains, factor, variable, table).classes(),
                Costs::Share(share) => share.labels_of(variable),
            };
            all.split(&seen);
        }
        all
    }

    /// Parts classes whose labels are different in one more factor.
    fn split(&mut self, seen: &[usize]) {
        let mut known: HashMap<(usize, usize), usize> = HashMap::new();
        self.firsts.clear();
        for (label, (class, &seen)) in self.classes.iter_mut().zip(seen).enumerate() {
            *class = *known.entry((*class, seen)).or_insert_with(|| {
                self.firsts.push(label);
                self.firsts.len() - 1
            });
        }
    }
}

/// A table as slices, one for each label of a variable.
struct Slices<'a> {
    table: &'a [f64],
    labels: usize,
    /// Entries from a label to the next.
    stride: usize,
}

impl<'a> Slices<'a> {
    fn new(domains: &[usize], factor: &Factor, variable: usize, table: &'a [f64]) -> Self {
        Self { table, labels: domains[variable], stride: strides_of(domains, factor, variable) }
    }

    /// The entries of a label, in pieces that lie together.
    fn of(&self, label: usize) -> impl Iterator<Item = &'a [f64]> {
        let stride = self.stride;
        self.table
            .chunks_exact(stride * self.labels)
            .map(move |all| &all[label * stride..][..stride])
    }

    /// By label: the first whose entries are the same.
    fn classes(&self) -> Vec<usize> {
        let mut hashes = vec![0; self.labels];
        for (at, piece) in self.table.chunks_exact(self.stride).enumerate() {
            let known = &mut hashes[at % self.labels];
            *known = piece.iter().fold(*known, |hash, &entry| mixed(hash, entry));
        }
        let mut known: HashMap<u64, Vec<usize>> = HashMap::new();
        let first = |(label, hash): (usize, u64)| {
            let alike = known.entry(hash).or_default();
            let found = alike.iter().copied().find(|&other| self.are_same(other, label));
            found.unwrap_or_else(|| {
                alike.push(label);
                label
            })
        };
        hashes.into_iter().enumerate().map(first).collect()
    }

    fn are_same(&self, a: usize, b: usize) -> bool {
        self.of(a).zip(self.of(b)).all(|(a, b)| super::tables::same(a, b))
    }
}

/// A factor as a table by the classes of the other variables, where the classes of the variable that is minimised away lie side by side:
/// so they are added several at once, and what is to be found out about a tensor's readers is found out once for each of their classes.
struct Term {
    costs: Vec<f64>,
    /// By variable of the scope: entries from a class to the next; 0 where the factor does not have it.
    strides: Vec<usize>,
}

impl Term {
    fn new(
        domains: &[usize],
        (variable, own): (usize, &Alike),
        (scope, alike): (&[usize], &[Alike]),
        factor: &Factor,
    ) -> Self {
        let mut strides = vec![0; scope.len()];
        let mut size = own.firsts.len();
        let here = |at: &usize| factor.scope.contains(&scope[*at]);
        for at in (0..scope.len()).filter(here) {
            (strides[at], size) = (size, size * alike[at].firsts.len());
        }
        let mut costs = vec![0.0; size];
        let seen = Seen::new(domains, variable, scope, factor);
        // Of the scope those that the factor has, as odometers, the first the fastest.
        let turning: Vec<usize> = (0..scope.len()).filter(here).collect();
        let mut index = vec![0; scope.len()];
        let mut labels: Vec<usize> = alike.iter().map(|alike| alike.firsts[0]).collect();
        for costs in costs.chunks_exact_mut(own.firsts.len()) {
            seen.write(&labels, &own.firsts, costs);
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

    /// The costs where the others have these classes.
    fn of(&self, index: &[usize], own: usize) -> &[f64] {
        let first: usize = index.iter().zip(&self.strides).map(|(at, stride)| at * stride).sum();
        &self.costs[first..][..own]
    }
}

/// A factor, seen from the variable that is minimised away, at the labels of the others.
enum Seen<'a> {
    Table { table: &'a [f64], strides: Vec<usize>, own: usize },
    Made { share: &'a Share, rows: &'a [usize], readers: Vec<usize> },
    Read { share: &'a Share, own: usize, places: Vec<usize> },
}

impl<'a> Seen<'a> {
    fn new(domains: &[usize], variable: usize, scope: &[usize], factor: &'a Factor) -> Self {
        let place = |of: usize| scope.iter().position(|&v| v == of).unwrap_or(usize::MAX);
        let share = match &factor.costs {
            Costs::Share(share) => share,
            Costs::Table(table) => {
                let strides = scope.iter().map(|&v| strides_of(domains, factor, v)).collect();
                let own = strides_of(domains, factor, variable);
                return Seen::Table { table, strides, own };
            }
        };
        let readers = share.readers.iter().map(|reader| place(reader.0)).collect();
        match &share.producer {
            Some((producer, rows)) if *producer == variable => Seen::Made { share, rows, readers },
            producer => {
                let producer = producer.iter().map(|(producer, _)| place(*producer));
                let own = share.readers.iter().position(|reader| reader.0 == variable);
                let own = own.expect("a member makes it or reads it");
                let places = producer.chain(readers).collect();
                Seen::Read { share, own, places }
            }
        }
    }

    /// The costs of these labels where the others have the labels of `index`.
    fn write(&self, index: &[usize], labels: &[usize], costs: &mut [f64]) {
        let costs = costs.iter_mut().zip(labels);
        match self {
            Seen::Table { table, strides, own } => {
                let base: usize = index.iter().zip(strides).map(|(at, stride)| at * stride).sum();
                costs.for_each(|(cost, label)| *cost = table[base + label * own]);
            }
            Seen::Made { share, rows, readers } => {
                let mut taken = Vec::new();
                for ((_, columns), &place) in share.readers.iter().zip(readers) {
                    take(&mut taken, columns[index[place]]);
                }
                let price = |row: usize| taken.iter().map(|&c| share.price(row, c)).sum::<f64>();
                costs.for_each(|(cost, &label)| *cost = price(rows[label]));
            }
            Seen::Read { share, own, places } => {
                let first = usize::from(share.producer.is_some());
                let row = share.producer.as_ref().map_or(0, |(_, rows)| rows[index[places[0]]]);
                let mut taken = Vec::new();
                for (at, (_, columns)) in share.readers.iter().enumerate() {
                    if at != *own {
                        take(&mut taken, columns[index[places[at + first]]]);
                    }
                }
                let paid: f64 = taken.iter().map(|&column| share.price(row, column)).sum();
                let columns = &share.readers[*own].1;
                for (cost, &label) in costs {
                    let more = columns[label].filter(|column| !taken.contains(column));
                    *cost = paid + more.map_or(0.0, |column| share.price(row, column));
                }
            }
        }
    }
}

fn take(taken: &mut Vec<usize>, column: Option<usize>) {
    if let Some(column) = column
        && !taken.contains(&column)
    {
        taken.push(column);
    }
}

/// How far apart in a factor's table the labels of a variable are; 0 where it does not appear.
fn strides_of(domains: &[usize], factor: &Factor, variable: usize) -> usize {
    let Some(at) = factor.scope.iter().position(|&v| v == variable) else { return 0 };
    factor.scope[at + 1..].iter().map(|&v| domains[v]).product()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Labels of variables 0 to 3.
    const DOMAINS: [usize; 4] = [3, 4, 6, 5];

    fn table(scope: [usize; 2], cost: impl Fn(usize, usize) -> usize) -> Factor {
        let [rows, columns] = scope.map(|variable| DOMAINS[variable]);
        let all = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        let entries: Vec<f64> = all.map(|(row, column)| cost(row, column) as f64).collect();
        Factor { scope: scope.to_vec(), costs: Costs::Table(entries.into()) }
    }

    /// Of variable 2 labels 0 and 3, 1 and 4, 2 and 5 are the same to all others; of 3 the even ones and the odd ones.
    fn factors() -> Vec<Factor> {
        let column = |label: usize| (label % 3).checked_sub(1);
        let share = Share {
            producer: Some((0, vec![0, 1, 0])),
            readers: vec![
                (1, vec![Some(0), Some(1), None, Some(1)]),
                (2, (0..6).map(column).collect()),
            ],
            prices: vec![3.0, 2.0, 1.0, 5.0],
            columns: 2,
        };
        vec![
            table([1, 2], |a, b| (a * 5 + b % 3 * 7) % 6),
            table([1, 3], |a, b| (a * 3 + b % 2 * 4) % 7),
            Factor { scope: share.members(), costs: Costs::Share(share) },
        ]
    }

    /// What the labels of all variables cost.
    fn cost(labels: &[usize; 4]) -> f64 {
        let of = |factor: &Factor| match &factor.costs {
            Costs::Table(table) => {
                table[labels[factor.scope[0]] * DOMAINS[factor.scope[1]] + labels[factor.scope[1]]]
            }
            Costs::Share(share) => share.cost(|variable| labels[variable]),
        };
        factors().iter().map(of).sum()
    }

    #[test]
    fn labels_that_are_alike_have_what_each_would_find() {
        let scope = [0, 2, 3];
        let (table, best) = minimise(&DOMAINS, 1, &scope, &factors());
        assert_eq!(table.len(), 3 * 6 * 5);
        for (at, (&found, &label)) in table.iter().zip(&best).enumerate() {
            let with = |own: usize| cost(&[at / 30, own, at / 5 % 6, at % 5]);
            let least = (0..4).map(with).fold(f64::INFINITY, f64::min);
            assert_eq!((found, with(usize::from(label))), (least, least), "{at}");
            assert!((0..usize::from(label)).all(|before| with(before) > least), "{at}: the first");
        }
    }

    #[test]
    fn labels_are_told_apart_by_any_factor() {
        let classes = |variable: usize| Alike::new(&DOMAINS, variable, &factors()).classes;
        assert_eq!(classes(2), [0, 1, 2, 0, 1, 2]);
        assert_eq!(classes(3), [0, 1, 0, 1, 0]);
        assert_eq!(classes(0), [0, 1, 0]);
        assert_eq!(classes(1), [0, 1, 2, 3]);
    }
}
