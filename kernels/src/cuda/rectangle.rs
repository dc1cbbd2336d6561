//! Rectangles of tensors, as collectives, slices and masks move them: copied or joined to what is there, and memory filled with one
//! number. The accumulation of gradients is the rectangle that is the whole tensor.

use graphc_ir::sbp::ReduceKind;
use graphc_ir::types::{DType, row_major_strides};

use super::Shard;
use super::call::{Argument, Call, Launch};
use super::source::{KernelSource, index_type, join_runs, position_expression};

/// Threads of a block.
const THREADS: usize = 256;
/// Bytes that a thread moves at once.
const ACCESS: usize = 16;

/// Gradient accumulation from operand 0 to result 0: what the first microbatch does, which overwrites, and what the others do.
pub fn prepare_accumulation(shard: &Shard) -> [Call; 2] {
    let (elements, dtype) = (shard.elements(), shard.dtype());
    let (extent, start) = ([elements], [0]);
    let add =
        copy_rectangle(dtype, &extent, &start, &extent, &start, &extent, Some(ReduceKind::Sum));
    match elements {
        0 => [Call::empty(), Call::empty()],
        _ => [Call::from_launches(vec![Launch::copy_operand(shard)]), add],
    }
}

/// Copies a rectangle of operand 0, a dense tensor of `from_extent`, to a rectangle of the same `extent` in result 0, a dense tensor
/// of `to_extent`, of which the rest stays as it is. With `combine` it is joined to what is there, element by element: added (a sum of
/// truth values is whether any holds), or the greater or the lesser of both, where a NaN stays a NaN.
///
/// All extents and starts have as many dims; the rectangle lies inside both tensors, which do not overlap and begin at multiples of
/// 16 bytes.
pub fn copy_rectangle(
    dtype: DType,
    from_extent: &[usize],
    from_start: &[usize],
    to_extent: &[usize],
    to_start: &[usize],
    extent: &[usize],
    combine: Option<ReduceKind>,
) -> Call {
    let elements: usize = extent.iter().product();
    if elements == 0 {
        return Call::empty();
    }
    let (from, to) =
        (RectangleSide::new(from_extent, from_start), RectangleSide::new(to_extent, to_start));
    let width = access_width(dtype, &from, &to, extent);
    let at = |side: &RectangleSide| {
        format!("{} + {}", side.start, position_expression(extent, &side.strides, "i"))
    };
    let furthest = from.elements.max(to.elements).max(elements + THREADS * ACCESS);
    let source = KernelSource::new(include_str!("cu/rectangle.cu"))
        .define("INDEX", index_type(furthest))
        .define_element("T", dtype)
        .define("WIDTH", width)
        .define("ELEMENTS", elements)
        .define("FROM(i)", at(&from))
        .define("TO(i)", at(&to))
        .define("COMBINES", u8::from(combine.is_some()))
        .define("COMBINE(a, b)", combine.map_or("(b)", |kind| combine_expression(kind, dtype)));
    let blocks = elements.div_ceil(THREADS * width);
    let arguments = vec![Argument::operand(0), Argument::result(0)];
    Call::from_launches(vec![Launch::kernel(source, "rectangle", blocks, THREADS, arguments)])
}

/// Fills result 0 with a number, which integers hold as well as they can.
pub fn prepare_fill(dtype: DType, elements: usize, value: f64) -> Call {
    super::fill::prepare_same_value(dtype, elements, value)
}

/// The position of a rectangle in a tensor.
struct RectangleSide {
    strides: Vec<usize>,
    /// The position of its first element.
    start: usize,
    /// The number of elements of the whole tensor.
    elements: usize,
}

impl RectangleSide {
    fn new(extent: &[usize], start: &[usize]) -> Self {
        let strides = row_major_strides(extent);
        let start = start.iter().zip(&strides).map(|(start, stride)| start * stride).sum();
        Self { strides, start, elements: extent.iter().product() }
    }

    /// Whether so many elements always lie side by side, the first at a multiple of their number.
    fn allows(&self, extent: &[usize], width: usize) -> bool {
        let runs = join_runs(extent, &self.strides);
        let Some((last, others)) = runs.split_last() else { return false };
        let regular = others.iter().all(|run| run.1.is_multiple_of(width));
        regular && self.start.is_multiple_of(width) && last.1 == 1 && last.0.is_multiple_of(width)
    }
}

/// Returns the number of elements that a thread moves at once.
fn access_width(dtype: DType, from: &RectangleSide, to: &RectangleSide, extent: &[usize]) -> usize {
    let mut width = ACCESS / dtype.size();
    while width > 1 && !(from.allows(extent, width) && to.allows(extent, width)) {
        width /= 2;
    }
    width
}

/// `a` is what is there, `b` what comes.
fn combine_expression(kind: ReduceKind, dtype: DType) -> &'static str {
    match kind {
        ReduceKind::Sum if dtype == DType::Bool => "((a) | (b))",
        ReduceKind::Sum if dtype.is_float() => "((a) + (b))",
        ReduceKind::Sum => "(i64)((u64)(a) + (u64)(b))",
        ReduceKind::Max => "((a) > (b) || (a) != (a) ? (a) : (b))",
        ReduceKind::Min => "((a) < (b) || (a) != (a) ? (a) : (b))",
    }
}
