//! Look-up of rows, and its gradient. A rank that holds part of the table looks up what it holds; the rest is 0.

use graphc_ir::op::Op;

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::indices::IndexView;
use crate::parallel::{RowOutput, over_rows};
use crate::precision::Float;
use crate::view::{View, ViewMut};

/// The kernel of [`Op::Embedding`]; of any element type.
pub(crate) fn embedding(
    _op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let ([table, ids], [out]) = (operands, results) else {
        return Err(KernelError::bad_call("embedding", "takes two operands and gives one result"));
    };
    let (&[rows, width], &[first, _]) = (table.shape, table.origin) else {
        return Err(KernelError::bad_call("embedding", format!("a table of {:?}", table.shape)));
    };
    if out.len() != ids.len() * width || out.dtype != table.dtype {
        return Err(KernelError::bad_call("embedding", format!("a result of {:?}", out.shape)));
    }
    let ids = IndexView::new("row", ids, table.global[0], None)?;
    let bytes = width * table.dtype.size();
    let table = table.bytes();
    let out = RowOutput::new(out.bytes_mut(), bytes);
    over_rows(cx, [ids.len(), width], 0, out, &|range, mut out, _| {
        for (index, position) in range.enumerate() {
            let out = out.row(index);
            match ids.index_at(position)?.filter(|row| (first..first + rows).contains(row)) {
                Some(row) => out.copy_from_slice(&table[(row - first) * bytes..][..bytes]),
                None => out.fill(0),
            }
        }
        Ok(())
    })
}

/// Elements of a table whose sums are kept as `f32` at one time, where the table's are not.
const KEPT: usize = 1 << 16;

/// The kernel of [`Op::EmbeddingGrad`]. Threads share the rows of the table; each row adds in the order of the indices.
pub(crate) fn embedding_grad<T: Float>(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::EmbeddingGrad(op), [ids, g], [out]) = (op, operands, results) else {
        return Err(KernelError::bad_call(
            "embedding_grad",
            "takes two operands and gives one result",
        ));
    };
    let (&[rows, width], &[first, _]) = (out.shape, out.origin) else {
        return Err(KernelError::bad_call("embedding_grad", format!("a table of {:?}", out.shape)));
    };
    if g.len() != ids.len() * width {
        return Err(KernelError::bad_call(
            "embedding_grad",
            format!("a gradient of {:?}", g.shape),
        ));
    }
    let ids = IndexView::new("row", ids, op.rows, None)?;
    let g = g.as_slice::<T>()?;
    let out = out.as_mut_slice::<T>()?;
    if rows == 0 {
        (0..ids.len()).try_for_each(|position| ids.index_at(position).map(drop))?;
    }
    // Indices are gone through once for each tile of rows: of all rows where sums need no other memory.
    let tile =
        if T::scratch_len(1) == 0 { rows } else { (KEPT / width.max(1)).clamp(1, rows.max(1)) };
    let room = T::scratch_len((tile + 1) * width);
    over_rows(cx, [rows, width], room, RowOutput::new(out, width), &|range, out, room| {
        let (of_g, of_out) = room.split_at_mut(T::scratch_len(width));
        let tiles = out.into_elements().chunks_mut((tile * width).max(1));
        for (start, out) in range.step_by(tile.max(1)).zip(tiles) {
            let own = first + start..first + start + out.len() / width;
            T::write_values(out, of_out, |out| {
                out.fill(0.0);
                for position in 0..ids.len() {
                    if let Some(row) = ids.index_at(position)?.filter(|row| own.contains(row)) {
                        let out = &mut out[(row - own.start) * width..][..width];
                        let g = T::read_values(&g[position * width..(position + 1) * width], of_g);
                        out.iter_mut().zip(g).for_each(|(out, &g)| *out += g);
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    })
}
