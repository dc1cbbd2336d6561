//! Rotary position embedding.

use graphc_ir::op::Op;

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::parallel;
use crate::precision::{Float, parts_of};
use crate::simd::vectorized;
use crate::view::{View, ViewMut};

/// The kernel of [`Op::Rotary`]. Angles are computed in `f64`, once for each position: at position 100,000 an `f32` has
/// lost the digits that matter.
pub(crate) fn rotary<T: Float>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::Rotary(op), [x], [out]) = (op, operands, results) else {
        return Err(KernelError::bad_call("rotary", "takes one operand and gives one result"));
    };
    let &[.., time, heads, width] = x.shape else {
        return Err(KernelError::bad_call("rotary", "needs dims of time, heads and width"));
    };
    if out.shape != x.shape || width % 2 != 0 {
        return Err(KernelError::bad_call("rotary", format!("{:?} to {:?}", x.shape, out.shape)));
    }
    let rank = x.shape.len();
    let (first, first_pair) = (x.origin[rank - 3], x.origin[rank - 1] / 2);
    let (whole, all_times) = (x.global[rank - 1], x.global[rank - 3]);
    let (x, out) = (x.as_slice::<T>()?, out.as_mut_slice::<T>()?);
    let row = heads * width;
    if out.is_empty() {
        return Ok(());
    }
    // For each position the sines of all pairs, then the cosines.
    let parts = parallel::count_parts(cx, out.len());
    let room = T::scratch_len(2 * width);
    let (angles, rooms) = cx.scratch.take_both::<f32, f32>([time * width, parts * room]);
    for (index, row) in angles.chunks_exact_mut(width).enumerate() {
        let (sines, cosines) = row.split_at_mut(width / 2);
        for (pair, (sine, cosine)) in sines.iter_mut().zip(cosines).enumerate() {
            let position = op.position(first + index, all_times);
            let (sin, cos) = op.angle(position, first_pair + pair, whole).sin_cos();
            (*sine, *cosine) = (sin as f32, cos as f32);
        }
    }
    let rows = out.len() / row;
    let each = rows.div_ceil(parts);
    let angles = &*angles;
    let pieces = parallel::with_rooms(
        x.chunks(each * row).zip(out.chunks_mut(each * row)).enumerate(),
        rooms,
        room,
    );
    parallel::run_parts(cx.pool, pieces, &|((piece, (x, out)), room)| {
        let [of_x, of_out] = parts_of(room);
        for (index, (x, out)) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)).enumerate()
        {
            let position = (piece * each + index / heads) % time;
            let (sin, cos) = angles[position * width..][..width].split_at(width / 2);
            let x = T::read_values(x, of_x);
            T::write_values(out, of_out, |out| match op.interleaved {
                true => turn_neighbours(x, sin, cos, out),
                false => turn_halves(x, sin, cos, out),
            });
        }
        Ok(())
    })
}

vectorized! {
    fn turn_halves(x: &[f32], sin: &[f32], cos: &[f32], out: &mut [f32]) {
        let half = sin.len();
        let (x, y) = x.split_at(half);
        let (to_x, to_y) = out.split_at_mut(half);
        for i in 0..half {
            to_x[i] = x[i] * cos[i] - y[i] * sin[i];
            to_y[i] = x[i] * sin[i] + y[i] * cos[i];
        }
    }
}

vectorized! {
    fn turn_neighbours(x: &[f32], sin: &[f32], cos: &[f32], out: &mut [f32]) {
        for (i, (x, out)) in x.chunks_exact(2).zip(out.chunks_exact_mut(2)).enumerate() {
            out[0] = x[0] * cos[i] - x[1] * sin[i];
            out[1] = x[0] * sin[i] + x[1] * cos[i];
        }
    }
}
