//! Rows taken by places and put to places: gather and embedding, their gradients, scatter.
//!
//! A sum over places goes over a list of positions for each row (`cu/lists.cu`). Atomic additions of whole numbers count the
//! positions and put them into lists, in any order. Then each position finds its place in its list by comparing. So sums have the
//! order of the positions.

use graphc_ir::ops::{Scatter, ScatterFunction};

use super::Shard;
use super::call::{Argument, Call, CallRegister, Launch, LaunchMemory};
use super::fill::launch_clear;
use super::indices::IndexShard;
use super::source::{KernelSource, access_width, word_type};
use crate::error::KernelError;

/// Threads of a block.
const THREADS: usize = 256;
/// Threads of a block that arranges the lists of a batch.
const ARRANGING: usize = 1024;
/// Places of a batch up to which each row looks at all of them.
const FEW: usize = 32;
/// Pieces of scratch begin at multiples of this.
const ALIGNED: usize = 256;

/// Places in the middle dim of shards `[batch, extent, width]`.
struct CudaGatherPlaces {
    /// Places of a batch.
    count: usize,
    batches: usize,
    /// Rows of a batch in the shard.
    extent: usize,
    /// Elements of a row.
    width: usize,
    /// The operand that holds them.
    operand: usize,
    indices: IndexShard,
    /// The index of the shard's first row.
    first: Argument,
}

impl CudaGatherPlaces {
    /// Places that `what` names, an operand, in the rows of another operand or the result.
    fn new(
        op: &'static str,
        what: &'static str,
        operands: &[Shard],
        operand: usize,
        (slot, rows): (CallRegister, &Shard),
    ) -> Result<Self, KernelError> {
        let places = operands[operand].shape();
        let Some((&count, batch)) = places.split_last() else {
            return Err(KernelError::bad_call(op, "places without a dim"));
        };
        let dim = batch.len();
        match rows.shape().get(dim) {
            Some(&extent) if rows.shape()[..dim] == *batch => Ok(Self {
                count,
                batches: batch.iter().product(),
                extent,
                width: rows.shape()[dim + 1..].iter().product(),
                operand,
                indices: IndexShard::new(what, operands, operand, rows.global[dim], None),
                first: Argument::Origin(slot, dim),
            }),
            _ => Err(KernelError::bad_call(op, format!("{places:?} places in {:?}", rows.shape()))),
        }
    }

    /// Indices of any shape into the rows of a table.
    fn of_table(
        operands: &[Shard],
        operand: usize,
        (slot, table): (CallRegister, &Shard),
    ) -> Result<Self, KernelError> {
        let &[extent, width] = table.shape() else {
            let reason = format!("a table of {:?}", table.shape());
            return Err(KernelError::bad_call("embedding", reason));
        };
        Ok(Self {
            count: operands[operand].elements(),
            batches: 1,
            extent,
            width,
            operand,
            indices: IndexShard::new("row", operands, operand, table.global[0], None),
            first: Argument::Origin(slot, 0),
        })
    }

    fn count_all(&self) -> usize {
        self.batches * self.count
    }

    fn prepare_take(self, out: &Shard) -> Call {
        let (elements, size) = (out.elements(), out.dtype().size());
        if elements == 0 {
            return self.indices.prepare_check();
        }
        let width = access_width(size, [self.width]);
        let source = self
            .indices
            .build_source(include_str!("cu/gather.cu"))
            .define("WORD", word_type(size * width))
            .define("ELEMENTS", elements / width)
            .define("WIDTH", self.width / width)
            .define("PLACES", self.count)
            .define("EXTENT", self.extent)
            .define_index(elements);
        let mut arguments = vec![Argument::operand(0), Argument::operand(1), Argument::result(0)];
        arguments.push(self.first);
        arguments.extend(IndexShard::fault_arguments());
        let blocks = (elements / width).div_ceil(THREADS);
        let launch = Launch::kernel(source, "gather", blocks, THREADS, arguments);
        self.indices.prepare_call(vec![launch])
    }
}

/// Prepares the call of a `Gather` op, of any element type.
pub(super) fn prepare_gather(operands: &[Shard], results: &[Shard]) -> Result<Call, KernelError> {
    let rows = (CallRegister::Operand(0), &operands[0]);
    Ok(CudaGatherPlaces::new("gather", "index", operands, 1, rows)?.prepare_take(&results[0]))
}

/// Prepares the call of an `Embedding` op, of any element type.
pub(super) fn prepare_embedding(
    operands: &[Shard],
    results: &[Shard],
) -> Result<Call, KernelError> {
    let table = (CallRegister::Operand(0), &operands[0]);
    Ok(CudaGatherPlaces::of_table(operands, 1, table)?.prepare_take(&results[0]))
}

/// Prepares the call of an `EmbeddingGrad` op.
pub(super) fn embedding_grad(operands: &[Shard], results: &[Shard]) -> Result<Call, KernelError> {
    let places = CudaGatherPlaces::of_table(operands, 0, (CallRegister::Result(0), &results[0]))?;
    Put::for_sum(places, &results[0]).prepare_call()
}

/// Prepares the call of a `ScatterSum` op.
pub(super) fn scatter_sum(operands: &[Shard], results: &[Shard]) -> Result<Call, KernelError> {
    let rows = (CallRegister::Result(0), &results[0]);
    let places = CudaGatherPlaces::new("scatter_sum", "index", operands, 0, rows)?;
    Put::for_sum(places, &results[0]).prepare_call()
}

/// Prepares the call of a `Scatter` op, of any element type.
pub(super) fn prepare_scatter(
    op: &Scatter,
    operands: &[Shard],
    results: &[Shard],
) -> Result<Call, KernelError> {
    let rows = (CallRegister::Operand(0), &operands[0]);
    let places = CudaGatherPlaces::new("scatter", "index", operands, 1, rows)?;
    let (out, from_x, values) = (&results[0], true, 2);
    let join = match op.function {
        ScatterFunction::Set => "(b)",
        ScatterFunction::Mul if out.dtype().is_float() => "((a) * (b))",
        ScatterFunction::Mul => "(i64)((u64)(a) * (u64)(b))",
        ScatterFunction::Max => "((a) > (b) || (a) != (a) ? (a) : (b))",
        ScatterFunction::Min => "((a) < (b) || (a) != (a) ? (a) : (b))",
    };
    Put { places, out, values, from_x, join }.prepare_call()
}

/// Values that are put to places.
struct Put<'a> {
    places: CudaGatherPlaces,
    out: &'a Shard,
    /// The operand that holds the values.
    values: usize,
    /// Whether rows begin with those of the first operand, and what is joined to them is rounded each time.
    from_x: bool,
    /// An expression of `a`, what there is, and `b`, the next value.
    join: &'static str,
}

/// The bytes of the scratch at which the lists begin.
struct ScatterLists {
    rows: usize,
    counts: usize,
    starts: usize,
    lists: usize,
    sorted: usize,
    /// Bytes of all.
    bytes: usize,
}

impl<'a> Put<'a> {
    fn for_sum(places: CudaGatherPlaces, out: &'a Shard) -> Self {
        let join = match out.dtype().is_float() {
            true => "((a) + (b))",
            false => "(i64)((u64)(a) + (u64)(b))",
        };
        Self { places, out, values: 1, from_x: false, join }
    }

    /// # Errors
    /// Returns an error if there are more positions than lists of them hold.
    fn prepare_call(self) -> Result<Call, KernelError> {
        if self.out.elements() == 0 {
            return Ok(self.places.indices.prepare_check());
        }
        if self.places.count_all() == 0 {
            let same = if self.from_x {
                Launch::copy_operand(self.out)
            } else {
                launch_clear(0, self.out)
            };
            return Ok(Call::from_launches(vec![same]));
        }
        if self.places.count <= FEW {
            let launch = self.launch_join(None);
            return Ok(self.places.indices.prepare_call(vec![launch]));
        }
        if u32::try_from(self.places.count_all()).is_err() {
            let reason = format!("{} places, and at most 2^32 are taken", self.places.count_all());
            return Err(KernelError::bad_call("scatter", reason));
        }
        let lists =
            ScatterLists::new(self.places.count_all(), self.places.batches * self.places.extent);
        let mut launches = self.launch_lists(&lists);
        launches.push(self.launch_join(Some(&lists)));
        let mut call = self.places.indices.prepare_call(launches);
        call.scratch = lists.bytes;
        Ok(call)
    }

    fn build_source(&self, text: &str) -> KernelSource {
        let text = format!("{}\n{text}", include_str!("cu/places.cuh"));
        self.places
            .indices
            .build_source(&text)
            .define("COUNT", self.places.count_all())
            .define("PLACES", self.places.count)
            .define("EXTENT", self.places.extent)
    }

    /// Launches that make the lists.
    fn launch_lists(&self, lists: &ScatterLists) -> Vec<Launch> {
        let ScatterLists { rows, counts, starts, lists, sorted, .. } = *lists;
        let place = LaunchMemory::Scratch(counts);
        let cleared = Launch::Clear { place, bytes: self.places.batches * self.places.extent * 4 };
        let [rows, counts, starts, lists, sorted] =
            [rows, counts, starts, lists, sorted].map(Argument::scratch);
        let (source, blocks) = (
            self.build_source(include_str!("cu/lists.cu")),
            self.places.count_all().div_ceil(THREADS),
        );
        let launch = |entry, arguments: Vec<Argument>| {
            Launch::kernel(source.clone(), entry, blocks, THREADS, arguments)
        };
        let arrange = vec![counts, starts];
        let batches = self.places.batches;
        let mut first =
            vec![Argument::operand(self.places.operand), rows, counts, self.places.first];
        first.extend(IndexShard::fault_arguments());
        vec![
            cleared,
            launch("count", first),
            Launch::kernel(source.clone(), "arrange", batches, ARRANGING, arrange),
            launch("enlist", vec![rows, starts, counts, lists]),
            launch("order", vec![rows, starts, counts, lists, sorted]),
        ]
    }

    /// The launch that makes the rows.
    fn launch_join(&self, lists: Option<&ScatterLists>) -> Launch {
        let (out, elements) = (self.out, self.out.elements());
        let at_once = access_width(out.dtype().size(), [self.places.width]);
        let source = self
            .build_source(include_str!("cu/scatter.cu"))
            .define_element("T", out.dtype())
            .define("V", if out.dtype().is_float() { "float" } else { "i64" })
            .define("ELEMENTS", elements)
            .define("WIDTH", self.places.width)
            .define("AT_ONCE", at_once)
            .define_index(elements)
            .define("JOIN(a, b)", self.join)
            .define_flag("ROUNDED", self.from_x)
            .define_flag("FROM_X", self.from_x)
            .define_flag("LISTED", lists.is_some());
        let mut arguments = Vec::from_iter(self.from_x.then(|| Argument::operand(0)));
        match lists {
            Some(lists) => {
                let lists = [lists.starts, lists.counts, lists.sorted];
                arguments.extend(lists.map(Argument::scratch));
            }
            None => arguments.push(Argument::operand(self.places.operand)),
        }
        arguments.extend([Argument::operand(self.values), Argument::result(0), self.places.first]);
        arguments.extend(IndexShard::fault_arguments());
        Launch::kernel(
            source,
            "scatter",
            (elements / at_once).div_ceil(THREADS),
            THREADS,
            arguments,
        )
    }
}

impl ScatterLists {
    fn new(positions: usize, rows: usize) -> Self {
        let mut bytes = 0;
        let mut piece = |size: usize| {
            let start = bytes;
            bytes += size.next_multiple_of(ALIGNED);
            start
        };
        let of_rows = piece(8 * positions);
        let [counts, starts] = [(); 2].map(|()| piece(4 * rows));
        let [lists, sorted] = [(); 2].map(|()| piece(4 * positions));
        Self { rows: of_rows, counts, starts, lists, sorted, bytes }
    }
}
