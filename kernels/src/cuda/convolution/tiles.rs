//! Implicit products of matrices. A block sums a tile of the result over tiles of both factors in shared memory, which it reads
//! from the images where they lie, vectors of channels at a time.
//!
//! The gradient of images goes over places by their remainder modulo the window's steps. So a tile leaves out the elements of the
//! window that none of its places meets.

use super::{Argument, Call, ConvolutionKind, ConvolutionWork, Join, Launch, THREADS, align_bytes};
use crate::cuda::source::KernelSource;
use graphc_ir::types::DType;

/// Blocks that keep the multiprocessors of a large card busy.
const BLOCKS: usize = 264;
/// Tiles of the inner extent in a chunk at least.
const EACH: usize = 8;
/// The most blocks along the second and third dim of a grid.
const MOST: usize = u16::MAX as usize;

/// The place of an element in a chunk of sums of the gradient of kernels.
pub(super) const PARTIAL: &str = "((INDEX)(o) * (TAPS * INPUTS) + (tap) * INPUTS + (c))";

pub(super) fn prepare_tiles(work: &ConvolutionWork) -> Call {
    if work.kind == ConvolutionKind::KernelGrad {
        let (sums, chunks) = launch_kernel_sums(work);
        let join = work.launch_join(&Join { partial: PARTIAL, chunks, ..work.whole_join(0) });
        let mut call = Call::from_launches(vec![sums, join]);
        call.scratch = chunks * work.kernel_elements() * size_of::<f32>();
        return call;
    }
    let product = TiledProduct::new(work);
    let mut call = Call::empty();
    let [a, b] = if work.kind == ConvolutionKind::Forward { [0, 1] } else { [1, 0] };
    let mut b = Argument::operand(b);
    if product.packs_kernels(work) {
        b = Argument::scratch(0);
        call.launches.push(launch_pack(work));
        call.scratch = align_bytes(work.kernel_elements() * work.dtype.size());
    }
    let mut arguments = vec![Argument::operand(a), b, Argument::result(0)];
    work.first_channel(&mut arguments);
    call.launches.push(product.launch(work, arguments));
    call
}

/// The launch that sums the gradient of kernels in chunks, which lie in the memory to work in from byte 0 on, and their number.
pub(super) fn launch_kernel_sums(work: &ConvolutionWork) -> (Launch, usize) {
    let product = TiledProduct::new(work);
    let mut arguments = vec![Argument::operand(1), Argument::operand(0), Argument::scratch(0)];
    work.first_channel(&mut arguments);
    (product.launch(work, arguments), product.chunks)
}

/// Extents of the product of one group, and of a block's tiles.
struct TiledProduct {
    rows: usize,
    columns: usize,
    depth: usize,
    /// Rows of one phase of the gradient of images, a multiple of a tile's; of the others all rows.
    phase: usize,
    tile: [usize; 2],
    /// The part of the inner extent that is in shared memory at a time.
    step: usize,
    /// The number of sums that make an element, and the number of steps in each.
    chunks: usize,
    chunk: usize,
}

impl TiledProduct {
    fn new(work: &ConvolutionWork) -> Self {
        let space = &work.space;
        let [height, width] =
            [0, 1].map(|dim| space.image[dim].div_ceil(space.window.strides[dim]));
        let (rows, columns, depth) = match work.kind {
            ConvolutionKind::Forward => {
                (space.batch * space.output_places(), space.outputs, space.taps() * space.inputs)
            }
            ConvolutionKind::InputGrad => {
                (space.batch * height * width, space.inputs, space.taps() * space.outputs)
            }
            ConvolutionKind::KernelGrad => {
                (space.outputs, space.taps() * space.inputs, space.batch * space.output_places())
            }
        };
        let phases = match work.kind {
            ConvolutionKind::InputGrad => space.window.strides.iter().product(),
            ConvolutionKind::Forward | ConvolutionKind::KernelGrad => 1,
        };
        let blocks =
            |[m, n]: [usize; 2]| rows.div_ceil(m) * columns.div_ceil(n) * phases * space.groups;
        let large = if columns > 64 { [128, 128] } else { [128, 64] };
        let sums = work.kind == ConvolutionKind::KernelGrad;
        let fits = rows > 64 && (sums || blocks(large) >= BLOCKS / 2);
        let tile = if fits { large } else { [64, 64] };
        let step = if work.dtype == DType::F32 { 16 } else { 32 };
        let steps = depth.div_ceil(step);
        let most = steps.div_ceil(EACH).min(MOST / space.groups);
        let chunks = if sums { (2 * BLOCKS / blocks(tile)).clamp(1, most) } else { 1 };
        let chunk = steps.div_ceil(chunks);
        let phase = if phases > 1 { rows.next_multiple_of(tile[0]) } else { rows };
        let (rows, chunks) = (phase * phases, steps.div_ceil(chunk));
        Self { rows, columns, depth, phase, tile, step, chunks, chunk }
    }

    /// Whether kernels are brought to another order first: of the gradient of images those of one element lie right.
    fn packs_kernels(&self, work: &ConvolutionWork) -> bool {
        match work.kind {
            ConvolutionKind::Forward => true,
            ConvolutionKind::InputGrad => work.space.taps() > 1,
            ConvolutionKind::KernelGrad => false,
        }
    }

    fn launch(&self, work: &ConvolutionWork, arguments: Vec<Argument>) -> Launch {
        let [m, n] = self.tile;
        let body = match work.dtype {
            DType::F32 => include_str!("../cu/convolution_floats.cu"),
            _ => include_str!("../cu/convolution_halves.cu"),
        };
        let source = self.build_source(work, body);
        let blocks = self.rows.div_ceil(m);
        let columns = self.columns.div_ceil(n);
        let launch = Launch::kernel(source, "convolution_tiles", blocks, THREADS, arguments);
        let mut launch = launch.with_rows(columns);
        if let Launch::Kernel(kernel) = &mut launch {
            kernel.grid[2] = (work.space.groups * self.chunks) as u32;
        }
        launch
    }

    fn build_source(&self, work: &ConvolutionWork, body: &str) -> KernelSource {
        let head =
            [include_str!("../cu/tensor_cores.cuh"), include_str!("../cu/convolution_tiles.cuh")];
        let head = if work.dtype == DType::F32 { &head[1..] } else { &head };
        let last = work.channels_last;
        let sums = work.kind == ConvolutionKind::KernelGrad;
        work.build_source(&format!("{}\n{body}", head.concat()))
            .define("ROWS", self.rows)
            .define("PHASE_ROWS", self.phase)
            .define("COLUMNS", self.columns)
            .define("DEPTH", self.depth)
            .define("TILE_M", self.tile[0])
            .define("TILE_N", self.tile[1])
            .define("TILE_K", self.step)
            .define("CHUNKS", self.chunks)
            .define("CHUNK", self.chunk)
            .define("ALIGNED_A", self.aligned_a(work))
            .define("ALIGNED_B", self.aligned_b(work))
            .define("A_ALONG_K", u8::from(last != sums))
            .define("B_ALONG_N", u8::from(last || !sums))
            .define("SIDE_BY_SIDE", u8::from(sums || last && self.columns.is_multiple_of(4)))
            .define("TAKES_PART", u8::from(work.takes_part()))
            .define("OUT", if sums { "float" } else { "T" })
    }

    /// Returns the number of elements of the first factor that are read at once.
    fn aligned_a(&self, work: &ConvolutionWork) -> usize {
        let space = &work.space;
        let channels = match work.kind {
            ConvolutionKind::Forward => space.inputs,
            ConvolutionKind::InputGrad | ConvolutionKind::KernelGrad => space.outputs,
        };
        elements_at_once(work, work.channels_last && !work.takes_part(), channels)
    }

    fn aligned_b(&self, work: &ConvolutionWork) -> usize {
        match work.kind {
            ConvolutionKind::Forward | ConvolutionKind::InputGrad => {
                elements_at_once(work, true, self.columns)
            }
            ConvolutionKind::KernelGrad => {
                elements_at_once(work, work.channels_last, work.space.inputs)
            }
        }
    }
}

/// The most elements of 16 bytes or fewer that a number of channels is a multiple of, where they lie side by side.
fn elements_at_once(work: &ConvolutionWork, side_by_side: bool, channels: usize) -> usize {
    let most = 16 / work.dtype.size();
    let fits = |width: &usize| side_by_side && channels.is_multiple_of(*width);
    (0..=3).map(|at| most >> at).find(fits).unwrap_or(1)
}

/// Elements of a block's shared memory, at most.
const SHARED: usize = 12_288;

fn launch_pack(work: &ConvolutionWork) -> Launch {
    let (elements, taps) = (work.kernel_elements(), work.space.taps());
    let (inputs, outputs) = (work.space.inputs, work.space.outputs);
    let channels = (SHARED / taps.max(1)).min(64);
    let [x, y, z] = match (work.kind, channels) {
        (ConvolutionKind::Forward, _) => {
            [outputs.div_ceil(32), (inputs * taps).div_ceil(32), work.space.groups]
        }
        (_, 0) => [elements.div_ceil(THREADS), 1, 1],
        (_, channels) => [outputs * work.space.groups, inputs.div_ceil(channels), 1],
    };
    let source = work
        .build_source(include_str!("../cu/convolution_pack.cu"))
        .define("ELEMENTS", elements)
        .define("BROUGHT", channels);
    let k = if work.kind == ConvolutionKind::Forward { 1 } else { 0 };
    let arguments = vec![Argument::operand(k), Argument::scratch(0)];
    let mut launch = Launch::kernel(source, "convolution_pack", x, THREADS, arguments).with_rows(y);
    if let Launch::Kernel(kernel) = &mut launch {
        kernel.grid[2] = z as u32;
    }
    launch
}
