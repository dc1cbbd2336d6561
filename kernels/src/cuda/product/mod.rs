//! Matrix products, which a library multiplies, or kernels of [`own`] where there is none.
//!
//! Dims of a batch that follow each other in all matrices are one. Rows that one matrix on the right multiplies are rows of one
//! product. Of the dims that are left the longest is the batch of the library's call; each index of the others is a call of its
//! own.

mod own;

use graphc_ir::ops::MatMul;
use graphc_ir::types::DType;

use super::Shard;
use super::call::{
    Argument, Call, CallRegister, Epilogue, Launch, LaunchMemory, Matrix, MatrixProduct, Operands,
};
use super::convolution::align_bytes;
use super::source::{KernelSource, broadcast_strides, position_expression};
use crate::error::KernelError;

pub use own::{own_product, product_end};

/// Prepares the call of a `MatMul` op.
pub(super) fn prepare_matmul(
    op: &MatMul,
    operands: &[Shard],
    results: &[Shard],
) -> Result<Call, KernelError> {
    let ([a, b, sizes @ ..], [out]) = (operands, results) else {
        return Err(KernelError::bad_call("matmul", "takes two operands and gives one result"));
    };
    let product = build_product(op, a, b, out)?;
    if out.elements() == 0 {
        return Ok(Call::empty());
    }
    if product.inner == 0 {
        let bytes = out.elements() * out.dtype().size();
        let place = product.operands.out;
        return Ok(Call::from_launches(vec![Launch::Clear { place, bytes }]));
    }
    if !out.dtype().is_float() {
        return Ok(Call::from_launches(launch_integers(&product)));
    }
    if a.dtype().is_float8() {
        let mut call = multiply_widened(product, [a, b]);
        if let [of_rows, of_columns] = sizes {
            call.launches.push(divide_by_scales(op, [a, b], [of_rows, of_columns], out)?);
        }
        return Ok(call);
    }
    Ok(Call::from_launches(vec![Launch::Product(product)]))
}

/// A product of factors of 8 bits: as one of bf16, which has all their numbers, of copies in the memory to work in.
fn multiply_widened(mut product: MatrixProduct, factors: [&Shard; 2]) -> Call {
    let mut launches = Vec::new();
    let mut scratch = 0;
    for (place, factor) in factors.into_iter().enumerate() {
        let elements = factor.elements();
        let source = KernelSource::new(include_str!("../cu/float8_widen.cu"))
            .define_element("NUMBER", factor.dtype())
            .define("ELEMENTS", elements)
            .define_index(elements);
        let arguments = vec![Argument::operand(place), Argument::scratch(scratch)];
        let blocks = elements.div_ceil(THREADS);
        launches.push(Launch::kernel(source, "float8_widen", blocks, THREADS, arguments));
        let wide = LaunchMemory::Scratch(scratch);
        *(if place == 0 { &mut product.operands.a } else { &mut product.operands.b }) = wide;
        scratch += align_bytes(elements * DType::BF16.size());
    }
    launches.push(Launch::Product(product));
    Call { scratch, ..Call::from_launches(launches) }
}

/// Divides a product of numbers of 8 bits by the scales of its rows and columns.
fn divide_by_scales(
    op: &MatMul,
    factors: [&Shard; 2],
    [of_rows, of_columns]: [&Shard; 2],
    out: &Shard,
) -> Result<Launch, KernelError> {
    let misfit = || {
        let (rows, columns) = (of_rows.shape(), of_columns.shape());
        KernelError::bad_call("matmul", format!("sizes {rows:?} and {columns:?} of a product"))
    };
    // Sizes lie as the rows and columns of the product do: one extent of the last two is 1.
    let lies = |sizes: &Shard, turned: bool| {
        let mut shape = sizes.shape().to_vec();
        if let [.., one, two] = &mut shape[..]
            && turned
        {
            std::mem::swap(one, two);
        }
        let strides = broadcast_strides(&shape, out.shape()).ok_or_else(misfit)?;
        Ok::<String, KernelError>(position_expression(out.shape(), &strides, "i"))
    };
    let elements = out.elements();
    let source = KernelSource::new(include_str!("../cu/float8_unscale.cu"))
        .define("ELEMENTS", elements)
        .define_index(elements)
        .define_element("A", of_rows.dtype())
        .define_element("B", of_columns.dtype())
        .define_element("ROW_NUMBER", factors[0].dtype())
        .define_element("COLUMN_NUMBER", factors[1].dtype())
        .define("OF_ROW(i)", lies(of_rows, op.transpose_a)?)
        .define("OF_COLUMN(i)", lies(of_columns, op.transpose_b)?);
    let arguments = vec![Argument::result(0), Argument::operand(2), Argument::operand(3)];
    let blocks = elements.div_ceil(THREADS);
    Ok(Launch::kernel(source, "float8_unscale", blocks, THREADS, arguments))
}

/// Threads of a block that widens factors.
const THREADS: usize = 256;

pub(super) fn build_product(
    op: &MatMul,
    a: &Shard,
    b: &Shard,
    out: &Shard,
) -> Result<MatrixProduct, KernelError> {
    let misfit = || {
        let reason = format!("{:?} and {:?} do not give {:?}", a.shape(), b.shape(), out.shape());
        KernelError::bad_call("matmul", reason)
    };
    if a.shape().len() < 2 || b.shape().len() < 2 || out.shape().len() < 2 {
        return Err(misfit());
    }
    let ((a_batch, a_last), (b_batch, b_last)) = (split_batch(a.shape()), split_batch(b.shape()));
    let (out_batch, out_last) = split_batch(out.shape());
    let [mut rows, inner] = transpose_extents(a_last, op.transpose_a);
    let [inner_b, columns] = transpose_extents(b_last, op.transpose_b);
    if inner != inner_b || out_last != [rows, columns] {
        return Err(misfit());
    }
    let matrix = |by_columns, [_, leading]: [usize; 2]| Matrix { by_columns, leading, stride: 0 };
    let (mut one, mut two) = (matrix(op.transpose_a, a_last), matrix(op.transpose_b, b_last));
    let mut three = matrix(false, out_last);
    let strides = |own: &[usize], size: usize| {
        let strides = broadcast_strides(own, out_batch).ok_or_else(misfit)?;
        Ok(strides.into_iter().map(|stride| stride * size).collect::<Vec<_>>())
    };
    let (of_a, of_b) = (strides(a_batch, rows * inner)?, strides(b_batch, inner * columns)?);
    let of_out = strides(out_batch, rows * columns)?;
    let dims = out_batch.iter().zip(of_a).zip(of_b.into_iter().zip(of_out));
    let dims = dims.map(|((&extent, a), (b, out))| BatchDim { extent, strides: [a, b, out] });
    let mut dims = join_dims(dims);
    // One matrix on the right: all rows on the left make one product.
    if !op.transpose_a
        && let Some(last) = dims.pop_if(|last| last.strides == [rows * inner, 0, rows * columns])
    {
        rows *= last.extent;
    }
    let longest = (0..dims.len()).max_by_key(|&dim| dims[dim].extent);
    let row = longest.map(|dim| dims.remove(dim));
    let batch = row.map_or(1, |row| row.extent);
    [one.stride, two.stride, three.stride] = row.map_or([0; 3], |row| row.strides);
    let starts = matrix_starts(&dims);
    let operands = Operands {
        dtype: out.dtype(),
        made: out.dtype(),
        a: LaunchMemory::Slot(CallRegister::Operand(0)),
        b: LaunchMemory::Slot(CallRegister::Operand(1)),
        out: LaunchMemory::Slot(CallRegister::Result(0)),
    };
    let epilogue = Epilogue::default();
    Ok(MatrixProduct {
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
        instead: Vec::new(),
    })
}

/// Products of integers, which wrap around: a thread per element.
fn launch_integers(product: &MatrixProduct) -> Vec<Launch> {
    let stride = |matrix: &Matrix| match matrix.by_columns {
        true => (1, matrix.leading),
        false => (matrix.leading, 1),
    };
    let ((a_row, a_inner), (b_inner, b_column)) = (stride(&product.a), stride(&product.b));
    let elements = product.rows * product.columns * product.batch;
    let launch = |start: &[usize; 3]| {
        let source = KernelSource::new(include_str!("../cu/integer_product.cu"))
            .define_element("T", product.operands.dtype)
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
            .define("START", format!("{}ull", start[2]))
            .define("STRIDE", format!("{}ull", product.out.stride));
        let arguments = [product.operands.a, product.operands.b, product.operands.out];
        let arguments = arguments.map(super::Argument::Address).to_vec();
        Launch::kernel(source, "integer_product", elements.div_ceil(256), 256, arguments)
    };
    product.starts.iter().map(launch).collect()
}

fn split_batch(shape: &[usize]) -> (&[usize], [usize; 2]) {
    let (batch, last) = shape.split_at(shape.len() - 2);
    (batch, [last[0], last[1]])
}

fn transpose_extents([rows, columns]: [usize; 2], transposed: bool) -> [usize; 2] {
    if transposed { [columns, rows] } else { [rows, columns] }
}

/// A dim of a batch: how many products, and how many elements apart the matrices of both factors and of the result are.
#[derive(Clone, Copy, Debug, PartialEq)]
struct BatchDim {
    extent: usize,
    strides: [usize; 3],
}

/// Joins neighbouring dims that are one dim for all matrices, and drops those of extent 1. Outer dims come first.
fn join_dims(dims: impl Iterator<Item = BatchDim>) -> Vec<BatchDim> {
    let mut joined: Vec<BatchDim> = Vec::new();
    for dim in dims.filter(|dim| dim.extent != 1) {
        match joined.last_mut() {
            Some(outer) if outer.strides == dim.strides.map(|stride| stride * dim.extent) => {
                *outer = BatchDim { extent: outer.extent * dim.extent, ..dim };
            }
            _ => joined.push(dim),
        }
    }
    joined
}

/// Returns the positions at which the matrices begin, for each index of these dims.
fn matrix_starts(dims: &[BatchDim]) -> Vec<[usize; 3]> {
    dims.iter().fold(vec![[0; 3]], |starts, dim| {
        let of = |start: [usize; 3]| {
            let at =
                move |index| std::array::from_fn(|part| start[part] + index * dim.strides[part]);
            (0..dim.extent).map(at)
        };
        starts.into_iter().flat_map(of).collect()
    })
}

#[cfg(test)]
mod tests {
    use graphc_ir::types::{DType, TensorType};

    use super::*;

    /// Extents of the product of factors of these shapes: rows, the inner extent, columns; how many are in a row, and how many rows.
    fn extents(op: MatMul, a: &[usize], b: &[usize], out: &[usize]) -> [usize; 5] {
        let shard = |shape: &[usize]| Shard::whole(TensorType::new(DType::BF16, shape));
        let made = build_product(&op, &shard(a), &shard(b), &shard(out)).expect("a product");
        [made.rows, made.inner, made.columns, made.batch, made.starts.len()]
    }

    const PLAIN: MatMul = MatMul { transpose_a: false, transpose_b: false };

    #[test]
    fn rows_of_all_samples_are_rows_of_one_product() {
        let one = [8192, 768, 2304, 1, 1];
        assert_eq!(extents(PLAIN, &[8, 1024, 768], &[768, 2304], &[8, 1024, 2304]), one);
        assert_eq!(extents(PLAIN, &[8, 1024, 768], &[1, 768, 2304], &[8, 1024, 2304]), one);
        let turned = MatMul { transpose_b: true, ..PLAIN };
        assert_eq!(extents(turned, &[2, 4, 1024, 768], &[2304, 768], &[2, 4, 1024, 2304]), one);
        // Samples and heads that share a factor: its rows are those of all heads.
        let grouped = extents(PLAIN, &[2, 3, 4, 5, 7], &[2, 3, 1, 7, 9], &[2, 3, 4, 5, 9]);
        assert_eq!(grouped, [20, 7, 9, 6, 1]);
    }

    #[test]
    fn dims_that_follow_each_other_are_one_batch() {
        assert_eq!(
            extents(PLAIN, &[8, 12, 64, 32], &[8, 12, 32, 64], &[8, 12, 64, 64]),
            [64, 32, 64, 96, 1]
        );
        // The columns of a transposed first factor are not those of one matrix.
        let turned = MatMul { transpose_a: true, ..PLAIN };
        assert_eq!(
            extents(turned, &[4, 3, 32, 64], &[32, 16], &[4, 3, 64, 16]),
            [64, 32, 16, 12, 1]
        );
    }

    /// The longest dim is the batch, wherever it lies and although each factor repeats along another dim.
    #[test]
    fn the_longest_dim_is_the_batch() {
        assert_eq!(extents(PLAIN, &[7, 1, 5, 4], &[1, 3, 4, 6], &[7, 3, 5, 6]), [5, 4, 6, 7, 3]);
        let shard = |shape: &[usize]| Shard::whole(TensorType::new(DType::F32, shape));
        let [a, b, out] = [&[7, 1, 5, 4][..], &[1, 3, 4, 6], &[7, 3, 5, 6]].map(shard);
        let made = build_product(&PLAIN, &a, &b, &out).expect("a product");
        assert_eq!([made.a.stride, made.b.stride, made.out.stride], [20, 0, 90]);
        assert_eq!(made.starts, [[0, 0, 0], [0, 24, 30], [0, 48, 60]]);
    }
}
