//! Look-up of rows, and its gradient. A rank that holds part of the table looks up what it holds; the rest is 0.

use graphc_ir::op::Op;

use crate::context::KernelContext;
use crate::error::KernelError;
use crate::indices::Indices;
use crate::parallel;
use crate::view::{View, ViewMut};

/// The kernel of [`Op::Embedding`]; of any element type.
pub(crate) fn embedding(
    _op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let ([table, ids], [out]) = (operands, results) else {
        return Err(KernelError::call("embedding", "takes two operands and gives one result"));
    };
    let (&[rows, width], &[first, _]) = (table.shape, table.origin) else {
        return Err(KernelError::call("embedding", format!("a table of {:?}", table.shape)));
    };
    if out.len() != ids.len() * width || out.dtype != table.dtype {
        return Err(KernelError::call("embedding", format!("a result of {:?}", out.shape)));
    }
    let ids = Indices::new("row", ids, table.global[0], None)?;
    let bytes = width * table.dtype.size();
    let table = table.bytes();
    parallel::over_rows(cx, ids.len(), width, [out.bytes_mut()], [bytes], |range, [out]| {
        for (index, position) in range.enumerate() {
            let out = &mut out[index * bytes..(index + 1) * bytes];
            match ids.get(position)?.filter(|row| (first..first + rows).contains(row)) {
                Some(row) => out.copy_from_slice(&table[(row - first) * bytes..][..bytes]),
                None => out.fill(0),
            }
        }
        Ok(())
    })
}

/// The kernel of [`Op::EmbeddingGrad`]. Threads share the rows of the table; each row adds in the order of the indices.
pub(crate) fn embedding_grad(
    op: &Op,
    operands: &[View<'_>],
    results: &mut [ViewMut<'_>],
    cx: &mut KernelContext<'_>,
) -> Result<(), KernelError> {
    let (Op::EmbeddingGrad(op), [ids, g], [out]) = (op, operands, results) else {
        return Err(KernelError::call("embedding_grad", "takes two operands and gives one result"));
    };
    let (&[rows, width], &[first, _]) = (out.shape, out.origin) else {
        return Err(KernelError::call("embedding_grad", format!("a table of {:?}", out.shape)));
    };
    if g.len() != ids.len() * width {
        return Err(KernelError::call("embedding_grad", format!("a gradient of {:?}", g.shape)));
    }
    let ids = Indices::new("row", ids, op.rows, None)?;
    let g = g.as_slice::<f32>()?;
    let out = out.as_mut_slice::<f32>()?;
    if rows == 0 {
        (0..ids.len()).try_for_each(|position| ids.get(position).map(drop))?;
    }
    parallel::over_rows(cx, rows, width, [out], [width], |range, [out]| {
        out.fill(0.0);
        let own = first + range.start..first + range.end;
        for position in 0..ids.len() {
            if let Some(row) = ids.get(position)?.filter(|row| own.contains(row)) {
                let out = &mut out[(row - own.start) * width..][..width];
                let g = &g[position * width..(position + 1) * width];
                out.iter_mut().zip(g).for_each(|(out, &g)| *out += g);
            }
        }
        Ok(())
    })
}
