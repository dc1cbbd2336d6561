//! Two-dimensional convolution over images `[n, channels, h, w]`, or `[n, h, w, channels]`, in groups, and its gradients.
//! Kernels have one layout, whatever that of images is.
//!
//! Each of the three is linear in both operands, and a gradient of one is another of them. Images are never split
//! along h and w: an extent is no product of factors of the iteration space.

use serde::{Deserialize, Serialize};

use super::image::{ImageDims, convolution_arithmetic, extent_of, for_each_place};
use super::shards::{fill_shard, one_float, read_element};
use super::window::Window;
use crate::array::Array;
use crate::operation::{
    Arithmetic, EvalContext, OpError, Operand, Operation, Region, check_arity, shape_error,
};
use crate::rule::{DimRule, FactorKind, Rule};
use crate::sbp::ReduceKind;
use crate::types::{DType, TensorType};

/// (x [n, c, h, w], k [o, c / groups, kh, kw]) -> [n, o, h', w']: of each group of channels the correlation with its
/// kernels, as torch.nn.functional.conv2d has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Convolution {
    /// The steps of the window over the image.
    pub window: Window,
    /// The number of groups of channels; they divide channels of both sides.
    pub groups: usize,
    /// Whether images are `[n, h, w, channels]`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub channels_last: bool,
}

/// (k, dy) -> dx, of an image of this height and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ConvolutionInputGrad {
    /// The steps of the window, as in [`Convolution`].
    pub window: Window,
    /// The number of groups, as in [`Convolution`].
    pub groups: usize,
    /// The height and width of x.
    pub extents: [usize; 2],
    /// Whether images are `[n, h, w, channels]`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub channels_last: bool,
}

/// (x, dy) -> dk, of a kernel of this height and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ConvolutionKernelGrad {
    /// The steps of the window, as in [`Convolution`].
    pub window: Window,
    /// The number of groups, as in [`Convolution`].
    pub groups: usize,
    /// The height and width of k.
    pub extents: [usize; 2],
    /// Whether images are `[n, h, w, channels]`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub channels_last: bool,
}

/// The index of the factor of the batch; factors are in the order of [`build_rule`].
const BATCH: usize = 0;
const GROUPS: usize = 1;
const OUTPUTS: usize = 2;
const INPUTS: usize = 3;
/// The number of factors that [`build_rule`] makes.
const FACTORS: usize = 6;

/// Builds the iteration space of all three, and the dims of x, k and y.
fn build_rule(
    extents: &ConvolutionExtents,
    of: ConvolutionParameters,
) -> (Rule, [Vec<DimRule>; 3]) {
    let ConvolutionExtents { batch, groups, outputs, inputs, kernel, image, places } = *extents;
    let mut rule = Rule { linear: vec![vec![0], vec![1]], ..Rule::default() };
    let [n, g, o, c] =
        [batch, groups, outputs, inputs].map(|size| rule.add_factor(size, FactorKind::Parallel));
    let [kh, kw] = kernel.map(|size| rule.add_factor(size, FactorKind::Whole));
    let dim = |factors: &[usize]| DimRule::Factors(factors.to_vec());
    let image_of = |channels: &[usize], extents: [usize; 2]| {
        let [h, w] = extents.map(DimRule::Whole);
        of.dims.order_channels([dim(&[n]), dim(channels), h, w]).to_vec()
    };
    let k = vec![dim(&[g, o]), dim(&[c]), dim(&[kh]), dim(&[kw])];
    (rule, [image_of(&[g, c], image), k, image_of(&[g, o], places)])
}

/// The parameters that a convolution and its two gradients have besides extents.
#[derive(Clone, Copy)]
struct ConvolutionParameters {
    window: Window,
    groups: usize,
    dims: ImageDims,
}

/// All extents of a convolution; `outputs` and `inputs` count the channels of one group.
struct ConvolutionExtents {
    batch: usize,
    groups: usize,
    outputs: usize,
    inputs: usize,
    kernel: [usize; 2],
    image: [usize; 2],
    places: [usize; 2],
}

impl ConvolutionExtents {
    /// Reads the extents from the shapes of x, k and, where it is an operand, y.
    fn new(
        op: &'static str,
        operands: &[&TensorType],
        ConvolutionParameters { window, groups, dims }: ConvolutionParameters,
        [x, k, y]: [Option<[usize; 4]>; 3],
        [image, kernel]: [Option<[usize; 2]>; 2],
    ) -> Result<Self, OpError> {
        let [x, y] = [x, y].map(|shape| shape.map(|shape| dims.to_channels_first(shape)));
        let fail = |reason: String| Err(shape_error(op, operands, reason));
        window.check_values(op, operands)?;
        if groups == 0 || groups > 1 << 20 {
            return fail("there must be a group".into());
        }
        let channels = x.map(|x| x[1]).or(k.map(|k| k[1] * groups)).unwrap_or(0);
        let features = k.map(|k| k[0]).or(y.map(|y| y[1])).unwrap_or(0);
        let image = image.or(x.map(|x| [x[2], x[3]])).unwrap_or([0; 2]);
        let kernel = kernel.or(k.map(|k| [k[2], k[3]])).unwrap_or([0; 2]);
        if !channels.is_multiple_of(groups) || !features.is_multiple_of(groups) {
            return fail(format!(
                "{groups} groups do not divide {channels} and {features} channels"
            ));
        }
        let inputs = channels / groups;
        if k.is_some_and(|k| k[1] != inputs) {
            return fail(format!("kernels of {inputs} channels are needed: those of one group"));
        }
        let [h, w] = [0, 1].map(|dim| window.count_places(dim, image[dim], kernel[dim]));
        let (Some(h), Some(w)) = (h, w) else {
            return fail(format!("a kernel of {kernel:?} does not fit in {image:?}"));
        };
        let batch = x.or(y).map_or(0, |of_batch| of_batch[0]);
        if y.is_some_and(|y| y != [batch, features, h, w]) {
            let expected = dims.order_channels([batch, features, h, w]);
            return fail(format!("the gradient must be {expected:?}"));
        }
        let outputs = features / groups;
        Ok(Self { batch, groups, outputs, inputs, kernel, image, places: [h, w] })
    }
}

fn expect_four_dims(
    op: &'static str,
    operands: &[&TensorType],
    index: usize,
) -> Result<[usize; 4], OpError> {
    let shape = operands[index].shape.as_slice().try_into();
    shape.map_err(|_| shape_error(op, operands, format!("operand {index} needs four dims")))
}

/// Counts 2 FLOPs for each element of the kernels, place of the window and element of the batch.
fn convolution_flops(rule: &Rule, places: &[DimRule]) -> f64 {
    let factors: f64 = rule.factors[..FACTORS].iter().map(|factor| factor.size as f64).product();
    let places = places.iter().filter(|dim| matches!(dim, DimRule::Whole(_)));
    2.0 * factors * places.map(|dim| rule.extent(dim) as f64).product::<f64>()
}

impl Convolution {
    fn shared_parameters(&self) -> ConvolutionParameters {
        let dims = ImageDims { channels_last: self.channels_last };
        ConvolutionParameters { window: self.window, groups: self.groups, dims }
    }

    /// Evaluates the op on images `[n, channels, h, w]`.
    fn evaluate_images(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
    ) -> Result<Vec<Array>, OpError> {
        let [x, k] = [&operands[0], &operands[1]];
        let sums = WindowSums { window: self.window, x: &x.region.global, k: &k.region.global };
        let [outputs, inputs] = [k.region.global[0] / self.groups, k.region.global[1]];
        // The channels of a group that this rank holds.
        let channels = shard_range(k.region, 1);
        let element = |index: &[usize]| {
            let first = index[1] / outputs * inputs;
            let mut sum = 0.0;
            for channel in channels.clone() {
                sums.over_window([index[2], index[3]], |[row, column], [i, j]| {
                    let x = read_element(x, &[index[0], first + channel, row, column]);
                    sum += x * read_element(k, &[index[1], channel, i, j]);
                });
            }
            sum
        };
        Ok(vec![fill_shard(&results[0], element)])
    }
}

impl Operation for Convolution {
    fn name(&self) -> &'static str {
        "convolution"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 2, "2")?;
        Ok(vec![one_float(self.name(), operands, &[0, 1])?])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let (x, k) = (
            expect_four_dims(self.name(), operands, 0)?,
            expect_four_dims(self.name(), operands, 1)?,
        );
        let known = [Some(x), Some(k), None];
        let extents = ConvolutionExtents::new(
            self.name(),
            operands,
            self.shared_parameters(),
            known,
            [None; 2],
        )?;
        let (mut rule, [x, k, y]) = build_rule(&extents, self.shared_parameters());
        rule.factors[INPUTS].kind = FactorKind::Reduction(ReduceKind::Sum);
        let mut x = x;
        if self.groups > 1 {
            // The channels of a group do not lead in x: ranks that split those of the kernels have all of x.
            let whole = rule.add_factor(extents.inputs, FactorKind::Whole);
            let channels = if self.channels_last { 3 } else { 1 };
            x[channels] = DimRule::Factors(vec![GROUPS, whole]);
        }
        (rule.operands, rule.results) = (vec![x, k], vec![y]);
        Ok(rule)
    }

    fn flops(&self, rule: &Rule) -> f64 {
        convolution_flops(rule, &rule.results[0])
    }

    fn multiplies_matrices(&self) -> bool {
        true
    }

    fn arithmetic(&self, operands: &[&TensorType]) -> Arithmetic {
        let [_, k] = operands else { return Arithmetic::Products };
        let columns = extent_of(k, 0) / self.groups.max(1);
        convolution_arithmetic([extent_of(k, 2), extent_of(k, 3)], columns, false)
    }

    fn begins_chain(&self) -> bool {
        self.channels_last
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let (operands, results) = ((operands, &[true, false][..]), (results, &[true][..]));
        self.shared_parameters().dims.evaluate_channels_first(
            operands,
            results,
            |operands, results| self.evaluate_images(operands, results),
        )
    }
}

impl ConvolutionInputGrad {
    fn shared_parameters(&self) -> ConvolutionParameters {
        let dims = ImageDims { channels_last: self.channels_last };
        ConvolutionParameters { window: self.window, groups: self.groups, dims }
    }

    /// Evaluates the op on images `[n, channels, h, w]`.
    fn evaluate_images(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
    ) -> Result<Vec<Array>, OpError> {
        let [k, dy] = [&operands[0], &operands[1]];
        let sums = WindowSums { window: self.window, x: &results[0].global, k: &k.region.global };
        let [outputs, inputs] = [k.region.global[0] / self.groups, k.region.global[1]];
        let outputs_held = shard_range(k.region, 0);
        let mut dx = Array::full(results[0].rect.extent.clone(), 0.0);
        let [batch, channels] = [0, 1].map(|dim| shard_range(&results[0], dim));
        for image in batch.clone() {
            for channel in channels.clone() {
                let group = channel / inputs * outputs..(channel / inputs + 1) * outputs;
                let held: Vec<usize> = group.filter(|o| outputs_held.contains(o)).collect();
                assert!(
                    outputs_held.is_empty() || !held.is_empty(),
                    "the rule gives a rank a group"
                );
                for output in held {
                    for_each_place(&dy.region.global, |place| {
                        let g = read_element(dy, &[image, output, place[0], place[1]]);
                        sums.over_window(place, |[row, column], [i, j]| {
                            let to = [image - batch.start, channel - channels.start, row, column];
                            let offset = dx.offset_of_index(&to);
                            dx.data[offset] +=
                                g * read_element(k, &[output, channel % inputs, i, j]);
                        });
                    });
                }
            }
        }
        Ok(vec![dx])
    }
}

impl Operation for ConvolutionInputGrad {
    fn name(&self) -> &'static str {
        "convolution_input_grad"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 2, "2")?;
        Ok(vec![one_float(self.name(), operands, &[0, 1])?])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let (k, y) = (
            expect_four_dims(self.name(), operands, 0)?,
            expect_four_dims(self.name(), operands, 1)?,
        );
        let known = [None, Some(k), Some(y)];
        let extents = [Some(self.extents), None];
        let extents = ConvolutionExtents::new(
            self.name(),
            operands,
            self.shared_parameters(),
            known,
            extents,
        )?;
        let (mut rule, [x, k, y]) = build_rule(&extents, self.shared_parameters());
        rule.factors[OUTPUTS].kind = FactorKind::Reduction(ReduceKind::Sum);
        (rule.operands, rule.results) = (vec![k, y], vec![x]);
        Ok(rule)
    }

    fn flops(&self, rule: &Rule) -> f64 {
        convolution_flops(rule, &rule.operands[1])
    }

    fn multiplies_matrices(&self) -> bool {
        true
    }

    fn arithmetic(&self, operands: &[&TensorType]) -> Arithmetic {
        let [k, _] = operands else { return Arithmetic::Products };
        convolution_arithmetic([extent_of(k, 2), extent_of(k, 3)], extent_of(k, 1), true)
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let (operands, results) = ((operands, &[false, true][..]), (results, &[true][..]));
        self.shared_parameters().dims.evaluate_channels_first(
            operands,
            results,
            |operands, results| self.evaluate_images(operands, results),
        )
    }
}

impl ConvolutionKernelGrad {
    fn shared_parameters(&self) -> ConvolutionParameters {
        let dims = ImageDims { channels_last: self.channels_last };
        ConvolutionParameters { window: self.window, groups: self.groups, dims }
    }

    /// Evaluates the op on images `[n, channels, h, w]`.
    fn evaluate_images(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
    ) -> Result<Vec<Array>, OpError> {
        let [x, dy] = [&operands[0], &operands[1]];
        let sums = WindowSums { window: self.window, x: &x.region.global, k: &results[0].global };
        let [outputs, inputs] = [results[0].global[0] / self.groups, results[0].global[1]];
        let mut dk = Array::full(results[0].rect.extent.clone(), 0.0);
        let [features, channels] = [0, 1].map(|dim| shard_range(&results[0], dim));
        for output in features.clone() {
            for channel in channels.clone() {
                let source = output / outputs * inputs + channel;
                for image in shard_range(x.region, 0) {
                    for_each_place(&dy.region.global, |place| {
                        let g = read_element(dy, &[image, output, place[0], place[1]]);
                        sums.over_window(place, |[row, column], [i, j]| {
                            let to = [output - features.start, channel - channels.start, i, j];
                            let offset = dk.offset_of_index(&to);
                            dk.data[offset] += g * read_element(x, &[image, source, row, column]);
                        });
                    });
                }
            }
        }
        Ok(vec![dk])
    }
}

impl Operation for ConvolutionKernelGrad {
    fn name(&self) -> &'static str {
        "convolution_kernel_grad"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 2, "2")?;
        Ok(vec![one_float(self.name(), operands, &[0, 1])?])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        let (x, y) = (
            expect_four_dims(self.name(), operands, 0)?,
            expect_four_dims(self.name(), operands, 1)?,
        );
        let known = [Some(x), None, Some(y)];
        let extents = [None, Some(self.extents)];
        let extents = ConvolutionExtents::new(
            self.name(),
            operands,
            self.shared_parameters(),
            known,
            extents,
        )?;
        let (mut rule, [x, k, y]) = build_rule(&extents, self.shared_parameters());
        rule.factors[BATCH].kind = FactorKind::Reduction(ReduceKind::Sum);
        (rule.operands, rule.results) = (vec![x, y], vec![k]);
        Ok(rule)
    }

    fn flops(&self, rule: &Rule) -> f64 {
        convolution_flops(rule, &rule.operands[1])
    }

    fn multiplies_matrices(&self) -> bool {
        true
    }

    fn arithmetic(&self, operands: &[&TensorType]) -> Arithmetic {
        let [_, dy] = operands else { return Arithmetic::Products };
        let channels = extent_of(dy, if self.channels_last { 3 } else { 1 });
        convolution_arithmetic(self.extents, channels / self.groups.max(1), true)
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let (operands, results) = ((operands, &[true, true][..]), (results, &[false][..]));
        self.shared_parameters().dims.evaluate_channels_first(
            operands,
            results,
            |operands, results| self.evaluate_images(operands, results),
        )
    }
}

/// Returns the range of a dim that a shard covers.
fn shard_range(region: &Region, dim: usize) -> std::ops::Range<usize> {
    let start = region.rect.origin[dim];
    start..start + region.rect.extent[dim]
}

/// The pairs of an element of an image and an element of a kernel that a window multiplies.
struct WindowSums<'a> {
    window: Window,
    x: &'a [usize],
    k: &'a [usize],
}

impl WindowSums<'_> {
    /// Calls `body(element of the image, element of the kernel)` for the window at a place, borders left out.
    fn over_window(&self, place: [usize; 2], mut body: impl FnMut([usize; 2], [usize; 2])) {
        for i in 0..self.k[2] {
            let Some(row) = self.window.source_index(0, place[0], i, self.x[2]) else { continue };
            for j in 0..self.k[3] {
                if let Some(column) = self.window.source_index(1, place[1], j, self.x[3]) {
                    body([row, column], [i, j]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::ops::shards::tests::evaluate;

    fn convolution(window: Window, groups: usize) -> Op {
        Op::Convolution(Convolution { window, groups, channels_last: false })
    }

    fn floats(shape: [usize; 4], data: &[f64]) -> (DType, Array) {
        (DType::F32, Array::new(shape, data.to_vec()))
    }

    #[test]
    fn a_window_by_hand() {
        let x = floats([1, 1, 3, 3], &[1., 2., 3., 4., 5., 6., 7., 8., 9.]);
        let k = floats([1, 1, 2, 2], &[1., 0., 0., 10.]);
        let y = evaluate(convolution(Window::PLAIN, 1), &[x.clone(), k.clone()]).expect("fits");
        assert_eq!(y, [Array::new([1, 1, 2, 2], vec![51., 62., 84., 95.])]);
        let window = Window { strides: [2, 1], pads: [1, 0, 0, 1], dilations: [2, 2] };
        let y = evaluate(convolution(window, 1), &[x, k]).expect("fits");
        assert_eq!(y, [Array::new([1, 1, 1, 2], vec![60., 0.])]);
    }

    #[test]
    fn groups_see_their_own_channels() {
        let x = floats([1, 2, 1, 1], &[3., 5.]);
        let k = floats([4, 1, 1, 1], &[1., 2., 10., 20.]);
        let y = evaluate(convolution(Window::PLAIN, 2), &[x, k]).expect("fits");
        assert_eq!(y[0].data, [3., 6., 50., 100.]);
    }

    #[test]
    fn flops_count_the_places_of_the_window() {
        let window = Window { strides: [2, 2], pads: [3; 4], dilations: [1, 1] };
        let op = convolution(window, 1);
        let [x, k] = [[8, 3, 224, 224], [64, 3, 7, 7]].map(|s| TensorType::new(DType::F32, s));
        let rule = op.operation().rule(&[&x, &k]).expect("fits");
        assert_eq!(rule.result_shapes(), [[8, 64, 112, 112]]);
        let expected = 2.0 * 8.0 * 64.0 * 112.0 * 112.0 * 3.0 * 49.0;
        assert_eq!(op.operation().flops(&rule), expected);
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let reason = |x: [usize; 4], k: [usize; 4], groups| {
            let [x, k] = [x, k].map(|shape| TensorType::new(DType::F32, shape));
            let error = convolution(Window::PLAIN, groups).infer_types(&[&x, &k]);
            error.expect_err("does not fit").to_string()
        };
        let error = reason([1, 3, 4, 4], [2, 3, 5, 5], 1);
        assert!(error.ends_with("a kernel of [5, 5] does not fit in [4, 4]"), "{error}");
        let error = reason([1, 3, 4, 4], [2, 3, 1, 1], 2);
        assert!(error.ends_with("2 groups do not divide 3 and 2 channels"), "{error}");
        let error = reason([1, 4, 4, 4], [2, 4, 1, 1], 2);
        assert!(error.ends_with("kernels of 2 channels are needed: those of one group"), "{error}");
    }
}
