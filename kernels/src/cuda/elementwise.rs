//! Chains of elementwise ops, generated: one kernel reads each operand once, computes all steps in registers and writes each
//! result once.
//!
//! Reductions at the end of a chain are made in the same pass (`passes`). A value of 16 bits is rounded after each step, so a
//! chain, or a step that is computed again, has the bits of single ops.

mod passes;
mod value;

use graphc_ir::op::Op;
use graphc_ir::ops::Cast;
use graphc_ir::types::DType;
use graphc_plan::{FusedArg, FusedOp};

use super::Shard;
use super::call::{Argument, Call, Launch};
use super::names::named_chain;
use super::source::{
    KernelSource, broadcast_strides, element_type, index_type, join_runs, position_expression,
};
use crate::error::KernelError;

/// Threads of a block.
const THREADS: usize = 256;
/// Bytes that a thread reads of an operand at once.
const ACCESS: usize = 16;

/// A step of a chain: its op and its operands.
#[derive(Clone, Copy, Debug)]
struct BorrowedStep<'a> {
    op: &'a Op,
    args: &'a [FusedArg],
}

/// Prepares the call of one elementwise op alone.
pub(super) fn prepare_single(
    op: &Op,
    operands: &[Shard],
    results: &[Shard],
) -> Result<Call, KernelError> {
    let args: Vec<FusedArg> = (0..operands.len()).map(FusedArg::Operand).collect();
    ElementwiseChain::new(vec![BorrowedStep { op, args: &args }], &[0], operands, results)?
        .prepare_call()
}

/// Returns the C++ expression that casts a value, given by its name, from one element type to another.
pub(super) fn cast_expression(value: &str, from: DType, to: DType) -> Result<String, KernelError> {
    let value = value::StepValue { name: value.to_owned(), dtype: from };
    value::step_expression(&Op::Cast(Cast { dtype: to }), &[value], to)
}

/// A chain of ops, by which its kernels are named.
pub(super) fn prepare_chain(
    fused: &FusedOp,
    operands: &[Shard],
    results: &[Shard],
) -> Result<Call, KernelError> {
    let steps = fused.steps.iter().map(|step| BorrowedStep { op: &step.op, args: &step.args });
    let call = ElementwiseChain::new(steps.collect(), &fused.outputs, operands, results)?
        .prepare_call()?;
    Ok(named_chain(call, fused))
}

/// A chain whose values all have one shape, to which the operands broadcast.
struct ElementwiseChain<'a> {
    steps: Vec<BorrowedStep<'a>>,
    /// The element type of each step's value.
    dtypes: Vec<DType>,
    outputs: &'a [usize],
    operands: &'a [Shard],
    results: &'a [Shard],
    /// The shape of the values.
    shape: Vec<usize>,
    /// The extents of the whole values.
    global: Vec<usize>,
    /// The strides of each operand along the dims of the shape.
    strides: Vec<Vec<usize>>,
}

impl<'a> ElementwiseChain<'a> {
    fn new(
        steps: Vec<BorrowedStep<'a>>,
        outputs: &'a [usize],
        operands: &'a [Shard],
        results: &'a [Shard],
    ) -> Result<Self, KernelError> {
        let shape = broadcast_shapes(operands.iter().map(Shard::shape))?;
        let global = broadcast_shapes(operands.iter().map(|operand| operand.global.as_slice()))?;
        let strides = operands.iter().map(|operand| {
            broadcast_strides(operand.shape(), &shape)
                .ok_or_else(|| mismatch_error("an operand does not broadcast"))
        });
        let strides = strides.collect::<Result<_, _>>()?;
        let dtypes = value::step_dtypes(&steps, operands)?;
        if outputs.len() != results.len() || outputs.iter().any(|&step| step >= steps.len()) {
            return Err(mismatch_error("results that no step gives"));
        }
        Ok(Self { steps, dtypes, outputs, operands, results, shape, global, strides })
    }

    fn prepare_call(&self) -> Result<Call, KernelError> {
        let elementwise = |&output: &usize| !self.is_reduction(self.outputs[output]);
        let outputs: Vec<usize> = (0..self.outputs.len()).filter(elementwise).collect();
        let fits = |&output: &usize| self.results[output].elements() == self.elements();
        if !outputs.iter().all(fits) {
            return Err(mismatch_error("a result of another shape than the values"));
        }
        if outputs.len() < self.outputs.len() {
            return passes::prepare_passes(self, &outputs);
        }
        match self.elements() {
            0 => Ok(Call::empty()),
            _ => Ok(Call::from_launches(vec![self.kernel(&outputs)?])),
        }
    }

    fn is_reduction(&self, step: usize) -> bool {
        matches!(self.steps[step].op, Op::Reduce(_))
    }

    fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The type of positions.
    fn index_type(&self) -> &'static str {
        index_type(self.elements() + THREADS * ACCESS)
    }

    /// Parameters of a kernel that reads all operands.
    fn parameters(&self) -> Vec<String> {
        let operand = |(index, operand): (usize, &Shard)| {
            format!("const {}* operand{index}", element_type(operand.dtype()))
        };
        let mut parameters: Vec<String> = self.operands.iter().enumerate().map(operand).collect();
        parameters.extend(["Fault* account", "u32 call"].map(str::to_owned));
        parameters
    }

    /// The arguments for these parameters.
    fn arguments(&self) -> Vec<Argument> {
        let mut arguments: Vec<Argument> =
            (0..self.operands.len()).map(Argument::operand).collect();
        arguments.extend([Argument::Fault, Argument::Call]);
        arguments
    }

    /// Returns one kernel that writes these results.
    fn kernel(&self, outputs: &[usize]) -> Result<Launch, KernelError> {
        let args = outputs.iter().map(|&output| FusedArg::Step(self.outputs[output]));
        let needed = self.find_needed(args);
        let width = self.access_width(&needed, outputs);
        let parameters = [self.parameters(), self.result_parameters(outputs)].concat();
        let mut text = format!(
            "extern \"C\" __global__ void __launch_bounds__(256) chain({}) {{\n",
            parameters.join(", ")
        );
        let (index, each) = (self.index_type(), THREADS * width);
        text.push_str(&format!(
            "  {index} i = ({index})blockIdx.x * {each} + threadIdx.x * {width};\n  if (i >= {}) return;\n",
            self.elements()
        ));
        self.write_values(&needed, width, (outputs, ""), &mut text)?;
        text.push_str("}\n");
        let blocks = self.elements().div_ceil(each);
        let mut arguments = self.arguments();
        arguments.extend(outputs.iter().map(|&output| Argument::result(output)));
        Ok(Launch::kernel(KernelSource::new(text), "chain", blocks, THREADS, arguments))
    }

    /// Parameters for these results.
    fn result_parameters(&self, outputs: &[usize]) -> Vec<String> {
        let result = |&output: &usize| {
            format!("{}* result{output}", element_type(self.results[output].dtype()))
        };
        outputs.iter().map(result).collect()
    }

    /// Computes `width` elements from `i` on and writes these results; `also` is what is done besides with the values of element `k`.
    fn write_values(
        &self,
        needed: &NeededValues,
        width: usize,
        (outputs, also): (&[usize], &str),
        text: &mut String,
    ) -> Result<(), KernelError> {
        self.write_loads(needed, width, text);
        for &output in outputs {
            let ty = element_type(self.results[output].dtype());
            text.push_str(&format!("  Vec<{ty}, {width}> r{output};\n"));
        }
        text.push_str(&format!("#pragma unroll\n  for (int k = 0; k < {width}; ++k) {{\n"));
        for (operand, _) in needed.operands.iter().enumerate().filter(|(_, needed)| **needed) {
            text.push_str(&format!("  auto x{operand} = load(X{operand}(k));\n"));
        }
        self.write_steps(needed, text)?;
        for &output in outputs {
            let (ty, step) = (element_type(self.results[output].dtype()), self.outputs[output]);
            text.push_str(&format!("  r{output}.at[k] = to<{ty}>(v{step});\n"));
        }
        text.push_str(also);
        text.push_str("  }\n");
        for &output in outputs {
            let ty = element_type(self.results[output].dtype());
            text.push_str(&format!("  *(Vec<{ty}, {width}>*)(result{output} + i) = r{output};\n"));
        }
        Ok(())
    }

    /// Returns the number of elements that a thread takes at once: 16 bytes of the widest type, if each operand's elements then lie side by
    /// side or are all the same, otherwise fewer.
    fn access_width(&self, needed: &NeededValues, outputs: &[usize]) -> usize {
        let of_operands = self.operands.iter().zip(&needed.operands).filter(|(_, needed)| **needed);
        let of_operands = of_operands.map(|(operand, _)| operand.dtype().size());
        let of_results = outputs.iter().map(|&output| self.results[output].dtype().size());
        let mut width = ACCESS / of_operands.chain(of_results).max().unwrap_or(ACCESS);
        let fits = |width: usize| {
            let regular = |strides: &Vec<usize>| {
                let runs = join_runs(&self.shape, strides);
                runs.last().is_none_or(|&(extent, stride)| stride <= 1 && extent % width == 0)
            };
            let mut needed =
                self.strides.iter().zip(&needed.operands).filter(|(_, needed)| **needed);
            self.elements().is_multiple_of(width) && needed.all(|(strides, _)| regular(strides))
        };
        while width > 1 && !fits(width) {
            width /= 2;
        }
        width
    }

    /// Reads what a thread needs of each operand; `X<n>(k)` is then its element `k`.
    fn write_loads(&self, needed: &NeededValues, width: usize, text: &mut String) {
        for (index, strides) in self.strides.iter().enumerate() {
            if !needed.operands[index] {
                continue;
            }
            let ty = element_type(self.operands[index].dtype());
            let at = position_expression(&self.shape, strides, "i");
            let side_by_side = join_runs(&self.shape, strides).last().is_some_and(|run| run.1 == 1);
            let line = match side_by_side && width > 1 {
                true => format!(
                    "  Vec<{ty}, {width}> a{index} = *(const Vec<{ty}, {width}>*)(operand{index} + {at});\n#define X{index}(k) a{index}.at[k]\n"
                ),
                false => format!(
                    "  {ty} a{index} = operand{index}[{at}];\n#define X{index}(k) a{index}\n"
                ),
            };
            text.push_str(&line);
        }
    }

    fn write_steps(&self, needed: &NeededValues, text: &mut String) -> Result<(), KernelError> {
        for (index, step) in self.steps.iter().enumerate() {
            if needed.steps[index] && !self.is_reduction(index) {
                let operands: Vec<value::StepValue> =
                    step.args.iter().map(|arg| self.value(*arg)).collect();
                let ty = self.dtypes[index];
                let expression = value::step_expression(step.op, &operands, ty)?;
                text.push_str(&format!("  auto v{index} = {expression};\n"));
            }
        }
        Ok(())
    }

    fn value(&self, arg: FusedArg) -> value::StepValue {
        let dtype = match arg {
            FusedArg::Operand(operand) => self.operands[operand].dtype(),
            FusedArg::Step(step) => self.dtypes[step],
        };
        value::StepValue { name: name_of(arg), dtype }
    }

    /// The operands and steps on which values depend.
    fn find_needed(&self, of: impl IntoIterator<Item = FusedArg>) -> NeededValues {
        let mut needed = NeededValues {
            operands: vec![false; self.operands.len()],
            steps: vec![false; self.steps.len()],
        };
        let mut open: Vec<FusedArg> = of.into_iter().collect();
        while let Some(arg) = open.pop() {
            match arg {
                FusedArg::Operand(operand) => needed.operands[operand] = true,
                FusedArg::Step(step) => {
                    needed.steps[step] = true;
                    open.extend(self.steps[step].args);
                }
            }
        }
        needed
    }
}

/// The operands that are read and the steps that are computed.
struct NeededValues {
    operands: Vec<bool>,
    steps: Vec<bool>,
}

fn name_of(arg: FusedArg) -> String {
    match arg {
        FusedArg::Operand(operand) => format!("x{operand}"),
        FusedArg::Step(step) => format!("v{step}"),
    }
}

/// The shape to which shapes broadcast.
fn broadcast_shapes<'a>(
    shapes: impl Iterator<Item = &'a [usize]>,
) -> Result<Vec<usize>, KernelError> {
    let mut joined: Vec<usize> = Vec::new();
    for shape in shapes {
        if shape.len() > joined.len() {
            joined.splice(0..0, vec![1; shape.len() - joined.len()]);
        }
        let skip = joined.len() - shape.len();
        for (extent, &own) in joined[skip..].iter_mut().zip(shape) {
            match (*extent, own) {
                (1, own) => *extent = own,
                (_, 1) => {}
                (extent, own) if extent == own => {}
                _ => return Err(mismatch_error("operands whose shapes do not broadcast")),
            }
        }
    }
    Ok(joined)
}

pub(super) fn mismatch_error(reason: &str) -> KernelError {
    KernelError::bad_call("fused", reason)
}
