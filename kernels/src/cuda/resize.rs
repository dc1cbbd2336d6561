//! Interpolation along a dim, whose weights the host works out.

use graphc_ir::op::Op;
use graphc_ir::ops::Taps;

use super::Shard;
use super::call::{Argument, Call, Launch, Numbers};
use super::source::{KernelSource, index_type};
use crate::error::KernelError;

/// Threads of a block.
const THREADS: usize = 256;
/// Bytes that a thread reads at once.
const ACCESS: usize = 16;

/// Prepares the call of a resizing op or of its gradient.
pub(super) fn prepare_resize(
    op: &Op,
    operands: &[Shard],
    results: &[Shard],
) -> Result<Call, KernelError> {
    let ([x], [y]) = (operands, results) else {
        return Err(KernelError::bad_call(op.name(), "takes one operand and gives one result"));
    };
    let misfit = || {
        let reason = format!("{:?} does not give {:?}", x.shape(), y.shape());
        KernelError::bad_call(op.name(), reason)
    };
    let (axis, taps) = read_taps(op, x.shape()).ok_or_else(misfit)?;
    let others = |shape: &[usize]| [&shape[..axis], &shape[axis + 1..]].concat();
    let same = x.shape().len() == y.shape().len() && others(x.shape()) == others(y.shape());
    if !same || y.shape()[axis] + 1 != taps.starts.len() {
        return Err(misfit());
    }
    if y.elements() == 0 {
        return Ok(Call::empty());
    }
    let (inner, most) = (x.shape()[axis + 1..].iter().product::<usize>(), most_taps(&taps));
    let fits = |width: &usize| inner.is_multiple_of(*width);
    let width = (0..=3).map(|at| (ACCESS / x.dtype().size()) >> at).find(fits).unwrap_or(1);
    let source = KernelSource::new(include_str!("cu/resize.cu"))
        .define("INDEX", index_type(x.elements().max(y.elements()) + THREADS * ACCESS))
        .define_element("T", x.dtype())
        .define("ELEMENTS", y.elements())
        .define("FROM", x.shape()[axis])
        .define("TO", y.shape()[axis])
        .define("INNER", inner)
        .define("WIDTH", width)
        .define("TAPS", most);
    let arguments = vec![Argument::Numbers, Argument::operand(0), Argument::result(0)];
    let blocks = y.elements().div_ceil(THREADS * width);
    let mut call =
        Call::from_launches(vec![Launch::kernel(source, "resize", blocks, THREADS, arguments)]);
    call.numbers = Numbers::Table(tap_table(&taps, most));
    Ok(call)
}

/// The dim, and what each element along it is made of.
fn read_taps(op: &Op, x: &[usize]) -> Option<(usize, Taps)> {
    match op {
        Op::Resize(op) => {
            let from = *x.get(op.axis).filter(|&&from| from > 0)?;
            Some((op.axis, op.sampling.taps(from, op.extent)))
        }
        Op::ResizeGrad(op) => {
            let places = *x.get(op.axis)?;
            Some((op.axis, op.sampling.taps(op.extent, places).transpose(op.extent)))
        }
        _ => None,
    }
}

/// The most taps of an element.
fn most_taps(taps: &Taps) -> usize {
    taps.starts.windows(2).map(|range| range[1] - range[0]).max().unwrap_or(0).max(1)
}

/// Pairs of elements, which are less than 2^24 and so exact, and weights.
fn tap_table(taps: &Taps, most: usize) -> Vec<f32> {
    let pair = |&(at, weight): &(usize, f64)| [at as f32, weight as f32];
    let of = |element: usize| {
        let none = std::iter::repeat([-1.0, 0.0]);
        taps.element_taps(element).iter().map(pair).chain(none).take(most).flatten()
    };
    (0..taps.starts.len() - 1).flat_map(of).collect()
}
