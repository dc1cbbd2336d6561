//! How a block of queries and keys that a causal mask cuts is multiplied: in strips, so that at most a strip's width of products is
//! computed for nothing.

use std::ops::Range;

use graphc_ir::shard::split_range;

/// Rows, or columns, of a strip, at least: fewer would cost more in packing the other factor again than they leave out.
const LEAST: usize = 32;

/// A block and its mask.
#[derive(Clone, Copy)]
pub(super) struct Strips {
    /// Queries.
    pub rows: usize,
    /// Keys.
    pub columns: usize,
    /// How many keys the first query sees, where each later one sees one more: below 0 where queries see none at first.
    /// `None` where all see all.
    pub ahead: Option<isize>,
}

/// Queries, and the keys that are multiplied with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Strip {
    pub rows: Range<usize>,
    pub columns: Range<usize>,
}

impl Strips {
    /// Strips of queries with all keys that any of a strip sees: the first ones.
    pub fn by_rows(self) -> impl Iterator<Item = Strip> {
        self.cut(self.rows).filter_map(move |rows| {
            let seen = self.ahead.map_or(self.columns, |ahead| {
                (ahead + rows.end as isize - 1).clamp(0, self.columns as isize) as usize
            });
            (seen > 0).then_some(Strip { rows, columns: 0..seen })
        })
    }

    /// Strips of keys with all queries that see any of a strip: the last ones.
    pub fn by_columns(self) -> impl Iterator<Item = Strip> {
        self.cut(self.columns).filter_map(move |columns| {
            let first = self.ahead.map_or(0, |ahead| {
                (columns.start as isize + 1 - ahead).clamp(0, self.rows as isize) as usize
            });
            (first < self.rows).then_some(Strip { rows: first..self.rows, columns })
        })
    }

    /// An extent in parts; one where nothing is left out.
    fn cut(self, extent: usize) -> impl Iterator<Item = Range<usize>> {
        let is_cut = self.ahead.is_some_and(|ahead| ahead < self.columns as isize);
        let parts = if is_cut { (extent / LEAST).max(1) } else { 1 };
        (0..parts).map(move |part| split_range(extent, parts, part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether each query and key of a block is in a strip.
    fn covered(strips: &Strips, found: impl Iterator<Item = Strip>) -> Vec<bool> {
        let mut all = vec![false; strips.rows * strips.columns];
        for Strip { rows, columns } in found {
            for row in rows {
                for column in columns.clone() {
                    let place = &mut all[row * strips.columns + column];
                    assert!(!*place, "query {row} and key {column} twice");
                    *place = true;
                }
            }
        }
        all
    }

    #[test]
    fn strips_hold_all_that_is_seen() {
        for (rows, columns) in [(128, 128), (128, 40), (7, 128), (70, 90), (1, 1)] {
            for ahead in [None, Some(-200), Some(-31), Some(0), Some(1), Some(33), Some(128)] {
                let strips = Strips { rows, columns, ahead };
                let by_rows = covered(&strips, strips.by_rows());
                let by_columns = covered(&strips, strips.by_columns());
                for row in 0..rows {
                    let seen = ahead.map_or(columns as isize, |ahead| ahead + row as isize);
                    for column in 0..columns {
                        let place = row * columns + column;
                        let needed = (column as isize) < seen;
                        assert!(by_rows[place] || !needed, "{rows} {columns} {ahead:?} by rows");
                        assert!(by_columns[place] || !needed, "{rows} {columns} {ahead:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_block_on_the_diagonal_leaves_out_three_eighths() {
        let strips = Strips { rows: 128, columns: 128, ahead: Some(1) };
        let area = |strip: Strip| strip.rows.len() * strip.columns.len();
        assert_eq!(strips.by_rows().map(area).sum::<usize>(), 128 * 128 * 5 / 8);
        assert_eq!(strips.by_columns().map(area).sum::<usize>(), 128 * 128 * 5 / 8);
        let below = Strips { ahead: Some(128), ..strips };
        assert_eq!(below.by_rows().count(), 1);
    }
}
