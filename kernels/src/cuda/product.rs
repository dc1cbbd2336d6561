//! Matrix products, which a library multiplies.

use graphc_ir::ops::MatMul;

use super::Shard;
use super::call::{Call, Epilogue, Launch, Matrix, Operands, Place, Product, Slot};
use super::source::{Source, broadcast_strides};
use crate::error::KernelError;

/// One op.
pub(super) fn matmul(
    op: &MatMul,
    operands: &[Shard],
    results: &[Shard],
) -> Result<Call, KernelError> {
    let ([a, b], [out]) = (operands, results) else {
        return Err(KernelError::call("matmul", "takes two operands and gives one result"));
    };
    let product = product(op, a, b, out)?;
    if out.elements() == 0 {
        return Ok(Call::nothing());
    }
    if product.inner == 0 {
        let bytes = out.elements() * out.dtype().size();
        let place = product.operands.out;
        return Ok(Call::of(vec![Launch::Clear { place, bytes }]));
    }
    if !out.dtype().is_float() {
        return Ok(Call::of(integers(&product)));
    }
    Ok(Call::of(vec![Launch::Product(product)]))
}

pub(super) fn product(
    op: &MatMul,
    a: &Shard,
    b: &Shard,
    out: &Shard,
) -> Result<Product, KernelError> {
    let misfit = || {
        let reason = format!("{:?} and {:?} do not give {:?}", a.shape(), b.shape(), out.shape());
        KernelError::call("matmul", reason)
    };
    if a.shape().len() < 2 || b.shape().len() < 2 || out.shape().len() < 2 {
        return Err(misfit());
    }
    let ((a_batch, a_last), (b_batch, b_last)) = (split(a.shape()), split(b.shape()));
    let (out_batch, out_last) = split(out.shape());
    let [mut rows, inner] = turned(a_last, op.transpose_a);
    let [inner_b, columns] = turned(b_last, op.transpose_b);
    if inner != inner_b || out_last != [rows, columns] {
        return Err(misfit());
    }
    let matrix = |by_columns, [_, leading]: [usize; 2]| Matrix { by_columns, leading, stride: 0 };
    let place = |slot| Place::Slot(slot);
    let (mut one, mut two) = (matrix(op.transpose_a, a_last), matrix(op.transpose_b, b_last));
    let mut three = matrix(false, out_last);
    let mut batch = 1;
    let mut starts = vec![[0; 3]];
    let count: usize = out_batch.iter().product();
    if b_batch.iter().all(|&extent| extent == 1) && a_batch == out_batch && !op.transpose_a {
        // One matrix on the right: all rows on the left make one product.
        rows *= count;
    } else {
        let strides = |own: &[usize], size: usize| {
            let strides = broadcast_strides(own, out_batch).ok_or_else(misfit)?;
            Ok(strides.into_iter().map(|stride| stride * size).collect::<Vec<_>>())
        };
        let (of_a, of_b) = (strides(a_batch, rows * inner)?, strides(b_batch, inner * columns)?);
        let of_out: Vec<usize> =
            graphc_ir::types::strides(out_batch).into_iter().map(|s| s * rows * columns).collect();
        let last = out_batch.iter().rposition(|&extent| extent != 1);
        let outer = last.unwrap_or(0);
        if let Some(last) = last {
            batch = out_batch[last];
            (one.stride, two.stride, three.stride) = (of_a[last], of_b[last], of_out[last]);
        }
        let outer = &out_batch[..outer];
        let start = |index, strides: &[usize]| start(index, outer, &strides[..outer.len()]);
        starts = (0..outer.iter().product())
            .map(|index| [start(index, &of_a), start(index, &of_b), start(index, &of_out)])
            .collect();
    }
    let operands = Operands {
        dtype: out.dtype(),
        made: out.dtype(),
        a: place(Slot::Operand(0)),
        b: place(Slot::Operand(1)),
        out: place(Slot::Result(0)),
    };
    let epilogue = Epilogue::default();
    Ok(Product {
        rows,
        inner,
        columns,
        a: one,
        b: two,
        out: three,
        batch,
        starts,
        operands,
        epilogue,
    })
}

/// Products of integers, which wrap around: a thread per element.
fn integers(product: &Product) -> Vec<Launch> {
    let stride = |matrix: &Matrix| match matrix.by_columns {
        true => (1, matrix.leading),
        false => (matrix.leading, 1),
    };
    let ((a_row, a_inner), (b_inner, b_column)) = (stride(&product.a), stride(&product.b));
    let elements = product.rows * product.columns * product.batch;
    let launch = |start: &[usize; 3]| {
        let source = Source::new(include_str!("cu/integer_product.cu"))
            .element("T", product.operands.dtype)
            .define("ROWS", product.rows)
            .define("INNER", product.inner)
            .define("COLUMNS", product.columns)
            .define("ELEMENTS", elements)
            .define(
                "A(m, r, k)",
                format!(
                    "{} + (m) * {}ull + (r) * {a_row}ull + (k) * {a_inner}ull",
                    start[0], product.a.stride
                ),
            )
            .define(
                "B(m, k, c)",
                format!(
                    "{} + (m) * {}ull + (k) * {b_inner}ull + (c) * {b_column}ull",
                    start[1], product.b.stride
                ),
            )
            .define("START", start[2]);
        let arguments = [product.operands.a, product.operands.b, product.operands.out];
        let arguments = arguments.map(super::Argument::Address).to_vec();
        Launch::kernel(source, "integer_product", elements.div_ceil(256), 256, arguments)
    };
    product.starts.iter().map(launch).collect()
}

fn split(shape: &[usize]) -> (&[usize], [usize; 2]) {
    let (batch, last) = shape.split_at(shape.len() - 2);
    (batch, [last[0], last[1]])
}

fn turned([rows, columns]: [usize; 2], transposed: bool) -> [usize; 2] {
    if transposed { [columns, rows] } else { [rows, columns] }
}

fn start(mut index: usize, extents: &[usize], strides: &[usize]) -> usize {
    let mut start = 0;
    for (&extent, &stride) in extents.iter().zip(strides).rev() {
        start += index % extent * stride;
        index /= extent;
    }
    start
}
