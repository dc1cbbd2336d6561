//! Elements taken by computed places, and sums over such places. A rank that holds part of the places takes what it
//! holds; the rest is 0.

use graphc_ir::op::Op;
use graphc_ir::ops::ScatterSum;

use crate::context::KernelContext;
use crate::elementwise::Integer;
use crate::error::KernelError;
use crate::indices::IndexView;
use crate::parallel::{RowOutput, over_rows};
use crate::precision::Float;
use crate::view::{View, ViewMut};

/// Places [batch, count] in the middle dim of shards [batch, extent, width], of which this one begins at `first`.
pub(crate) struct GatherPlaces<'a> {
    pub count: usize,
    pub extent: usize,
    pub width: usize,
    first: usize,
    indices: IndexView<'a>,
}

impl<'a> GatherPlaces<'a> {
    /// `places` in `shape`, a shard at `origin` of a tensor that has `range` places.
    pub(crate) fn new(
        op: &'static str,
        places: &View<'a>,
        [shape, origin]: [&[usize]; 2],
        range: usize,
    ) -> Result<Self, KernelError> {
        let Some((&count, batch)) = places.shape.split_last() else {
            return Err(KernelError::bad_call(op, "places without a dim"));
        };
        let [outer @ .., extent] = shape.get(..places.shape.len()).unwrap_or_default() else {
            return Err(KernelError::bad_call(op, format!("places in {shape:?}")));
        };
        if outer != batch {
            return Err(KernelError::bad_call(
                op,
                format!("{:?} places in {shape:?}", places.shape),
            ));
        }
        let width = shape[places.shape.len()..].iter().product();
        let indices = IndexView::new("index", places, range, None)?;
        Ok(Self { count, extent: *extent, width, first: origin[batch.len()], indices })
    }

    /// The place of a value, within the shard; `None` where another rank holds it.
    pub(crate) fn place_at(&self, position: usize) -> Result<Option<usize>, KernelError> {
        let place =
            self.indices.index_at(position)?.and_then(|place| place.checked_sub(self.first));
        Ok(place.filter(|&place| place < self.extent))
    }

    /// Returns the number of values in all batches.
    pub(crate) fn len(&self) -> usize {
        self.indices.len()
    }

    /// Checks all places, where there is nothing to do for them.
    pub(crate) fn check(&self) -> Result<(), KernelError> {
        (0..self.len()).try_for_each(|position| self.place_at(position).map(drop))
    }
}

/// The kernel of [`Op::Gather`]; of any element type.
pub(crate) fn gather(
    _op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let ([x, places], [out]) = (operands, results) else {
        return Err(KernelError::bad_call("gather", "takes two operands and gives one result"));
    };
    let range = x.global.get(places.shape.len().wrapping_sub(1)).copied().unwrap_or(0);
    let places = GatherPlaces::new("gather", places, [x.shape, x.origin], range)?;
    let (rows, width) = (places.len(), places.width);
    if out.len() != rows * width || out.dtype != x.dtype {
        return Err(KernelError::bad_call("gather", format!("a result of {:?}", out.shape)));
    }
    let bytes = width * x.dtype.size();
    let x = x.bytes();
    over_rows(cx, [rows, width], 0, RowOutput::new(out.bytes_mut(), bytes), &|range, mut out, _| {
        for (index, position) in range.enumerate() {
            let batch = position / places.count * places.extent;
            let out = out.row(index);
            match places.place_at(position)? {
                Some(place) => out.copy_from_slice(&x[(batch + place) * bytes..][..bytes]),
                None => out.fill(0),
            }
        }
        Ok(())
    })
}

/// The places of a sum, of which each has a row of values.
fn summed_over<'a>(
    op: &ScatterSum,
    places: &View<'a>,
    g: &View<'_>,
    out: &ViewMut<'_>,
) -> Result<GatherPlaces<'a>, KernelError> {
    let places = GatherPlaces::new("scatter_sum", places, [out.shape, out.origin], op.places)?;
    match g.len() == places.len() * places.width {
        true => Ok(places),
        false => Err(KernelError::bad_call("scatter_sum", format!("values of {:?}", g.shape))),
    }
}

/// The kernel of [`Op::ScatterSum`] for integers.
pub(crate) fn scatter_sum_of_integers<T: Integer>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    _cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::ScatterSum(op), [places, g], [out]) = (op, operands, results) else {
        return Err(KernelError::bad_call(
            "scatter_sum",
            "takes two operands and gives one result",
        ));
    };
    let places = summed_over(op, places, g, out)?;
    let (width, slab) = (places.width, places.extent * places.width);
    let (g, out) = (g.as_slice::<T>()?, out.as_mut_slice::<T>()?);
    out.fill(T::wrap(0));
    for position in 0..places.len() {
        let Some(place) = places.place_at(position)? else { continue };
        let first = position / places.count * slab + place * width;
        for (sum, &g) in out[first..first + width].iter_mut().zip(&g[position * width..]) {
            let (a, b): (i64, i64) = ((*sum).into(), g.into());
            *sum = T::wrap(a.wrapping_add(b));
        }
    }
    Ok(())
}

/// The kernel of [`Op::ScatterSum`]. Threads share the batches; each place adds in the order of the values.
pub(crate) fn scatter_sum<T: Float>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::ScatterSum(op), [places, g], [out]) = (op, operands, results) else {
        return Err(KernelError::bad_call(
            "scatter_sum",
            "takes two operands and gives one result",
        ));
    };
    let places = summed_over(op, places, g, out)?;
    let (width, slab) = (places.width, places.extent * places.width);
    if slab == 0 || places.count == 0 {
        out.bytes_mut().fill(0);
        return places.check();
    }
    let (g, batches) = (g.as_slice::<T>()?, out.len() / slab);
    let out = RowOutput::new(out.as_mut_slice::<T>()?, slab);
    over_rows(cx, [batches, slab], T::scratch_len(slab + width), out, &|range, mut out, room| {
        let (of_g, of_out) = room.split_at_mut(T::scratch_len(width));
        for (index, batch) in range.enumerate() {
            T::write_values(out.row(index), of_out, |sums| {
                sums.fill(0.0);
                for position in batch * places.count..(batch + 1) * places.count {
                    let Some(place) = places.place_at(position)? else { continue };
                    let g = T::read_values(&g[position * width..][..width], of_g);
                    let sums = &mut sums[place * width..][..width];
                    sums.iter_mut().zip(g).for_each(|(sum, &g)| *sum += g);
                }
                Ok(())
            })?;
        }
        Ok(())
    })
}
