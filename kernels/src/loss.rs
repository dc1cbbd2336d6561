//! Cross entropy, picking by label, and their gradients. Classes are the last dim; it may be split where the op is
//! indexed by class, and then each rank takes the labels that it holds.

use std::ops::Range;

use graphc_ir::op::Op;
use graphc_ir::ops::{CrossEntropy, IGNORED_LABEL};

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::indices::IndexView;
use crate::math;
use crate::parallel::{RowOutput, over_rows};
use crate::precision::{Float, parts_of};
use crate::rows;
use crate::simd::vectorized;
use crate::view::{View, ViewMut};

/// The scores that a shard holds.
struct ShardClasses {
    held: Range<usize>,
    global: usize,
    /// The number of scores, over all shards, that are those of classes. The scores behind them are padding.
    count: usize,
}

impl ShardClasses {
    /// Takes the range of classes from the last dim of a shard, of which so many are `classes`.
    fn from_shard(
        op: &'static str,
        (shape, origin, global): (&[usize], &[usize], &[usize]),
        rows: usize,
        classes: Option<usize>,
    ) -> Result<Self, KernelError> {
        match (shape.split_last(), origin.last(), global.last()) {
            (Some((&extent, outer)), Some(&first), Some(&global))
                if outer.iter().product::<usize>() == rows =>
            {
                let count = classes.unwrap_or(global);
                Ok(Self { held: first..first + extent, global, count })
            }
            _ => Err(KernelError::bad_call(op, format!("{shape:?} with {rows} labels"))),
        }
    }

    /// Returns the number of scores of a row of the shard that are those of classes: the first ones.
    fn count_held(&self) -> usize {
        self.count.clamp(self.held.start, self.held.end) - self.held.start
    }

    /// The labels, which lead to classes.
    fn labels<'a>(&self, labels: &View<'a>) -> Result<IndexView<'a>, KernelError> {
        IndexView::new("label", labels, self.count, Some(IGNORED_LABEL))
    }

    /// Returns the position of a label's class in the shard; `None` if another rank holds it, or the label is ignored.
    fn find_class(&self, label: Option<usize>) -> Option<usize> {
        label.filter(|label| self.held.contains(label)).map(|label| label - self.held.start)
    }
}

/// The kernel of [`Op::CrossEntropy`].
pub(crate) fn cross_entropy<T: Float>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    const OP: &str = "cross_entropy";
    let (Op::CrossEntropy(op), [x, labels], [loss, l]) = (op, operands, results) else {
        return Err(KernelError::bad_call(OP, "takes two operands and gives two results"));
    };
    let classes =
        ShardClasses::from_shard(OP, (x.shape, x.origin, x.global), labels.len(), op.classes)?;
    let (extent, count) = (classes.held.len(), classes.count);
    if extent != classes.global || loss.len() != labels.len() || l.len() != labels.len() {
        return Err(KernelError::bad_call(OP, format!("{:?} of {:?}", x.shape, x.global)));
    }
    let labels = classes.labels(labels)?;
    let x = x.as_slice::<T>()?;
    let [losses, ls] = [loss, l].map(|out| out.as_mut_slice::<f32>());
    let outputs = (RowOutput::new(losses?, 1), RowOutput::new(ls?, 1));
    let (rows, room) = (labels.len(), T::scratch_len(extent));
    over_rows(cx, [rows, extent], room, outputs, &|range, (mut losses, mut ls), room| {
        for (index, row) in range.enumerate() {
            let x = T::read_values(&x[row * extent..row * extent + count], room);
            let (greatest, log) = log_sum_exp(x);
            ls.row(index)[0] = greatest + log;
            let loss =
                labels.index_at(row)?.map(|label| log - target_score(op, x, label, greatest));
            losses.row(index)[0] = loss.unwrap_or(0.0);
        }
        Ok(())
    })
}

/// The score of the label less the greatest score; smoothed, with its share of the mean of all scores.
fn target_score(op: &CrossEntropy, x: &[f32], label: usize, greatest: f32) -> f32 {
    let own = x[label] - greatest;
    if op.smoothing.is_zero() {
        return own;
    }
    let share = op.smoothing.0 as f32;
    (1.0 - share) * own + share * (row_sum(x) / x.len() as f32 - greatest)
}

/// The kernel of [`Op::CrossEntropyGrad`].
pub(crate) fn cross_entropy_grad<T: Float>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    const OP: &str = "cross_entropy_grad";
    let (Op::CrossEntropyGrad(op), [x, l, labels, g], [dx]) = (op, operands, results) else {
        return Err(KernelError::bad_call(OP, "takes four operands and gives one result"));
    };
    let classes =
        ShardClasses::from_shard(OP, (x.shape, x.origin, x.global), labels.len(), op.classes)?;
    if dx.shape != x.shape || l.len() != labels.len() || g.len() != labels.len() {
        return Err(KernelError::bad_call(OP, "operands of other shapes"));
    }
    let (extent, here) = (classes.held.len(), classes.count_held());
    let labels = classes.labels(labels)?;
    let (x, l, g) = (x.as_slice::<T>()?, l.as_slice::<f32>()?, g.as_slice::<f32>()?);
    let dx = RowOutput::new(dx.as_mut_slice::<T>()?, extent);
    // What the target gives the label, and every class besides.
    let own = (1.0 - op.smoothing.0) as f32;
    let each = (op.smoothing.0 / classes.count as f64) as f32;
    let (rows, room) = (labels.len(), T::scratch_len(2 * extent));
    over_rows(cx, [rows, extent], room, dx, &|range, mut dx, room| {
        let [of_x, of_dx] = parts_of(room);
        for (index, row) in range.enumerate() {
            let (dx, padding) = dx.row(index).split_at_mut(here);
            padding.fill(T::default());
            let label = labels.index_at(row)?;
            if label.is_none() {
                dx.fill(T::default());
                continue;
            }
            let x = T::read_values(&x[row * extent..row * extent + here], of_x);
            T::write_values(dx, of_dx, |dx| {
                scaled_softmax(x, l[row], g[row], dx);
                if let Some(place) = classes.find_class(label) {
                    dx[place] -= own * g[row];
                }
                if !op.smoothing.is_zero() {
                    subtract_from(dx, each * g[row]);
                }
            });
        }
        Ok(())
    })
}

/// The kernel of [`Op::Pick`].
pub(crate) fn pick_scores<T: Float>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    _cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::Pick(op), [x, labels], [out]) = (op, operands, results) else {
        return Err(KernelError::bad_call("pick", "takes two operands and gives one result"));
    };
    let classes =
        ShardClasses::from_shard("pick", (x.shape, x.origin, x.global), labels.len(), op.classes)?;
    if out.len() != labels.len() {
        return Err(KernelError::bad_call("pick", "a result of another shape"));
    }
    let labels = classes.labels(labels)?;
    let x = x.as_slice::<T>()?;
    for (row, out) in out.as_mut_slice::<T>()?.iter_mut().enumerate() {
        let place = classes.find_class(labels.index_at(row)?);
        *out = place.map_or(T::default(), |place| x[row * classes.held.len() + place]);
    }
    Ok(())
}

/// The kernel of [`Op::LabelRank`].
pub(crate) fn label_rank<T: Float>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    const OP: &str = "label_rank";
    let (Op::LabelRank(op), [x, labels, scores], [ranks]) = (op, operands, results) else {
        return Err(KernelError::bad_call(OP, "takes three operands and gives one result"));
    };
    let classes =
        ShardClasses::from_shard(OP, (x.shape, x.origin, x.global), labels.len(), op.classes)?;
    if scores.len() != labels.len() || ranks.len() != labels.len() {
        return Err(KernelError::bad_call(OP, "operands of other shapes"));
    }
    let (extent, here) = (classes.held.len(), classes.count_held());
    let labels = classes.labels(labels)?;
    let (x, scores) = (x.as_slice::<T>()?, scores.as_slice::<T>()?);
    let ranks = RowOutput::new(ranks.as_mut_slice::<f32>()?, 1);
    let (rows, room) = (labels.len(), T::scratch_len(extent));
    over_rows(cx, [rows, extent], room, ranks, &|range, mut ranks, room| {
        for (index, row) in range.enumerate() {
            let Some(label) = labels.index_at(row)? else {
                ranks.row(index)[0] = 0.0;
                continue;
            };
            let x = T::read_values(&x[row * extent..row * extent + here], room);
            // Of equal scores those of lower classes come first.
            let (lower, rest) = x.split_at(label.saturating_sub(classes.held.start).min(here));
            let score = scores[row].value();
            let before =
                lower.len() - count_below(lower, score) + rest.len() - count_up_to(rest, score);
            ranks.row(index)[0] = before as f32;
        }
        Ok(())
    })
}

/// The kernel of [`Op::PickGrad`].
pub(crate) fn pick_grad<T: Float>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    _cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::PickGrad(op), [labels, g], [dx]) = (op, operands, results) else {
        return Err(KernelError::bad_call("pick_grad", "takes two operands and gives one result"));
    };
    let place = (dx.shape, dx.origin, dx.global);
    let classes = ShardClasses::from_shard("pick_grad", place, labels.len(), Some(op.classes))?;
    if g.len() != labels.len() {
        return Err(KernelError::bad_call("pick_grad", "a gradient of another shape"));
    }
    let labels = classes.labels(labels)?;
    let g = g.as_slice::<T>()?;
    let dx = dx.as_mut_slice::<T>()?;
    dx.fill(T::default());
    for (row, &g) in g.iter().enumerate() {
        if let Some(place) = classes.find_class(labels.index_at(row)?) {
            dx[row * classes.held.len() + place] = g;
        }
    }
    Ok(())
}

vectorized! {
    /// The greatest x, and log(sum(exp(x - greatest))).
    fn log_sum_exp(x: &[f32]) -> (f32, f32) {
        let greatest = rows::greatest_of_row(x);
        (greatest, math::log(rows::sum_exp(x, greatest)))
    }
}

vectorized! {
    /// exp(x - l) g.
    fn scaled_softmax(x: &[f32], l: f32, g: f32, out: &mut [f32]) {
        for (out, &x) in out.iter_mut().zip(x) {
            *out = math::exp_below(x - l) * g;
        }
    }
}

vectorized! {
    /// The sum of a row.
    fn row_sum(x: &[f32]) -> f32 {
        rows::sum_row(x)
    }
}

vectorized! {
    /// Takes a number from each element.
    fn subtract_from(out: &mut [f32], by: f32) {
        for out in out {
            *out -= by;
        }
    }
}

vectorized! {
    /// Counts the elements that are below a number.
    fn count_below(x: &[f32], number: f32) -> usize {
        x.iter().map(|&x| usize::from(x < number)).sum()
    }
}

vectorized! {
    /// Counts the elements that are a number or below it.
    fn count_up_to(x: &[f32], number: f32) -> usize {
        x.iter().map(|&x| usize::from(x <= number)).sum()
    }
}
