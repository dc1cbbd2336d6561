//! Convolutions by larger kernels as products of matrices: the elements of all windows are gathered in memory to work in, one row for
//! each place, and a library multiplies them.
//!
//! The memory holds each element as often as windows have it, which is written and read once more. That is made good by the faster
//! product where rows meet many columns. The gradient of images gathers the places that an element adds to, where windows step
//! over none.

use super::super::call::{Epilogue, Matrix, Operands, Product};
use super::{Argument, Call, Kind, Launch, Place, Slot, THREADS, Work, aligned, tiles};
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
pub(super) fn is_worth(work: &Work) -> bool {
    let space = &work.space;
    let halves = matches!(work.dtype, DType::F16 | DType::BF16);
    let plain = space.groups == 1 && work.channels_last && !work.takes_part();
    let wide = space.inputs.is_multiple_of(WIDTH) && space.outputs.is_multiple_of(WIDTH);
    let columns = match work.kind {
        Kind::Forward | Kind::KernelGrad => space.outputs,
        Kind::InputGrad if space.window.strides == [1; 2] => space.inputs,
        Kind::InputGrad => 0,
    };
    let fits = space.taps() <= TAPS && gathered(work) * work.dtype.size() <= MOST;
    halves && plain && wide && columns >= COLUMNS && fits
}

/// Rows of the matrix.
fn rows(work: &Work) -> usize {
    let space = &work.space;
    let each = if work.kind == Kind::InputGrad { space.area() } else { space.places() };
    space.batch * each
}

/// Its elements.
fn gathered(work: &Work) -> usize {
    let space = &work.space;
    let each = if work.kind == Kind::InputGrad { space.outputs } else { space.inputs };
    rows(work) * each * space.taps()
}

pub(super) fn call(work: &Work) -> Call {
    // What is done without the library packs kernels as well.
    let mut call = tiles::call(work);
    let packed = match work.kind {
        Kind::InputGrad => aligned(work.kernel_elements() * work.dtype.size()),
        Kind::Forward | Kind::KernelGrad => 0,
    };
    let kept = usize::from(work.kind == Kind::InputGrad);
    let instead = call.launches.split_off(kept);
    let bytes = packed + gathered(work) * work.dtype.size();
    call.scratch = call.scratch.max(bytes);
    call.launches.push(gather(work, packed));
    call.launches.push(Launch::Product(product(work, packed, instead)));
    call
}

fn gather(work: &Work, byte: usize) -> Launch {
    let elements = gathered(work);
    let (from, each) = match work.kind {
        Kind::InputGrad => (1, WIDTH),
        Kind::Forward | Kind::KernelGrad => (0, WIDTH * work.space.taps()),
    };
    let source = work
        .source(include_str!("../cu/convolution_gather.cu"))
        .define("ELEMENTS", elements)
        .define("WIDTH", WIDTH);
    let arguments = vec![Argument::operand(from), Argument::scratch(byte)];
    let blocks = elements.div_ceil(THREADS * each);
    Launch::kernel(source, "convolution_gather", blocks, THREADS, arguments)
}

/// The product of the gathered rows, which begin at a byte of the memory to work in.
fn product(work: &Work, byte: usize, instead: Vec<Launch>) -> Product {
    let (space, taps) = (&work.space, work.space.taps());
    let matrix = |by_columns, leading| Matrix { by_columns, leading, stride: 0 };
    let (result, at) = (Place::Slot(Slot::Result(0)), Place::Scratch(byte));
    let second = Place::Slot(Slot::Operand(1));
    let (inputs, outputs) = (space.inputs, space.outputs);
    let ([rows, inner, columns], [a, b, out], [at_a, at_b]) = match work.kind {
        Kind::Forward => (
            [rows(work), taps * inputs, outputs],
            [matrix(false, taps * inputs), matrix(true, taps * inputs), matrix(false, outputs)],
            [at, second],
        ),
        Kind::InputGrad => (
            [rows(work), taps * outputs, inputs],
            [matrix(false, taps * outputs), matrix(false, inputs), matrix(false, inputs)],
            [at, Place::Scratch(0)],
        ),
        Kind::KernelGrad => (
            [outputs, rows(work), taps * inputs],
            [matrix(true, outputs), matrix(false, taps * inputs), matrix(false, taps * inputs)],
            [second, at],
        ),
    };
    let (dtype, made, starts) = (work.dtype, work.dtype, vec![[0; 3]]);
    let operands = Operands { dtype, made, a: at_a, b: at_b, out: result };
    let epilogue = Epilogue::default();
    Product { rows, inner, columns, a, b, out, batch: 1, starts, operands, epilogue, instead }
}
