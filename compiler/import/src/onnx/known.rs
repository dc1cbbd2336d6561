//! Values that are known when a model is imported: literals, shapes, and what is computed from them, such as masks.
//!
//! A dim along which elements repeat is kept once. So the mask of a batch takes no more than that of one sample, and what depends
//! on positions alone is small. Values of up to [`MOST_FOLDED`] elements are computed during import; larger ones the graph
//! computes.

use std::rc::Rc;

use graphc_ir::array::Array;
use graphc_ir::float8::{E4M3, E5M2};
use graphc_ir::op::{EvalContext, Op, OpError, Operand, Region};
use graphc_ir::ops::{Reshape, Slice};
use graphc_ir::types::{DType, TensorType};

/// The most different elements of a literal in the graph.
pub(super) const MOST_KNOWN: usize = 64;

/// The most different elements of a known value. The graph computes what is larger.
pub(super) const MOST_FOLDED: usize = 1 << 20;

/// The most operations that are worth computing during import.
const MOST_WORK: f64 = (1 << 24) as f64;

/// A known value.
#[derive(Clone, Debug)]
pub(super) struct KnownValue {
    /// Element type and shape.
    pub ty: TensorType,
    /// The elements. A dim along which they repeat has the extent 1.
    kept: Array,
    /// Whether it is one of DOUBLE: elements of 64 bits, which are rounded where they become another type or stand in the graph.
    wide: bool,
    /// The op that makes the kept elements from those of other known values, if a graph may compute it in each step.
    made: Option<Rc<MakingOp>>,
}

/// An op on the kept elements of known values, each repeated to the shape beside it.
#[derive(Debug)]
pub(super) struct MakingOp {
    pub op: Op,
    pub operands: Vec<(KnownValue, Vec<usize>)>,
}

impl KnownValue {
    /// Makes a value of these elements, rounded to the element type. There must be as many as the shape says.
    pub(super) fn new(ty: TensorType, elements: Vec<f64>) -> Self {
        let kept = Array::new(ty.shape.clone(), elements);
        Self::of_kept(ty, kept, false)
    }

    /// Makes a value of DOUBLE.
    pub(super) fn from_doubles(shape: &[usize], elements: Vec<f64>) -> Self {
        let ty = TensorType::new(DType::F32, shape);
        Self::of_kept(ty, Array::new(shape.to_vec(), elements), true)
    }

    /// Makes a value of DOUBLE that is one number everywhere.
    pub(super) fn splat_double(shape: &[usize], value: f64) -> Self {
        let kept = Array::full(vec![1; shape.len()], value);
        Self::of_kept(TensorType::new(DType::F32, shape), kept, true)
    }

    /// Returns the same numbers as a value of DOUBLE, or as one that no longer is.
    pub(super) fn in_width(&self, wide: bool) -> Self {
        let ty = TensorType::new(DType::F32, &self.ty.shape[..]);
        Self::of_kept(ty, self.kept.clone(), wide)
    }

    /// Whether it is one of DOUBLE.
    pub(super) fn is_wide(&self) -> bool {
        self.wide
    }

    /// Whether 32 bits hold each element exactly.
    pub(super) fn is_exact(&self) -> bool {
        self.kept.data.iter().all(|&x| x.is_nan() || round_to_dtype(self.ty.dtype, x) == x)
    }

    /// Makes a value that is one number everywhere.
    pub(super) fn splat(ty: TensorType, value: f64) -> Self {
        let kept = Array::full(vec![1; ty.shape.len()], round_to_dtype(ty.dtype, value));
        Self { ty, kept, wide: false, made: None }
    }

    /// Makes a list of integers.
    pub(super) fn from_integers(values: &[i64]) -> Self {
        let elements = values.iter().map(|&value| value as f64).collect();
        Self::new(TensorType::new(DType::I64, [values.len()]), elements)
    }

    /// Makes one integer, of shape `[]`.
    pub(super) fn from_integer(value: i64) -> Self {
        Self::splat(TensorType::new(DType::I64, []), value as f64)
    }

    /// Makes one truth value, of shape `[]`.
    pub(super) fn from_truth(value: bool) -> Self {
        Self::splat(TensorType::new(DType::Bool, []), f64::from(u8::from(value)))
    }

    fn of_kept(ty: TensorType, mut kept: Array, wide: bool) -> Self {
        if ty.elements() == 0 {
            return Self::splat(ty, 0.0);
        }
        let wide = wide && ty.dtype == DType::F32;
        kept.data.iter_mut().filter(|_| !wide).for_each(|x| *x = round_to_dtype(ty.dtype, *x));
        for dim in 0..kept.shape.len() {
            kept = without_repetition(kept, dim);
        }
        Self { ty, kept, wide, made: None }
    }

    /// Returns all elements, row-major.
    pub(super) fn elements(&self) -> Vec<f64> {
        repeat_array(&self.kept, &self.ty.shape).data
    }

    /// Returns the number that the value is everywhere; `None` if its elements differ.
    pub(super) fn as_splat(&self) -> Option<f64> {
        if self.kept.data.len() == 1 { Some(self.kept.data[0]) } else { None }
    }

    /// Whether its elements are two numbers, as those of a mask are.
    pub(super) fn has_two_numbers(&self) -> bool {
        let Some(first) = self.kept.data.first() else { return true };
        let other = self.kept.data.iter().find(|x| *x != first).unwrap_or(first);
        self.kept.data.iter().all(|x| x == first || x == other)
    }

    /// Returns the elements. Each dim along which they repeat has the extent 1.
    pub(super) fn kept_elements(&self) -> &Array {
        &self.kept
    }

    /// Returns the element type and shape of the kept elements.
    pub(super) fn kept_ty(&self) -> TensorType {
        TensorType::new(self.ty.dtype, self.kept.shape.clone())
    }

    /// Returns the op that made the kept elements.
    pub(super) fn making_op(&self) -> Option<&MakingOp> {
        self.made.as_deref()
    }

    /// Returns the dim along which the elements go in equal steps, the first of them, and the step. `None` if there is no such dim, or they are not
    /// the same along all other dims.
    pub(super) fn as_line(&self) -> Option<(usize, f64, f64)> {
        let dim = self.kept.shape.iter().position(|&extent| extent > 1)?;
        let data = &self.kept.data;
        let (start, step) = (data[0], data[1] - data[0]);
        let on = |(i, &x): (usize, &f64)| x == start + i as f64 * step;
        let alone = self.kept.shape[dim] == data.len() && self.ty.dtype != DType::Bool;
        (alone && data.iter().enumerate().all(on)).then_some((dim, start, step))
    }

    /// Whether it counts from 0 along a dim and is the same along all others.
    pub(super) fn counts_along(&self, dim: usize) -> bool {
        match self.as_splat() {
            Some(value) => value == 0.0 && self.ty.shape[dim] == 1,
            None => self.as_line() == Some((dim, 0.0, 1.0)),
        }
    }

    /// Returns the value without its first `count` dims; `None` if it is not the same along all of these.
    pub(super) fn without_dims(&self, count: usize) -> Option<Self> {
        let same = self.kept.shape[..count].iter().all(|&extent| extent == 1);
        let shape = self.kept.shape[count..].to_vec();
        let ty = TensorType::new(self.ty.dtype, &self.ty.shape[count..]);
        same.then(|| Self::of_kept(ty, Array::new(shape, self.kept.data.clone()), self.wide))
    }

    /// Returns the value with `function` applied to each element.
    pub(super) fn map(&self, function: impl Fn(f64) -> f64) -> Self {
        let data = self.kept.data.iter().map(|&x| function(x)).collect();
        Self::of_kept(self.ty.clone(), Array::new(self.kept.shape.clone(), data), self.wide)
    }
}

/// Returns the array with one index of a dim, if its elements repeat along that dim; else the array itself.
fn without_repetition(array: Array, dim: usize) -> Array {
    let extent = array.shape[dim];
    let inner: usize = array.shape[dim + 1..].iter().product();
    let bits = |x: &f64| x.to_bits();
    let repeats = |slab: &[f64]| {
        let (first, rest) = slab.split_at(inner);
        rest.chunks(inner).all(|other| first.iter().map(bits).eq(other.iter().map(bits)))
    };
    if extent == 1 || !array.data.chunks(extent * inner).all(repeats) {
        return array;
    }
    let mut shape = array.shape;
    shape[dim] = 1;
    let first = array.data.chunks(extent * inner).flat_map(|slab| &slab[..inner]);
    Array::new(shape, first.copied().collect())
}

/// Returns the array with its dims of extent 1 repeated to a shape.
fn repeat_array(array: &Array, shape: &[usize]) -> Array {
    if array.shape == shape {
        return array.clone();
    }
    if let [value] = array.data[..] {
        return Array::full(shape, value);
    }
    Array::from_fn(shape, |index| array.at_broadcast(index))
}

/// Rounds a number to an element type. The types of 16 bits are rounded as `f32`.
fn round_to_dtype(dtype: DType, x: f64) -> f64 {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => f64::from(x as f32),
        DType::I64 => (x as i64) as f64,
        DType::I32 => f64::from(x as i32),
        DType::U8 => f64::from(x as u8),
        DType::Bool => f64::from(x != 0.0),
        DType::F8E4M3 => E4M3.decode(E4M3.encode(x as f32)).into(),
        DType::F8E5M2 => E5M2.decode(E5M2.encode(x as f32)).into(),
    }
}

/// Computes the results of an op on known values; `None` if they or the operands are too large to be known, or take too long.
///
/// # Errors
/// Returns an error if the op does not take such operands.
pub(super) fn fold_op(
    op: &Op,
    operands: &[KnownValue],
) -> Result<Option<Vec<KnownValue>>, OpError> {
    let types: Vec<&TensorType> = operands.iter().map(|known| &known.ty).collect();
    let results = op.infer_types(&types)?;
    if results.iter().all(|ty| ty.elements() == 0) {
        return Ok(Some(results.into_iter().map(|ty| KnownValue::splat(ty, 0.0)).collect()));
    }
    let (reduced, shapes) = on_kept(op, operands, &results[0]);
    let dtypes = operands.iter().map(|known| known.ty.dtype);
    let types: Vec<TensorType> =
        dtypes.zip(&shapes).map(|(dtype, shape)| TensorType::new(dtype, &shape[..])).collect();
    let of_kept = reduced.infer_types(&types.iter().collect::<Vec<_>>())?;
    let rule = reduced.operation().rule(&types.iter().collect::<Vec<_>>())?;
    let large = |ty: &TensorType| ty.elements() > MOST_FOLDED;
    let slow = reduced.operation().flops(&rule) > MOST_WORK;
    if slow || types.iter().chain(&of_kept).any(large) {
        return Ok(None);
    }
    let arrays: Vec<Array> = operands
        .iter()
        .zip(&shapes)
        .map(|(known, shape)| repeat_array(&known.kept, shape))
        .collect();
    let found = evaluate_op(&reduced, &types, &arrays, &of_kept)?;
    let wide = operands.iter().any(|known| known.wide);
    let known = results.into_iter().zip(found);
    let mut known: Vec<KnownValue> =
        known.map(|(ty, array)| KnownValue::of_kept(ty, array, wide)).collect();
    // What is computed with 64 bits is not computed again with 32.
    if !wide && is_easy(&reduced) && known[0].kept.shape == of_kept[0].shape {
        let operands = operands.iter().cloned().zip(shapes).collect();
        known[0].made = Some(Rc::new(MakingOp { op: reduced, operands }));
    }
    Ok(Some(known))
}

/// Whether a graph may compute the op each step rather than keep what it makes.
fn is_easy(op: &Op) -> bool {
    let operation = op.operation();
    operation.is_elementwise() || operation.movement().is_some() || matches!(op, Op::Triangle(_))
}

/// Returns the op on kept elements that corresponds to an op on values, and the shape to which it needs each operand repeated.
fn on_kept(op: &Op, operands: &[KnownValue], result: &TensorType) -> (Op, Vec<Vec<usize>>) {
    let kept = || operands.iter().map(|known| known.kept.shape.clone()).collect();
    let whole = || operands.iter().map(|known| known.ty.shape.clone()).collect();
    match op {
        Op::Transpose(_) => (op.clone(), kept()),
        op if op.operation().is_elementwise() => (op.clone(), kept()),
        Op::Expand(_) => {
            let known = &operands[0];
            let mut shape = vec![1; result.shape.len() - known.ty.shape.len()];
            shape.extend(&known.kept.shape);
            (Op::Reshape(Reshape { shape }), kept())
        }
        Op::Reshape(_) => match reshape_kept(&operands[0], &result.shape) {
            Some(shape) => (Op::Reshape(Reshape { shape }), kept()),
            None => (op.clone(), whole()),
        },
        Op::Slice(slice) => (Op::Slice(of_slice(slice, &operands[0])), kept()),
        Op::Concat(concat) => {
            (op.clone(), align_shapes(operands, |dim| dim == concat.axis, usize::MAX))
        }
        Op::Triangle(_) => {
            let rank = result.shape.len();
            (op.clone(), align_shapes(operands, |dim| dim + 2 >= rank, usize::MAX))
        }
        Op::CumulativeSum(sum) => {
            (op.clone(), align_shapes(operands, |dim| dim == sum.axis, usize::MAX))
        }
        Op::Gather(_) => {
            let batch = operands[1].ty.shape.len() - 1;
            let mut shapes = align_shapes(operands, |_| false, batch);
            shapes[0][batch] = operands[0].ty.shape[batch];
            (op.clone(), shapes)
        }
        _ => (op.clone(), whole()),
    }
}

/// Returns the shapes of operands that are repeated to the same extent in the first `shared` dims: as little as possible, but wholly in the dims for
/// which `whole` says so. Later dims stay as they are.
fn align_shapes(
    operands: &[KnownValue],
    whole: impl Fn(usize) -> bool,
    shared: usize,
) -> Vec<Vec<usize>> {
    let extent = |known: &KnownValue, dim: usize| {
        let needed = |other: &KnownValue| other.kept.shape[dim] != 1;
        let all = dim < shared && (whole(dim) || operands.iter().any(needed));
        if all { known.ty.shape[dim] } else { known.kept.shape[dim] }
    };
    let shape =
        |known: &KnownValue| (0..known.ty.shape.len()).map(|dim| extent(known, dim)).collect();
    operands.iter().map(shape).collect()
}

/// Returns the shape of kept elements after a reshape; `None` if dims that repeat are merged with others or split.
fn reshape_kept(known: &KnownValue, shape: &[usize]) -> Option<Vec<usize>> {
    if known.as_splat().is_some() {
        return Some(vec![1; shape.len()]);
    }
    let extents = |shape: &[usize]| -> Vec<usize> {
        shape.iter().copied().filter(|&extent| extent != 1).collect()
    };
    if extents(&known.ty.shape) != extents(shape) {
        return None;
    }
    let dims = known.ty.shape.iter().zip(&known.kept.shape);
    let mut kept = dims.filter(|(extent, _)| **extent != 1).map(|(_, &kept)| kept);
    Some(shape.iter().map(|&e| if e == 1 { 1 } else { kept.next().unwrap_or(1) }).collect())
}

/// Returns the slice of kept elements that corresponds to a slice of the value.
fn of_slice(slice: &Slice, known: &KnownValue) -> Slice {
    let mut slice = slice.clone();
    for (dim, &extent) in known.kept.shape.iter().enumerate() {
        if extent == 1 {
            (slice.starts[dim], slice.ends[dim], slice.steps[dim]) = (0, 1, 1);
        }
    }
    slice
}

fn evaluate_op(
    op: &Op,
    types: &[TensorType],
    arrays: &[Array],
    results: &[TensorType],
) -> Result<Vec<Array>, OpError> {
    let regions: Vec<Region> = types.iter().map(Region::whole).collect();
    let operands: Vec<Operand<'_>> =
        arrays.iter().zip(&regions).map(|(array, region)| Operand { array, region }).collect();
    let results: Vec<Region> = results.iter().map(Region::whole).collect();
    op.operation().evaluate(&operands, &results, &EvalContext::default())
}

#[cfg(test)]
mod tests {
    use graphc_ir::ops::{Binary, BinaryFunction, Concat, Expand, Gather};

    use super::*;

    fn line(extent: usize, shape: &[usize]) -> KnownValue {
        let elements = (0..extent).map(|i| i as f64).collect();
        KnownValue::new(TensorType::new(DType::I64, shape), elements)
    }

    fn folded(op: Op, operands: &[KnownValue]) -> KnownValue {
        fold_op(&op, operands).expect("fits").expect("is known").swap_remove(0)
    }

    #[test]
    fn a_mask_of_a_batch_is_kept_once() {
        let (rows, columns) = (line(3, &[3, 1]), line(3, &[1, 3]));
        let op = Op::Binary(Binary { function: BinaryFunction::LessEqual });
        let mask = folded(op, &[columns, rows]);
        let batch = folded(Op::Expand(Expand { shape: vec![5, 3, 3] }), &[mask]);
        assert_eq!(batch.kept_elements().shape, [1, 3, 3]);
        assert_eq!(batch.elements()[9..18], [1., 0., 0., 1., 1., 0., 1., 1., 1.]);
    }

    #[test]
    fn what_repeats_is_joined_and_looked_up_as_little_as_can_be() {
        let batch = folded(Op::Expand(Expand { shape: vec![4, 3] }), &[line(3, &[1, 3])]);
        let joined = folded(Op::Concat(Concat { axis: 1 }), &[batch.clone(), batch]);
        assert_eq!(joined.kept_elements().shape, [1, 6]);
        let places = KnownValue::new(TensorType::new(DType::I64, [4, 2]), [5., 1.].repeat(4));
        let found = folded(Op::Gather(Gather {}), &[joined, places]);
        assert_eq!(
            (found.kept_elements().shape.as_slice(), found.kept_elements().data.as_slice()),
            (&[1, 2][..], &[2., 1.][..])
        );
    }

    #[test]
    fn lines_are_found() {
        assert_eq!(line(4, &[1, 4, 1]).as_line(), Some((1, 0.0, 1.0)));
        assert!(line(4, &[4, 1]).counts_along(0));
        assert!(!line(4, &[2, 2]).counts_along(0));
        assert_eq!(line(4, &[2, 2]).as_line(), None);
    }
}
