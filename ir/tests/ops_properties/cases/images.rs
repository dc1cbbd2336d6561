//! Cases of convolution and pooling.

use graphc_ir::op::Op;
use graphc_ir::ops::{
    AveragePool, AveragePoolGrad, BatchNorm, BatchNormTraining, Convolution, ConvolutionInputGrad,
    ConvolutionKernelGrad, Coordinates, Filter, MaxPool, MaxPoolGrad, Resize, ResizeGrad, Sampling,
    Window,
};
use graphc_ir::scalar::Scalar;

use super::{Case, Sample, floats, positive};

pub fn cases() -> Vec<Case> {
    [convolutions(), pools(), resizes(), batch_norms()].into_iter().flatten().collect()
}

const STEPS: Window = Window { strides: [2, 1], pads: [1, 0, 0, 1], dilations: [1, 2] };

/// The result of an op on such operands.
fn result(op: &Op, operands: &[Sample]) -> Vec<usize> {
    let types: Vec<_> = operands.iter().map(|operand| &operand.ty).collect();
    op.infer_types(&types).expect("the case fits the op").swap_remove(0).shape
}

/// The shape of an image, in the order that the layout has.
fn image([n, c, h, w]: [usize; 4], channels_last: bool) -> [usize; 4] {
    if channels_last { [n, h, w, c] } else { [n, c, h, w] }
}

fn convolutions() -> Vec<Case> {
    type Of = ([usize; 4], [usize; 4], usize, Window, bool);
    let of = |(x, k, groups, window, complete): Of, channels_last: bool| {
        let [extents, kernel] = [x, k].map(|shape| [shape[2], shape[3]]);
        let x = image(x, channels_last);
        let operands = || vec![floats(&x), floats(&k)];
        let op = Op::Convolution(Convolution { window, groups, channels_last });
        let y = result(&op, &operands());
        let case = |op, operands| Case { op, operands, complete };
        let of_x = ConvolutionInputGrad { window, groups, extents, channels_last };
        let of_k = ConvolutionKernelGrad { window, groups, extents: kernel, channels_last };
        [
            case(op, operands()),
            case(Op::ConvolutionInputGrad(of_x), vec![floats(&k), floats(&y)]),
            case(Op::ConvolutionKernelGrad(of_k), vec![floats(&x), floats(&y)]),
        ]
    };
    let cases = [
        ([2, 2, 3, 3], [2, 2, 2, 2], 1, Window::PLAIN, true),
        ([2, 4, 4, 5], [4, 2, 2, 2], 2, STEPS, true),
        ([3, 4, 5, 4], [4, 1, 3, 2], 4, STEPS, false),
        ([1, 3, 4, 4], [5, 3, 1, 1], 1, Window { strides: [2, 2], ..Window::PLAIN }, false),
        ([0, 2, 3, 3], [2, 2, 2, 2], 1, Window::PLAIN, false),
    ];
    cases.into_iter().flat_map(|case| [of(case, false), of(case, true)]).flatten().collect()
}

fn pools() -> Vec<Case> {
    let of = |(x, kernel, window, complete): ([usize; 4], [usize; 2], Window, bool),
              channels_last| {
        let extents = [x[2], x[3]];
        let x = image(x, channels_last);
        let max = Op::MaxPool(MaxPool { kernel, window, channels_last });
        let y = result(&max, &[floats(&x)]);
        let gradient = Op::MaxPoolGrad(MaxPoolGrad { kernel, window, channels_last });
        let mut cases = vec![
            Case { op: max, operands: vec![floats(&x)], complete },
            Case { op: gradient, operands: vec![floats(&x), floats(&y)], complete },
        ];
        for count_border in [false, true] {
            let mean = AveragePool { kernel, window, count_border, channels_last };
            let of_mean = AveragePoolGrad { kernel, window, count_border, extents, channels_last };
            let case = |op, shape: &[usize]| Case { op, operands: vec![floats(shape)], complete };
            cases.push(case(Op::AveragePool(mean), &x));
            cases.push(case(Op::AveragePoolGrad(of_mean), &y));
        }
        cases
    };
    let cases = [
        ([2, 4, 3, 4], [2, 2], STEPS, true),
        ([3, 2, 4, 4], [2, 3], Window { strides: [2, 2], ..Window::PLAIN }, false),
        ([1, 3, 5, 5], [3, 3], Window { pads: [1; 4], ..Window::PLAIN }, false),
        ([2, 0, 3, 3], [2, 2], Window::PLAIN, false),
    ];
    cases.into_iter().flat_map(|case| [of(case, false), of(case, true)]).flatten().collect()
}

fn batch_norms() -> Vec<Case> {
    let given = |(shape, complete): (&[usize], bool)| {
        let channel = || [shape[1]];
        let op = Op::BatchNorm(BatchNorm::new(1e-3));
        let statistics = [floats(&channel()), positive(&channel())];
        let operands = [floats(shape), floats(&channel()), floats(&channel())];
        Case { op, operands: operands.into_iter().chain(statistics).collect(), complete }
    };
    let own = |(shape, batches, channel, complete): (&[usize], usize, usize, bool)| {
        let op = BatchNormTraining { epsilon: Scalar(1e-3), batches, channel };
        let operands = vec![floats(shape), floats(&[shape[channel]]), floats(&[shape[channel]])];
        Case { op: Op::BatchNormTraining(op), operands, complete }
    };
    let of_given: [(&[usize], bool); 3] =
        [(&[2, 2], true), (&[3, 4, 2, 2], false), (&[0, 2, 1], false)];
    let of_own: [(&[usize], usize, usize, bool); 6] = [
        (&[6, 4, 2, 3], 1, 1, false),
        (&[4, 2, 4], 1, 2, true),
        (&[5, 4], 1, 1, false),
        (&[6, 2, 3], 3, 1, false),
        (&[4, 2, 2, 2], 2, 3, false),
        (&[4, 2], 2, 1, true),
    ];
    of_given.into_iter().map(given).chain(of_own.into_iter().map(own)).collect()
}

/// Makes cases of each filter and kind of places, larger and smaller.
fn resizes() -> Vec<Case> {
    let filters = [
        (Filter::Floor, Coordinates::Asymmetric),
        (Filter::NearestBefore, Coordinates::HalfPixelSymmetric),
        (Filter::Linear, Coordinates::HalfPixel),
        (Filter::Linear, Coordinates::AlignCorners),
        (Filter::Cubic(Scalar(-0.75)), Coordinates::HalfPixelOrFirst),
    ];
    let extents = [([2, 4, 2], 6, true), ([3, 5, 1], 2, false), ([0, 3, 2], 4, false)];
    let of = |(filter, coordinates)| {
        extents.into_iter().flat_map(move |(shape, to, complete)| {
            let (from, mut result) = (shape[1], shape);
            result[1] = to;
            let scale = Scalar(to as f64 / from as f64);
            let sampling =
                Sampling { filter, coordinates, scale, smooth: to < from, inside: false };
            let forward = Op::Resize(Resize { axis: 1, extent: to, sampling });
            let backward = Op::ResizeGrad(ResizeGrad { axis: 1, extent: from, sampling });
            let case =
                |op, shape: [usize; 3]| Case { op, operands: vec![floats(&shape)], complete };
            [case(forward, shape), case(backward, result)]
        })
    };
    filters.into_iter().flat_map(of).collect()
}
