//! Padding around and between elements.

use graphc_ir::ops::Pad;

use super::super::Shard;
use super::super::call::{Argument, Call, Launch};
use super::super::source::{KernelSource, access_width, element_bits, word_type};
use super::THREADS;
use crate::error::KernelError;

/// A dim with what is put around and between its elements.
#[derive(Clone, Copy)]
struct Padded {
    extent: usize,
    low: usize,
    /// The distance from one element to the next.
    step: usize,
    /// The extent of the result.
    whole: usize,
}

/// One op; each element of the result is written once.
pub(in super::super) fn prepare_pad(
    op: &Pad,
    operands: &[Shard],
    results: &[Shard],
) -> Result<Call, KernelError> {
    let (x, out) = (operands[0].shape(), results[0].shape());
    let mut dims = join_dims(op, x, out)?;
    if results[0].elements() == 0 {
        return Ok(Call::empty());
    }
    let size = out_size(results);
    let width = in_words(&mut dims, size);
    let elements: usize = dims.iter().map(|dim| dim.whole).product();
    let source = KernelSource::new(include_str!("../cu/pad.cu"))
        .define("WORD", word_type(size * width))
        .define("VALUE", value_word(results, op.value.0, width))
        .define("ELEMENTS", elements)
        .define_index(elements)
        .define("FIND(i)", search_statements(&dims));
    let arguments = vec![Argument::operand(0), Argument::result(0)];
    let blocks = elements.div_ceil(THREADS);
    Ok(Call::from_launches(vec![Launch::kernel(source, "pad", blocks, THREADS, arguments)]))
}

fn out_size(results: &[Shard]) -> usize {
    results[0].dtype().size()
}

/// The dims, of which one that is not padded is a part of that before it.
fn join_dims(op: &Pad, x: &[usize], out: &[usize]) -> Result<Vec<Padded>, KernelError> {
    let mut dims: Vec<Padded> = Vec::new();
    for (dim, (&extent, &whole)) in x.iter().zip(out).enumerate() {
        let (low, step) = (op.low[dim], op.interior[dim] + 1);
        if low + extent + extent.saturating_sub(1) * (step - 1) + op.high[dim] != whole {
            return Err(KernelError::bad_call("pad", format!("{x:?} into {out:?}")));
        }
        match dims.last_mut() {
            Some(last) if last.step == 1 && extent == whole => {
                last.extent *= extent;
                last.low *= extent;
                last.whole *= extent;
            }
            _ => dims.push(Padded { extent, low, step, whole }),
        }
    }
    Ok(dims)
}

/// Counts the last dim in words of as many elements as are returned.
fn in_words(dims: &mut [Padded], size: usize) -> usize {
    let Some(last) = dims.last_mut().filter(|last| last.step == 1) else { return 1 };
    let width = access_width(size, [last.extent, last.low, last.whole]);
    last.extent /= width;
    last.low /= width;
    last.whole /= width;
    width
}

/// A word of elements that all have the value.
fn value_word(results: &[Shard], value: f64, width: usize) -> String {
    let (size, bits) = (out_size(results), element_bits(results[0].dtype(), value));
    let bytes = bits.to_le_bytes();
    let word: Vec<u8> = (0..size * width).map(|byte| bytes[byte % size]).collect();
    match word.as_chunks::<4>().0 {
        parts @ [_, _, _, _] => {
            let parts: Vec<String> =
                parts.iter().map(|part| format!("{:#x}u", u32::from_le_bytes(*part))).collect();
            format!("{{{{{}}}}}", parts.join(", "))
        }
        _ => {
            let mut all = [0; 8];
            all[..word.len()].copy_from_slice(&word);
            format!("{:#x}ull", u64::from_le_bytes(all))
        }
    }
}

/// Statements that find an element of the result in the operand, dim by dim from the last.
fn search_statements(dims: &[Padded]) -> String {
    let mut text = String::from("{ INDEX rest = (i), own, stride = 1;");
    for dim in dims.iter().rev() {
        let Padded { extent, low, step, whole } = dim;
        // What lies before the first element is a huge position.
        text.push_str(&format!(
            " own = rest % {whole} - {low}; rest /= {whole}; inside = inside && own / {step} < {extent} && own % {step} == 0; at += own / {step} * stride; stride *= {extent};"
        ));
    }
    text.push_str(" }");
    text
}
