//! Look-ups: at known places, and at computed ones.
//!
//! Known places that follow each other are slices. A look-up in one table of numbers is an `embedding`, which the planner knows
//! better. All other look-ups are a `gather`.

use graphc_ir::op::Op;
use graphc_ir::ops::{BinaryFunction, Concat, EmbeddingOp, Gather, UnaryFunction, Where};
use graphc_ir::types::DType;

use super::known::KnownValue;
use super::lower::{Lowering, Val};
use super::node::{NodeCall, Res, fail_with, resolve_axis};
use super::places::{TensorCoordinates, from_start};

/// The most runs of known places that become slices.
const MOST_RUNS: usize = 32;

/// Lowers the gathering of elements at places along a dim.
pub(super) fn lower_gather(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let (x, places) = (cx.operand(call, 0)?, cx.operand(call, 1)?);
    let shape = cx.shape(&x)?;
    let dim = resolve_axis(call.int("axis", 0)?, shape.len())?;
    if dim == 0
        && let Some(found) = gather_of_each(cx, &x, &places)?
    {
        return Ok(vec![found]);
    }
    let places = from_start(cx, &places, shape[dim])?;
    let found = gather_along(cx, &x, &places, dim)?;
    let result = call.proto.output.first().map_or("", String::as_str);
    match cx.padded.get(result) {
        Some(&row) if dim == 0 && cx.find_foldable(&found).is_none() => {
            Ok(vec![without_gradient_of(cx, &found, &places, row)?])
        }
        _ => Ok(vec![found]),
    }
}

/// The elements at places of each sample's own, where samples and what is looked up in them are one dim: the older exporter writes `x[rows, places]` as
/// a look-up of `rows * n + places` in `x` as `[b * n, w..]`. Samples stay apart here. `None` if the places are no such sums. A place that is in another
/// sample is none that PyTorch takes.
fn gather_of_each(cx: &mut Lowering, x: &Val, places: &Val) -> Res<Option<Val>> {
    let Val::Tensor(id) = x else { return Ok(None) };
    let producer = cx.graph.producer(*id);
    let (Op::Reshape(_), Some((own, starts))) = (&producer.op, cx.find_shift(places)) else {
        return Ok(None);
    };
    let apart = Val::Tensor(producer.operands[0]);
    let (shape, merged, of_places) = (cx.shape(&apart)?, cx.shape(x)?, cx.shape(places)?);
    let &[samples, extent, ref inner @ ..] = &shape[..] else { return Ok(None) };
    let counts = starts.ty.shape.len() == of_places.len()
        && of_places.first() == Some(&samples)
        && starts.as_line() == Some((0, 0.0, extent as f64));
    if !counts || merged.first() != Some(&(samples * extent)) || merged[1..] != *inner {
        return Ok(None);
    }
    let own = from_start(cx, &own, extent)?;
    let own = cx.expand(&own, &of_places)?;
    let own = cx.reshape(&own, &[samples, of_places[1..].iter().product()])?;
    let found = cx.apply(Op::Gather(Gather {}), &[apart, own])?;
    Ok(Some(cx.reshape(&found, &[&of_places[..], inner].concat())?))
}

/// Rows of a table, found at places, through which nothing is learned where the place is `row`: those of `padding_idx` in PyTorch.
fn without_gradient_of(cx: &mut Lowering, found: &Val, places: &Val, row: i64) -> Res<Val> {
    let row = cx.number_like(places, row as f64)?;
    let learns = cx.apply_binary(BinaryFunction::NotEqual, places, &row)?;
    let mut shape = cx.shape(places)?;
    shape.resize(cx.shape(found)?.len(), 1);
    let learns = cx.reshape(&learns, &shape)?;
    let detached = cx.apply_unary(UnaryFunction::Detach, found)?;
    cx.apply(Op::Where(Where {}), &[learns, found.clone(), detached])
}

/// Elements of lanes along a dim, at places of each lane's own.
pub(super) fn lower_gather_elements(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let (mut x, places) = (cx.operand(call, 0)?, cx.operand(call, 1)?);
    let (shape, taken) = (cx.shape(&x)?, cx.shape(&places)?);
    let dim = resolve_axis(call.int("axis", 0)?, shape.len())?;
    check_lanes(&shape, &taken, dim)?;
    let places = from_start(cx, &places, shape[dim])?;
    for (other, &extent) in taken.iter().enumerate().filter(|(other, _)| *other != dim) {
        x = cx.slice(&x, other, 0, extent, 1)?;
    }
    let (x, places) = (cx.moved_last(&x, dim)?, cx.moved_last(&places, dim)?);
    let found = cx.apply(Op::Gather(Gather {}), &[x, places])?;
    Ok(vec![cx.moved_from_last(&found, dim)?])
}

/// Slices at places of which each has a coordinate for several dims.
pub(super) fn lower_gather_nd(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let (x, places) = (cx.operand(call, 0)?, cx.operand(call, 1)?);
    let shape = cx.shape(&x)?;
    let batch = usize::try_from(call.int("batch_dims", 0)?).unwrap_or(usize::MAX);
    let at = TensorCoordinates::new(cx, &places, &shape, batch)?;
    let behind = at.batch + at.extents.len();
    let result = [&at.shape[..], &shape[behind..]].concat();
    if let Some(known) = at.known_places(cx)? {
        return Ok(vec![gather_along(cx, &x, &Val::Known(known), at.batch)?]);
    }
    if at.extents.is_empty() {
        let ones = vec![1; at.inner_shape().len()];
        let apart = cx.reshape(&x, &[&shape[..at.batch], &ones, &shape[behind..]].concat())?;
        return Ok(vec![cx.expand(&apart, &result)?]);
    }
    let (x, places) = cx.places_as_one(&x, &at)?;
    let found = look_up(cx, &x, &places)?;
    Ok(vec![cx.reshape(&found, &result)?])
}

/// Checks that places of lanes along a dim fit a tensor.
pub(super) fn check_lanes(shape: &[usize], places: &[usize], dim: usize) -> Res<()> {
    let fits =
        |(other, (&places, &extent)): (usize, (&usize, &usize))| other == dim || places <= extent;
    if shape.len() == places.len() && places.iter().zip(shape).enumerate().all(fits) {
        return Ok(());
    }
    fail_with(format!(
        "indices of shape {places:?} do not fit a tensor of {shape:?} along dim {dim}"
    ))
}

impl Lowering {
    /// Every so many-th element of a dim, from one place down to before another.
    pub(super) fn slice_backward(
        &mut self,
        x: &Val,
        dim: usize,
        [from, to, step]: [i64; 3],
    ) -> Res<Val> {
        let below = step.unsigned_abs().try_into().unwrap_or(usize::MAX);
        let places: Vec<i64> = (to + 1..=from).rev().step_by(below).collect();
        gather_along(self, x, &Val::Known(KnownValue::from_integers(&places)), dim)
    }

    /// The tensor with a dim after all others.
    pub(super) fn moved_last(&mut self, x: &Val, dim: usize) -> Res<Val> {
        let rank = self.shape(x)?.len();
        self.transpose(x, (0..rank).filter(|&other| other != dim).chain([dim]).collect())
    }

    /// The tensor with the last dim where it was.
    pub(super) fn moved_from_last(&mut self, x: &Val, dim: usize) -> Res<Val> {
        let rank = self.shape(x)?.len();
        let from = |at: usize| if at < dim { at } else { at - 1 };
        self.transpose(x, (0..rank).map(|at| if at == dim { rank - 1 } else { from(at) }).collect())
    }

    /// A tensor whose dims that have coordinates are one, and the places in it, `[b.., m]`.
    pub(super) fn places_as_one(&mut self, x: &Val, at: &TensorCoordinates) -> Res<(Val, Val)> {
        let shape = self.shape(x)?;
        let (batch, behind) = (&shape[..at.batch], &shape[at.batch + at.extents.len()..]);
        let extent: usize = at.extents.iter().product();
        let x = self.reshape(x, &[batch, &[extent], behind].concat())?;
        let count: usize = at.inner_shape().iter().product();
        let places = at.flatten_places(self)?;
        let places = self.reshape(&places, &[batch, &[count]].concat())?;
        Ok((x, places))
    }
}

/// The elements at places along a dim, `[.., n, ..]` to `[.., i.., ..]`.
pub(super) fn gather_along(cx: &mut Lowering, x: &Val, places: &Val, dim: usize) -> Res<Val> {
    let (shape, of_places) = (cx.shape(x)?, cx.shape(places)?);
    if let (None, Some(known)) = (cx.find_foldable(x), cx.find_foldable(places)) {
        if known.kept_elements().shape != of_places {
            // What every sample looks up alike is looked up once.
            let kept = KnownValue::new(known.kept_ty(), known.kept_elements().data.clone());
            let found = gather_along(cx, x, &Val::Known(kept), dim)?;
            return cx.expand(&found, &[&shape[..dim], &of_places, &shape[dim + 1..]].concat());
        }
        if let Some(repeated) = RepeatedRun::find(&known) {
            return repeat_run(cx, x, (&of_places, repeated), dim);
        }
        if let Some(each) = PlacesOfEach::find(&known, shape[dim]) {
            return gather_of_parts(cx, x, (&of_places, &each), dim);
        }
        if let Some(runs) = find_runs(&known) {
            return gather_runs(cx, x, (&known, &runs), dim);
        }
    }
    let rank = shape.len();
    let front = [dim].into_iter().chain((0..rank).filter(|&other| other != dim)).collect();
    let x = cx.transpose(x, front)?;
    let found = gather_rows(cx, &x, places)?;
    let count = of_places.len();
    let before = count..count + dim;
    let behind = count + dim..count + rank - 1;
    cx.transpose(&found, before.chain(0..count).chain(behind).collect())
}

/// The elements at places `[i..]` of a tensor `[n, w..]`. Of numbers that are not known they are an embedding, which leaves each dim of
/// the places its own, so that it can be cut along any of them.
fn gather_rows(cx: &mut Lowering, x: &Val, places: &Val) -> Res<Val> {
    let (ty, of_places) = (cx.ty(x)?, cx.shape(places)?);
    let result = [&of_places[..], &ty.shape[1..]].concat();
    let known = cx.find_foldable(x).is_some() && cx.find_foldable(places).is_some();
    let found = if known || !ty.dtype.is_float() {
        let flat = cx.reshape(places, &[of_places.iter().product()])?;
        cx.apply(Op::Gather(Gather {}), &[x.clone(), flat])?
    } else {
        let table = cx.reshape(x, &[ty.shape[0], ty.shape[1..].iter().product()])?;
        let places = if of_places.is_empty() { cx.reshape(places, &[1])? } else { places.clone() };
        cx.apply(Op::Embedding(EmbeddingOp {}), &[table, places])?
    };
    cx.reshape(&found, &result)
}

/// The elements at places `[b.., m]` of a tensor `[b.., n, w..]`.
fn look_up(cx: &mut Lowering, x: &Val, places: &Val) -> Res<Val> {
    if cx.shape(places)?.len() == 1 {
        return gather_rows(cx, x, places);
    }
    cx.apply(Op::Gather(Gather {}), &[x.clone(), places.clone()])
}

/// Returns the first place and the end of each run of known places that follow each other; `None` if there are too many runs.
pub(super) fn find_runs(known: &KnownValue) -> Option<Vec<(usize, usize)>> {
    debug_assert!(known.ty.dtype == DType::I64, "places are integers");
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for place in known.elements().into_iter().map(|place| place as usize) {
        let full = runs.len() == MOST_RUNS;
        match runs.last_mut() {
            Some((_, end)) if *end == place => *end += 1,
            _ if full => return None,
            _ => runs.push((place, place + 1)),
        }
    }
    Some(runs)
}

/// Places of one run, each several times behind each other, and all of that several times: `1 1 2 2 3 3 1 1 2 2 3 3`. So mixtures
/// of experts repeat their samples.
#[derive(Clone, Copy, Debug, PartialEq)]
struct RepeatedRun {
    start: usize,
    count: usize,
    /// The number of times that each place stands behind itself.
    each: usize,
    /// The number of times that all of them stand behind each other.
    all: usize,
}

impl RepeatedRun {
    /// Returns the run that places repeat; `None` if they are another pattern, or no place stands twice.
    fn find(places: &KnownValue) -> Option<Self> {
        let places: Vec<usize> =
            places.elements().into_iter().map(|place| place as usize).collect();
        let &start = places.first()?;
        let each = places.iter().take_while(|&&place| place == start).count();
        let next = |(at, place): &(usize, &usize)| **place == start + at;
        let count = places.iter().step_by(each).enumerate().take_while(next).count();
        let all = places.len() / (each * count);
        let at = |index: usize| start + index / each % count;
        let fits = places.len() == each * count * all
            && places.iter().enumerate().all(|(index, &place)| place == at(index));
        (fits && each * all > 1).then_some(Self { start, count, each, all })
    }
}

/// The slices of a run, repeated, in the shape of the places.
fn repeat_run(
    cx: &mut Lowering,
    x: &Val,
    (of_places, run): (&[usize], RepeatedRun),
    dim: usize,
) -> Res<Val> {
    let shape = cx.shape(x)?;
    let (before, behind) = (&shape[..dim], &shape[dim + 1..]);
    let RepeatedRun { start, count, each, all } = run;
    let slices = cx.slice(x, dim, start, start + count, 1)?;
    let apart = cx.reshape(&slices, &[before, &[1, count, 1], behind].concat())?;
    let repeated = cx.expand(&apart, &[before, &[all, count, each], behind].concat())?;
    cx.reshape(&repeated, &[before, of_places, behind].concat())
}

/// The same places in each of several parts of a dim, one part after another: `1 2 5 6 9 10` of 12 are the places `1 2` in each of 3 parts. So a
/// model looks up rows of each sample where samples and time are one dim, or windows that overlap.
#[derive(Clone, Debug, PartialEq)]
struct PlacesOfEach {
    /// The number of parts, at least 2.
    parts: usize,
    /// The places in the first part.
    places: Vec<i64>,
}

impl PlacesOfEach {
    /// Returns the places in as many parts as there can be; `None` if there is one part, or all that they are is one run.
    fn find(known: &KnownValue, extent: usize) -> Option<Self> {
        let places: Vec<usize> = known.elements().into_iter().map(|place| place as usize).collect();
        if places.windows(2).all(|pair| pair[1] == pair[0] + 1) {
            return None;
        }
        let divides =
            |parts: &usize| places.len().is_multiple_of(*parts) && extent.is_multiple_of(*parts);
        let fits = |parts: &usize| {
            let (count, part) = (places.len() / parts, extent / parts);
            let at = |index: usize| places[index % count] + index / count * part;
            places[..count].iter().all(|&place| place < part)
                && places.iter().enumerate().all(|(index, &place)| place == at(index))
        };
        let parts = (2..=places.len().min(extent)).rev().filter(divides).find(fits)?;
        let first = places[..places.len() / parts].iter();
        Some(Self { parts, places: first.map(|&place| place as i64).collect() })
    }
}

/// The elements at places of each part of a dim. The parts stay apart.
fn gather_of_parts(
    cx: &mut Lowering,
    x: &Val,
    (of_places, each): (&[usize], &PlacesOfEach),
    dim: usize,
) -> Res<Val> {
    let shape = cx.shape(x)?;
    let (before, behind) = (&shape[..dim], &shape[dim + 1..]);
    let part = shape[dim] / each.parts;
    let apart = cx.reshape(x, &[before, &[each.parts, part], behind].concat())?;
    let places = Val::Known(KnownValue::from_integers(&each.places));
    let found = gather_along(cx, &apart, &places, dim + 1)?;
    cx.reshape(&found, &[before, of_places, behind].concat())
}

/// A slice for each run of places.
fn gather_runs(
    cx: &mut Lowering,
    x: &Val,
    (places, runs): (&KnownValue, &[(usize, usize)]),
    dim: usize,
) -> Res<Val> {
    let shape = cx.shape(x)?;
    let parts = runs.iter().map(|&(start, end)| cx.slice(x, dim, start, end, 1));
    let parts = parts.collect::<Res<Vec<_>>>()?;
    let joined = match parts.as_slice() {
        [] => cx.slice(x, dim, 0, 0, 1)?,
        [one] => one.clone(),
        _ => cx.apply(Op::Concat(Concat { axis: dim }), &parts)?,
    };
    cx.reshape(&joined, &[&shape[..dim], &places.ty.shape, &shape[dim + 1..]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_that_are_the_same_in_each_part_are_found() {
        let find =
            |places: &[i64], extent| PlacesOfEach::find(&KnownValue::from_integers(places), extent);
        let each = |parts, places: &[i64]| Some(PlacesOfEach { parts, places: places.into() });
        assert_eq!(find(&[1, 2, 5, 6, 9, 10], 12), each(3, &[1, 2]));
        assert_eq!(find(&[0, 16, 32, 48], 64), each(4, &[0]));
        assert_eq!(find(&[0, 1, 1, 2, 4, 5, 5, 6], 8), each(2, &[0, 1, 1, 2]));
        assert_eq!(find(&[1, 0, 3, 2], 4), each(2, &[1, 0]));
        // Another number of parts, a part with another place, places of another part, parts inside others, one run, and nothing.
        for (other, extent) in [
            (&[0, 4, 8][..], 16),
            (&[0, 4, 9, 12], 16),
            (&[0, 5, 4, 7], 8),
            (&[0, 2], 8),
            (&[0, 4, 1, 5, 2, 6, 3, 7], 8),
            (&[0, 1, 2, 3], 4),
            (&[2, 3], 4),
            (&[3], 4),
            (&[], 4),
        ] {
            assert_eq!(find(other, extent), None, "{other:?} of {extent}");
        }
    }

    #[test]
    fn places_that_repeat_a_run_are_found() {
        let find = |places: &[i64]| RepeatedRun::find(&KnownValue::from_integers(places));
        let run = |start, count, each, all| Some(RepeatedRun { start, count, each, all });
        assert_eq!(find(&[1, 1, 2, 2, 3, 3, 1, 1, 2, 2, 3, 3]), run(1, 3, 2, 2));
        assert_eq!(find(&[0, 0, 1, 1]), run(0, 2, 2, 1));
        assert_eq!(find(&[4, 5, 4, 5, 4, 5]), run(4, 2, 1, 3));
        assert_eq!(find(&[7, 7, 7]), run(7, 1, 3, 1));
        for other in [&[0, 1, 2][..], &[0, 0, 1], &[0, 0, 1, 2], &[0, 1, 0, 2], &[2, 2, 1, 1], &[]]
        {
            assert_eq!(find(other), None, "{other:?}");
        }
    }
}
