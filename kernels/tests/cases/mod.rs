//! Applications of ops that kernels of devices are tried on: few shapes, as each is compiled, but odd ones.
#![allow(dead_code, reason = "each test binary uses a part")]

pub mod attention;
pub mod elementwise;
pub mod experts;
pub mod images;
pub mod losses;
pub mod movements;
pub mod places;
pub mod recurrences;
pub mod rows;
pub mod sources;
pub mod sums;
pub mod updates;

use graphc_ir::op::Op;
use graphc_ir::types::{DType, TensorType};

use super::common::{Case, Random, ordinary};

/// An application of an op to shards, and how near a kernel comes to its oracle before it rounds.
pub struct Example {
    pub case: Case,
    pub tolerance: f64,
}

/// Element types of which kernels are tried.
pub const FLOATS: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

/// Collects examples.
pub struct Examples {
    pub random: Random,
    pub all: Vec<Example>,
    /// Whether kernels are told where shards begin: of others a shard is as good as a whole tensor.
    pub placed: bool,
}

impl Examples {
    pub fn new(seed: u64) -> Self {
        Self { random: Random::new(seed), all: Vec::new(), placed: true }
    }

    /// An op on a rank that has all.
    pub fn whole(&mut self, op: Op, types: &[TensorType], tolerance: f64) {
        self.filled(&[1], op, types, tolerance, &mut ordinary);
    }

    /// An op on a rank that has all, and on one of a mesh under some signature.
    pub fn both(&mut self, op: Op, types: &[TensorType], tolerance: f64) {
        self.both_filled(op, types, tolerance, &mut ordinary);
    }

    /// Adds an op like [`Self::both`], with operands that `fill` fills. For types other than f32, and where kernels are not told where
    /// shards begin, it is drawn which of the two ranks the op is on.
    pub fn both_filled(
        &mut self,
        op: Op,
        types: &[TensorType],
        tolerance: f64,
        fill: &mut dyn FnMut(&mut Random, usize, DType) -> f64,
    ) {
        let one = !self.placed
            || types.iter().any(|ty| ty.dtype.is_float() && ty.dtype != DType::F32)
            || types.first().is_some_and(|ty| !ty.dtype.is_float());
        let hierarchies = match (one, self.random.below(2)) {
            (false, _) => vec![vec![1], vec![2, 2]],
            (true, 0) => vec![vec![1]],
            (true, _) => vec![vec![2, 2]],
        };
        for hierarchy in hierarchies {
            self.filled(&hierarchy, op.clone(), types, tolerance, fill);
        }
    }

    /// An op on some rank of a mesh.
    pub fn filled(
        &mut self,
        hierarchy: &[usize],
        op: Op,
        types: &[TensorType],
        tolerance: f64,
        fill: &mut dyn FnMut(&mut Random, usize, DType) -> f64,
    ) {
        let case = Case::on(hierarchy, op, types, &mut self.random, fill);
        self.all.push(Example { case, tolerance });
    }
}

/// Returns all examples.
pub fn all() -> Vec<Example> {
    let rooms = [
        attention::examples,
        elementwise::examples,
        experts::examples,
        losses::examples,
        movements::examples,
        images::examples,
        places::examples,
        recurrences::examples,
        rows::examples,
        sources::examples,
        sums::examples,
        updates::examples,
        experts::shared_blocks,
    ];
    rooms.into_iter().flat_map(|examples| examples()).collect()
}

pub fn ty(dtype: DType, shape: &[usize]) -> TensorType {
    TensorType::new(dtype, shape)
}

pub fn f32s(shape: &[usize]) -> TensorType {
    ty(DType::F32, shape)
}

/// Fills operand `place` with indices below `range`, some of which are `ignored`.
pub fn indices(
    place: usize,
    range: usize,
    ignored: Option<i64>,
) -> impl FnMut(&mut Random, usize, DType) -> f64 {
    move |random, operand, dtype| match (operand == place, ignored) {
        (true, Some(ignored)) if random.below(5) == 0 => ignored as f64,
        (true, _) => random.below(range) as f64,
        (false, _) => ordinary(random, operand, dtype),
    }
}
