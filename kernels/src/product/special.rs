//! What three `bf16` do not hold: infinite numbers, those within 1/512 of the greatest `f32`, which rounding makes infinite, and what is not
//! a number. What these meet is summed again in `f32`, or is not a number either.

use super::pairs::{SIDE, Sums};
use super::tiles::FactorStrip;
use super::{Data, Layout};

/// The least magnitude that is infinite when it is rounded to `bf16`.
const INFINITE: f32 = f32::from_bits(0x7F7F_8000);

/// What the numbers of a lane need.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LaneKind {
    /// Three parts hold all of them.
    Held,
    /// One is so large that what the lane meets is summed again.
    Large,
    /// One is not a number.
    NotANumber,
}

/// Strips of both factors, and the kinds of their lanes.
pub(super) struct SpecialLanes<'a> {
    strips: [FactorStrip<'a>; 2],
    lanes: [Vec<LaneKind>; 2],
}

impl<'a> SpecialLanes<'a> {
    /// Reads strips of `f32`.
    pub(super) fn find(strips: [FactorStrip<'a>; 2]) -> Self {
        let lanes = strips.map(|strip| (0..strip.extents[0]).map(|at| strip.kind(at)).collect());
        Self { strips, lanes }
    }

    /// Writes again what such lanes meet, in the block of sums that begins at a row and a column.
    pub(super) fn sum_again(&self, sums: &mut Sums, [top, left]: [usize; 2]) {
        let [rows, columns] = [&self.lanes[0][top..], &self.lanes[1][left..]];
        let [by_row, by_column] = self.strips;
        for (row, &of_row) in rows.iter().take(SIDE).enumerate() {
            for (column, &of_column) in columns.iter().take(SIDE).enumerate() {
                let sum = &mut sums[row * SIDE + column];
                match of_row.max(of_column) {
                    LaneKind::Held => {}
                    LaneKind::NotANumber => *sum = f32::NAN,
                    LaneKind::Large => {
                        let terms = by_row.lane(top + row).zip(by_column.lane(left + column));
                        *sum = terms.fold(0.0, |sum, (a, b)| a.mul_add(b, sum));
                    }
                }
            }
        }
    }
}

impl<'a> FactorStrip<'a> {
    /// The numbers of a lane.
    fn lane(&self, lane: usize) -> impl Iterator<Item = f32> + use<'a> {
        let Data::Single(all) = self.data else { unreachable!("thirds are of f32") };
        let Layout { row, column } = self.layout;
        let start = (self.start[0] + lane) * row + self.start[1] * column;
        (0..self.extents[1]).map(move |place| all[start + place * column])
    }

    fn kind(&self, lane: usize) -> LaneKind {
        let kind = |x: f32| match () {
            () if x.is_nan() => LaneKind::NotANumber,
            () if x.abs() >= INFINITE => LaneKind::Large,
            () => LaneKind::Held,
        };
        self.lane(lane).map(kind).max().unwrap_or(LaneKind::Held)
    }
}
