//! Reductions over dims, of an operand or of what a chain of elementwise ops gives.

use graphc_ir::ops::{Reduce, ReduceFunction};
use graphc_ir::types::{DType, row_major_strides};

use super::Shard;
use super::call::{Argument, Call, Launch};
use super::source::{KernelSource, element_type, index_type, join_runs, position_expression};
use crate::error::KernelError;

/// Threads of a block.
const THREADS: usize = 256;
/// Blocks that keep the multiprocessors of a large card busy.
const BLOCKS: usize = 528;
/// Elements that a thread adds up at least before another block is worth its launch.
const EACH: usize = 8;
/// Chunks from which on so many threads join one result.
const MANY_CHUNKS: usize = 32;
/// Functions by which kernels join chunks.
pub(super) const JOIN: &str = include_str!("cu/join.cuh");

/// Prepares the call of a `Reduce` op.
pub(super) fn prepare_reduce(
    op: &Reduce,
    operands: &[Shard],
    results: &[Shard],
) -> Result<Call, KernelError> {
    let ([x], [result]) = (operands, results) else {
        return Err(KernelError::bad_call("reduce", "takes one operand and gives one result"));
    };
    let reduction = ReductionGeometry::new(op, x.shape(), &x.global, result)?;
    let (element, wide) = (element_type(x.dtype()), accumulator_type(x.dtype()));
    let value = format!(
        "__device__ __forceinline__ {wide} value(INDEX i, const {element}* operand0) {{ return load(operand0[i]); }}\n"
    );
    let mut call = Call::empty();
    let parameters = vec![format!("const {element}* operand0")];
    let operand =
        ElementFunction { text: value, parameters, arguments: vec![Argument::operand(0)] };
    reduction.add_launches(operand, x.dtype(), 0, &mut call);
    Ok(call)
}

/// A function of C++ that gives the elements, and what it is called with.
struct ElementFunction {
    text: String,
    parameters: Vec<String>,
    arguments: Vec<Argument>,
}

/// The dims of an operand that a reduction keeps and those that it reduces.
pub(super) struct ReductionGeometry {
    function: ReduceFunction,
    /// Extents and strides of the dims that stay, and of those that go.
    kept: (Vec<usize>, Vec<usize>),
    reduced: (Vec<usize>, Vec<usize>),
    /// The elements of a whole result, by which a mean divides.
    whole: usize,
    dtype: DType,
}

/// The division of a reduction's work among threads and chunks.
pub(super) struct ReductionShares {
    /// Threads that make one result, or as many as are made at once.
    pub(super) lanes: usize,
    pub(super) chunks: usize,
    /// Elements of a result in a chunk.
    pub(super) chunk: usize,
}

impl ReductionShares {
    /// Returns the number of results that a block joins from their chunks: few where there are many chunks.
    pub(super) fn results_per_block(&self) -> usize {
        if self.chunks >= MANY_CHUNKS { THREADS / MANY_CHUNKS } else { THREADS }
    }
}

impl ReductionGeometry {
    pub(super) fn new(
        op: &Reduce,
        shape: &[usize],
        global: &[usize],
        result: &Shard,
    ) -> Result<Self, KernelError> {
        if op.axes.iter().any(|&axis| axis >= shape.len()) {
            return Err(KernelError::bad_call("reduce", "there is no such dim"));
        }
        let strides = row_major_strides(shape);
        let (mut kept, mut reduced) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
        for (dim, (&extent, stride)) in shape.iter().zip(strides).enumerate() {
            let part = if op.axes.contains(&dim) { &mut reduced } else { &mut kept };
            part.0.push(extent);
            part.1.push(stride);
        }
        if kept.0.iter().product::<usize>() != result.elements() {
            return Err(KernelError::bad_call("reduce", "a result of another shape"));
        }
        let (function, whole) = (op.function, op.count_elements(global));
        Ok(Self { function, kept, reduced, whole, dtype: result.dtype() })
    }

    pub(super) fn results(&self) -> usize {
        self.kept.0.iter().product()
    }

    /// Elements of one result.
    fn elements_per_result(&self) -> usize {
        self.reduced.0.iter().product()
    }

    /// Whether elements of one result lie side by side, rather than those of several.
    pub(super) fn lanes_are_inner(&self) -> bool {
        let stride = |(extents, strides): &(Vec<usize>, Vec<usize>)| {
            join_runs(extents, strides).last().map_or(usize::MAX, |run| run.1)
        };
        stride(&self.reduced) <= stride(&self.kept)
    }

    /// Returns the number of elements of one result, or of neighbouring results, that lie side by side: at most `most`, a power of two.
    pub(super) fn side_by_side(&self, most: usize) -> usize {
        let (extents, strides) = if self.lanes_are_inner() { &self.reduced } else { &self.kept };
        let inner =
            join_runs(extents, strides).last().filter(|run| run.1 == 1).map_or(1, |run| run.0);
        let mut width = most;
        while !inner.is_multiple_of(width) {
            width /= 2;
        }
        width
    }

    /// The shares where a thread takes `width` elements that lie side by side.
    pub(super) fn shares(&self, width: usize) -> ReductionShares {
        let inner = self.lanes_are_inner();
        let (kept, reduced) = if inner { (1, width) } else { (width, 1) };
        let (results, count) =
            (self.results() / kept, (self.elements_per_result() / reduced).max(1));
        let lanes = match inner {
            true => count.next_power_of_two().min(THREADS),
            false => {
                (THREADS / results.next_power_of_two().clamp(1, 32)).min(count.next_power_of_two())
            }
        };
        let blocks = results.div_ceil(THREADS / lanes).max(1);
        let chunks = (BLOCKS / blocks).clamp(1, count.div_ceil(lanes * EACH));
        let chunk = count.div_ceil(chunks).next_multiple_of(lanes);
        ReductionShares { lanes, chunks: count.div_ceil(chunk), chunk: chunk * reduced }
    }

    /// Macros of which elements make which result, and how the work is shared.
    pub(super) fn describe(&self, source: KernelSource, shares: &ReductionShares) -> KernelSource {
        source
            .define("KEPT(r)", position_expression(&self.kept.0, &self.kept.1, "r"))
            .define("REDUCED(e)", position_expression(&self.reduced.0, &self.reduced.1, "e"))
            .define("RESULTS", self.results())
            .define("COUNT", self.elements_per_result())
            .define("CHUNKS", shares.chunks)
            .define("CHUNK", shares.chunk)
            .define("JOINED", shares.results_per_block())
            .define("LANES", shares.lanes)
            .define("LANES_ARE_INNER", u8::from(self.lanes_are_inner()))
    }

    /// Whether elements are added up.
    pub(super) fn is_sum(&self) -> bool {
        matches!(self.function, ReduceFunction::Sum | ReduceFunction::Mean)
    }

    /// Returns the number that a sum is divided by: 1 if it is no mean.
    pub(super) fn divisor(&self) -> usize {
        if self.function == ReduceFunction::Mean { self.whole } else { 1 }
    }

    /// Returns the C++ expression that combines `a` and `b`.
    pub(super) fn combination(&self) -> &'static str {
        match self.function {
            ReduceFunction::Sum | ReduceFunction::Mean => "((a) + (b))",
            ReduceFunction::Max => "((a) > (b) || (a) != (a) ? (a) : (b))",
            ReduceFunction::Min => "((a) < (b) || (a) != (a) ? (a) : (b))",
            ReduceFunction::MaxAbs => "(fabsf(a) > fabsf(b) || (a) != (a) ? fabsf(a) : fabsf(b))",
        }
    }

    /// Adds the launches to a call.
    fn add_launches(
        &self,
        value: ElementFunction,
        elements: DType,
        output: usize,
        call: &mut Call,
    ) {
        if self.results() == 0 {
            return;
        }
        let shares = self.shares(1);
        let source = self.build_source(&value, elements, &shares);
        let ReductionShares { lanes, chunks, .. } = shares;
        let partial = reserve_scratch(call, chunks, self.results() * size_of_wide(elements));
        let (partial, result) = (Argument::scratch(partial), Argument::result(output));
        let blocks = self.results().div_ceil(THREADS / lanes);
        let mut arguments = value.arguments;
        arguments.extend([partial, result]);
        let mut first = Launch::kernel(source.clone(), "reduce", blocks, THREADS, arguments);
        if let Launch::Kernel(kernel) = &mut first {
            kernel.grid[1] = chunks as u32;
        }
        call.launches.push(first);
        if chunks > 1 {
            let blocks = self.results().div_ceil(shares.results_per_block());
            let arguments = vec![partial, result];
            call.launches.push(Launch::kernel(source, "join", blocks, THREADS, arguments));
        }
    }

    fn build_source(
        &self,
        value: &ElementFunction,
        elements: DType,
        shares: &ReductionShares,
    ) -> KernelSource {
        let index = index_type(
            self.results().max(1) * self.elements_per_result().max(1) + THREADS * THREADS,
        );
        let names = value
            .parameters
            .iter()
            .filter_map(|parameter| parameter.rsplit([' ', '*']).next().map(str::to_owned));
        let names: Vec<String> = names.collect();
        let source =
            KernelSource::new([JOIN, &value.text, include_str!("cu/reduce.cu")].join("\n"))
                .define("INDEX", index)
                .define("V", accumulator_type(elements))
                .define_element("T", self.dtype)
                .define("PARAMETERS", value.parameters.join(", "))
                .define("ARGUMENTS", names.join(", "))
                .define("COMBINE(a, b)", self.combination())
                .define("IDENTITY", self.identity(elements))
                .define("SUMS", u8::from(self.is_sum() && elements.is_float()))
                .define("DIVISOR", self.divisor());
        self.describe(source, shares)
    }

    pub(super) fn identity(&self, elements: DType) -> String {
        match (self.function, elements) {
            (ReduceFunction::Sum | ReduceFunction::Mean | ReduceFunction::MaxAbs, _) => {
                "0".to_owned()
            }
            (ReduceFunction::Max, dtype) if dtype.is_float() => "(-INFINITE)".to_owned(),
            (ReduceFunction::Min, dtype) if dtype.is_float() => "INFINITE".to_owned(),
            (function, DType::I64) => match function {
                ReduceFunction::Max => format!("(-{}ll - 1)", i64::MAX),
                _ => format!("{}ll", i64::MAX),
            },
            (function, dtype) => format!("{}ll", function.identity(dtype) as i64),
        }
    }
}

/// The type that elements are combined in.
fn accumulator_type(dtype: DType) -> &'static str {
    if dtype.is_float() { "float" } else { "i64" }
}

fn size_of_wide(dtype: DType) -> usize {
    if dtype.is_float() { 4 } else { 8 }
}

/// Room for partial results, where there are any; where it begins. Launches of one call go one after the other, so all reductions
/// of a chain share it.
fn reserve_scratch(call: &mut Call, chunks: usize, bytes: usize) -> usize {
    if chunks > 1 {
        call.scratch = call.scratch.max(chunks * bytes);
    }
    0
}
