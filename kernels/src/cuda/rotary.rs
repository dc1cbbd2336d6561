//! Rotary position embedding.

use graphc_ir::ops::Rotary;

use super::Shard;
use super::call::{Argument, Call, CallRegister, Launch};
use super::source::{KernelSource, access_width};
use crate::error::KernelError;

/// Threads of a block.
const THREADS: usize = 256;
/// Bytes of the sine and the cosine of a pair.
const TURN: usize = 8;

/// Prepares the call of a `Rotary` op. Frequencies are worked out here and stand in the source.
pub(super) fn prepare_rotary(op: &Rotary, operands: &[Shard]) -> Result<Call, KernelError> {
    let x = &operands[0];
    let &[.., time, heads, head] = x.shape() else {
        return Err(KernelError::bad_call("rotary", "needs dims of time, heads and width"));
    };
    if head % 2 != 0 {
        return Err(KernelError::bad_call("rotary", format!("pairs in {:?}", x.shape())));
    }
    if x.elements() == 0 {
        return Ok(Call::empty());
    }
    let (pairs, halves) = (head / 2, x.elements() / 2);
    let width = access_width(x.dtype().size() * if op.interleaved { 2 } else { 1 }, [pairs]);
    let table = angle_table(op, x)?;
    let rank = x.shape().len();
    let chunks = op.zigzag.map_or(0, |pairs| 2 * pairs.get() as usize);
    let zigzag = include_str!("cu/zigzag.cuh");
    let source = KernelSource::new(format!("{table}\n{zigzag}\n{}", include_str!("cu/rotary.cu")))
        .define_element("T", x.dtype())
        .define("TIME", time)
        .define("HEADS", heads)
        .define("HEAD", head)
        .define("PAIRS", pairs)
        .define("HALVES", halves)
        .define("WIDTH", width)
        .define_flag("INTERLEAVED", op.interleaved)
        .define_flag("INVERSE", op.inverse)
        .define("CHUNK", op.zigzag.map_or(0, |_| x.global[rank - 3] / chunks.max(1)))
        .define("CHUNKS", chunks)
        .define_index(halves);
    let origin = |dim| Argument::Origin(CallRegister::Operand(0), dim);
    let turns = Argument::scratch(0);
    let angles = vec![turns, origin(rank - 3), origin(rank - 1)];
    let arguments = vec![Argument::operand(0), turns, Argument::result(0)];
    let (of_angles, blocks) =
        ((time * pairs).div_ceil(THREADS), (halves / width).div_ceil(THREADS));
    let mut call = Call::from_launches(vec![
        Launch::kernel(source.clone(), "angles", of_angles, THREADS, angles),
        Launch::kernel(source, "rotary", blocks, THREADS, arguments),
    ]);
    call.scratch = time * pairs * TURN;
    Ok(call)
}

/// The angles by which position 1 turns the pairs of a whole head.
fn angle_table(op: &Rotary, x: &Shard) -> Result<String, KernelError> {
    let whole = x.global[x.global.len() - 1];
    let forward = Rotary { inverse: false, ..*op };
    let angles: Vec<f64> = (0..whole / 2).map(|pair| forward.angle(1, pair, whole)).collect();
    if angles.iter().any(|angle| !angle.is_finite()) {
        return Err(KernelError::bad_call("rotary", format!("angles of base {}", op.base)));
    }
    // Digits enough for all bits.
    let angles: Vec<String> = angles.iter().map(|angle| format!("{angle:e}")).collect();
    Ok(format!("__device__ const double frequencies[] = {{{}}};", angles.join(", ")))
}
