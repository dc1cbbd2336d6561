//! Cross entropy, picking by label, and their gradients. Classes are the last dim; where it is split each rank takes the labels that
//! it holds.

use graphc_ir::ops::{CrossEntropy, CrossEntropyGrad, IGNORED_LABEL, LabelRank, Pick};

use super::Shard;
use super::call::{Argument, Call, CallRegister, Launch};
use super::indices::IndexShard;
use super::rows::DimRows;
use super::source::{KernelSource, access_width, f32_literal, word_type};
use crate::error::KernelError;

/// Threads of a block.
const THREADS: usize = 256;

/// Prepares the call of a `CrossEntropy` op.
pub(super) fn cross_entropy(op: &CrossEntropy, operands: &[Shard]) -> Result<Call, KernelError> {
    let x = &operands[0];
    let (rows, labels) = score_rows("cross_entropy", x, (operands, 1), op.classes)?;
    if rows.extent != whole_extent(x) {
        let reason = format!("{:?} of {:?}", x.shape(), x.global);
        return Err(KernelError::bad_call("cross_entropy", reason));
    }
    if rows.count == 0 {
        return Ok(Call::empty());
    }
    let mut arguments = vec![Argument::operand(0), Argument::operand(1)];
    arguments.extend([Argument::result(0), Argument::result(1)]);
    arguments.extend(IndexShard::fault_arguments());
    let smoothing = op.smoothing.0 as f32;
    let launch = read_once(
        &rows,
        &labels,
        (x, op.classes),
        (include_str!("cu/cross_entropy.cu"), "cross_entropy"),
        Some(smoothing),
        arguments,
    );
    Ok(labels.prepare_call(vec![launch]))
}

/// Prepares the call of a `CrossEntropyGrad` op.
pub(super) fn cross_entropy_grad(
    op: &CrossEntropyGrad,
    operands: &[Shard],
) -> Result<Call, KernelError> {
    let x = &operands[0];
    let (rows, labels) = score_rows("cross_entropy_grad", x, (operands, 2), op.classes)?;
    let elements = x.elements();
    if elements == 0 {
        return Ok(labels.prepare_check());
    }
    let width = access_width(x.dtype().size(), [rows.extent]);
    let source = labels
        .build_source(include_str!("cu/cross_entropy_grad.cu"))
        .define_element("T", x.dtype())
        .define("ELEMENTS", elements)
        .define("EXTENT", rows.extent)
        .define("WIDTH", width)
        .define_index(elements)
        .define("SHARE", f32_literal((1.0 - op.smoothing.0) as f32))
        .define(
            "EACH_CLASS",
            f32_literal((op.smoothing.0 / count_classes(x, op.classes) as f64) as f32),
        );
    let source = define_classes(source, x, op.classes);
    let mut arguments: Vec<Argument> = (0..4).map(Argument::operand).collect();
    arguments.extend([Argument::result(0), first_class(CallRegister::Operand(0), x)]);
    arguments.extend(IndexShard::fault_arguments());
    let blocks = elements.div_ceil(THREADS * width);
    let launch = Launch::kernel(source, "cross_entropy_grad", blocks, THREADS, arguments);
    Ok(labels.prepare_call(vec![launch]))
}

/// Prepares the call of a `Pick` op.
pub(super) fn prepare_pick(op: &Pick, operands: &[Shard]) -> Result<Call, KernelError> {
    let x = &operands[0];
    let (rows, labels) = score_rows("pick", x, (operands, 1), op.classes)?;
    if rows.count == 0 {
        return Ok(Call::empty());
    }
    let source = labels
        .build_source(include_str!("cu/pick.cu"))
        .define("WORD", word_type(x.dtype().size()))
        .define("COUNT", rows.count)
        .define("EXTENT", rows.extent);
    let mut arguments = vec![Argument::operand(0), Argument::operand(1), Argument::result(0)];
    arguments.push(first_class(CallRegister::Operand(0), x));
    arguments.extend(IndexShard::fault_arguments());
    let blocks = rows.count.div_ceil(THREADS);
    let launch = Launch::kernel(source, "pick", blocks, THREADS, arguments);
    Ok(labels.prepare_call(vec![launch]))
}

/// Prepares the call of a `PickGrad` op.
pub(super) fn pick_grad(operands: &[Shard], results: &[Shard]) -> Result<Call, KernelError> {
    let dx = &results[0];
    let (rows, labels) = score_rows("pick_grad", dx, (operands, 0), None)?;
    let (elements, size) = (dx.elements(), dx.dtype().size());
    if elements == 0 {
        return Ok(labels.prepare_check());
    }
    let width = access_width(size, [rows.extent]);
    let source = labels
        .build_source(include_str!("cu/pick_grad.cu"))
        .define("WORD", word_type(size))
        .define("ELEMENTS", elements)
        .define("EXTENT", rows.extent)
        .define("WIDTH", width)
        .define_index(elements);
    let mut arguments = vec![Argument::operand(0), Argument::operand(1), Argument::result(0)];
    arguments.push(first_class(CallRegister::Result(0), dx));
    arguments.extend(IndexShard::fault_arguments());
    let blocks = elements.div_ceil(THREADS * width);
    let launch = Launch::kernel(source, "pick_grad", blocks, THREADS, arguments);
    Ok(labels.prepare_call(vec![launch]))
}

/// Prepares the call of a `LabelRank` op.
pub(super) fn label_rank(op: &LabelRank, operands: &[Shard]) -> Result<Call, KernelError> {
    let x = &operands[0];
    let (rows, labels) = score_rows("label_rank", x, (operands, 1), op.classes)?;
    if rows.count == 0 {
        return Ok(Call::empty());
    }
    let mut arguments: Vec<Argument> = (0..3).map(Argument::operand).collect();
    arguments.extend([Argument::result(0), first_class(CallRegister::Operand(0), x)]);
    arguments.extend(IndexShard::fault_arguments());
    let kernel = (include_str!("cu/label_rank.cu"), "label_rank");
    let launch = read_once(&rows, &labels, (x, op.classes), kernel, None, arguments);
    Ok(labels.prepare_call(vec![launch]))
}

/// A kernel that reads rows of scores once, and so keeps none. Of those so many are `classes`.
fn read_once(
    rows: &DimRows,
    labels: &IndexShard,
    (x, classes): (&Shard, Option<usize>),
    (text, entry): (&str, &'static str),
    smoothing: Option<f32>,
    arguments: Vec<Argument>,
) -> Launch {
    let text = format!("{}\n{text}", include_str!("cu/indices.cuh"));
    rows.launch(
        |source| {
            let source = labels.define(source).define_element("T", x.dtype());
            let source = define_classes(source, x, classes);
            match smoothing {
                Some(smoothing) => source.define_number("SMOOTHING", smoothing),
                None => source,
            }
        },
        (&text, entry),
        (1, x.dtype().size()),
        arguments,
    )
}

/// The rows of a shard of scores, of which so many are `classes`, and the labels, one for each.
fn score_rows(
    op: &'static str,
    scores: &Shard,
    (operands, labels): (&[Shard], usize),
    classes: Option<usize>,
) -> Result<(DimRows, IndexShard), KernelError> {
    let shape = scores.shape();
    let outer = shape.split_last().map(|(_, outer)| outer.iter().product::<usize>());
    let count = operands[labels].elements();
    if outer != Some(count) {
        return Err(KernelError::bad_call(op, format!("{shape:?} with {count} labels")));
    }
    let range = count_classes(scores, classes);
    let labels = IndexShard::new("label", operands, labels, range, Some(IGNORED_LABEL));
    Ok((DimRows::along_last(scores), labels))
}

/// Returns the number of scores of a label that stand before its padding: `classes` where the op gives it, otherwise all.
fn count_classes(scores: &Shard, classes: Option<usize>) -> usize {
    classes.unwrap_or(whole_extent(scores))
}

/// The macros CLASSES, how many scores of a label stand before their padding, and IS_CLASS, whether the one at a place is none of the
/// padding.
fn define_classes(source: KernelSource, scores: &Shard, classes: Option<usize>) -> KernelSource {
    let count = count_classes(scores, classes);
    let is_class = if count < whole_extent(scores) { "((place) < CLASSES)" } else { "true" };
    source.define("CLASSES", count).define("IS_CLASS(place)", is_class)
}

/// Returns the number of scores that a label has in the whole tensor.
fn whole_extent(scores: &Shard) -> usize {
    scores.global.last().copied().unwrap_or(0)
}

/// The first class of a shard.
fn first_class(slot: CallRegister, scores: &Shard) -> Argument {
    Argument::Origin(slot, scores.shape().len() - 1)
}
