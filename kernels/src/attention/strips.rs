//! Strips of a block of queries and keys that a causal mask cuts.
//!
//! Each strip leaves out what none of its queries sees, so at most a strip's width of products is computed for nothing. Of a
//! block of 128 queries and 128 keys on the diagonal, strips of 32 multiply 5/8.

use std::ops::Range;

use graphc_ir::shard::split_range;

use super::weights::{LANES, LaneGroup};

/// Queries, or keys, of a strip, about: fewer would cost more in packing the other factor again than they leave out.
const STRIP: usize = 32;

/// A block and its mask.
#[derive(Clone, Copy)]
pub(super) struct Strips {
    pub queries: usize,
    pub keys: usize,
    /// The number of keys that the first query sees. Each later query sees one more. It is below 0 where the first queries see none, and
    /// `None` where all see all.
    pub ahead: Option<isize>,
    /// The most keys that a query sees: the last ones of those that `ahead` lets it see.
    pub window: Option<usize>,
}

/// Queries, and the keys that are multiplied with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ScoreStrip {
    pub queries: Range<usize>,
    pub keys: Range<usize>,
}

impl Strips {
    /// Whether no query sees a key.
    pub(super) fn are_empty(self) -> bool {
        self.count_seen(self.queries - 1) == 0 || self.are_passed()
    }

    /// Whether all keys are before what any query sees.
    fn are_passed(self) -> bool {
        let of_first = self.ahead.zip(self.window);
        of_first.is_some_and(|(ahead, window)| ahead - window as isize >= self.keys as isize)
    }

    /// Strips of queries with all keys that any of a strip sees: the first ones.
    pub(super) fn by_queries(self) -> impl Iterator<Item = ScoreStrip> {
        self.cut_vectors(self.queries).filter_map(move |queries| {
            let seen = self.count_seen(queries.end - 1);
            (seen > 0).then_some(ScoreStrip { queries, keys: 0..seen })
        })
    }

    /// Strips of keys with all queries that see any of a strip: the last ones.
    pub(super) fn by_keys(self) -> impl Iterator<Item = ScoreStrip> {
        self.cut_vectors(self.keys).filter_map(move |keys| {
            let first = self.ahead.map_or(0, |ahead| {
                (keys.start as isize + 1 - ahead).clamp(0, self.queries as isize) as usize
            });
            (first < self.queries).then_some(ScoreStrip { queries: first..self.queries, keys })
        })
    }

    /// Groups that are weighed together, each with its first query: all scores of [`Strips::by_queries`]. Behind the last query there
    /// is memory for a whole vector, of any content. Rows of scores lie `apart`.
    pub(super) fn groups(self, apart: usize) -> impl Iterator<Item = (usize, LaneGroup)> {
        self.by_queries().flat_map(move |ScoreStrip { queries, keys }| {
            queries.step_by(LANES).map(move |query| {
                let seen = self.ahead.map_or(isize::MAX, |ahead| ahead + query as isize);
                let window = self.window;
                (query, LaneGroup { keys: keys.end, all: self.keys, apart, seen, window })
            })
        })
    }

    /// Returns the number of keys that a query sees without regard to the window.
    fn count_seen(self, query: usize) -> usize {
        let seen = |ahead: isize| (ahead + query as isize).clamp(0, self.keys as isize) as usize;
        self.ahead.map_or(self.keys, seen)
    }

    /// An extent in parts of whole vectors; one where nothing is left out.
    fn cut_vectors(self, extent: usize) -> impl Iterator<Item = Range<usize>> {
        let is_cut = self.ahead.is_some_and(|ahead| ahead < self.keys as isize);
        let vectors = extent.div_ceil(LANES);
        let parts = if is_cut { (extent / STRIP).max(1) } else { 1 };
        (0..parts).map(move |part| {
            let vectors = split_range(vectors, parts, part);
            vectors.start * LANES..(vectors.end * LANES).min(extent)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_before_the_window_of_its_first_query_is_empty() {
        let empty = |ahead, window| {
            Strips { queries: 8, keys: 4, ahead: Some(ahead), window: Some(window) }.are_empty()
        };
        // The first query sees keys ahead - window..ahead, the last one seven more.
        assert!(empty(9, 5) && empty(8, 4));
        assert!(!empty(8, 5) && !empty(-6, 1));
        assert!(empty(-7, 1));
    }

    /// Whether each query and key of a block is in a strip.
    fn covered(strips: &Strips, found: impl Iterator<Item = ScoreStrip>) -> Vec<bool> {
        let mut all = vec![false; strips.queries * strips.keys];
        for ScoreStrip { queries, keys } in found {
            for row in queries {
                for column in keys.clone() {
                    let place = &mut all[row * strips.keys + column];
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
                let strips = Strips { queries: rows, keys: columns, ahead, window: None };
                let by_rows = covered(&strips, strips.by_queries());
                let by_columns = covered(&strips, strips.by_keys());
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
        let strips = Strips { queries: 128, keys: 128, ahead: Some(1), window: None };
        let area = |strip: ScoreStrip| strip.queries.len() * strip.keys.len();
        assert_eq!(strips.by_queries().map(area).sum::<usize>(), 128 * 128 * 5 / 8);
        assert_eq!(strips.by_keys().map(area).sum::<usize>(), 128 * 128 * 5 / 8);
        let below = Strips { ahead: Some(128), ..strips };
        assert_eq!(below.by_queries().count(), 1);
    }
}
