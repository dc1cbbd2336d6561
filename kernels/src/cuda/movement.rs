//! Ops that move elements, whatever their type.
//!
//! Each is one or several walks over dims with strides on both sides. Elements move in words as wide as extents and strides on
//! both sides allow, of up to 16 bytes. A transpose goes through tiles.

mod pad;

pub(super) use pad::prepare_pad;

use graphc_ir::ops::{Concat, Slice, Split, Transpose, Zigzag, ZigzagRun, zigzag_runs};
use graphc_ir::types::row_major_strides;

use super::Shard;
use super::call::{Argument, Call, CallRegister, Launch, LaunchMemory};
use super::source::{
    KernelSource, access_width, broadcast_strides, index_type, position_expression, word_type,
};
use crate::error::KernelError;

/// Threads of a block.
const THREADS: usize = 256;
/// Walks of one launch at most: as many pairs of addresses as a kernel's parameters surely hold.
const WALKS: usize = 128;
/// Extents from which tiles of a transpose are worth it.
const TILE: usize = 8;

/// A dim of a walk.
#[derive(Clone, Copy, Debug, PartialEq)]
struct MovementDim {
    extent: usize,
    /// Elements between neighbours of the operand, and of the result.
    from: usize,
    to: usize,
}

/// Elements of one operand that go to one result.
struct MovementWalk {
    dims: Vec<MovementDim>,
    /// The position of the first element on both sides.
    from: usize,
    to: usize,
    /// The memory that is read, and that which is written.
    memory: [LaunchMemory; 2],
}

/// Prepares the call of a `Transpose` op.
pub(super) fn prepare_transpose(op: &Transpose, operands: &[Shard], results: &[Shard]) -> Call {
    let (from, to) =
        (row_major_strides(operands[0].shape()), row_major_strides(results[0].shape()));
    let dim = |(to, &dim): (usize, &usize)| MovementDim {
        extent: operands[0].shape()[dim],
        from: from[dim],
        to,
    };
    let dims = to.into_iter().zip(&op.permutation).map(dim).collect();
    let walk = MovementWalk::new(dims, [0, 0], registers(0, 0));
    let size = results[0].dtype().size();
    match launch_tiles(&walk, size) {
        Some(launch) => Call::from_launches(vec![launch]),
        None => Call::from_launches(launch_walks(vec![walk], size)),
    }
}

/// Prepares the call of a `Slice` op.
pub(super) fn prepare_slice(op: &Slice, operands: &[Shard], results: &[Shard]) -> Call {
    let (from, to) =
        (row_major_strides(operands[0].shape()), row_major_strides(results[0].shape()));
    let dim = |dim: usize| MovementDim {
        extent: results[0].shape()[dim],
        from: from[dim] * op.steps[dim],
        to: to[dim],
    };
    // A dim taken whole may be split, and then both shards hold the same part.
    let first = op.starts.iter().zip(&from).map(|(start, stride)| start * stride).sum();
    let dims = (0..from.len()).map(dim).collect();
    let walk = MovementWalk::new(dims, [first, 0], registers(0, 0));
    Call::from_launches(launch_walks(vec![walk], results[0].dtype().size()))
}

/// Prepares the call of an `Expand` op.
pub(super) fn prepare_expand(operands: &[Shard], results: &[Shard]) -> Result<Call, KernelError> {
    let (x, out) = (operands[0].shape(), results[0].shape());
    let misfit = || KernelError::bad_call("expand", format!("{x:?} into {out:?}"));
    let from = broadcast_strides(x, out).ok_or_else(misfit)?;
    let dims = zip_dims(out, &from, &row_major_strides(out));
    let walk = MovementWalk::new(dims, [0, 0], registers(0, 0));
    Ok(Call::from_launches(launch_walks(vec![walk], results[0].dtype().size())))
}

/// Prepares the call of a `Concat` op.
pub(super) fn prepare_concat(op: &Concat, operands: &[Shard], results: &[Shard]) -> Call {
    let to = row_major_strides(results[0].shape());
    let mut place = 0;
    let walk = |(index, operand): (usize, &Shard)| {
        let shape = operand.shape();
        let first = place * to[op.axis];
        place += shape[op.axis];
        let dims = zip_dims(shape, &row_major_strides(shape), &to);
        MovementWalk::new(dims, [0, first], registers(index, 0))
    };
    let walks = operands.iter().enumerate().map(walk).collect();
    Call::from_launches(launch_walks(walks, results[0].dtype().size()))
}

/// Prepares the call of a `Split` op.
pub(super) fn prepare_split(op: &Split, operands: &[Shard], results: &[Shard]) -> Call {
    let from = row_major_strides(operands[0].shape());
    let mut place = 0;
    let walk = |(index, result): (usize, &Shard)| {
        let shape = result.shape();
        let first = place * from[op.axis];
        place += shape[op.axis];
        let dims = zip_dims(shape, &from, &row_major_strides(shape));
        MovementWalk::new(dims, [first, 0], registers(0, index))
    };
    let walks = results.iter().enumerate().map(walk).collect();
    Call::from_launches(launch_walks(walks, operands[0].dtype().size()))
}

/// Prepares the call of a `Zigzag` op.
pub(super) fn prepare_zigzag(op: Zigzag, operands: &[Shard]) -> Result<Call, KernelError> {
    let shape = operands[0].shape();
    if op.dim >= shape.len() {
        return Err(KernelError::bad_call("zigzag", format!("dim {} of {shape:?}", op.dim)));
    }
    Ok(Call::from_launches(launch_zigzag(op, &operands[0], registers(0, 0))))
}

/// The launches of a `Zigzag` op, of a tensor with the shape and type of `like`, from some memory to other.
pub(super) fn launch_zigzag(op: Zigzag, like: &Shard, memory: [LaunchMemory; 2]) -> Vec<Launch> {
    let shape = like.shape();
    let strides = row_major_strides(shape);
    let apart = strides[op.dim];
    let walk = |ZigzagRun { position, index, count }| {
        let (from, to) = if op.inverse { (index, position) } else { (position, index) };
        let mut extents = shape.to_vec();
        extents[op.dim] = count;
        let dims = zip_dims(&extents, &strides, &strides);
        MovementWalk::new(dims, [from * apart, to * apart], memory)
    };
    let walks = zigzag_runs(shape[op.dim], op.pairs).map(walk).collect();
    launch_walks(walks, like.dtype().size())
}

/// An operand and a result.
fn registers(operand: usize, result: usize) -> [LaunchMemory; 2] {
    [CallRegister::Operand(operand), CallRegister::Result(result)].map(LaunchMemory::Slot)
}

fn zip_dims(extents: &[usize], from: &[usize], to: &[usize]) -> Vec<MovementDim> {
    let dim =
        |((&extent, &from), &to): ((&usize, &usize), &usize)| MovementDim { extent, from, to };
    extents.iter().zip(from).zip(to).map(dim).collect()
}

impl MovementWalk {
    /// Dims that follow each other on both sides are joined.
    fn new(dims: Vec<MovementDim>, [from, to]: [usize; 2], memory: [LaunchMemory; 2]) -> Self {
        let mut joined: Vec<MovementDim> = Vec::new();
        for dim in dims.into_iter().filter(|dim| dim.extent != 1) {
            match joined.last_mut() {
                Some(last)
                    if last.from == dim.from * dim.extent && last.to == dim.to * dim.extent =>
                {
                    *last = MovementDim { extent: last.extent * dim.extent, ..dim };
                }
                _ => joined.push(dim),
            }
        }
        Self { dims: joined, from, to, memory }
    }

    fn elements(&self) -> usize {
        self.dims.iter().map(|dim| dim.extent).product()
    }

    /// Elements of `size` bytes that may be moved at once.
    fn access_width(&self, size: usize) -> usize {
        match self.dims.split_last() {
            Some((last, outer)) if last.from == 1 && last.to == 1 => {
                let strides = outer.iter().flat_map(|dim| [dim.from, dim.to]);
                let all: Vec<usize> = strides.chain([last.extent, self.from, self.to]).collect();
                access_width(size, all)
            }
            _ => 1,
        }
    }

    /// Converts the walk to one over words of `width` elements.
    fn in_words(mut self, width: usize) -> Self {
        if width > 1 {
            (self.from, self.to) = (self.from / width, self.to / width);
            if let Some((last, outer)) = self.dims.split_last_mut() {
                last.extent /= width;
                outer.iter_mut().for_each(|dim| {
                    (dim.from, dim.to) = (dim.from / width, dim.to / width);
                });
            }
        }
        self
    }

    fn extents(&self) -> Vec<usize> {
        self.dims.iter().map(|dim| dim.extent).collect()
    }

    /// Returns the positions of element `i` on both sides, as C++ expressions.
    fn positions(&self) -> [String; 2] {
        let side = |start: usize, stride: fn(&MovementDim) -> usize| {
            let strides: Vec<usize> = self.dims.iter().map(stride).collect();
            format!("{start} + {}", position_expression(&self.extents(), &strides, "i"))
        };
        [side(self.from, |dim| dim.from), side(self.to, |dim| dim.to)]
    }

    /// Returns one past the greatest position on either side.
    fn end(&self) -> usize {
        let side = |start: usize, stride: fn(&MovementDim) -> usize| {
            start + self.dims.iter().map(|dim| dim.extent * stride(dim)).sum::<usize>()
        };
        side(self.from, |dim| dim.from).max(side(self.to, |dim| dim.to))
    }
}

/// Launches of walks over elements of `size` bytes.
fn launch_walks(mut walks: Vec<MovementWalk>, size: usize) -> Vec<Launch> {
    walks.retain(|walk| walk.elements() > 0);
    let width = walks.iter().map(|walk| walk.access_width(size)).min().unwrap_or(1);
    let walks: Vec<MovementWalk> = walks.into_iter().map(|walk| walk.in_words(width)).collect();
    walks.chunks(WALKS).map(|walks| launch_kernel(walks, size * width)).collect()
}

/// Makes one kernel, of which row `w` of blocks does walk `w`.
fn launch_kernel(walks: &[MovementWalk], bytes: usize) -> Launch {
    let word = word_type(bytes);
    let most = walks.iter().map(MovementWalk::elements).max().unwrap_or(0);
    let end = walks.iter().map(MovementWalk::end).max().unwrap_or(0);
    let index = index_type(most.max(end) + THREADS);
    let (mut parameters, mut cases, mut arguments) = (Vec::new(), String::new(), Vec::new());
    for (number, walk) in walks.iter().enumerate() {
        let [from, to] = walk.positions();
        parameters.push(format!("const {word}* from{number}, {word}* to{number}"));
        let elements = walk.elements();
        cases.push_str(&format!(
            "    case {number}: if (i < {elements}) to{number}[{to}] = from{number}[{from}]; break;\n"
        ));
        arguments.extend(walk.memory.map(Argument::Address));
    }
    let text = format!(
        "extern \"C\" __global__ void __launch_bounds__({THREADS}) walk({}) {{\n  {index} i = ({index})blockIdx.x * {THREADS} + threadIdx.x;\n  switch (blockIdx.y) {{\n{cases}  }}\n}}\n",
        parameters.join(", "),
    );
    let blocks = most.div_ceil(THREADS);
    Launch::kernel(KernelSource::new(text), "walk", blocks, THREADS, arguments)
        .with_rows(walks.len())
}

/// A transpose in tiles, where one side's neighbours are far apart on the other and both dims are long enough.
fn launch_tiles(walk: &MovementWalk, size: usize) -> Option<Launch> {
    let (column, outer) = walk.dims.split_last()?;
    let at = outer.iter().position(|dim| dim.from == 1)?;
    let row = outer[at];
    if column.to != 1 || column.from == 1 || row.extent.min(column.extent) < TILE {
        return None;
    }
    let others: Vec<MovementDim> =
        outer.iter().enumerate().filter(|(dim, _)| *dim != at).map(|(_, dim)| *dim).collect();
    let extents: Vec<usize> = others.iter().map(|dim| dim.extent).collect();
    let side = |stride: fn(&MovementDim) -> usize| {
        position_expression(&extents, &others.iter().map(stride).collect::<Vec<_>>(), "m")
    };
    let source = KernelSource::new(include_str!("cu/transpose.cu"))
        .define("WORD", word_type(size))
        .define("ROWS", row.extent)
        .define("COLUMNS", column.extent)
        .define("FROM_COLUMN", column.from)
        .define("TO_ROW", row.to)
        .define("FROM(m)", side(|dim| dim.from))
        .define("TO(m)", side(|dim| dim.to))
        .define_index(walk.end());
    let matrices: usize = extents.iter().product();
    let blocks = matrices * row.extent.div_ceil(32) * column.extent.div_ceil(32);
    if walk.elements() == 0 {
        return None;
    }
    let arguments = walk.memory.map(Argument::Address).to_vec();
    Some(Launch::kernel(source, "transpose", blocks, THREADS, arguments))
}
