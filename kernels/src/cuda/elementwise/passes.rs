//! Chains that end in reductions, in one pass over memory.
//!
//! Each block writes its elementwise results and keeps its part of each reduction. A launch behind joins the parts of all blocks.
//! Only that launch writes the sums, so they may take the memory of an operand. Reductions over other dims have a pass of their
//! own before.

use graphc_ir::op::Op;
use graphc_ir::ops::Reduce;
use graphc_ir::types::DType;
use graphc_plan::FusedArg;

use super::{ElementwiseChain, THREADS, mismatch_error, name_of};
use crate::cuda::call::{Argument, Call, Launch};
use crate::cuda::reduce::{JOIN, ReductionGeometry, ReductionShares};
use crate::cuda::source::{KernelSource, element_type};
use crate::error::KernelError;

/// Sums that a thread holds at most before it takes fewer elements at once.
const HELD: usize = 32;

/// The launches of a chain with reductions; `outputs` are its elementwise results.
pub(super) fn prepare_passes(
    chain: &ElementwiseChain<'_>,
    outputs: &[usize],
) -> Result<Call, KernelError> {
    let mut passes = group_passes(chain)?;
    if let Some(last) = passes.last_mut() {
        last.outputs = outputs.to_vec();
    }
    let (mut call, mut joins) = (Call::empty(), Vec::new());
    for pass in &passes {
        let shares = pass.geometry()?.shares(pass.access_width()?);
        let partial = Argument::scratch(call.scratch);
        let [first, join] = pass.launches(&shares, partial)?;
        call.launches.extend(first);
        joins.extend(join);
        let floats = shares.chunks * pass.folds.len() * pass.geometry()?.results();
        call.scratch = (call.scratch + floats * size_of::<f32>()).next_multiple_of(256);
    }
    call.launches.append(&mut joins);
    Ok(call)
}

/// A reduction at the end of a chain.
struct ChainFold<'a> {
    op: &'a Reduce,
    arg: FusedArg,
    output: usize,
}

/// Reductions over the same dims, and results that are written in the same pass.
struct ReductionPass<'a> {
    chain: &'a ElementwiseChain<'a>,
    folds: Vec<ChainFold<'a>>,
    outputs: Vec<usize>,
}

fn group_passes<'a>(
    chain: &'a ElementwiseChain<'a>,
) -> Result<Vec<ReductionPass<'a>>, KernelError> {
    let mut passes: Vec<ReductionPass<'a>> = Vec::new();
    for (output, &step) in chain.outputs.iter().enumerate() {
        let Op::Reduce(op) = chain.steps[step].op else { continue };
        let arg = chain.steps[step]
            .args
            .first()
            .copied()
            .ok_or_else(|| mismatch_error("a reduction of nothing"))?;
        if !chain.dtypes[step].is_float() {
            return Err(mismatch_error("a reduction of integers at the end of a chain"));
        }
        let fold = ChainFold { op, arg, output };
        match passes.iter_mut().find(|pass| pass.folds[0].op.axes == op.axes) {
            Some(pass) => pass.folds.push(fold),
            None => passes.push(ReductionPass { chain, folds: vec![fold], outputs: Vec::new() }),
        }
    }
    Ok(passes)
}

impl ReductionPass<'_> {
    /// Returns the dims that the reductions keep and reduce, which are the same for all of them.
    fn geometry(&self) -> Result<ReductionGeometry, KernelError> {
        self.reduction(&self.folds[0])
    }

    fn reduction(&self, fold: &ChainFold<'_>) -> Result<ReductionGeometry, KernelError> {
        let chain = self.chain;
        ReductionGeometry::new(fold.op, &chain.shape, &chain.global, &chain.results[fold.output])
    }

    fn find_needed(&self) -> super::NeededValues {
        let outputs = self.outputs.iter().map(|&output| FusedArg::Step(self.chain.outputs[output]));
        self.chain.find_needed(self.folds.iter().map(|fold| fold.arg).chain(outputs))
    }

    /// Returns the number of elements that a thread takes at once.
    fn access_width(&self) -> Result<usize, KernelError> {
        let geometry = self.geometry()?;
        let mut width = self.chain.access_width(&self.find_needed(), &self.outputs);
        while !geometry.lanes_are_inner() && width * self.folds.len() > HELD && width > 1 {
            width /= 2;
        }
        Ok(geometry.side_by_side(width))
    }

    /// The pass, where there is an element, and what joins its parts, where there is a result.
    fn launches(
        &self,
        shares: &ReductionShares,
        partial: Argument,
    ) -> Result<[Option<Launch>; 2], KernelError> {
        let (chain, geometry, width) = (self.chain, self.geometry()?, self.access_width()?);
        let results = geometry.results();
        if results == 0 {
            return Ok([None, None]);
        }
        let source = self.build_source(shares)?;
        let kept = if geometry.lanes_are_inner() { 1 } else { width };
        let blocks = (results / kept).div_ceil(THREADS / shares.lanes);
        let mut arguments = chain.arguments();
        arguments.extend(self.outputs.iter().map(|&output| Argument::result(output)));
        arguments.push(partial);
        let first = Launch::kernel(source.clone(), "pass", blocks, THREADS, arguments);
        let mut arguments = vec![partial];
        arguments.extend(self.folds.iter().map(|fold| Argument::result(fold.output)));
        let blocks = (results * self.folds.len()).div_ceil(shares.results_per_block());
        let join = Launch::kernel(source, "join", blocks, THREADS, arguments);
        Ok([Some(first.with_rows(shares.chunks)), Some(join)])
    }

    fn build_source(&self, shares: &ReductionShares) -> Result<KernelSource, KernelError> {
        let (chain, geometry, width) = (self.chain, self.geometry()?, self.access_width()?);
        let [kept, reduced] = if geometry.lanes_are_inner() { [1, width] } else { [width, 1] };
        let reductions: Vec<ReductionGeometry> =
            self.folds.iter().map(|fold| self.reduction(fold)).collect::<Result<_, _>>()?;
        let choice = |of: &dyn Fn(&ReductionGeometry) -> String| {
            let each = reductions.iter().enumerate();
            each.map(|(index, one)| format!("(f) == {index} ? {} : ", of(one))).collect::<String>()
        };
        let functions = self.functions(&reductions)?;
        let body = [JOIN, &functions, include_str!("../cu/pass.cu")].join("\n");
        let parameters = [chain.parameters(), chain.result_parameters(&self.outputs)].concat();
        let source = KernelSource::new(body)
            .define("INDEX", chain.index_type())
            .define("V", "float")
            .define("FOLDS", self.folds.len())
            .define("WIDTH", width)
            .define("KEPT_WIDTH", kept)
            .define("REDUCED_WIDTH", reduced)
            .define("PARAMETERS", parameters.join(", "))
            .define("ARGUMENTS", argument_names(&parameters))
            .define("RESULT_PARAMETERS", self.fold_parameters().join(", "))
            .define("RESULT_ARGUMENTS", argument_names(&self.fold_parameters()))
            .define("COMBINE(f, a, b)", format!("({}0.0f)", choice(&|r| r.combination().into())))
            .define("IDENTITY(f)", format!("({}0.0f)", choice(&|r| r.identity(DType::F32))))
            .define("SUMS(f)", format!("({}0)", choice(&|r| u8::from(r.is_sum()).to_string())));
        Ok(geometry.describe(source, shares))
    }

    fn fold_parameters(&self) -> Vec<String> {
        self.chain.result_parameters(&self.folds.iter().map(|f| f.output).collect::<Vec<_>>())
    }

    /// The functions that the kernels call: `elements` computes and writes, `finish` writes a joined result.
    fn functions(&self, reductions: &[ReductionGeometry]) -> Result<String, KernelError> {
        let chain = self.chain;
        let mut text = String::from("struct Folded { float at[FOLDS]; };\n");
        text.push_str("__device__ __forceinline__ void elements(INDEX i, Folded (&found)[WIDTH], PARAMETERS) {\n");
        let found = self.folds.iter().enumerate();
        let found: String = found
            .map(|(f, fold)| format!("  found[k].at[{f}] = (float){};\n", name_of(fold.arg)))
            .collect();
        chain.write_values(
            &self.find_needed(),
            self.access_width()?,
            (&self.outputs, &found),
            &mut text,
        )?;
        text.push_str("}\n__device__ __forceinline__ void finish(u32 f, INDEX r, double x, RESULT_PARAMETERS) {\n");
        for (f, (fold, reduction)) in self.folds.iter().zip(reductions).enumerate() {
            let (output, divisor) = (fold.output, reduction.divisor());
            let ty = element_type(chain.results[output].dtype());
            text.push_str(&format!(
                "  if (f == {f}) result{output}[r] = to<{ty}>((float)(x / (double){divisor}));\n"
            ));
        }
        text.push_str("}\n");
        Ok(text)
    }
}

/// The names of parameters, as arguments.
fn argument_names(parameters: &[String]) -> String {
    let name = |parameter: &String| parameter.rsplit([' ', '*']).next().map(str::to_owned);
    parameters.iter().filter_map(name).collect::<Vec<_>>().join(", ")
}
