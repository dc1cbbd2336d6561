//! Products of experts with the places of the tokens that chose them: the ends of the runs are found first, from the choices alone.
//!
//! Sums are f32. The kernels use no tensor cores: cuBLAS takes the extents of grouped products from the host, which does not know how many
//! tokens chose an expert. Factors of 8 bits are widened as they are read, and sums divided by the scales that belong to them, powers of two, before they are
//! rounded.

use graphc_ir::ops::{ExpertPlaces, GroupedMatMul, GroupedMatMulGrad};

use super::Shard;
use super::call::{Argument, Call, CallRegister, Launch};
use super::indices::IndexShard;
use super::source::KernelSource;
use crate::error::KernelError;

/// Threads of a block.
const THREADS: usize = 256;
/// Rows and columns of a tile of the result.
const TILE: usize = 64;

/// Prepares the call of a `GroupedMatMul` op.
pub(super) fn prepare_product(
    op: &GroupedMatMul,
    operands: &[Shard],
    results: &[Shard],
) -> Result<Call, KernelError> {
    let extents = GroupedExtents::new(operands, operands[1].global[0], &results[0])?;
    let tiles = extents.room.div_ceil(TILE) * extents.columns.div_ceil(TILE);
    let tiles = tiles * extents.held * extents.groups;
    let source = extents
        .build_source(include_str!("cu/grouped.cu"))
        .define_flag("TRANSPOSED", op.transpose_b);
    let of_matrices: &[&str] =
        if op.transpose_b { &["own", "column"] } else { &["own", "0", "column"] };
    let parameters = "sum, block, group, place, own, column";
    let indices = [&["block", "group", "place"], of_matrices];
    let source = define_factors(source, operands, &results[0], (parameters, indices));
    Ok(extents.prepare_call((source, "grouped"), tiles))
}

/// Prepares the call of a `GroupedMatMulGrad` op.
pub(super) fn prepare_gradient(
    op: &GroupedMatMulGrad,
    operands: &[Shard],
    results: &[Shard],
) -> Result<Call, KernelError> {
    let extents = GroupedExtents::new(operands, op.experts, &results[0])?;
    let tiles = extents.inner.div_ceil(TILE) * extents.columns.div_ceil(TILE);
    let source = extents.build_source(include_str!("cu/grouped_grad.cu"));
    let parameters = "sum, block, row, column";
    let indices: [&[&str]; 2] = [&["block", "0", "0", "row"], &["block", "0", "0", "column"]];
    let source = define_factors(source, operands, &results[0], (parameters, indices));
    let tiles = tiles * extents.held * extents.whole.experts_of_block();
    Ok(extents.prepare_call((source, "grouped_grad"), tiles))
}

/// Extents of the shards, and where places lie.
struct GroupedExtents {
    whole: ExpertPlaces,
    groups: usize,
    /// Tokens of a group, and choices of each.
    tokens: usize,
    choices: usize,
    /// Blocks and places of the shard of places.
    held: usize,
    room: usize,
    /// Elements of a place before and behind the product.
    inner: usize,
    columns: usize,
    /// Whether factors of 8 bits bring the sizes by which they were rounded.
    scaled: bool,
    indices: IndexShard,
}

impl GroupedExtents {
    fn new(operands: &[Shard], experts: usize, result: &Shard) -> Result<Self, KernelError> {
        let (places, chosen) = (operands[0].shape(), operands[2].shape());
        let (&[held, groups, room, inner], &[_, tokens, choices], &[.., columns]) =
            (places, chosen, result.shape())
        else {
            let reason = format!("places {places:?} and choices {chosen:?}");
            return Err(KernelError::bad_call("grouped_matmul", reason));
        };
        let whole = ExpertPlaces {
            experts,
            blocks: operands[0].global[0],
            capacity: operands[0].global[2],
        };
        let indices = IndexShard::new("expert", operands, 2, experts, None);
        let scaled = operands.len() > 3;
        Ok(Self { whole, groups, tokens, choices, held, room, inner, columns, scaled, indices })
    }

    fn define(&self, source: KernelSource) -> KernelSource {
        source
            .define("GROUPS", self.groups)
            .define("EXPERTS", self.whole.experts)
            .define("EACH", self.whole.experts_of_block())
    }

    fn build_source(&self, text: &str) -> KernelSource {
        let source = KernelSource::new(format!("{}\n{text}", include_str!("cu/grouped.cuh")));
        self.define(source)
            .define("ROOM", self.room)
            .define("INNER", self.inner)
            .define("COLUMNS", self.columns)
    }

    /// The launch behind that which finds the ends of the runs.
    fn prepare_call(self, (source, entry): (KernelSource, &'static str), tiles: usize) -> Call {
        let ends = self.whole.experts * self.groups;
        if tiles == 0 {
            return self.indices.prepare_check();
        }
        let mut launches = Vec::new();
        // Without groups there are no runs, and sums over them are 0.
        if ends > 0 {
            let text = concat!(include_str!("cu/choices.cuh"), "\n", include_str!("cu/runs.cu"));
            let source = self.define(self.indices.build_source(text));
            let source = source.define("TOKENS", self.tokens).define("CHOICES", self.choices);
            let mut arguments = vec![Argument::operand(2), Argument::scratch(0)];
            arguments.extend(IndexShard::fault_arguments());
            launches.push(Launch::kernel(source, "runs", ends, THREADS, arguments));
        }
        launches.push(launch_product(source, entry, tiles, self.scaled));
        let mut call = self.indices.prepare_call(launches);
        call.scratch = 8 * ends;
        call
    }
}

/// Defines the element types of the factors and of the result, and how sums are divided by scales: `DIVIDED` has these parameters, by which the indices of the
/// sizes of both factors are named.
fn define_factors(
    source: KernelSource,
    operands: &[Shard],
    result: &Shard,
    (parameters, indices): (&str, [&[&str]; 2]),
) -> KernelSource {
    let source = source
        .define_element("T", result.dtype())
        .define_element("X", operands[0].dtype())
        .define_element("Y", operands[1].dtype());
    let divided = format!("DIVIDED({parameters})");
    let [of_x, of_y] = match operands {
        [_, _, _, of_x, of_y] => [of_x, of_y],
        _ => return source.define("SIZES", "").define(&divided, "(sum)"),
    };
    let at = [of_x, of_y].into_iter().zip(indices).map(|(sizes, names)| position_of(sizes, names));
    let at: Vec<String> = at.collect();
    let scales =
        format!("float8_scale<X>(load(of_x[{}])) / float8_scale<Y>(load(of_y[{}]))", at[0], at[1]);
    source
        .define_element("OF_X", of_x.dtype())
        .define_element("OF_Y", of_y.dtype())
        .define("SIZES", ", const OF_X* of_x, const OF_Y* of_y")
        .define(&divided, format!("((sum) / {scales})"))
}

/// Returns the position of the size of an element, whose index has these names.
fn position_of(sizes: &Shard, names: &[&str]) -> String {
    let mut terms = vec!["0".to_owned()];
    let mut stride = 1;
    for (dim, &extent) in sizes.shape().iter().enumerate().rev() {
        let name = names.get(dim).unwrap_or(&"0");
        if extent > 1 && *name != "0" {
            terms.push(format!("(u64)({name}) * {stride}"));
        }
        stride *= extent;
    }
    terms.join(" + ")
}

fn launch_product(source: KernelSource, entry: &'static str, tiles: usize, scaled: bool) -> Launch {
    let mut arguments = vec![Argument::operand(0), Argument::operand(1), Argument::scratch(0)];
    arguments.push(Argument::result(0));
    arguments.extend([0, 2].map(|dim| Argument::Origin(CallRegister::Operand(0), dim)));
    if scaled {
        arguments.extend([3, 4].map(Argument::operand));
    }
    Launch::kernel(source, entry, tiles, THREADS, arguments)
}
