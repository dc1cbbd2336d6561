//! Two-dimensional pooling over images `[n, channels, h, w]`, or `[n, h, w, channels]`: the greatest or the mean of each window.

use serde::{Deserialize, Serialize};

use super::image::ImageDims;
use super::shards::{fill_shard, one_float, read_element};
use super::window::Window;
use crate::array::Array;
use crate::operation::{
    EvalContext, OpError, Operand, Operation, Region, check_arity, shape_error,
};
use crate::rule::{DimRule, FactorKind, Rule};
use crate::types::{DType, TensorType};

/// x [n, c, h, w] -> [n, c, h', w']: the greatest of each window, borders left out; NaN where one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MaxPool {
    /// The height and width of the window.
    pub kernel: [usize; 2],
    /// The steps of the window over the image.
    pub window: Window,
    /// Whether images are `[n, h, w, channels]`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub channels_last: bool,
}

/// (x, dy) -> dx: each gradient at the first element, row-major, that is the greatest of its window, as torch has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MaxPoolGrad {
    /// The height and width of the window, as in [`MaxPool`].
    pub kernel: [usize; 2],
    /// The steps of the window, as in [`MaxPool`].
    pub window: Window,
    /// Whether images are `[n, h, w, channels]`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub channels_last: bool,
}

/// x [n, c, h, w] -> [n, c, h', w']: the mean of each window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AveragePool {
    /// The height and width of the window.
    pub kernel: [usize; 2],
    /// The steps of the window over the image.
    pub window: Window,
    /// Whether zeros of the border count, as they do in torch by default.
    pub count_border: bool,
    /// Whether images are `[n, h, w, channels]`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub channels_last: bool,
}

/// dy -> dx, of an image of this height and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AveragePoolGrad {
    /// The height and width of the window, as in [`AveragePool`].
    pub kernel: [usize; 2],
    /// The steps of the window, as in [`AveragePool`].
    pub window: Window,
    /// Whether zeros of the border count, as in [`AveragePool`].
    pub count_border: bool,
    /// The height and width of x.
    pub extents: [usize; 2],
    /// Whether images are `[n, h, w, channels]`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub channels_last: bool,
}

/// Builds the rule and the dims of the image and of the places, given the shapes that are known.
fn build_rule(
    op: &'static str,
    operands: &[&TensorType],
    (kernel, window): ([usize; 2], Window),
    order: ImageDims,
    extents: Option<[usize; 2]>,
) -> Result<(Rule, Vec<DimRule>, Vec<DimRule>), OpError> {
    window.check_values(op, operands)?;
    let Ok(shape) = <[usize; 4]>::try_from(&operands[0].shape[..]) else {
        let reason = format!("an image has four dims: {}", order.dim_names());
        return Err(shape_error(op, operands, reason));
    };
    let [n, c, h, w] = order.to_channels_first(shape);
    let [h, w] = extents.unwrap_or([h, w]);
    let places = [window.count_places(0, h, kernel[0]), window.count_places(1, w, kernel[1])];
    let [Some(rows), Some(columns)] = places else {
        let reason = format!("a window of {kernel:?} does not fit in {:?}", [h, w]);
        return Err(shape_error(op, operands, reason));
    };
    if (0..2).any(|dim| window.pads[dim].max(window.pads[dim + 2]) >= kernel[dim]) {
        return Err(shape_error(op, operands, "a window must not lie in the border alone"));
    }
    let mut rule = Rule::default();
    let [n, c] =
        [n, c].map(|size| DimRule::Factors(vec![rule.add_factor(size, FactorKind::Parallel)]));
    // A factor that no tensor has: each place reads its whole window.
    for size in kernel {
        rule.add_factor(size, FactorKind::Whole);
    }
    let dims = |extents: [usize; 2]| {
        let [h, w] = extents.map(DimRule::Whole);
        order.order_channels([n.clone(), c.clone(), h, w]).to_vec()
    };
    Ok((rule, dims([h, w]), dims([rows, columns])))
}

/// Counts one for each element of each window.
fn pool_flops(rule: &Rule, places: &[DimRule]) -> f64 {
    let factors: f64 = rule.factors.iter().map(|factor| factor.size as f64).product();
    let places = places.iter().filter(|dim| matches!(dim, DimRule::Whole(_)));
    factors * places.map(|dim| rule.extent(dim) as f64).product::<f64>()
}

/// Calls `body` with each element of the image in the window at a place, row-major.
pub(crate) fn over_window(
    (kernel, window): ([usize; 2], Window),
    place: [usize; 2],
    image: [usize; 2],
    mut body: impl FnMut([usize; 2]),
) {
    for i in 0..kernel[0] {
        let Some(row) = window.source_index(0, place[0], i, image[0]) else { continue };
        for j in 0..kernel[1] {
            if let Some(column) = window.source_index(1, place[1], j, image[1]) {
                body([row, column]);
            }
        }
    }
}

/// Returns the divisor of a window's mean at a place: the number of its elements inside the image, or with `border` also of those in the
/// border.
pub fn mean_divisor(
    (kernel, window): ([usize; 2], Window),
    border: bool,
    place: [usize; 2],
    image: [usize; 2],
) -> f64 {
    if border {
        // A place at the far end may reach beyond the border: torch counts what is inside it.
        let within = |dim: usize| {
            let start = place[dim] * window.strides[dim];
            let end = image[dim] + window.pads[dim] + window.pads[dim + 2];
            (0..kernel[dim]).filter(|k| start + k * window.dilations[dim] < end).count()
        };
        return (within(0) * within(1)) as f64;
    }
    let mut count = 0;
    over_window((kernel, window), place, image, |_| count += 1);
    count as f64
}

impl MaxPool {
    fn image_dims(&self) -> ImageDims {
        ImageDims { channels_last: self.channels_last }
    }

    /// Evaluates the op on images `[n, channels, h, w]`.
    fn evaluate_images(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
    ) -> Result<Vec<Array>, OpError> {
        let x = &operands[0];
        let element = |index: &[usize]| find_greatest(x, (self.kernel, self.window), index).1;
        Ok(vec![fill_shard(&results[0], element)])
    }
}

impl Operation for MaxPool {
    fn name(&self) -> &'static str {
        "max_pool"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 1, "1")?;
        Ok(vec![one_float(self.name(), operands, &[0])?])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let (mut rule, x, y) =
            build_rule(self.name(), operands, (self.kernel, self.window), self.image_dims(), None)?;
        (rule.operands, rule.results) = (vec![x], vec![y]);
        Ok(rule)
    }

    fn flops(&self, rule: &Rule) -> f64 {
        pool_flops(rule, &rule.results[0])
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let (operands, results) = ((operands, &[true; 1][..]), (results, &[true][..]));
        self.image_dims().evaluate_channels_first(operands, results, |operands, results| {
            self.evaluate_images(operands, results)
        })
    }
}

/// Finds the position of a window's greatest element, and its value; a NaN is greater than all.
fn find_greatest(x: &Operand<'_>, how: ([usize; 2], Window), index: &[usize]) -> ([usize; 2], f64) {
    let image = [x.region.global[2], x.region.global[3]];
    let mut found = ([0; 2], f64::NEG_INFINITY);
    let mut first = true;
    over_window(how, [index[2], index[3]], image, |[row, column]| {
        let value = read_element(x, &[index[0], index[1], row, column]);
        if first || value > found.1 || value.is_nan() && !found.1.is_nan() {
            (found, first) = (([row, column], value), false);
        }
    });
    found
}

impl MaxPoolGrad {
    fn image_dims(&self) -> ImageDims {
        ImageDims { channels_last: self.channels_last }
    }

    /// Evaluates the op on images `[n, channels, h, w]`.
    fn evaluate_images(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
    ) -> Result<Vec<Array>, OpError> {
        let [x, dy] = [&operands[0], &operands[1]];
        let how = (self.kernel, self.window);
        let element = |index: &[usize]| {
            each_place(dy.region)
                .filter(|place| {
                    let at = [index[0], index[1], place[0], place[1]];
                    find_greatest(x, how, &at).0 == [index[2], index[3]]
                })
                .map(|place| read_element(dy, &[index[0], index[1], place[0], place[1]]))
                .sum()
        };
        Ok(vec![fill_shard(&results[0], element)])
    }
}

impl Operation for MaxPoolGrad {
    fn name(&self) -> &'static str {
        "max_pool_grad"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 2, "2")?;
        Ok(vec![one_float(self.name(), operands, &[0, 1])?])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let (mut rule, x, y) =
            build_rule(self.name(), operands, (self.kernel, self.window), self.image_dims(), None)?;
        let expected: Vec<usize> = y.iter().map(|dim| rule.extent(dim)).collect();
        if operands[1].shape != expected {
            return Err(shape_error(
                self.name(),
                operands,
                format!("the gradient must be {expected:?}"),
            ));
        }
        rule.linear = vec![vec![1]];
        (rule.operands, rule.results) = (vec![x.clone(), y], vec![x]);
        Ok(rule)
    }

    fn flops(&self, rule: &Rule) -> f64 {
        pool_flops(rule, &rule.operands[1])
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let (operands, results) = ((operands, &[true; 2][..]), (results, &[true][..]));
        self.image_dims().evaluate_channels_first(operands, results, |operands, results| {
            self.evaluate_images(operands, results)
        })
    }
}

fn each_place(region: &Region) -> impl Iterator<Item = [usize; 2]> {
    let [rows, columns] = [region.global[2], region.global[3]];
    (0..rows).flat_map(move |row| (0..columns).map(move |column| [row, column]))
}

impl AveragePool {
    fn image_dims(&self) -> ImageDims {
        ImageDims { channels_last: self.channels_last }
    }

    /// Evaluates the op on images `[n, channels, h, w]`.
    fn evaluate_images(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
    ) -> Result<Vec<Array>, OpError> {
        let x = &operands[0];
        let (how, image) = ((self.kernel, self.window), [x.region.global[2], x.region.global[3]]);
        let element = |index: &[usize]| {
            let (place, mut sum) = ([index[2], index[3]], 0.0);
            over_window(how, place, image, |[row, column]| {
                sum += read_element(x, &[index[0], index[1], row, column]);
            });
            sum / mean_divisor(how, self.count_border, place, image)
        };
        Ok(vec![fill_shard(&results[0], element)])
    }
}

impl Operation for AveragePool {
    fn name(&self) -> &'static str {
        "average_pool"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 1, "1")?;
        Ok(vec![one_float(self.name(), operands, &[0])?])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let (mut rule, x, y) =
            build_rule(self.name(), operands, (self.kernel, self.window), self.image_dims(), None)?;
        rule.linear = vec![vec![0]];
        (rule.operands, rule.results) = (vec![x], vec![y]);
        Ok(rule)
    }

    fn flops(&self, rule: &Rule) -> f64 {
        pool_flops(rule, &rule.results[0])
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let (operands, results) = ((operands, &[true; 1][..]), (results, &[true][..]));
        self.image_dims().evaluate_channels_first(operands, results, |operands, results| {
            self.evaluate_images(operands, results)
        })
    }
}

impl AveragePoolGrad {
    fn image_dims(&self) -> ImageDims {
        ImageDims { channels_last: self.channels_last }
    }

    /// Evaluates the op on images `[n, channels, h, w]`.
    fn evaluate_images(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
    ) -> Result<Vec<Array>, OpError> {
        let (dy, how) = (&operands[0], (self.kernel, self.window));
        let element = |index: &[usize]| {
            let mut sum = 0.0;
            for place in each_place(dy.region) {
                let divisor = mean_divisor(how, self.count_border, place, self.extents);
                over_window(how, place, self.extents, |element| {
                    if element == [index[2], index[3]] {
                        sum +=
                            read_element(dy, &[index[0], index[1], place[0], place[1]]) / divisor;
                    }
                });
            }
            sum
        };
        Ok(vec![fill_shard(&results[0], element)])
    }
}

impl Operation for AveragePoolGrad {
    fn name(&self) -> &'static str {
        "average_pool_grad"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 1, "1")?;
        Ok(vec![one_float(self.name(), operands, &[0])?])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let how = (self.kernel, self.window);
        let (mut rule, x, y) =
            build_rule(self.name(), operands, how, self.image_dims(), Some(self.extents))?;
        let expected: Vec<usize> = y.iter().map(|dim| rule.extent(dim)).collect();
        if operands[0].shape != expected {
            return Err(shape_error(
                self.name(),
                operands,
                format!("the gradient must be {expected:?}"),
            ));
        }
        rule.linear = vec![vec![0]];
        (rule.operands, rule.results) = (vec![y], vec![x]);
        Ok(rule)
    }

    fn flops(&self, rule: &Rule) -> f64 {
        pool_flops(rule, &rule.operands[0])
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let (operands, results) = ((operands, &[true; 1][..]), (results, &[true][..]));
        self.image_dims().evaluate_channels_first(operands, results, |operands, results| {
            self.evaluate_images(operands, results)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::ops::shards::tests::evaluate;

    const WINDOW: Window = Window { strides: [2, 2], pads: [1, 1, 0, 0], dilations: [1, 1] };

    fn image() -> (DType, Array) {
        (DType::F32, Array::new([1, 1, 3, 3], vec![1., 2., 9., 4., 9., 6., 7., 8., 9.]))
    }

    #[test]
    fn the_greatest_of_windows_and_where_it_first_is() {
        let kernel = [2, 2];
        let op = Op::MaxPool(MaxPool { kernel, window: WINDOW, channels_last: false });
        let y = evaluate(op, &[image()]).expect("fits");
        assert_eq!(y, [Array::new([1, 1, 2, 2], vec![1., 9., 7., 9.])]);
        let op = Op::MaxPoolGrad(MaxPoolGrad { kernel, window: WINDOW, channels_last: false });
        let dy = (DType::F32, Array::new([1, 1, 2, 2], vec![1., 2., 3., 4.]));
        let dx = evaluate(op, &[image(), dy]).expect("fits");
        assert_eq!(dx[0].data, [1., 0., 2., 0., 4., 0., 3., 0., 0.]);
    }

    #[test]
    fn the_mean_of_windows_with_their_border_and_without() {
        let of = |count_border| {
            let channels_last = false;
            let op = AveragePool { kernel: [2, 2], window: WINDOW, count_border, channels_last };
            evaluate(Op::AveragePool(op), &[image()]).expect("fits")[0].data.clone()
        };
        assert_eq!(of(true), [0.25, 2.75, 2.75, 8.0]);
        assert_eq!(of(false), [1.0, 5.5, 5.5, 8.0]);
    }
}
