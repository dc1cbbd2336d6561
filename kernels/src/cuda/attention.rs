//! Attention and its gradient by tiles of queries and keys (Dao et al., arXiv 2205.14135).
//!
//! Tensor cores multiply halves as long as heads are narrow enough for their registers; all else is `f32` arithmetic. Where a source
//! is compiled for `sm_90a` groups of four warps multiply heads of 64 and 128 (`cu/groups.cuh`), by the same blocks and threads. A block
//! computes 64 queries of a head. The gradient is two kernels, one with a block for 64 keys and one with a block for 64 queries.
//! They compute the scores twice, but no block adds to what another writes. The gradient of a bias is a third one, of `f32` arithmetic,
//! with a block for 64 queries and 64 keys that goes over the samples and heads which have the bias in common.

use graphc_ir::ops::{Attention, AttentionBias, AttentionGrad, DropoutOp, FLOOR, Zigzag};
use graphc_ir::types::DType;

use super::Shard;
use super::call::{Argument, Call, CallRegister, Launch, LaunchMemory};
use super::fill::define_stream;
use super::movement::launch_zigzag;
use super::source::{KernelSource, index_type};
use crate::error::KernelError;

/// Queries, or keys, of a block.
const TILE: usize = 64;
/// The bytes of which places in the memory to work in are multiples.
const ALIGNMENT: usize = 256;
/// Threads of a block of `f32`, and of halves.
const THREADS: usize = 256;
const OF_HALVES: usize = 128;
/// The widest heads of halves whose results, and whose gradients, fit in a warp's registers.
const WIDEST: usize = 256;
const WIDEST_GRADIENT: usize = 128;
/// The most elements of a row whose sums a block of `f32` has, in the result and in the gradients.
const COLUMNS: usize = 256;
const COLUMNS_OF_GRADIENT: usize = 128;

/// Prepares the call of an `Attention` op.
pub(super) fn prepare_attention(
    op: &Attention,
    operands: &[Shard],
    results: &[Shard],
) -> Result<Call, KernelError> {
    let ([q, k, v, bias @ ..], [o, l]) = (operands, results) else {
        return Err(mismatch_error("attention", "takes three operands and gives two results"));
    };
    let bias = bias.first().map(|bias| (3, bias));
    let space = CudaAttentionExtents::new("attention", [q, k], *op, bias)?;
    if v.shape() != k.shape() || o.shape() != q.shape() || l.shape() != &q.shape()[..3] {
        return Err(mismatch_error("attention", "operands or results of other shapes"));
    }
    if l.elements() == 0 {
        return Ok(Call::empty());
    }
    let mut scratch = 0;
    let (keys, mut launches) = space.order_keys([k, v], false, &mut scratch);
    let mut arguments = vec![Argument::operand(0)];
    arguments.extend(keys.map(Argument::Address));
    arguments.extend([Argument::result(0), Argument::result(1)]);
    space.bias_and_origins(&mut arguments);
    let halves = space.dtype != DType::F32 && space.width <= WIDEST;
    let blocks = space.batch * space.heads * space.queries.div_ceil(TILE);
    if halves {
        let source = space
            .build_half_source(include_str!("cu/attention_halves.cu"))
            .define("TILE_KEYS", if space.depth() > 128 { 32 } else { 64 });
        launches.push(Launch::kernel(source, "attention", blocks, OF_HALVES, arguments));
    } else {
        let body = include_str!("cu/attention_floats.cu");
        let (source, parts) = space.build_float_source(body, COLUMNS);
        launches.push(Launch::kernel(source, "attention", blocks * parts, THREADS, arguments));
    }
    let mut call = Call::from_launches(launches);
    call.scratch = scratch;
    Ok(call)
}

/// The gradient.
pub(super) fn prepare_attention_grad(
    op: &AttentionGrad,
    operands: &[Shard],
    results: &[Shard],
) -> Result<Call, KernelError> {
    let name = "attention_grad";
    let ([q, k, v, o, l, of_o, ..], [dq, dk, dv, of_bias @ ..]) = (operands, results) else {
        return Err(mismatch_error(name, "takes six operands and gives three results"));
    };
    let (of_l, bias) = op.optional_operands(operands.len());
    let bias = bias.and_then(|place| Some((place, operands.get(place)?)));
    let of_l = of_l.and_then(|place| operands.get(place));
    let space = CudaAttentionExtents::new(name, [q, k], op.forward(), bias)?;
    let as_query = [o, of_o, dq].iter().all(|shard| shard.shape() == q.shape());
    let as_key = [v, dk, dv].iter().all(|shard| shard.shape() == k.shape());
    let as_row = std::iter::once(l).chain(of_l).all(|shard| shard.shape() == &q.shape()[..3]);
    if !(as_query && as_key && as_row) {
        return Err(mismatch_error(name, "operands or results of other shapes"));
    }
    if [q, k].iter().any(|shard| shard.elements() == 0) {
        let none = |(index, of): (usize, &Shard)| Launch::Clear {
            place: LaunchMemory::Slot(CallRegister::Result(index)),
            bytes: of.elements() * of.dtype().size(),
        };
        let written = results.iter().enumerate().filter(|(_, of)| of.elements() > 0);
        return Ok(Call::from_launches(written.map(none).collect()));
    }
    let mut call = Call::from_launches(vec![space.launch_shift(of_l.is_some())]);
    call.scratch = l.elements() * size_of::<f32>();
    let (keys, launches) = space.order_keys([k, v], false, &mut call.scratch);
    call.launches.extend(launches);
    let (of_keys, launches) = space.order_keys([k, v], true, &mut call.scratch);
    call.launches.extend(space.launch_gradients(keys, of_keys));
    call.launches.extend(launches);
    let of_bias = of_bias.first().filter(|_| op.bias == AttentionBias::Learned);
    call.launches.extend(of_bias.map(|of_bias| space.of_bias(of_bias.shape())).transpose()?);
    Ok(call)
}

fn mismatch_error(op: &'static str, reason: &str) -> KernelError {
    KernelError::bad_call(op, reason)
}

/// Returns memory for a tensor behind `scratch` bytes, which grow by it.
fn reserve(scratch: &mut usize, like: &Shard) -> LaunchMemory {
    let place = scratch.next_multiple_of(ALIGNMENT);
    *scratch = place + like.elements() * like.dtype().size();
    LaunchMemory::Scratch(place)
}

/// Extents of the shards.
struct CudaAttentionExtents {
    batch: usize,
    queries: usize,
    keys: usize,
    heads: usize,
    /// Heads of keys and values.
    shared: usize,
    width: usize,
    op: Attention,
    bias: Option<BiasShard>,
    /// Heads, queries and keys of all ranks.
    whole: [usize; 3],
    dtype: DType,
}

/// A bias as kernels read it.
struct BiasShard {
    /// Its place among the operands.
    place: usize,
    dtype: DType,
    /// The distance from one index to the next of batch, heads, queries and keys; 0 where it has extent 1.
    strides: [usize; 4],
}

impl BiasShard {
    fn new(place: usize, bias: &Shard, extents: [usize; 4]) -> Option<Self> {
        let shape = bias.shape();
        let fits = shape.iter().zip(extents).all(|(&own, extent)| [1, extent].contains(&own));
        let (mut strides, mut apart) = ([0; 4], 1);
        for (stride, &extent) in strides.iter_mut().zip(shape).rev() {
            *stride = if extent == 1 { 0 } else { apart };
            apart *= extent;
        }
        (fits && shape.len() == 4).then_some(Self { place, dtype: bias.dtype(), strides })
    }
}

impl CudaAttentionExtents {
    fn new(
        op: &'static str,
        [q, k]: [&Shard; 2],
        payload: Attention,
        bias: Option<(usize, &Shard)>,
    ) -> Result<Self, KernelError> {
        let (&[batch, queries, heads, width], &[key_batch, keys, shared, key_width]) =
            (q.shape(), k.shape())
        else {
            return Err(mismatch_error(op, "operands of other rank than 4"));
        };
        if (batch, width) != (key_batch, key_width) {
            return Err(mismatch_error(op, "queries and keys of other batch or width"));
        }
        // Ranks have whole groups of heads, or a part of one.
        let whole = q.global.get(2).zip(k.global.get(2)).and_then(|(q, k)| q.checked_div(*k));
        let fits = match heads.checked_div(shared) {
            Some(group) => heads == group * shared && (shared == 1 || whole == Some(group)),
            None => heads == 0,
        };
        if !fits {
            return Err(mismatch_error(op, "heads that read keys of another rank"));
        }
        let extents = [batch, heads, queries, keys];
        let fitting = |(place, bias)| {
            BiasShard::new(place, bias, extents)
                .ok_or_else(|| mismatch_error(op, "a bias of another shape"))
        };
        let bias = bias.map(fitting).transpose()?;
        let whole = [q.global[2], q.global[1], k.global[1]];
        let dtype = q.dtype();
        Ok(Self { batch, queries, keys, heads, shared, width, op: payload, bias, whole, dtype })
    }

    /// Returns where keys and values lie in the sequence's own order, and the launches that bring them there from the operands; of gradients, those that bring
    /// them from there to the results. They lie in memory behind `scratch` bytes, which grow by it, if the order is another one.
    fn order_keys(
        &self,
        keys: [&Shard; 2],
        gradients: bool,
        scratch: &mut usize,
    ) -> ([LaunchMemory; 2], Vec<Launch>) {
        let register = if gradients { CallRegister::Result } else { CallRegister::Operand };
        let lie = [1, 2].map(|place| LaunchMemory::Slot(register(place)));
        let Some(pairs) = self.op.zigzag else { return (lie, Vec::new()) };
        let op = Zigzag { dim: 1, pairs, inverse: !gradients };
        let ordered = keys.map(|key| reserve(scratch, key));
        let mut launches = Vec::new();
        for ((key, lies), ordered) in keys.into_iter().zip(lie).zip(ordered) {
            let memory = if gradients { [ordered, lies] } else { [lies, ordered] };
            launches.extend(launch_zigzag(op, key, memory));
        }
        (ordered, launches)
    }

    /// The bias, if there is one, and where queries and keys begin, which a causal mask depends on, and a dropout as well.
    fn bias_and_origins(&self, arguments: &mut Vec<Argument>) {
        arguments.extend(self.bias.as_ref().map(|bias| Argument::operand(bias.place)));
        let origin = |operand, dim| Argument::Origin(CallRegister::Operand(operand), dim);
        let drops = self.op.weight_dropout().is_some();
        if self.op.causal || drops {
            arguments.extend([origin(0, 1), origin(1, 1)]);
        }
        if drops {
            arguments.extend([origin(0, 0), origin(0, 2), Argument::Now]);
        }
    }

    fn build_source(&self, body: &str) -> KernelSource {
        let rows = self.batch * self.queries.max(self.keys) * self.heads;
        let most = if self.bias.is_some() { self.width.max(self.keys) } else { self.width };
        let elements = rows * most.max(1);
        let (zigzag, heads) = (include_str!("cu/zigzag.cuh"), include_str!("cu/attention.cuh"));
        let source = KernelSource::new(format!("{zigzag}\n{heads}\n{body}"))
            .define("INDEX", index_type(elements + (1 << 20)))
            .define_element("T", self.dtype)
            .define("BATCH", self.batch)
            .define("QUERIES", self.queries)
            .define("KEYS", self.keys)
            .define("HEADS", self.heads)
            .define("SHARED", self.shared)
            .define("SHARING", self.heads / self.shared.max(1))
            .define("WIDTH", self.width)
            .define("CAUSAL", u8::from(self.op.causal))
            .define("CHUNK", self.op.zigzag.map_or(0, |_| self.whole[1] / self.chunks().max(1)))
            .define("CHUNKS", self.chunks())
            .define("WINDOW", self.op.window.map_or(0, |window| window.get()))
            .define_number("SCALE", self.op.scale.0 as f32)
            .define_flag("CAPPED", self.op.soft_cap.is_some())
            .define_number("SOFT_CAP", self.op.soft_cap.map_or(1.0, |cap| cap.0 as f32))
            .define_flag("HAS_BIAS", self.bias.is_some())
            .define_flag("DROPS", self.op.weight_dropout().is_some());
        let source = match self.op.weight_dropout() {
            Some(dropout) => self.define_dropout(source, dropout),
            None => source,
        };
        match &self.bias {
            Some(bias) => ["BIAS_BATCH", "BIAS_HEAD", "BIAS_QUERY", "BIAS_KEY"]
                .iter()
                .zip(bias.strides)
                .fold(source, |source, (name, stride)| source.define(name, stride))
                .define_element("B", bias.dtype)
                .define_number("FLOOR", FLOOR as f32),
            None => source,
        }
    }

    fn define_dropout(&self, source: KernelSource, dropout: DropoutOp) -> KernelSource {
        let source = ["WHOLE_HEADS", "WHOLE_QUERIES", "WHOLE_KEYS"]
            .iter()
            .zip(self.whole)
            .fold(source, |source, (name, extent)| source.define(name, extent));
        define_stream(source, "DROPOUT_KEY", dropout)
    }

    /// The chunks of the sequence in an order of pairs.
    fn chunks(&self) -> usize {
        self.op.zigzag.map_or(0, |pairs| 2 * pairs.get() as usize)
    }

    /// Kernels of `f32`, and in how many parts rows go.
    fn build_float_source(&self, body: &str, most: usize) -> (KernelSource, usize) {
        let columns = self.width.next_multiple_of(TILE).clamp(TILE, most);
        let parts = self.width.div_ceil(columns).max(1);
        let body = format!("{}\n{body}", include_str!("cu/attention_tiles.cuh"));
        (self.build_source(&body).define("COLUMNS", columns).define("PARTS", parts), parts)
    }

    /// Kernels of halves.
    fn build_half_source(&self, body: &str) -> KernelSource {
        let (tiles, groups) =
            (include_str!("cu/attention_halves.cuh"), include_str!("cu/groups.cuh"));
        let body = format!("{}\n{groups}\n{tiles}\n{body}", include_str!("cu/tensor_cores.cuh"));
        self.build_source(&body).define("DEPTH", self.depth())
    }

    /// The width of rows in tiles of halves.
    fn depth(&self) -> usize {
        self.width.next_multiple_of(16).max(16)
    }

    /// The shift that is subtracted from do v of each query, in the memory to work in.
    fn launch_shift(&self, has_gradient: bool) -> Launch {
        let source = self
            .build_source(include_str!("cu/attention_shift.cu"))
            .define("HAS_GRADIENT", u8::from(has_gradient));
        let mut arguments = vec![Argument::operand(3), Argument::operand(5)];
        arguments.extend(has_gradient.then(|| Argument::operand(6)));
        arguments.push(Argument::scratch(0));
        let rows = self.batch * self.queries * self.heads;
        Launch::kernel(source, "shift", rows.div_ceil(THREADS / 32), THREADS, arguments)
    }

    /// The gradients of keys and values, which are read and written where that is said, and of queries.
    fn launch_gradients(
        &self,
        ordered: [LaunchMemory; 2],
        of_keys: [LaunchMemory; 2],
    ) -> [Launch; 2] {
        let halves = self.dtype != DType::F32 && self.width <= WIDEST_GRADIENT;
        let (source, parts) = match halves {
            true => (self.build_half_source(include_str!("cu/attention_halves_grad.cu")), 1),
            false => self.floats_gradient([1, 1]),
        };
        let (queries, keys) = if self.depth() > 64 { (16, 32) } else { (32, 64) };
        let source = source.define("TILE_QUERIES", queries).define("TILE_KEYS", keys);
        let threads = if halves { OF_HALVES } else { THREADS };
        let blocks = |rows: usize| self.batch * rows.div_ceil(TILE) * parts;
        let launch = |entry, blocks, results: &[LaunchMemory]| {
            let mut arguments = vec![Argument::operand(0)];
            arguments.extend(ordered.map(Argument::Address));
            arguments.extend([Argument::operand(4), Argument::operand(5), Argument::scratch(0)]);
            arguments.extend(results.iter().copied().map(Argument::Address));
            self.bias_and_origins(&mut arguments);
            Launch::kernel(source.clone(), entry, blocks, threads, arguments)
        };
        [
            launch("of_keys", blocks(self.keys) * self.shared, &of_keys),
            launch(
                "of_queries",
                blocks(self.queries) * self.heads,
                &[LaunchMemory::Slot(CallRegister::Result(0))],
            ),
        ]
    }

    /// Kernels of the gradient by `f32`, for a bias that so many samples and heads have in common, and in how many parts rows go.
    fn floats_gradient(&self, [samples, heads]: [usize; 2]) -> (KernelSource, usize) {
        let body = include_str!("cu/attention_floats_grad.cu");
        let (source, parts) = self.build_float_source(body, COLUMNS_OF_GRADIENT);
        (source.define("SAMPLES_OF_BIAS", samples).define("SHARING_BIAS", heads), parts)
    }

    /// The gradient of a bias of this shape.
    fn of_bias(&self, shape: &[usize]) -> Result<Launch, KernelError> {
        let &[samples, heads, queries, keys] = shape else {
            return Err(mismatch_error(
                "attention_grad",
                "the gradient of a bias of other rank than 4",
            ));
        };
        if [queries, keys] != [self.queries, self.keys] {
            return Err(mismatch_error(
                "attention_grad",
                "the gradient of a bias of another shape",
            ));
        }
        let common = [self.batch / samples.max(1), self.heads / heads.max(1)];
        let (source, _) = self.floats_gradient(common);
        let mut arguments: Vec<Argument> = [0, 1, 2, 4, 5].map(Argument::operand).to_vec();
        arguments.extend([Argument::scratch(0), Argument::result(3)]);
        self.bias_and_origins(&mut arguments);
        let blocks = samples * heads * queries.div_ceil(TILE) * keys.div_ceil(TILE);
        Ok(Launch::kernel(source, "of_bias", blocks, THREADS, arguments))
    }
}
