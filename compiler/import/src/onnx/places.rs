//! Places in a tensor that a model computes, counted from the start.
//!
//! Coordinates for several dims are joined to one number. A coordinate that counts a dim makes that dim one of the batch, which
//! can be split.

use graphc_ir::op::Op;
use graphc_ir::ops::{BinaryFunction, Where};
use graphc_ir::types::DType;

use super::known::KnownValue;
use super::lower::{Lowering, Val};
use super::node::{Res, fail_with};

/// Coordinates `[b.., i.., k]` in a tensor `[b.., n1, .., nk, w..]`.
pub(super) struct TensorCoordinates {
    /// The number of dims of batches.
    pub batch: usize,
    /// The coordinates of each dim, `[b.., i..]`.
    columns: Vec<Val>,
    /// `b.., i..`
    pub shape: Vec<usize>,
    /// `n1, .., nk`
    pub extents: Vec<usize>,
}

impl TensorCoordinates {
    /// Reads the coordinates in a tensor of shape `tensor`, which has `batch` dims of batches. A first coordinate that counts a dim is dropped, and
    /// that dim becomes one of a batch.
    pub(super) fn new(
        cx: &mut Lowering,
        places: &Val,
        tensor: &[usize],
        batch: usize,
    ) -> Res<Self> {
        let shape = cx.shape(places)?;
        let Some((&count, outer)) = shape.split_last() else {
            return fail_with("the indices have no dims");
        };
        let fits = batch <= outer.len() && batch + count <= tensor.len();
        if !fits || outer[..batch] != tensor[..batch] {
            return fail_with(format!(
                "indices of shape {shape:?} do not fit a tensor of {tensor:?}"
            ));
        }
        let extents = tensor[batch..batch + count].to_vec();
        let columns = split_columns(cx, places, outer)?;
        let mut own = Self { batch, columns, shape: outer.into(), extents };
        while own.counts_a_dim(cx) {
            own.batch += 1;
            own.columns.remove(0);
            own.extents.remove(0);
        }
        Ok(own)
    }

    fn counts_a_dim(&self, cx: &Lowering) -> bool {
        let Some(first) = self.columns.first() else { return false };
        let alike = self.shape.get(self.batch) == self.extents.first();
        alike && cx.find_foldable(first).is_some_and(|known| known.counts_along(self.batch))
    }

    /// Returns the dims of the places within a batch.
    pub(super) fn inner_shape(&self) -> &[usize] {
        &self.shape[self.batch..]
    }

    /// Returns the places `[i..]`, if they are known, lie along one dim, and are the same in all batches.
    pub(super) fn known_places(&self, cx: &Lowering) -> Res<Option<KnownValue>> {
        let [column] = self.columns.as_slice() else { return Ok(None) };
        let same = cx.find_foldable(column).and_then(|known| known.without_dims(self.batch));
        same.map(|known| known_from_start(&known, self.extents[0])).transpose()
    }

    /// Returns the places `[b.., i..]` as if all dims were one. Where one of several coordinates is outside its dim, the place is beyond the last.
    pub(super) fn flatten_places(&self, cx: &mut Lowering) -> Res<Val> {
        let places: usize = self.extents.iter().product();
        let mut stride = places;
        let (mut sum, mut beyond) = (cx.integer_value(0), None);
        for (column, &extent) in self.columns.iter().zip(&self.extents) {
            stride /= extent.max(1);
            let column = from_start(cx, column, extent)?;
            if self.columns.len() > 1 && cx.find_foldable(&column).is_none() {
                let own = mask_outside(cx, &column, extent)?;
                beyond = Some(or_into_mask(cx, beyond, own)?);
            }
            let stride = cx.integer_value(stride as i64);
            let step = cx.apply_binary(BinaryFunction::Mul, &column, &stride)?;
            sum = cx.apply_binary(BinaryFunction::Add, &sum, &step)?;
        }
        let sum = cx.expand(&sum, &self.shape)?;
        let Some(beyond) = beyond else { return Ok(sum) };
        let last = cx.integer_value(places as i64);
        cx.apply(Op::Where(Where {}), &[beyond, last, sum])
    }
}

impl Lowering {
    fn integer_value(&self, value: i64) -> Val {
        let ty = graphc_ir::types::TensorType::new(DType::I64, []);
        Val::Known(KnownValue::splat(ty, value as f64))
    }
}

/// Splits coordinates into those of each dim, of shape `outer`.
fn split_columns(cx: &mut Lowering, places: &Val, outer: &[usize]) -> Res<Vec<Val>> {
    if let Some(pieces) = cx.find_pieces(places) {
        let columns = pieces.iter().map(|piece| split_columns(cx, piece, outer));
        return Ok(columns.collect::<Res<Vec<_>>>()?.concat());
    }
    let count = cx.shape(places)?[outer.len()];
    let column = |at| {
        let column = cx.slice(places, outer.len(), at, at + 1, 1)?;
        cx.reshape(&column, outer)
    };
    (0..count).map(column).collect()
}

/// Whether a place is outside its dim.
fn mask_outside(cx: &mut Lowering, place: &Val, extent: usize) -> Res<Val> {
    let (zero, extent) = (cx.integer_value(0), cx.integer_value(extent as i64));
    let before = cx.apply_binary(BinaryFunction::Less, place, &zero)?;
    let behind = cx.apply_binary(BinaryFunction::GreaterEqual, place, &extent)?;
    cx.apply_binary(BinaryFunction::Or, &before, &behind)
}

fn or_into_mask(cx: &mut Lowering, a: Option<Val>, b: Val) -> Res<Val> {
    a.map_or(Ok(b.clone()), |a| cx.apply_binary(BinaryFunction::Or, &a, &b))
}

/// Returns places along a dim as `i64`, counted from the start. Negative ones count from the end.
pub(super) fn from_start(cx: &mut Lowering, places: &Val, extent: usize) -> Res<Val> {
    let dtype = cx.ty(places)?.dtype;
    if dtype.is_float() || dtype == DType::Bool {
        return fail_with(format!("indices are integers, not {dtype}"));
    }
    let places = cx.cast(places, DType::I64)?;
    match cx.find_foldable(&places) {
        Some(known) => Ok(Val::Known(known_from_start(&known, extent)?)),
        None => wrap_negative(cx, &places, extent),
    }
}

/// Adds the extent of a dim to places that are negative.
pub(super) fn wrap_negative(cx: &mut Lowering, places: &Val, extent: usize) -> Res<Val> {
    let (zero, extent) = (cx.number_like(places, 0.0)?, cx.number_like(places, extent as f64)?);
    let negative = cx.apply_binary(BinaryFunction::Less, places, &zero)?;
    let shifted = cx.apply_binary(BinaryFunction::Add, places, &extent)?;
    cx.apply(Op::Where(Where {}), &[negative, shifted, places.clone()])
}

fn known_from_start(known: &KnownValue, extent: usize) -> Res<KnownValue> {
    let end = extent as f64;
    match known.kept_elements().data.iter().find(|&&place| !(-end..end).contains(&place)) {
        Some(place) if known.ty.elements() > 0 => {
            fail_with(format!("the index {place} is not in 0..{extent}"))
        }
        _ => Ok(known.map(|place| if place < 0.0 { place + end } else { place })),
    }
}
