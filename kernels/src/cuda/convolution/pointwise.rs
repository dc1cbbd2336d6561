//! Windows of one element over channels that lie last. The convolution of all places is a product of matrices, and so are both of its
//! gradients:
//!
//!   y `[places, outputs]` = x `[places, inputs]` k^T,   dx = dy k,   dk = dy^T x
//!
//! If windows step over elements or reach a border, the rows of x are brought to those of y first, and those of dx to the image afterwards.

use super::super::call::{Epilogue, Matrix, MatrixProduct, Operands};
use super::super::source::{KernelSource, access_width};
use super::gathered::MOST;
use super::{
    Argument, Call, CallRegister, ConvolutionKind, ConvolutionWork, Launch, LaunchMemory, THREADS,
    tiles,
};

/// Whether it is a product, and what is brought together for it has room.
pub(super) fn is_product(work: &ConvolutionWork) -> bool {
    let one = work.space.groups == 1 && work.space.taps() == 1;
    let fits = is_dense(work) || count_elements(work) * work.dtype.size() <= MOST;
    one && work.channels_last && !work.takes_part() && fits
}

/// Elements of the rows of x that meet those of y.
fn count_elements(work: &ConvolutionWork) -> usize {
    work.space.batch * work.space.output_places() * work.space.inputs
}

pub(super) fn prepare_pointwise(work: &ConvolutionWork) -> Call {
    let places = work.space.batch * work.space.output_places();
    let rows = count_elements(work);
    let mut call = Call::empty();
    let mut image = match work.kind {
        ConvolutionKind::Forward | ConvolutionKind::KernelGrad => {
            LaunchMemory::Slot(CallRegister::Operand(0))
        }
        ConvolutionKind::InputGrad => LaunchMemory::Slot(CallRegister::Result(0)),
    };
    if !is_dense(work) {
        call.scratch = rows * work.dtype.size();
        let outside = std::mem::replace(&mut image, LaunchMemory::Scratch(0));
        call.launches.push(match work.kind {
            ConvolutionKind::Forward | ConvolutionKind::KernelGrad => {
                launch_move(work, "convolution_pick", [outside, image], rows)
            }
            ConvolutionKind::InputGrad => {
                launch_move(work, "convolution_spread", [image, outside], work.result)
            }
        });
    }
    let product = pointwise_product(work, places, image, &mut call.scratch);
    let at = if work.kind == ConvolutionKind::InputGrad { 0 } else { call.launches.len() };
    call.launches.insert(at, Launch::Product(product));
    call
}

/// Whether rows of x are those of y.
fn is_dense(work: &ConvolutionWork) -> bool {
    work.space.window.strides == [1; 2] && work.space.window.pads == [0; 4]
}

/// The product where the image lies as a matrix of `places` rows at `image`.
fn pointwise_product(
    work: &ConvolutionWork,
    places: usize,
    image: LaunchMemory,
    scratch: &mut usize,
) -> MatrixProduct {
    let (inputs, outputs) = (work.space.inputs, work.space.outputs);
    let matrix = |by_columns, leading| Matrix { by_columns, leading, stride: 0 };
    let [first, second, result] =
        [CallRegister::Operand(0), CallRegister::Operand(1), CallRegister::Result(0)]
            .map(LaunchMemory::Slot);
    let (of_x, of_y, of_k) = (matrix(false, inputs), matrix(false, outputs), matrix(false, inputs));
    let turned = |of: Matrix| Matrix { by_columns: true, ..of };
    let ([rows, inner, columns], [a, b, out], [at_a, at_b, at_out]) = match work.kind {
        ConvolutionKind::Forward => {
            ([places, inputs, outputs], [of_x, turned(of_k), of_y], [image, second, result])
        }
        ConvolutionKind::InputGrad => {
            ([places, outputs, inputs], [of_y, of_k, of_x], [second, first, image])
        }
        ConvolutionKind::KernelGrad => {
            ([outputs, places, inputs], [turned(of_y), of_x, of_k], [second, image, result])
        }
    };
    let (dtype, made) = (work.dtype, work.dtype);
    let operands = Operands { dtype, made, a: at_a, b: at_b, out: at_out };
    let (starts, epilogue) = (vec![[0; 3]], Epilogue::default());
    let instead = match work.kind {
        // A sum over so many places is made in chunks.
        ConvolutionKind::KernelGrad => {
            let Call { launches, scratch: needed, .. } = tiles::prepare_tiles(work);
            *scratch = needed.max(*scratch);
            launches
        }
        ConvolutionKind::Forward | ConvolutionKind::InputGrad => Vec::new(),
    };
    MatrixProduct { rows, inner, columns, a, b, out, batch: 1, starts, operands, epilogue, instead }
}

/// Brings rows from one order to the other: `elements` of the one that is written.
fn launch_move(
    work: &ConvolutionWork,
    entry: &'static str,
    places: [LaunchMemory; 2],
    elements: usize,
) -> Launch {
    let width = access_width(work.dtype.size(), [work.space.inputs]);
    let source: KernelSource = work
        .build_source(include_str!("../cu/convolution_rows.cu"))
        .define("ELEMENTS", elements)
        .define("WIDTH", width);
    let arguments = places.map(Argument::Address).to_vec();
    Launch::kernel(source, entry, elements.div_ceil(THREADS * width), THREADS, arguments)
}
