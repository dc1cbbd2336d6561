//! Convolution and its gradients. There are four ways:
//!
//! - [`pointwise`]: windows of one element are products of matrices, which a library multiplies.
//! - [`gathered`]: what windows of more elements meet is brought to memory as a matrix first, where that is worth it.
//! - [`tiles`]: implicit products of matrices, whose elements are read where they lie (Chetlur et al., arXiv 1410.0759). Those of
//!   `f32` are multiplications and sums; tensor cores multiply halves.
//! - [`direct`]: a thread for each element of the result, for groups with few channels.
//!
//! Kernels are brought to the order in which they are read first. The gradient of kernels is a sum over images and places. It is
//! made in chunks that follow from the shapes, which a launch behind joins.

mod direct;
mod gathered;
mod pointwise;
mod tiles;

use graphc_ir::op::Op;
use graphc_ir::ops::Window;
use graphc_ir::types::DType;

use super::Shard;
use super::call::{Argument, Call, CallRegister, Launch, LaunchMemory};
use super::source::{KernelSource, index_type};
use crate::convolution::group_stride;
use crate::convolution::space::{ConvolutionSpace, TakenChannels};
use crate::error::KernelError;

/// Threads of a block.
const THREADS: usize = 256;
/// Threads that keep a large card busy.
const BUSY: usize = 1 << 18;
/// Channels of a group below which tiles would be empty for the most part.
const FEW: usize = 8;

/// Prepares the call of a convolution or of one of its gradients.
pub(super) fn prepare_convolution(
    op: &Op,
    operands: &[Shard],
    results: &[Shard],
) -> Result<Call, KernelError> {
    let ([a, b], [result]) = (operands, results) else {
        return Err(KernelError::bad_call(op.name(), "takes two operands and gives one result"));
    };
    let work = ConvolutionWork::new(op, [a, b], result)?;
    if result.elements() == 0 {
        return Ok(Call::empty());
    }
    if work.sums_nothing() {
        let (place, bytes) =
            (LaunchMemory::Slot(CallRegister::Result(0)), work.result * work.dtype.size());
        return Ok(Call::from_launches(vec![Launch::Clear { place, bytes }]));
    }
    if pointwise::is_product(&work) {
        return Ok(pointwise::prepare_pointwise(&work));
    }
    if gathered::is_worth(&work) {
        return Ok(gathered::prepare_gathered(&work));
    }
    let space = &work.space;
    let few = space.groups > 1 && space.inputs.min(space.outputs) < FEW;
    Ok(if few || space.groups > 1 << 10 {
        direct::prepare_direct(&work)
    } else {
        tiles::prepare_tiles(&work)
    })
}

/// The convolution itself, or one of its two gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConvolutionKind {
    Forward,
    InputGrad,
    KernelGrad,
}

/// The convolution or gradient that is to be computed.
struct ConvolutionWork {
    kind: ConvolutionKind,
    space: ConvolutionSpace,
    channels_last: bool,
    dtype: DType,
    /// Elements of the result.
    result: usize,
}

impl ConvolutionWork {
    fn new(op: &Op, [a, b]: [&Shard; 2], result: &Shard) -> Result<Self, KernelError> {
        let (kind, window, groups, channels_last) = describe_convolution(op)?;
        let (x, k, y) = match kind {
            ConvolutionKind::Forward => (a, b, result),
            ConvolutionKind::InputGrad => (result, a, b),
            ConvolutionKind::KernelGrad => (a, result, b),
        };
        let channels = if channels_last { 3 } else { 1 };
        let stride = group_stride(groups, channels, [x.shape(), &x.global]);
        let in_part = kind == ConvolutionKind::Forward && groups > 1;
        let count = if in_part { k.shape().get(1).copied().unwrap_or(0) } else { stride };
        let taken = TakenChannels { stride, first: 0, count };
        let shapes = [x.shape(), k.shape(), y.shape()];
        let space = ConvolutionSpace::new(op.name(), window, channels_last, taken, shapes)?;
        let (dtype, result) = (result.dtype(), result.elements());
        Ok(Self { kind, space, channels_last, dtype, result })
    }

    /// Whether each element of the result is a sum of nothing.
    fn sums_nothing(&self) -> bool {
        let ConvolutionSpace { batch, inputs, outputs, .. } = self.space;
        match self.kind {
            ConvolutionKind::Forward => inputs * self.space.taps() == 0,
            ConvolutionKind::InputGrad => {
                outputs * self.space.taps() * self.space.output_places() == 0
            }
            ConvolutionKind::KernelGrad => batch * self.space.output_places() == 0,
        }
    }

    /// Whether kernels take a part of the channels of each group, which begins where the shard does.
    fn takes_part(&self) -> bool {
        self.space.inputs != self.space.stride
    }

    /// The type of positions in the largest tensor.
    fn index_type(&self) -> &'static str {
        let images = self.space.batch * self.space.input_places() * self.space.input_channels();
        let places = self.space.batch * self.space.output_places() * self.space.output_channels();
        index_type(images.max(places).max(self.kernel_elements()) + (1 << 20))
    }

    fn kernel_elements(&self) -> usize {
        self.space.output_channels() * self.space.inputs * self.space.taps()
    }

    /// Macros that all kernels of a convolution have, see `cu/window.cuh`.
    fn build_source(&self, body: &str) -> KernelSource {
        let ConvolutionSpace {
            window,
            batch,
            groups,
            outputs,
            inputs,
            stride,
            extents,
            image,
            shown,
            ..
        } = self.space;
        let kind = match self.kind {
            ConvolutionKind::Forward => "FORWARD",
            ConvolutionKind::InputGrad => "INPUT_GRAD",
            ConvolutionKind::KernelGrad => "KERNEL_GRAD",
        };
        KernelSource::new(format!("{}\n{body}", include_str!("../cu/window.cuh")))
            .define("FORWARD", 0)
            .define("INPUT_GRAD", 1)
            .define("KERNEL_GRAD", 2)
            .define("KIND", kind)
            .define("INDEX", self.index_type())
            .define_element("T", self.dtype)
            .define("BATCH", batch)
            .define("GROUPS", groups)
            .define("OUTPUTS", outputs)
            .define("INPUTS", inputs)
            .define("GROUP", stride)
            .define_pair("KERNEL", extents)
            .define_pair("IMAGE", image)
            .define_pair("SHOWN", shown)
            .define_pair("STEP", window.strides)
            .define_pair("REACH", window.dilations)
            .define_pair("PAD", [window.pads[0], window.pads[1]])
            .define("CHANNELS_LAST", u8::from(self.channels_last))
    }

    /// Appends the argument that says with which channel of a group kernels begin, if they take a part of a group. It stands behind a
    /// kernel's operands and results.
    fn first_channel(&self, arguments: &mut Vec<Argument>) {
        if self.takes_part() {
            arguments.push(Argument::Origin(CallRegister::Operand(1), 1));
        }
    }

    /// Describes the join of sums from a byte of the memory to work in on, of one chunk in the order of kernels, to the result.
    fn whole_join(&self, from: usize) -> Join<'static> {
        let (joined, made, to) = ("e", self.dtype, Argument::result(0));
        Join { partial: "e", chunks: 1, from, joined, made, to }
    }

    /// Joins the chunks of sums of the gradient of kernels.
    fn launch_join(&self, join: &Join<'_>) -> Launch {
        let &Join { partial, chunks, from, joined, made, to } = join;
        let source = self
            .build_source(include_str!("../cu/convolution_join.cu"))
            .define("ELEMENTS", self.kernel_elements())
            .define("CHUNKS", chunks)
            .define("PARTIAL(o, c, tap)", partial)
            .define("JOINED(o, c, tap)", joined)
            .define_element("MADE", made);
        let blocks = self.kernel_elements().div_ceil(THREADS);
        let arguments = vec![Argument::scratch(from), to];
        Launch::kernel(source, "convolution_join", blocks, THREADS, arguments)
    }
}

/// The way in which sums of the gradient of kernels become elements: places are formulas of `o`, `c` and `tap`, or `e`, an element's in the order of
/// kernels.
#[derive(Clone, Copy)]
struct Join<'a> {
    /// The place of an element's sum in a chunk.
    partial: &'a str,
    chunks: usize,
    /// The byte of the memory to work in at which the first chunk begins.
    from: usize,
    /// The place of an element in the result.
    joined: &'a str,
    /// The element type of the result.
    made: DType,
    to: Argument,
}

fn describe_convolution(op: &Op) -> Result<(ConvolutionKind, Window, usize, bool), KernelError> {
    Ok(match op {
        Op::Convolution(op) => (ConvolutionKind::Forward, op.window, op.groups, op.channels_last),
        Op::ConvolutionInputGrad(op) => {
            (ConvolutionKind::InputGrad, op.window, op.groups, op.channels_last)
        }
        Op::ConvolutionKernelGrad(op) => {
            (ConvolutionKind::KernelGrad, op.window, op.groups, op.channels_last)
        }
        op => return Err(KernelError::bad_call(op.name(), "is no convolution")),
    })
}

/// The next multiple of 256 bytes, at which memory to work in begins.
pub(super) fn align_bytes(bytes: usize) -> usize {
    bytes.next_multiple_of(256)
}
