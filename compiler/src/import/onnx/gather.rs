//! Look-ups: at known places, and by computed rows.

use graphc_ir::array::Array;
use graphc_ir::op::Op;
use graphc_ir::ops::{Concat, Embedding};
use graphc_ir::types::{DType, TensorType};

use super::known::Known;
use super::lower::{Lowering, Val};
use super::node::{Call, Res, axis, fail};

/// What is looked up at known places is sliced; a table, by computed rows, is an embedding.
pub(super) fn gather(cx: &mut Lowering, call: Call<'_>) -> Res<Vec<Val>> {
    let (x, indices) = (cx.operand(call, 0)?, cx.operand(call, 1)?);
    let shape = cx.shape(&x)?;
    let dim = axis(call.int("axis", 0)?, shape.len())?;
    let readable = |known: &Known| known.ty.elements() <= MOST_PLACES;
    if let Some(places) = cx.foldable(&indices).filter(readable) {
        let places = Places::new(places, shape[dim])?;
        if let Some(known) = cx.foldable(&x).filter(readable) {
            return Ok(vec![gather_known(&known, &places, dim)]);
        }
        return Ok(vec![gather_places(cx, &x, &places, dim)?]);
    }
    if dim != 0 {
        return fail(format!(
            "computed indices along dim {dim} are not supported: only along dim 0"
        ));
    }
    let width = shape[1..].iter().product();
    let table = cx.reshape(&x, &[shape[0], width])?;
    let rows = cx.cast(&indices, DType::I64)?;
    let found = cx.apply(Op::Embedding(Embedding {}), &[table, rows])?;
    let result = [&cx.shape(&indices)?[..], &shape[1..]].concat();
    Ok(vec![cx.reshape(&found, &result)?])
}

/// As many known indices are looked up one by one.
const MOST_PLACES: usize = 1 << 10;

/// Known indices, counted from the start.
struct Places {
    shape: Vec<usize>,
    indices: Vec<usize>,
}

impl Places {
    fn new(known: Known, extent: usize) -> Res<Self> {
        let index = |x: f64| axis(x as i64, extent);
        let indices = known.elements().into_iter().map(index).collect::<Res<_>>();
        match indices {
            Ok(indices) => Ok(Self { shape: known.ty.shape, indices }),
            Err(_) => fail(format!("the indices {:?} are not in 0..{extent}", known.elements())),
        }
    }
}

fn gather_known(known: &Known, places: &Places, dim: usize) -> Val {
    let from = Array::new(known.ty.shape.clone(), known.elements());
    let rank = places.shape.len();
    let shape = [&from.shape[..dim], &places.shape, &from.shape[dim + 1..]].concat();
    let positions =
        Array::new(places.shape.clone(), places.indices.iter().map(|&i| i as f64).collect());
    let to = Array::from_fn(shape.clone(), |at| {
        let place = positions.at(&at[dim..dim + rank]) as usize;
        from.at(&[&at[..dim], &[place], &at[dim + rank..]].concat())
    });
    Val::Known(Known::new(TensorType::new(known.ty.dtype, shape), to.data))
}

/// Runs of places that follow each other are one slice each.
fn gather_places(cx: &mut Lowering, x: &Val, places: &Places, dim: usize) -> Res<Val> {
    let shape = cx.shape(x)?;
    let mut parts = Vec::new();
    let mut rest = places.indices.as_slice();
    while let Some(&start) = rest.first() {
        let run = rest.iter().zip(start..).take_while(|(at, expected)| **at == *expected).count();
        parts.push(cx.slice(x, dim, start, start + run, 1)?);
        rest = &rest[run..];
    }
    let joined = match parts.as_slice() {
        [] => cx.slice(x, dim, 0, 0, 1)?,
        [one] => one.clone(),
        _ => cx.apply(Op::Concat(Concat { axis: dim }), &parts)?,
    };
    let result = [&shape[..dim], &places.shape, &shape[dim + 1..]].concat();
    cx.reshape(&joined, &result)
}
