//! Prices a tensor that several nodes read (a *share*). It is boxed once to each layout that some of them take.
//!
//! A share is one term of the network, not a switch for each layout. Over a set of readers its least cost is that of
//! their best partition into groups that take the tensor alike. Two groups of one layout would pay twice, so no
//! partition is too cheap, and messages see all of the cost. With up to [`MOST_READERS`] readers all subsets are few
//! ([`joint`](super::joint)).
//!
//! The costs by the labels of the members are a *tariff*, whoever these members are. Tariffs are kept by content, so
//! layers that are alike have one and the same.

use std::rc::Rc;

use super::tables::{InternContent, Interned, hash_entries, same_bits};

/// The most readers of a tensor that is one term of the costs. With half as many ResNet on 2x4 ends 2.9 % and MobileNetV2 on 2x4 0.6 % higher, in two
/// to three times as long; with eight no plan is better.
pub const MOST_READERS: usize = 6;

/// The column of each label, or `None` if it takes the tensor for free.
pub type Columns = Vec<Option<usize>>;

/// The cost of boxing one tensor, by the labels of its producer and its readers.
#[derive(Clone, Debug)]
pub struct Share {
    /// The variable that makes the tensor, unless its label is settled, followed by those that read it.
    pub members: Vec<usize>,
    /// The prices of the tensor.
    pub tariff: Rc<Tariff>,
}

/// The costs of a tensor by the labels of the members of a share. Layers that are alike share the same one ([`Tariffs`]).
#[derive(Clone, Debug)]
pub struct Tariff {
    /// The row of each label of the producer, or `None` if its label is settled and the only row is 0.
    pub made: Option<Vec<usize>>,
    /// The column of each label, by reader.
    pub taken: Vec<Columns>,
    /// The prices by row and column.
    pub prices: Vec<f64>,
    /// The number of columns.
    pub columns: usize,
}

/// Tariffs by content, each equal one once.
pub(crate) type Tariffs = Interned<Tariff>;

impl PartialEq for Tariff {
    fn eq(&self, other: &Self) -> bool {
        (&self.made, &self.taken, self.columns) == (&other.made, &other.taken, other.columns)
            && same_bits(&self.prices, &other.prices)
    }
}

impl InternContent for Tariff {
    fn content_hash(&self) -> u64 {
        hash_entries(&self.prices)
    }
}

/// The rest of a tariff after some labels are settled.
#[derive(Clone, Debug)]
pub(crate) struct Settled {
    /// The cost that is paid in any case, by label of the producer (of a single label if it is settled).
    pub paid: Vec<f64>,
    /// The rest, if there is one, and the positions of the members that it has.
    pub rest: Option<(Rc<Tariff>, Vec<usize>)>,
}

impl Share {
    /// Returns the cost of labels, by variable.
    pub fn cost(&self, label: impl Fn(usize) -> usize) -> f64 {
        self.tariff.cost(|place| label(self.members[place]))
    }

    /// Returns the variable that makes the tensor.
    pub fn producer(&self) -> Option<usize> {
        (self.tariff.count_producers() == 1).then(|| self.members[0])
    }
}

impl Tariff {
    /// Returns the number of members that make the tensor: 1, or 0 if the producer's label is settled.
    pub(crate) fn count_producers(&self) -> usize {
        usize::from(self.made.is_some())
    }

    /// Returns the number of rows.
    pub(crate) fn count_rows(&self) -> usize {
        let last = self.made.as_ref().and_then(|rows| rows.iter().max());
        last.map_or(1, |last| last + 1)
    }

    /// Returns the price of a row and a column.
    pub fn price(&self, row: usize, column: usize) -> f64 {
        self.prices[row * self.columns + column]
    }

    /// Returns, for each label of the member at a position, a number that tells it from others: its row or its column.
    pub(crate) fn labels_of(&self, place: usize) -> Vec<usize> {
        match &self.made {
            Some(rows) if place == 0 => rows.clone(),
            _ => {
                let columns = &self.taken[place - self.count_producers()];
                columns.iter().map(|column| column.map_or(0, |column| column + 1)).collect()
            }
        }
    }

    /// Returns the cost of labels, by the position of their member.
    pub fn cost(&self, label: impl Fn(usize) -> usize) -> f64 {
        let row = self.made.as_ref().map_or(0, |rows| rows[label(0)]);
        let mut taken: Vec<usize> = Vec::new();
        for (reader, columns) in self.taken.iter().enumerate() {
            if let Some(column) = columns[label(self.count_producers() + reader)]
                && !taken.contains(&column)
            {
                taken.push(column);
            }
        }
        taken.into_iter().map(|column| self.price(row, column)).sum()
    }

    /// Returns the tariff in which each member has only these labels.
    pub fn with_labels(&self, kept: &[&[usize]]) -> Self {
        let (rows, taken) = self.pick_labels(kept);
        self.drop_unused(&rows, taken)
    }

    fn pick_labels(&self, kept: &[&[usize]]) -> (Vec<usize>, Vec<Columns>) {
        let rows = match &self.made {
            Some(rows) => kept[0].iter().map(|&label| rows[label]).collect(),
            None => vec![0],
        };
        let readers = self.taken.iter().zip(&kept[self.count_producers()..]);
        let pick = |(columns, kept): (&Columns, &&[usize])| {
            kept.iter().map(|&label| columns[label]).collect()
        };
        (rows, readers.map(pick).collect())
    }

    /// Returns the tariff in which each member has only these labels, and settles what it can. Readers that take the same column whatever their label
    /// pay at once, and other readers take that column for free.
    pub(crate) fn settle_labels(&self, kept: &[&[usize]]) -> Settled {
        let (rows, mut taken) = self.pick_labels(kept);
        let is_free = |&column: &usize| rows.iter().all(|&row| self.price(row, column) == 0.0);
        let free: Vec<bool> = (0..self.columns).map(|column| is_free(&column)).collect();
        let mut settled: Vec<usize> = Vec::new();
        for columns in &mut taken {
            columns.iter_mut().for_each(|column| *column = column.filter(|&c| !free[c]));
            if let Some(column) = columns[0]
                && columns.iter().all(|other| *other == Some(column))
                && !settled.contains(&column)
            {
                settled.push(column);
            }
        }
        for columns in &mut taken {
            columns.iter_mut().for_each(|c| *c = c.filter(|column| !settled.contains(column)));
        }
        let price = |&row: &usize| settled.iter().map(|&column| self.price(row, column)).sum();
        let paid = rows.iter().map(price).collect();
        let is_left = |columns: &Columns| columns.iter().any(Option::is_some);
        let left: Vec<usize> = (0..taken.len()).filter(|&reader| is_left(&taken[reader])).collect();
        taken.retain(is_left);
        let rest = (!taken.is_empty()).then(|| {
            let mut rest = self.drop_unused(&rows, taken);
            rest.made = rest.made.filter(|rows| rows.iter().any(|&row| row > 0));
            let readers = left.into_iter().map(|reader| self.count_producers() + reader);
            let places = (0..rest.count_producers()).chain(readers).collect();
            (Rc::new(rest), places)
        });
        Settled { paid, rest }
    }

    /// Returns the tariff without rows and columns that no label uses.
    fn drop_unused(&self, rows: &[usize], mut taken: Vec<Columns>) -> Self {
        let mut used_rows = rows.to_vec();
        let mut used: Vec<usize> =
            taken.iter().flat_map(|columns| columns.iter().copied().flatten()).collect();
        for list in [&mut used_rows, &mut used] {
            list.sort_unstable();
            list.dedup();
        }
        let at = |list: &[usize], of: usize| list.binary_search(&of).expect("it is used");
        for columns in &mut taken {
            columns.iter_mut().for_each(|column| *column = column.map(|c| at(&used, c)));
        }
        let pairs = used_rows.iter().flat_map(|&row| used.iter().map(move |&c| (row, c)));
        let prices = pairs.map(|(row, column)| self.price(row, column)).collect();
        let made = self.made.as_ref();
        let made = made.map(|_| rows.iter().map(|&row| at(&used_rows, row)).collect());
        Self { made, taken, prices, columns: used.len() }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Makes a tensor of two rows with three readers.
    pub(crate) fn share() -> Share {
        let columns = |of: [usize; 4]| of.map(|c| (c < 3).then_some(c)).to_vec();
        let tariff = Tariff {
            made: Some(vec![0, 1, 0]),
            taken: vec![columns([0, 1, 2, 3]), columns([2, 1, 0, 0]), columns([1, 1, 2, 3])],
            prices: vec![0.0, 5.0, 3.0, 4.0, 1.0, 2.0],
            columns: 3,
        };
        Share { members: vec![0, 1, 2, 3], tariff: Rc::new(tariff) }
    }

    /// Returns all labels of the four members.
    pub(crate) fn all() -> impl Iterator<Item = [usize; 4]> {
        (0..3 * 64).map(|at| [at / 64, at / 16 % 4, at / 4 % 4, at % 4])
    }

    #[test]
    fn equal_tariffs_are_one_whoever_the_members_are() {
        let mut tariffs = Tariffs::default();
        let [first, second] = [share(), share()].map(|share| tariffs.intern(share.tariff));
        assert!(Rc::ptr_eq(&first, &second));
        let mut other = (*first).clone();
        other.taken[0][0] = None;
        assert!(!Rc::ptr_eq(&first, &tariffs.intern(other)));
    }

    #[test]
    fn settled_labels_leave_the_same_costs() {
        let share = share();
        for kept in [
            vec![vec![0, 1, 2], vec![1], vec![0, 1, 2], vec![0, 1, 3]],
            vec![vec![1], vec![0, 2, 3], vec![1, 2, 3], vec![3]],
            vec![vec![0, 2], vec![0, 1], vec![2, 3], vec![0, 1]],
        ] {
            let lists: Vec<&[usize]> = kept.iter().map(Vec::as_slice).collect();
            let settled = share.tariff.settle_labels(&lists);
            let sizes: Vec<usize> = kept.iter().map(Vec::len).collect();
            for labels in all().filter(|l| l.iter().zip(&sizes).all(|(l, s)| l < s)) {
                let whole = share.cost(|v| kept[v][labels[v]]);
                let paid = settled.paid[if sizes[0] == 1 { 0 } else { labels[0] }];
                let cost = |(rest, places): &(Rc<Tariff>, Vec<usize>)| {
                    rest.cost(|place| labels[places[place]])
                };
                let rest = settled.rest.as_ref().map_or(0.0, cost);
                assert_eq!(whole, paid + rest, "{kept:?} {labels:?}");
            }
        }
    }
}
