//! Pooling of images and its gradients.

use graphc_ir::op::Op;
use graphc_ir::ops::Window;

use super::Shard;
use super::call::{Argument, Call, Launch};
use super::source::{KernelSource, index_type, word_type};
use crate::error::KernelError;

/// Threads of a block.
const THREADS: usize = 256;
/// Bytes that a thread reads at once.
const ACCESS: usize = 16;

/// Prepares the call of a pooling op or of its gradient.
pub(super) fn prepare_pool(
    op: &Op,
    operands: &[Shard],
    results: &[Shard],
) -> Result<Call, KernelError> {
    let how = PoolSpec::from_op(op)?;
    let (Some(last), [result]) = (operands.last(), results) else {
        return Err(KernelError::bad_call(op.name(), "takes an image and gives one result"));
    };
    if operands.len() != if how.mean.is_none() && how.backward { 2 } else { 1 } {
        return Err(KernelError::bad_call(op.name(), "takes another number of operands"));
    }
    let (x, y) = if how.backward { (result, last) } else { (last, result) };
    if result.elements() == 0 {
        return Ok(Call::empty());
    }
    let (source, width) = how.build_source(op, x, y)?;
    let launch = |entry, arguments: &[Argument], elements: usize| {
        let source = source.clone().define("ELEMENTS", elements);
        let blocks = elements.div_ceil(THREADS * width);
        Launch::kernel(source, entry, blocks, THREADS, arguments.to_vec())
    };
    let entry = if how.backward { "pool_grad" } else { "pool" };
    let mut call = Call::empty();
    let mut first = Argument::operand(0);
    if how.backward && how.mean.is_none() && y.elements() > 0 {
        let greatest = Argument::scratch(0);
        call.launches.push(launch("pool_find", &[first, greatest], y.elements()));
        call.scratch = y.elements() * how.ordinal_bytes();
        first = greatest;
    }
    let others = (1..operands.len()).map(Argument::operand).chain([Argument::result(0)]);
    let arguments: Vec<Argument> = std::iter::once(first).chain(others).collect();
    call.launches.push(launch(entry, &arguments, result.elements()));
    Ok(call)
}

/// The parameters of a pooling op.
struct PoolSpec {
    kernel: [usize; 2],
    window: Window,
    /// Whether a mean counts borders; `None` for the greatest element.
    mean: Option<bool>,
    channels_last: bool,
    backward: bool,
}

impl PoolSpec {
    fn from_op(op: &Op) -> Result<Self, KernelError> {
        let (kernel, window, mean, channels_last, backward) = match op {
            Op::MaxPool(op) => (op.kernel, op.window, None, op.channels_last, false),
            Op::MaxPoolGrad(op) => (op.kernel, op.window, None, op.channels_last, true),
            Op::AveragePool(op) => {
                (op.kernel, op.window, Some(op.count_border), op.channels_last, false)
            }
            Op::AveragePoolGrad(op) => {
                (op.kernel, op.window, Some(op.count_border), op.channels_last, true)
            }
            op => return Err(KernelError::bad_call(op.name(), "is no pooling")),
        };
        Ok(Self { kernel, window, mean, channels_last, backward })
    }

    /// The kernels, but for how many elements there are, and how many of them a thread computes.
    fn build_source(
        &self,
        op: &Op,
        x: &Shard,
        y: &Shard,
    ) -> Result<(KernelSource, usize), KernelError> {
        let misfit = || {
            let reason = format!("{:?} does not give {:?}", x.shape(), y.shape());
            KernelError::bad_call(op.name(), reason)
        };
        let [batch, channels, height, width] = self.extents(x).ok_or_else(misfit)?;
        let [images, features, rows, columns] = self.extents(y).ok_or_else(misfit)?;
        let places = [(0, height), (1, width)]
            .map(|(dim, extent)| self.window.count_places(dim, extent, self.kernel[dim]));
        if [batch, channels] != [images, features] || places != [Some(rows), Some(columns)] {
            return Err(misfit());
        }
        let together = self.channels_per_thread(channels, x.dtype().size());
        let pads = self.window.pads;
        let end = [height + pads[0] + pads[2], width + pads[1] + pads[3]];
        let body = format!("{}\n{}", include_str!("cu/window.cuh"), include_str!("cu/pool.cu"));
        let source = KernelSource::new(body)
            .define("INDEX", index_type(x.elements().max(y.elements()) + (1 << 20)))
            .define_element("T", x.dtype())
            .define("BATCH", batch)
            .define("GROUPS", channels)
            .define("OUTPUTS", 1)
            .define("INPUTS", 1)
            .define("GROUP", 1)
            .define_pair("KERNEL", self.kernel)
            .define_pair("IMAGE", [height, width])
            .define_pair("SHOWN", [rows, columns])
            .define_pair("STEP", self.window.strides)
            .define_pair("REACH", self.window.dilations)
            .define_pair("PAD", [pads[0], pads[1]])
            .define_pair("END", end)
            .define("CHANNELS_LAST", u8::from(self.channels_last))
            .define("MEAN", u8::from(self.mean.is_some()))
            .define("COUNT_BORDER", u8::from(self.mean == Some(true)))
            .define("WIDTH", together)
            .define("ORDINAL", word_type(self.ordinal_bytes()));
        Ok((source, together))
    }

    /// Bytes that tell the elements of a window, and that there is none.
    fn ordinal_bytes(&self) -> usize {
        match self.kernel[0] * self.kernel[1] {
            0..0xFF => 1,
            0xFF..0xFFFF => 2,
            _ => 4,
        }
    }

    /// Batch, channels, height and width.
    fn extents(&self, image: &Shard) -> Option<[usize; 4]> {
        match (self.channels_last, image.shape()) {
            (true, &[n, h, w, c]) | (false, &[n, c, h, w]) => Some([n, c, h, w]),
            _ => None,
        }
    }

    /// Returns the number of channels that a thread computes at once.
    fn channels_per_thread(&self, channels: usize, size: usize) -> usize {
        let fits = |width: &usize| self.channels_last && channels.is_multiple_of(*width);
        (0..=3).map(|at| (ACCESS / size) >> at).find(fits).unwrap_or(1)
    }
}
