//! The cost of a tensor that several nodes read: it is boxed to each layout that some of them take, once.
//!
//! Over a set of readers the least cost is that of the best partition into groups that take it alike: two groups of
//! one layout would pay twice, so no partition is too cheap. With up to [`MOST_READERS`] readers all subsets are few
//! ([`joint`](super::joint)).

/// Readers up to which a tensor is one term of the costs.
pub const MOST_READERS: usize = 6;

/// The column of each label; `None` where it takes the tensor for free.
pub type Columns = Vec<Option<usize>>;

/// What boxing one tensor costs, by the labels of its producer and its readers.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// The variable that makes the tensor, with the row of each label; `None` where its label is settled and the
    /// only row is 0.
    pub producer: Option<(usize, Vec<usize>)>,
    /// Variables that read it.
    pub readers: Vec<(usize, Columns)>,
    /// By row and column.
    pub prices: Vec<f64>,
    /// Number of columns.
    pub columns: usize,
}

/// What is left of a share where some labels are settled.
pub struct Settled {
    /// What is paid anyway, by label of the producer (of one label where it is settled).
    pub paid: Vec<f64>,
    /// The rest, if there is one.
    pub rest: Option<Share>,
}

impl Share {
    /// All variables: the producer first.
    pub fn members(&self) -> Vec<usize> {
        let producer = self.producer.iter().map(|(variable, _)| *variable);
        producer.chain(self.readers.iter().map(|(variable, _)| *variable)).collect()
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        let last = self.producer.as_ref().and_then(|(_, rows)| rows.iter().max());
        last.map_or(1, |last| last + 1)
    }

    /// The row that a label of the producer makes.
    pub fn row(&self, label: impl Fn(usize) -> usize) -> usize {
        self.producer.as_ref().map_or(0, |(variable, rows)| rows[label(*variable)])
    }

    /// The price of a row and a column.
    pub fn price(&self, row: usize, column: usize) -> f64 {
        self.prices[row * self.columns + column]
    }

    /// By label of a member: what tells it from others, its row or its column.
    pub fn labels_of(&self, member: usize) -> Vec<usize> {
        let of_producer = self.producer.iter().filter(|(variable, _)| *variable == member);
        let rows = of_producer.map(|(_, rows)| rows.clone()).next();
        let of_reader = self.readers.iter().filter(|(variable, _)| *variable == member);
        let columns = of_reader
            .map(|(_, columns)| columns.iter().map(|column| column.map_or(0, |c| c + 1)).collect());
        rows.into_iter().chain(columns).next().unwrap_or_default()
    }

    /// The cost of labels.
    pub fn cost(&self, label: impl Fn(usize) -> usize) -> f64 {
        let row = self.row(&label);
        let mut taken: Vec<usize> = Vec::new();
        for (variable, columns) in &self.readers {
            if let Some(column) = columns[label(*variable)]
                && !taken.contains(&column)
            {
                taken.push(column);
            }
        }
        taken.into_iter().map(|column| self.price(row, column)).sum()
    }

    /// The same with other numbers for its variables.
    pub fn renamed(&self, name: impl Fn(usize) -> usize) -> Share {
        let producer = self.producer.as_ref().map(|(v, rows)| (name(*v), rows.clone()));
        let readers = self.readers.iter().map(|(v, columns)| (name(*v), columns.clone())).collect();
        Share { producer, readers, ..self.clone() }
    }

    /// The share where each variable has these labels alone.
    pub fn with_labels(&self, kept: &[Vec<usize>]) -> Share {
        let (rows, readers) = self.picked(kept);
        self.compact(&rows, readers)
    }

    fn picked(&self, kept: &[Vec<usize>]) -> (Vec<usize>, Vec<(usize, Columns)>) {
        let rows = match &self.producer {
            Some((variable, rows)) => kept[*variable].iter().map(|&label| rows[label]).collect(),
            None => vec![0],
        };
        let pick = |(variable, columns): &(usize, Columns)| {
            (*variable, kept[*variable].iter().map(|&label| columns[label]).collect())
        };
        (rows, self.readers.iter().map(pick).collect())
    }

    /// The share where each variable has these labels alone, settled where it can be. Readers that take the same whatever their label pay at
    /// once, and who takes it likewise pays nothing.
    pub fn restricted(&self, kept: &[Vec<usize>]) -> Settled {
        let (rows, mut readers) = self.picked(kept);
        let is_free = |&column: &usize| rows.iter().all(|&row| self.price(row, column) == 0.0);
        let free: Vec<bool> = (0..self.columns).map(|column| is_free(&column)).collect();
        let mut settled: Vec<usize> = Vec::new();
        for (_, columns) in &mut readers {
            columns.iter_mut().for_each(|column| *column = column.filter(|&c| !free[c]));
            if let Some(column) = columns[0]
                && columns.iter().all(|other| *other == Some(column))
                && !settled.contains(&column)
            {
                settled.push(column);
            }
        }
        for (_, columns) in &mut readers {
            columns.iter_mut().for_each(|c| *c = c.filter(|column| !settled.contains(column)));
        }
        readers.retain(|(_, columns)| columns.iter().any(Option::is_some));
        let price = |&row: &usize| settled.iter().map(|&column| self.price(row, column)).sum();
        let paid = rows.iter().map(price).collect();
        let rest = (!readers.is_empty()).then(|| {
            let mut rest = self.compact(&rows, readers);
            rest.producer = rest.producer.filter(|(_, rows)| rows.iter().any(|&row| row > 0));
            rest
        });
        Settled { paid, rest }
    }

    /// Without rows and columns that nobody uses.
    fn compact(&self, rows: &[usize], mut readers: Vec<(usize, Columns)>) -> Share {
        let mut used_rows = rows.to_vec();
        let mut used: Vec<usize> =
            readers.iter().flat_map(|(_, columns)| columns.iter().copied().flatten()).collect();
        for list in [&mut used_rows, &mut used] {
            list.sort_unstable();
            list.dedup();
        }
        let at = |list: &[usize], of: usize| list.binary_search(&of).expect("it is used");
        for (_, columns) in &mut readers {
            columns.iter_mut().for_each(|column| *column = column.map(|c| at(&used, c)));
        }
        let pairs = used_rows.iter().flat_map(|&row| used.iter().map(move |&c| (row, c)));
        let prices = pairs.map(|(row, column)| self.price(row, column)).collect();
        let producer = self.producer.as_ref().map(|(variable, _)| {
            (*variable, rows.iter().map(|&row| at(&used_rows, row)).collect())
        });
        Share { producer, readers, prices, columns: used.len() }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Three readers of a tensor of two rows.
    pub fn share() -> Share {
        let columns = |of: [usize; 4]| of.map(|c| (c < 3).then_some(c)).to_vec();
        Share {
            producer: Some((0, vec![0, 1, 0])),
            readers: vec![
                (1, columns([0, 1, 2, 3])),
                (2, columns([2, 1, 0, 0])),
                (3, columns([1, 1, 2, 3])),
            ],
            prices: vec![0.0, 5.0, 3.0, 4.0, 1.0, 2.0],
            columns: 3,
        }
    }

    /// All labels of the four members.
    pub fn all() -> impl Iterator<Item = [usize; 4]> {
        (0..3 * 64).map(|at| [at / 64, at / 16 % 4, at / 4 % 4, at % 4])
    }

    #[test]
    fn settled_labels_leave_the_same_costs() {
        let share = share();
        for kept in [
            vec![vec![0, 1, 2], vec![1], vec![0, 1, 2], vec![0, 1, 3]],
            vec![vec![1], vec![0, 2, 3], vec![1, 2, 3], vec![3]],
            vec![vec![0, 2], vec![0, 1], vec![2, 3], vec![0, 1]],
        ] {
            let settled = share.restricted(&kept);
            let sizes: Vec<usize> = kept.iter().map(Vec::len).collect();
            for labels in all().filter(|l| l.iter().zip(&sizes).all(|(l, s)| l < s)) {
                let whole = share.cost(|v| kept[v][labels[v]]);
                let paid = settled.paid[if sizes[0] == 1 { 0 } else { labels[0] }];
                let rest = settled.rest.as_ref().map_or(0.0, |rest| rest.cost(|v| labels[v]));
                assert_eq!(whole, paid + rest, "{kept:?} {labels:?}");
            }
        }
    }
}
