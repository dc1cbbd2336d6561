//! Windows of one element over channels that lie last. The convolution of all places is a product of matrices, and so are both of its
//! gradients:
//!
//!   y `[places, outputs]` = x `[places, inputs]` k^T,   dx = dy k,   dk = dy^T x
//!
//! Where windows step over elements, or reach a border, the rows of x are brought to those of y first, and those of dx to the
//! image afterwards.

use super::super::call::{Epilogue, Matrix, Operands, Product};
use super::super::source::{Source, width};
use super::gathered::MOST;
use super::{Argument, Call, Kind, Launch, Place, Slot, THREADS, Work, tiles};

/// Whether it is a product, and what is brought together for it has room.
pub(super) fn is_product(work: &Work) -> bool {
    let one = work.space.groups == 1 && work.space.taps() == 1;
    let fits = is_dense(work) || rows(work) * work.dtype.size() <= MOST;
    one && work.channels_last && !work.takes_part() && fits
}

/// Elements of the rows of x that meet those of y.
fn rows(work: &Work) -> usize {
    work.space.batch * work.space.places() * work.space.inputs
}

pub(super) fn call(work: &Work) -> Call {
    let places = work.space.batch * work.space.places();
    let rows = rows(work);
    let mut call = Call::nothing();
    let mut image = match work.kind {
        Kind::Forward | Kind::KernelGrad => Place::Slot(Slot::Operand(0)),
        Kind::InputGrad => Place::Slot(Slot::Result(0)),
    };
    if !is_dense(work) {
        call.scratch = rows * work.dtype.size();
        let outside = std::mem::replace(&mut image, Place::Scratch(0));
        call.launches.push(match work.kind {
            Kind::Forward | Kind::KernelGrad => {
                moved(work, "convolution_pick", [outside, image], rows)
            }
            Kind::InputGrad => moved(work, "convolution_spread", [image, outside], work.result),
        });
    }
    let product = product(work, places, image, &mut call.scratch);
    let at = if work.kind == Kind::InputGrad { 0 } else { call.launches.len() };
    call.launches.insert(at, Launch::Product(product));
    call
}

/// Whether rows of x are those of y.
fn is_dense(work: &Work) -> bool {
    work.space.window.strides == [1; 2] && work.space.window.pads == [0; 4]
}

/// The product where the image lies as a matrix of `places` rows at `image`.
fn product(work: &Work, places: usize, image: Place, scratch: &mut usize) -> Product {
    let (inputs, outputs) = (work.space.inputs, work.space.outputs);
    let matrix = |by_columns, leading| Matrix { by_columns, leading, stride: 0 };
    let [first, second, result] =
        [Slot::Operand(0), Slot::Operand(1), Slot::Result(0)].map(Place::Slot);
    let (of_x, of_y, of_k) = (matrix(false, inputs), matrix(false, outputs), matrix(false, inputs));
    let turned = |of: Matrix| Matrix { by_columns: true, ..of };
    let ([rows, inner, columns], [a, b, out], [at_a, at_b, at_out]) = match work.kind {
        Kind::Forward => {
            ([places, inputs, outputs], [of_x, turned(of_k), of_y], [image, second, result])
        }
        Kind::InputGrad => ([places, outputs, inputs], [of_y, of_k, of_x], [second, first, image]),
        Kind::KernelGrad => {
            ([outputs, places, inputs], [turned(of_y), of_x, of_k], [second, image, result])
        }
    };
    let (dtype, made) = (work.dtype, work.dtype);
    let operands = Operands { dtype, made, a: at_a, b: at_b, out: at_out };
    let (starts, epilogue) = (vec![[0; 3]], Epilogue::default());
    let instead = match work.kind {
        // A sum over so many places is made in chunks.
        Kind::KernelGrad => {
            let Call { launches, scratch: needed, .. } = tiles::call(work);
            *scratch = needed.max(*scratch);
            launches
        }
        Kind::Forward | Kind::InputGrad => Vec::new(),
    };
    Product { rows, inner, columns, a, b, out, batch: 1, starts, operands, epilogue, instead }
}

/// Brings rows from one order to the other: `elements` of the one that is written.
fn moved(work: &Work, entry: &'static str, places: [Place; 2], elements: usize) -> Launch {
    let width = width(work.dtype.size(), [work.space.inputs]);
    let source: Source = work
        .source(include_str!("../cu/convolution_rows.cu"))
        .define("ELEMENTS", elements)
        .define("WIDTH", width);
    let arguments = places.map(Argument::Address).to_vec();
    Launch::kernel(source, entry, elements.div_ceil(THREADS * width), THREADS, arguments)
}
