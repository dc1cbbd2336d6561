//! Ops whose elements are functions of their place in the whole tensor: sources, dropout, triangles.

use graphc_ir::op::Op;
use graphc_ir::ops::{Constant, Distribution, DropoutOp, Init, Triangle, Variable};
use graphc_ir::random::key_of;
use graphc_ir::types::{DType, row_major_strides};

use super::Shard;
use super::call::{Argument, Call, CallRegister, Launch, LaunchMemory};
use super::source::{
    KernelSource, Whole, access_width, element_bits, f32_literal, f64_literal, word_type,
};
use crate::error::KernelError;

/// Threads of a block.
const THREADS: usize = 256;

/// A source: an op without operands.
pub(super) fn prepare_source(op: &Op, results: &[Shard]) -> Result<Call, KernelError> {
    let [out] = results else { return Err(KernelError::bad_call(op.name(), "gives one result")) };
    let whole = out.global.iter().product::<usize>();
    match op {
        Op::Full(op) => Ok(prepare_full(out, op.value.0)),
        Op::Constant(op) if op.data.len() == whole => Ok(prepare_constant(op, out)),
        Op::Iota(op) if op.dim < out.global.len() => {
            let (stride, extent) = (row_major_strides(&out.global)[op.dim], out.global[op.dim]);
            let element = format!("counted<T>((i64)(p / {stride}ull % {extent}ull))");
            Ok(Call::from_launches(launch_elements(
                ElementText::from_expression(out, element),
                out,
            )))
        }
        Op::Random(op) => Ok(prepare_random(op.distribution, op.key, "now->step", out)),
        Op::Variable(op) => prepare_variable(op, out),
        _ => {
            let reason = format!("cannot fill {:?} of {:?}", out.shape(), out.global);
            Err(KernelError::bad_call(op.name(), reason))
        }
    }
}

fn prepare_variable(op: &Variable, out: &Shard) -> Result<Call, KernelError> {
    let (distribution, key) = match op.init {
        Init::Weights => return Err(KernelError::bad_call("variable", "its content is in a file")),
        Init::Table(_) => {
            return Err(KernelError::bad_call("variable", "its content is in a table"));
        }
        Init::Fill(value) => return Ok(prepare_full(out, value.0)),
        Init::Normal { mean, std } => (Distribution::Normal { mean, std }, key_of(&op.name)),
        Init::Uniform { low, high } => (Distribution::Uniform { low, high }, key_of(&op.name)),
    };
    Ok(prepare_random(distribution, key, "0ull", out))
}

fn prepare_full(out: &Shard, value: f64) -> Call {
    prepare_same_value(out.dtype(), out.elements(), value)
}

/// Prepares the call that writes one value everywhere in the first result.
pub(super) fn prepare_same_value(dtype: DType, elements: usize, value: f64) -> Call {
    let (size, bits) = (dtype.size(), element_bits(dtype, value));
    if elements == 0 {
        return Call::empty();
    }
    if bits == 0 {
        let place = LaunchMemory::Slot(CallRegister::Result(0));
        return Call::from_launches(vec![Launch::Clear { place, bytes: elements * size }]);
    }
    let source = KernelSource::new(include_str!("cu/fill.cu"))
        .define("WORD", word_type(size))
        .define("BITS", format!("{bits:#x}ull"))
        .define("ELEMENTS", elements)
        .define_index(elements);
    let blocks = elements.div_ceil(THREADS * 16 / size);
    Call::from_launches(vec![Launch::kernel(
        source,
        "fill",
        blocks,
        THREADS,
        vec![Argument::result(0)],
    )])
}

/// Fills a result with bytes of 0.
pub(super) fn launch_clear(result: usize, out: &Shard) -> Launch {
    let place = LaunchMemory::Slot(CallRegister::Result(result));
    Launch::Clear { place, bytes: out.elements() * out.dtype().size() }
}

/// A literal: a table in the source, or one value where all are the same.
fn prepare_constant(op: &Constant, out: &Shard) -> Call {
    let ty = word_type(out.dtype().size());
    let table: Vec<u64> = op.data.iter().map(|value| element_bits(out.dtype(), value.0)).collect();
    if table.windows(2).all(|pair| pair[0] == pair[1]) {
        return op.data.first().map_or_else(Call::empty, |value| prepare_full(out, value.0));
    }
    let list: Vec<String> = table.iter().map(|bits| format!("{bits:#x}")).collect();
    let table = format!("__device__ const {ty} table[] = {{{}}};\n", list.join(", "));
    Call::from_launches(launch_elements(
        ElementText { table, ty, element: "table[p]".to_owned() },
        out,
    ))
}

/// Random numbers of a stream; `step` is an expression.
fn prepare_random(distribution: Distribution, key: u64, step: &str, out: &Shard) -> Call {
    let words = format!("random_words(now->seed, {key:#x}ull, {step}, p)");
    let value = match distribution {
        Distribution::Normal { mean, std } => {
            format!("{} + {} * normal_of({words})", f64_literal(mean.0), f64_literal(std.0))
        }
        Distribution::Uniform { low, high } => {
            let range = f64_literal(high.0 - low.0);
            format!("{} + {range} * (double)uniform_of({words})", f64_literal(low.0))
        }
    };
    let element = format!("to<T>((float)({value}))");
    Call::from_launches(launch_elements(ElementText::from_expression(out, element), out))
}

/// The text of an element: a table in front of the kernel, the type of elements, and an expression of a position `p`.
struct ElementText {
    table: String,
    ty: &'static str,
    element: String,
}

impl ElementText {
    fn from_expression(out: &Shard, element: String) -> Self {
        Self { table: String::new(), ty: super::source::element_type(out.dtype()), element }
    }
}

fn launch_elements(of: ElementText, out: &Shard) -> Vec<Launch> {
    let elements = out.elements();
    if elements == 0 {
        return Vec::new();
    }
    let whole = Whole::from_shard(CallRegister::Result(0), out);
    let source = KernelSource::new(format!("{}{}", of.table, include_str!("cu/elements.cu")))
        .define("T", of.ty)
        .define("ELEMENTS", elements)
        .define_index(elements.max(out.global.iter().product()))
        .define("WHOLE(i)", whole.position)
        .define("ORIGINS", whole.parameters)
        .define("ELEMENT(p)", of.element);
    let mut arguments = vec![Argument::result(0), Argument::Now];
    arguments.extend(whole.arguments);
    vec![Launch::kernel(source, "elements", elements.div_ceil(THREADS), THREADS, arguments)]
}

/// Prepares the call of a `Dropout` op.
pub(super) fn prepare_dropout(op: &DropoutOp, operands: &[Shard], results: &[Shard]) -> Call {
    let (x, elements) = (&operands[0], operands[0].elements());
    if !op.can_drop() {
        return Call::from_launches(vec![Launch::copy_operand(&results[0])]);
    }
    if elements == 0 {
        return Call::empty();
    }
    let whole = Whole::from_shard(CallRegister::Operand(0), x);
    let width = access_width(x.dtype().size(), [elements]);
    let source = KernelSource::new(include_str!("cu/dropout.cu"))
        .define_element("T", x.dtype())
        .define("ELEMENTS", elements)
        .define("WIDTH", width)
        .define_index(elements.max(x.global.iter().product()))
        .define("WHOLE(i)", whole.position)
        .define("ORIGINS", whole.parameters);
    let source = define_stream(source, "KEY", *op);
    let mut arguments = vec![Argument::operand(0), Argument::result(0), Argument::Now];
    arguments.extend(whole.arguments);
    let blocks = elements.div_ceil(THREADS * width);
    Call::from_launches(vec![Launch::kernel(source, "dropout", blocks, THREADS, arguments)])
}

/// Defines the key of a dropout's stream by a name, THRESHOLD, below which random bits drop an element, and KEPT, the probability of what is kept.
pub(super) fn define_stream(source: KernelSource, key: &str, op: DropoutOp) -> KernelSource {
    source
        .define(key, format!("{:#x}ull", op.key))
        .define("THRESHOLD", format!("{}u", (op.probability.0 * 16_777_216.0).ceil() as u32))
        .define("KEPT", f32_literal((1.0 - op.probability.0) as f32))
}

/// Prepares the call of a `Triangle` op, of any element type.
pub(super) fn prepare_triangle(op: &Triangle, operands: &[Shard]) -> Result<Call, KernelError> {
    let (x, elements) = (&operands[0], operands[0].elements());
    let &[.., rows, columns] = x.shape() else {
        return Err(KernelError::bad_call("triangle", format!("a matrix of {:?}", x.shape())));
    };
    if elements == 0 {
        return Ok(Call::empty());
    }
    // Beyond these all diagonals are alike, and sums of positions do not overflow.
    let diagonal = op.diagonal.clamp(-(1 << 60), 1 << 60);
    let source = KernelSource::new(include_str!("cu/triangle.cu"))
        .define("WORD", word_type(x.dtype().size()))
        .define("ELEMENTS", elements)
        .define("ROWS", rows)
        .define("COLUMNS", columns)
        .define_index(elements)
        .define("DIAGONAL", format!("{diagonal}ll"))
        .define_flag("LOWER", op.lower);
    let rank = x.shape().len();
    let origin = |dim| Argument::Origin(CallRegister::Operand(0), dim);
    let arguments =
        vec![Argument::operand(0), Argument::result(0), origin(rank - 2), origin(rank - 1)];
    let blocks = elements.div_ceil(THREADS);
    Ok(Call::from_launches(vec![Launch::kernel(source, "triangle", blocks, THREADS, arguments)]))
}
