//! Convolutions by larger kernels as products of matrices: the elements of all windows are gathered in memory to work in, one row for
//! each place, and a library multiplies them.
//!
//! The memory holds each element as often as windows have it, which is written and read once more. That is made good by the faster
//! product where rows meet many columns. The gradient of images gathers the places that an element adds to, where windows step
//! over none.

use super::super::call::{Epilogue, Matrix, MatrixProduct, Operands};
use super::{
    Argument, Call, CallRegister, ConvolutionKind, ConvolutionWork, Launch, LaunchMemory, THREADS,
    align_bytes, tiles,
};
use graphc_ir::types::DType;

/// Columns of a product from which on gathering is worth its memory traffic.
const COLUMNS: usize = 128;
/// Elements of a window at most, which a thread holds for several channels.
const TAPS: usize = 16;
/// Bytes of gathered elements at most.
pub(super) const MOST: usize = 256 << 20;
/// Channels that are moved at once: 16 bytes of them.
const WIDTH: usize = 8;

/// Whether elements are gathered.
pub(super) fn is_worth(work: &ConvolutionWork) -> bool {
    let space = &work.space;
    let halves = matches!(work.dtype, DType::F16 | DType::BF16);
    let plain = space.groups == 1 && work.channels_last && !work.takes_part();
    let wide = space.inputs.is_multiple_of(WIDTH) && space.outputs.is_multiple_of(WIDTH);
    let columns = match work.kind {
        ConvolutionKind::Forward | ConvolutionKind::KernelGrad => space.outputs,
        ConvolutionKind::InputGrad if space.window.strides == [1; 2] => space.inputs,
        ConvolutionKind::InputGrad => 0,
    };
    let fits = space.taps() <= TAPS && count_elements(work) * work.dtype.size() <= MOST;
    halves && plain && wide && columns >= COLUMNS && fits
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

/// Returns the number of elements of the matrix of windows.
fn count_elements(work: &ConvolutionWork) -> usize {
    let space = &work.space;
    let each = if work.kind == ConvolutionKind::InputGrad { space.outputs } else { space.inputs };
    count_rows(work) * each * space.taps()
}

pub(super) fn prepare_gathered(work: &ConvolutionWork) -> Call {
    // What is done without the library packs kernels as well.
    let mut call = tiles::prepare_tiles(work);
    let packed = match work.kind {
        ConvolutionKind::InputGrad => align_bytes(work.kernel_elements() * work.dtype.size()),
        ConvolutionKind::Forward | ConvolutionKind::KernelGrad => 0,
    };
    let kept = usize::from(work.kind == ConvolutionKind::InputGrad);
    let instead = call.launches.split_off(kept);
    let bytes = packed + count_elements(work) * work.dtype.size();
    call.scratch = call.scratch.max(bytes);
    call.launches.push(launch_gather(work, packed));
    call.launches.push(Launch::Product(gathered_product(work, packed, instead)));
    call
}

fn launch_gather(work: &ConvolutionWork, byte: usize) -> Launch {
    let elements = count_elements(work);
    let (from, each) = match work.kind {
        ConvolutionKind::InputGrad => (1, WIDTH),
        ConvolutionKind::Forward | ConvolutionKind::KernelGrad => (0, WIDTH * work.space.taps()),
    };
    let source = work
        .build_source(include_str!("../cu/convolution_gather.cu"))
        .define("ELEMENTS", elements)
        .define("WIDTH", WIDTH);
    let arguments = vec![Argument::operand(from), Argument::scratch(byte)];
    let blocks = elements.div_ceil(THREADS * each);
    Launch::kernel(source, "convolution_gather", blocks, THREADS, arguments)
}

/// The product of the gathered rows, which begin at a byte of the memory to work in.
fn gathered_product(work: &ConvolutionWork, byte: usize, instead: Vec<Launch>) -> MatrixProduct {
    let (space, taps) = (&work.space, work.space.taps());
    let matrix = |by_columns, leading| Matrix { by_columns, leading, stride: 0 };
    let (result, at) = (LaunchMemory::Slot(CallRegister::Result(0)), LaunchMemory::Scratch(byte));
    let second = LaunchMemory::Slot(CallRegister::Operand(1));
    let (inputs, outputs) = (space.inputs, space.outputs);
    let ([rows, inner, columns], [a, b, out], [at_a, at_b]) = match work.kind {
        ConvolutionKind::Forward => (
            [count_rows(work), taps * inputs, outputs],
            [matrix(false, taps * inputs), matrix(true, taps * inputs), matrix(false, outputs)],
            [at, second],
        ),
        ConvolutionKind::InputGrad => (
            [count_rows(work), taps * outputs, inputs],
            [matrix(false, taps * outputs), matrix(false, inputs), matrix(false, inputs)],
            [at, LaunchMemory::Scratch(0)],
        ),
        ConvolutionKind::KernelGrad => (
            [outputs, count_rows(work), taps * inputs],
            [matrix(true, outputs), matrix(false, taps * inputs), matrix(false, taps * inputs)],
            [second, at],
        ),
    };
    let (dtype, made, starts) = (work.dtype, work.dtype, vec![[0; 3]]);
    let operands = Operands { dtype, made, a: at_a, b: at_b, out: result };
    let epilogue = Epilogue::default();
    MatrixProduct { rows, inner, columns, a, b, out, batch: 1, starts, operands, epilogue, instead }
}
