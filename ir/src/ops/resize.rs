//! Interpolation of one dim to another extent. An image is resized along one dim after the other.
//!
//! An element of the result is a weighted sum of a few elements of the operand. The weights follow from places alone, so the op
//! is linear. Its gradient is the transpose of that sum.

use serde::{Deserialize, Serialize};

use super::shards::{fill_shard, has_dim, one_float, read_element};
use crate::array::Array;
use crate::operation::{
    EvalContext, OpError, Operand, Operation, Region, check_arity, shape_error,
};
use crate::rule::{DimRule, Rule};
use crate::scalar::Scalar;
use crate::types::{DType, TensorType};

/// Interpolation of one dim of x to another extent: x -> x with that extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Resize {
    /// The dim that is resized.
    pub axis: usize,
    /// The extent of the dim in the result.
    pub extent: usize,
    /// The rule by which an element is made of those of the operand.
    pub sampling: Sampling,
}

/// The gradient dy -> dx of [`Resize`], of a dim of x that has this extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ResizeGrad {
    /// The dim that is resized.
    pub axis: usize,
    /// The extent of the dim in x.
    pub extent: usize,
    /// The rule by which an element is made of those of x, as in [`Resize`].
    pub sampling: Sampling,
}

/// The choice of the operand's elements that an element of the result is made of, and of their weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Sampling {
    /// The weights of elements about a place.
    pub filter: Filter,
    /// The place in the operand that belongs to an element of the result.
    pub coordinates: Coordinates,
    /// The number of elements of the result for each of the operand.
    pub scale: Scalar,
    /// Whether the filter is as much wider as the result is smaller, so that all elements count.
    pub smooth: bool,
    /// Whether only elements that there are count; otherwise the first and the last one stand for those beyond them.
    pub inside: bool,
}

/// The weights of elements by their distance from a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Filter {
    /// The element before the place, with the weight 1.
    Floor,
    /// The element behind the place, with the weight 1.
    Ceil,
    /// The nearest element; of two the one before the place.
    NearestBefore,
    /// The nearest element; of two the one behind the place.
    NearestBehind,
    /// Linear interpolation: 1 less the distance, up to 1.
    Linear,
    /// Cubic convolution with this coefficient, up to 2 (Keys, 1981).
    Cubic(Scalar),
}

/// The place in the operand for index i of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Coordinates {
    /// i / scale
    Asymmetric,
    /// (i + 0.5) / scale - 0.5
    HalfPixel,
    /// The place of [`Coordinates::HalfPixel`], and 0 for a result of extent 1.
    HalfPixelOrFirst,
    /// The place of [`Coordinates::HalfPixel`], with what a scale that gives no whole extent cuts off shared between both ends.
    HalfPixelSymmetric,
    /// The place by which first and last elements meet: i (n - 1) / (m - 1) for extents n of the operand and m of the result; 0 where m is 1.
    AlignCorners,
}

/// The elements of the operand of which each element of a result is the weighted sum.
#[derive(Clone, Debug, PartialEq)]
pub struct Taps {
    /// The positions in `taps` at which the taps of each element begin, and at which the last ones end.
    pub starts: Vec<usize>,
    /// The taps: the index in the operand, and the weight.
    pub taps: Vec<(usize, f64)>,
}

impl Filter {
    /// Returns the distance beyond which weights are 0.
    fn reach(self) -> f64 {
        match self {
            Self::Cubic(_) => 2.0,
            _ => 1.0,
        }
    }

    fn weight(self, distance: f64) -> f64 {
        let x = distance.abs();
        match self {
            Self::Cubic(Scalar(a)) if x <= 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
            Self::Cubic(Scalar(a)) if x < 2.0 => ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a,
            Self::Cubic(_) => 0.0,
            _ => (1.0 - x).max(0.0),
        }
    }

    /// Returns the one element at a place, of filters that take one.
    fn nearest_element(self, place: f64) -> Option<f64> {
        match self {
            Self::Floor => Some(place.floor()),
            Self::Ceil => Some(place.ceil()),
            Self::NearestBefore => Some((place - 0.5).ceil()),
            Self::NearestBehind => Some((place + 0.5).floor()),
            Self::Linear | Self::Cubic(_) => None,
        }
    }
}

impl Sampling {
    /// Returns the elements of `from` that make each of `to`, both at least 1.
    pub fn taps(&self, from: usize, to: usize) -> Taps {
        let mut found = Taps { starts: vec![0], taps: Vec::new() };
        for index in 0..to {
            let mut weights: Vec<(usize, f64)> = Vec::new();
            for (element, weight) in self.weigh_elements(self.source_place(index, from, to), from) {
                let last = (from - 1) as f64;
                let clamped = element.clamp(0.0, last);
                if weight == 0.0 || self.inside && clamped != element {
                    continue;
                }
                match weights.last_mut() {
                    Some((at, sum)) if *at == clamped as usize => *sum += weight,
                    _ => weights.push((clamped as usize, weight)),
                }
            }
            // A share of what there is, where some elements are left out or the filter is wider than it is.
            let sum: f64 = weights.iter().map(|(_, weight)| weight).sum();
            let whole = if sum == 0.0 { 1.0 } else { sum };
            found.taps.extend(weights.into_iter().map(|(at, weight)| (at, weight / whole)));
            found.starts.push(found.taps.len());
        }
        found
    }

    /// Returns the elements about a place, which need not exist, with weights that need not add up to 1.
    fn weigh_elements(&self, place: f64, from: usize) -> Vec<(f64, f64)> {
        if let Some(nearest) = self.filter.nearest_element(place) {
            return vec![(nearest, 1.0)];
        }
        let narrow = if self.smooth { self.scale.0.min(1.0) } else { 1.0 };
        let reach = (self.filter.reach() / narrow).ceil();
        let first = (place.floor() - reach + 1.0).max(-2.0 * from as f64);
        let last = (place.floor() + reach).min(3.0 * from as f64);
        let count = (last - first) as usize + 1;
        let weight = |element: f64| (element, self.filter.weight((element - place) * narrow));
        (0..count).map(|step| weight(first + step as f64)).collect()
    }

    /// Computes the place of an element, in f32 and in the order of onnxruntime's operations (and PyTorch's): many places are whole numbers or
    /// halves, and the last bit then says which element is before them, or nearest.
    fn source_place(&self, index: usize, from: usize, to: usize) -> f64 {
        let [index, from, extent] = [index, from, to].map(|number| number as f32);
        let scale = self.scale.0 as f32;
        let center = (index + 0.5) / scale;
        let place = match self.coordinates {
            Coordinates::HalfPixelOrFirst | Coordinates::AlignCorners if to == 1 => 0.0,
            Coordinates::Asymmetric => index * (1.0 / scale),
            Coordinates::HalfPixel | Coordinates::HalfPixelOrFirst => center - 0.5,
            Coordinates::HalfPixelSymmetric => {
                let lost = 1.0 - extent / (scale * from);
                from / 2.0 * lost + center - 0.5
            }
            Coordinates::AlignCorners => index * (from - 1.0) / (extent - 1.0),
        };
        f64::from(place)
    }
}

impl Taps {
    /// Returns the taps of an element of the result.
    pub fn element_taps(&self, element: usize) -> &[(usize, f64)] {
        &self.taps[self.starts[element]..self.starts[element + 1]]
    }

    /// Returns for each of `from` elements of the operand the elements of the result that it is part of.
    pub fn transpose(&self, from: usize) -> Self {
        let mut readers = vec![Vec::new(); from];
        for element in 0..self.starts.len() - 1 {
            self.element_taps(element)
                .iter()
                .for_each(|&(at, weight)| readers[at].push((element, weight)));
        }
        let mut found = Self { starts: vec![0], taps: Vec::new() };
        for mut taps in readers {
            found.taps.append(&mut taps);
            found.starts.push(found.taps.len());
        }
        found
    }
}

/// Returns the rule of an op that changes one dim to another extent.
fn resize_rule(
    op: &'static str,
    operands: &[&TensorType],
    (axis, extent, sampling): (usize, usize, &Sampling),
) -> Result<Rule, OpError> {
    has_dim(op, operands, axis)?;
    let shape = &operands[0].shape;
    if shape[axis] == 0 || extent == 0 {
        return Err(shape_error(op, operands, "the dim must have an element before and after"));
    }
    let usable = |scale: f64| scale.is_finite() && (1e-6..=1e6).contains(&scale);
    if !usable(sampling.scale.0) || extent > 1 << 24 || shape[axis] > 1 << 24 {
        return Err(shape_error(op, operands, "the scale must be positive, and no number huge"));
    }
    let mut rule = Rule { linear: vec![vec![0]], ..Rule::default() };
    let others: Vec<usize> =
        shape.iter().enumerate().map(|(dim, &size)| if dim == axis { 1 } else { size }).collect();
    let mut dims = rule.add_parallel_dims(&others);
    dims[axis] = DimRule::Whole(shape[axis]);
    let mut result = dims.clone();
    result[axis] = DimRule::Whole(extent);
    (rule.operands, rule.results) = (vec![dims], vec![result]);
    Ok(rule)
}

/// Computes the weighted sums of a shard, which has the dim whole.
fn resample_shard(x: &Operand<'_>, result: &Region, axis: usize, taps: &Taps) -> Array {
    fill_shard(result, |index| {
        let mut place = index.to_vec();
        let term = |&(at_axis, weight): &(usize, f64)| {
            place[axis] = at_axis;
            weight * read_element(x, &place)
        };
        taps.element_taps(index[axis]).iter().map(term).sum()
    })
}

impl Operation for Resize {
    fn name(&self) -> &'static str {
        "resize"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 1, "1")?;
        Ok(vec![one_float(self.name(), operands, &[0])?])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        resize_rule(self.name(), operands, (self.axis, self.extent, &self.sampling))
    }

    /// Counts a product and a sum for each of the two elements of a linear filter.
    fn flops_per_point(&self) -> f64 {
        4.0
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let taps = self.sampling.taps(operands[0].region.global[self.axis], self.extent);
        Ok(vec![resample_shard(&operands[0], &results[0], self.axis, &taps)])
    }
}

impl Operation for ResizeGrad {
    fn name(&self) -> &'static str {
        "resize_grad"
    }

    fn infer_dtypes(&self, operands: &[&TensorType]) -> Result<Vec<DType>, OpError> {
        check_arity(self.name(), operands, 1, "1")?;
        Ok(vec![one_float(self.name(), operands, &[0])?])
    }

    fn rule(&self, operands: &[&TensorType]) -> Result<Rule, OpError> {
        resize_rule(self.name(), operands, (self.axis, self.extent, &self.sampling))
    }

    /// Returns the same number as [`Resize`].
    fn flops_per_point(&self) -> f64 {
        4.0
    }

    fn evaluate(
        &self,
        operands: &[Operand<'_>],
        results: &[Region],
        _cx: &EvalContext,
    ) -> Result<Vec<Array>, OpError> {
        let places = operands[0].region.global[self.axis];
        let taps = self.sampling.taps(self.extent, places).transpose(self.extent);
        Ok(vec![resample_shard(&operands[0], &results[0], self.axis, &taps)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::ops::shards::tests::evaluate;

    fn sampling(filter: Filter, coordinates: Coordinates, scale: f64) -> Sampling {
        Sampling { filter, coordinates, scale: Scalar(scale), smooth: false, inside: false }
    }

    fn resized(x: &[f64], extent: usize, sampling: Sampling) -> Vec<f64> {
        let op = Op::Resize(Resize { axis: 0, extent, sampling });
        let x = (DType::F32, Array::new([x.len()], x.to_vec()));
        evaluate(op, &[x]).expect("fits").swap_remove(0).data
    }

    #[test]
    fn places_are_those_of_onnx() {
        let x = [0.0, 8.0, 16.0];
        let linear = |coordinates| resized(&x, 6, sampling(Filter::Linear, coordinates, 2.0));
        assert_eq!(linear(Coordinates::Asymmetric), [0.0, 4.0, 8.0, 12.0, 16.0, 16.0]);
        assert_eq!(linear(Coordinates::HalfPixel), [0.0, 2.0, 6.0, 10.0, 14.0, 16.0]);
        let corners =
            resized(&x, 5, sampling(Filter::Linear, Coordinates::AlignCorners, 5.0 / 3.0));
        assert_eq!(corners, [0.0, 4.0, 8.0, 12.0, 16.0]);
        let one = |coordinates| resized(&x, 1, sampling(Filter::Linear, coordinates, 1.0 / 3.0));
        assert_eq!(one(Coordinates::HalfPixel), [8.0]);
        assert_eq!(one(Coordinates::HalfPixelOrFirst), [0.0]);
    }

    /// The nearest element is that of onnxruntime, for each way to place and each way to round (`resize_places.py`).
    #[test]
    fn the_nearest_elements_are_those_of_onnxruntime() {
        let (mut checked, mut wrong) = (0, Vec::new());
        for line in include_str!("../../tests/resize_places.txt").lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [coordinates, filter, from, scale, ref expected @ ..] = words[..] else {
                panic!("`{line}` is no row of the table");
            };
            let named = |name: &str| serde_json::Value::String(name.into());
            let filter = serde_json::from_value(named(filter)).expect("a filter");
            let coordinates = serde_json::from_value(named(coordinates)).expect("coordinates");
            let scale = f64::from(scale.parse::<f32>().expect("a scale"));
            let sampling = sampling(filter, coordinates, scale);
            let taps = sampling.taps(from.parse().expect("an extent"), expected.len());
            let found: Vec<String> = taps.taps.iter().map(|(at, _)| at.to_string()).collect();
            checked += found.len();
            if found != expected {
                wrong.push(format!("{line}: {}", found.join(" ")));
            }
        }
        assert!(wrong.is_empty(), "{} rows differ:\n{}", wrong.len(), wrong.join("\n"));
        assert!(checked > 1000, "only {checked} places");
    }

    #[test]
    fn the_nearest_of_two_is_chosen_as_it_is_said() {
        let x = [1.0, 2.0, 3.0, 4.0];
        let of = |filter| resized(&x, 2, sampling(filter, Coordinates::HalfPixel, 0.5));
        assert_eq!(of(Filter::Floor), [1.0, 3.0]);
        assert_eq!(of(Filter::Ceil), [2.0, 4.0]);
        assert_eq!(of(Filter::NearestBefore), [1.0, 3.0]);
        assert_eq!(of(Filter::NearestBehind), [2.0, 4.0]);
    }

    #[test]
    fn a_smooth_filter_reads_all_elements_and_weights_add_up_to_one() {
        let mut smooth = sampling(Filter::Linear, Coordinates::HalfPixel, 0.25);
        (smooth.smooth, smooth.inside) = (true, true);
        let taps = smooth.taps(8, 2);
        assert_eq!((taps.element_taps(0).len(), taps.element_taps(1).len()), (6, 6));
        let cubic = sampling(Filter::Cubic(Scalar(-0.75)), Coordinates::HalfPixel, 1.5);
        for taps in [taps, cubic.taps(8, 12)] {
            for element in 0..taps.starts.len() - 1 {
                let sum: f64 = taps.element_taps(element).iter().map(|(_, weight)| weight).sum();
                assert!((sum - 1.0).abs() < 1e-12, "{sum}");
            }
        }
    }
}
