//! Convolutions by larger kernels as products of matrices: the elements of all windows are gathered in memory to work in, one row for
//! each place, and a library multiplies them.
//!
//! A row has the elements of the window one after the other, and the channels of each, so that channels are moved as they lie. Kernels
//! are packed in that order first; the gradient of kernels is made in it as `f32`, and brought to the order of kernels afterwards.
//!
//! The memory holds each element as often as windows have it, which is written and read once more. That is made good by the faster
//! product where rows meet many columns, or where channels are so few that tiles would read them one by one. The gradient of images
//! gathers the places that an element adds to, where windows step over none.

use super::super::call::{Epilogue, Matrix, MatrixProduct, Operands};
use super::{
    Argument, Call, CallRegister, ConvolutionKind, ConvolutionWork, Join, Launch, LaunchMemory,
    THREADS, align_bytes, tiles,
};
use graphc_ir::types::DType;

/// Columns of a product from which on gathering is worth its memory traffic.
const COLUMNS: usize = 128;
/// The same where the channels of an element fill no access to memory.
const COLUMNS_OF_FEW: usize = 32;
/// Bytes of gathered elements at most.
pub(super) const MOST: usize = 256 << 20;
/// Elements that are moved at once: 16 bytes of them.
const WIDTH: usize = 8;

/// Whether elements are gathered.
pub(super) fn is_worth(work: &ConvolutionWork) -> bool {
    let space = &work.space;
    let halves = matches!(work.dtype, DType::F16 | DType::BF16);
    let plain = space.groups == 1 && work.channels_last && !work.takes_part() && space.taps() > 1;
    let columns = match work.kind {
        ConvolutionKind::Forward | ConvolutionKind::KernelGrad => space.outputs,
        ConvolutionKind::InputGrad if space.window.strides == [1; 2] => space.inputs,
        ConvolutionKind::InputGrad => 0,
    };
    let few = !gathered_channels(work).is_multiple_of(WIDTH);
    let wide = columns >= if few { COLUMNS_OF_FEW } else { COLUMNS };
    let fits = count_elements(work) * work.dtype.size() <= MOST;
    halves && plain && wide && columns.is_multiple_of(WIDTH) && fits
}

/// Rows of the matrix.
fn count_rows(work: &ConvolutionWork) -> usize {
    let space = &work.space;
    let each = if work.kind == ConvolutionKind::InputGrad {
        space.input_places()
    } else {
        space.output_places()
    };
    space.batch * each
}

/// Channels of an element of a window.
fn gathered_channels(work: &ConvolutionWork) -> usize {
    let space = &work.space;
    if work.kind == ConvolutionKind::InputGrad { space.outputs } else { space.inputs }
}

/// Columns of the matrix: the channels of all elements of a window, and zeros up to a whole access to memory.
fn count_columns(work: &ConvolutionWork) -> usize {
    (gathered_channels(work) * work.space.taps()).next_multiple_of(WIDTH)
}

/// Returns the number of elements of the matrix of windows.
fn count_elements(work: &ConvolutionWork) -> usize {
    count_rows(work) * count_columns(work)
}

pub(super) fn prepare_gathered(work: &ConvolutionWork) -> Call {
    match work.kind {
        ConvolutionKind::Forward | ConvolutionKind::InputGrad => prepare_images(work),
        ConvolutionKind::KernelGrad => prepare_kernels(work),
    }
}

/// Images and their gradients: rows times packed kernels.
fn prepare_images(work: &ConvolutionWork) -> Call {
    // What is done without the library packs kernels as well, from byte 0 on.
    let mut call = tiles::prepare_tiles(work);
    let instead = call.launches.split_off(1);
    let size = work.dtype.size();
    let (packed, columns) = (work.kernel_elements() * size, packed_columns(work));
    let padded = count_columns(work) * columns * size;
    if padded > packed {
        let place = LaunchMemory::Scratch(packed);
        call.launches.push(Launch::Clear { place, bytes: padded - packed });
    }
    let rows = align_bytes(padded);
    call.scratch = call.scratch.max(rows + count_elements(work) * size);
    call.launches.push(launch_gather(work, rows));
    let matrix = |leading| Matrix { by_columns: false, leading, stride: 0 };
    let (at, second) = (LaunchMemory::Scratch(rows), LaunchMemory::Scratch(0));
    let result = LaunchMemory::Slot(CallRegister::Result(0));
    let inner = count_columns(work);
    call.launches.push(Launch::Product(MatrixProduct {
        rows: count_rows(work),
        inner,
        columns,
        a: matrix(inner),
        b: matrix(columns),
        out: matrix(columns),
        batch: 1,
        starts: vec![[0; 3]],
        operands: Operands { dtype: work.dtype, made: work.dtype, a: at, b: second, out: result },
        epilogue: Epilogue::default(),
        instead,
    }));
    call
}

/// Columns of packed kernels.
fn packed_columns(work: &ConvolutionWork) -> usize {
    let space = &work.space;
    if work.kind == ConvolutionKind::InputGrad { space.inputs } else { space.outputs }
}

/// The gradient of kernels: the gradients of places times rows.
fn prepare_kernels(work: &ConvolutionWork) -> Call {
    let (outputs, columns) = (work.space.outputs, count_columns(work));
    let sums = align_bytes(count_elements(work) * work.dtype.size());
    let order = format!("((INDEX)(o) * {columns} + (tap) * INPUTS + (c))");
    // Chunks of sums without the library lie where the rows are.
    let (tiled, chunks) = tiles::launch_kernel_sums(work);
    let size = size_of::<f32>();
    let sums = sums.max(align_bytes(chunks * work.kernel_elements() * size));
    let folded = work.launch_join(&Join {
        partial: tiles::PARTIAL,
        chunks,
        from: 0,
        joined: &order,
        made: DType::F32,
        to: Argument::scratch(sums),
    });
    let matrix = |by_columns, leading| Matrix { by_columns, leading, stride: 0 };
    let product = MatrixProduct {
        rows: outputs,
        inner: count_rows(work),
        columns,
        a: matrix(true, outputs),
        b: matrix(false, columns),
        out: matrix(false, columns),
        batch: 1,
        starts: vec![[0; 3]],
        operands: Operands {
            dtype: work.dtype,
            made: DType::F32,
            a: LaunchMemory::Slot(CallRegister::Operand(1)),
            b: LaunchMemory::Scratch(0),
            out: LaunchMemory::Scratch(sums),
        },
        epilogue: Epilogue::default(),
        instead: vec![tiled, folded],
    };
    let turned = work.launch_join(&Join { partial: &order, chunks: 1, ..work.whole_join(sums) });
    let mut call =
        Call::from_launches(vec![launch_gather(work, 0), Launch::Product(product), turned]);
    call.scratch = sums + outputs * columns * size;
    call
}

/// The launch that gathers the rows, which begin at a byte of the memory to work in.
fn launch_gather(work: &ConvolutionWork, byte: usize) -> Launch {
    let elements = count_elements(work);
    let from = usize::from(work.kind == ConvolutionKind::InputGrad);
    let source = work
        .build_source(include_str!("../cu/convolution_gather.cu"))
        .define("ELEMENTS", elements)
        .define("DEPTH", count_columns(work))
        .define("WIDTH", WIDTH);
    let arguments = vec![Argument::operand(from), Argument::scratch(byte)];
    let blocks = elements.div_ceil(THREADS * WIDTH);
    Launch::kernel(source, "convolution_gather", blocks, THREADS, arguments)
}
