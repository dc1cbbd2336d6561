//! Execution of one op as ranks of a mesh would do it: operands are cut or decomposed into partial values, each
//! rank evaluates its shards, and what the ranks computed is put together again.

use graphc_ir::array::Array;
use graphc_ir::mesh::unravel_position;
use graphc_ir::op::{EvalContext, Op, Operand, Region};
use graphc_ir::random::RandomStream;
use graphc_ir::sbp::{NdSbp, ReduceKind, Sbp};
use graphc_ir::shard::shard_rect;
use graphc_ir::types::TensorType;

use crate::cases::Case;

/// The seed and the step with which cases are evaluated.
pub const CONTEXT: EvalContext = EvalContext { seed: 11, step: 2 };

/// Numbers for tests, the same on each run.
pub struct Random {
    stream: RandomStream,
    next: u64,
}

impl Random {
    pub fn new(key: u64) -> Self {
        Self { stream: RandomStream { seed: 3, key, step: 0 }, next: 0 }
    }

    /// Draws a number in [low, high).
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        self.next += 1;
        low + (high - low) * f64::from(self.stream.uniform(self.next))
    }

    /// Draws an integer in low..high.
    pub fn integer(&mut self, low: i64, high: i64) -> i64 {
        self.uniform(low as f64, high as f64).floor() as i64
    }
}

/// A case with numbers in its operands, and its whole results.
pub struct Instance<'a> {
    pub op: &'a Op,
    pub types: Vec<TensorType>,
    pub arrays: Vec<Array>,
    pub result_types: Vec<TensorType>,
    pub results: Vec<Array>,
    /// The decomposition of operands into partial sums.
    pub summands: Summands,
}

/// The decomposition of whole tensors into partial sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Summands {
    /// Ranks have numbers that are drawn, but for one.
    Drawn,
    /// One rank has the element, the others 0, as boxing makes them of what is whole.
    Held,
}

impl<'a> Instance<'a> {
    pub fn new(case: &'a Case, key: u64) -> Self {
        let mut random = Random::new(key);
        let arrays = case.operands.iter().map(|sample| sample.draw(&mut random)).collect();
        Self::of(case, arrays, Summands::Drawn)
    }

    /// The case with these numbers in its operands.
    pub fn of(case: &'a Case, arrays: Vec<Array>, summands: Summands) -> Self {
        let types: Vec<TensorType> = case.operands.iter().map(|sample| sample.ty.clone()).collect();
        let result_types =
            case.op.infer_types(&types.iter().collect::<Vec<_>>()).expect("the case fits the op");
        let results = Vec::new();
        let mut instance = Self { op: &case.op, types, arrays, result_types, results, summands };
        instance.results = instance.evaluate(&instance.arrays);
        instance
    }

    /// The results on whole operands.
    pub fn evaluate(&self, arrays: &[Array]) -> Vec<Array> {
        let regions: Vec<Region> = self.types.iter().map(Region::whole).collect();
        let results: Vec<Region> = self.result_types.iter().map(Region::whole).collect();
        let operands: Vec<Operand<'_>> =
            arrays.iter().zip(&regions).map(|(array, region)| Operand { array, region }).collect();
        let found = self.op.operation().evaluate(&operands, &results, &CONTEXT);
        let found = found.unwrap_or_else(|error| panic!("{:?}: {error}", self.op));
        for (array, region) in found.iter().zip(&results) {
            assert_eq!(array.shape, region.global, "shape of a result of {:?}", self.op);
        }
        found
    }

    /// The results that ranks compute with these layouts, put together.
    pub fn distributed(
        &self,
        hierarchy: &[usize],
        operands: &[NdSbp],
        results: &[NdSbp],
    ) -> Result<Vec<Array>, String> {
        let mut random = Random::new(hierarchy.len() as u64);
        let parts: Vec<Parts> = (0..operands.len())
            .map(|i| {
                let how = (self.summands, !self.types[i].dtype.is_float());
                Parts::decompose(&self.arrays[i], hierarchy, &operands[i], how, &mut random)
            })
            .collect();
        let mut combined: Vec<Recombined> = (0..results.len())
            .map(|i| Recombined::new(&self.result_types[i].shape, hierarchy, &results[i]))
            .collect();
        for rank in 0..hierarchy.iter().product() {
            let coordinates = unravel_position(rank, hierarchy);
            let region = |ty: &TensorType, sbp: &NdSbp| Region {
                dtype: ty.dtype,
                global: ty.shape.clone(),
                rect: shard_rect(&ty.shape, hierarchy, sbp, &coordinates),
            };
            let regions: Vec<Region> =
                self.types.iter().zip(operands).map(|(ty, sbp)| region(ty, sbp)).collect();
            let arrays: Vec<Array> = parts
                .iter()
                .zip(&regions)
                .map(|(parts, region)| parts.at(&coordinates).slice_rect(&region.rect))
                .collect();
            let shards: Vec<Operand<'_>> = arrays
                .iter()
                .zip(&regions)
                .map(|(array, region)| Operand { array, region })
                .collect();
            let wanted: Vec<Region> =
                self.result_types.iter().zip(results).map(|(ty, sbp)| region(ty, sbp)).collect();
            let found = self.op.operation().evaluate(&shards, &wanted, &CONTEXT);
            for ((array, region), combined) in
                found.map_err(|e| e.to_string())?.iter().zip(&wanted).zip(&mut combined)
            {
                combined.put(&coordinates, array, region)?;
            }
        }
        combined.into_iter().map(Recombined::whole).collect()
    }
}

/// One whole array for each position along the partial axes of a layout, row-major.
struct Parts {
    sbp: NdSbp,
    hierarchy: Vec<usize>,
    arrays: Vec<Array>,
}

impl Parts {
    /// Random summands (or bounds that are attained somewhere) whose reduction is `array`.
    fn decompose(
        array: &Array,
        hierarchy: &[usize],
        sbp: &NdSbp,
        how: (Summands, bool),
        random: &mut Random,
    ) -> Self {
        let mut arrays = vec![array.clone()];
        for (axis, sbp) in sbp.0.iter().enumerate() {
            if let Sbp::Partial(kind) = *sbp {
                let n = hierarchy[axis];
                let cut = |array: Array| decompose(&array, n, kind, how, random);
                arrays = arrays.into_iter().flat_map(cut).collect();
            }
        }
        Self { sbp: sbp.clone(), hierarchy: hierarchy.to_vec(), arrays }
    }

    fn at(&self, coordinates: &[usize]) -> &Array {
        &self.arrays[partial_position(&self.sbp, &self.hierarchy, coordinates)]
    }
}

fn partial_position(sbp: &NdSbp, hierarchy: &[usize], coordinates: &[usize]) -> usize {
    let axes = (0..hierarchy.len()).filter(|&axis| sbp.0[axis].is_partial());
    axes.fold(0, |position, axis| position * hierarchy[axis] + coordinates[axis])
}

fn decompose(
    array: &Array,
    parts: usize,
    kind: ReduceKind,
    (summands, integers): (Summands, bool),
    random: &mut Random,
) -> Vec<Array> {
    let mut number = |low: f64, high: f64| match random.uniform(low, high) {
        x if integers => x.round(),
        x => x,
    };
    let mut arrays = vec![array.clone(); parts];
    for i in 0..array.data.len() {
        let holder = (number(0.0, parts as f64 - 0.01) as usize).min(parts - 1);
        for part in (0..parts).filter(|&part| part != holder) {
            match kind {
                ReduceKind::Sum if summands == Summands::Held => arrays[part].data[i] = 0.0,
                ReduceKind::Sum => {
                    arrays[part].data[i] = number(-2.0, 2.0);
                    arrays[holder].data[i] -= arrays[part].data[i];
                }
                ReduceKind::Max => arrays[part].data[i] -= number(0.0, 2.0),
                ReduceKind::Min => arrays[part].data[i] += number(0.0, 2.0),
            }
        }
    }
    arrays
}

/// A result while its shards come in.
struct Recombined {
    sbp: NdSbp,
    hierarchy: Vec<usize>,
    /// The elements that have come, for each position along the partial axes.
    parts: Vec<(Array, Vec<bool>)>,
}

impl Recombined {
    fn new(shape: &[usize], hierarchy: &[usize], sbp: &NdSbp) -> Self {
        let partial = |axis: &usize| sbp.0[*axis].is_partial();
        let count = (0..hierarchy.len()).filter(partial).map(|axis| hierarchy[axis]).product();
        let empty = (Array::full(shape, 0.0), vec![false; shape.iter().product()]);
        Self { sbp: sbp.clone(), hierarchy: hierarchy.to_vec(), parts: vec![empty; count] }
    }

    fn put(&mut self, coordinates: &[usize], shard: &Array, region: &Region) -> Result<(), String> {
        if shard.shape != region.rect.extent {
            return Err(format!("a shard is {:?}, not {:?}", shard.shape, region.rect.extent));
        }
        let position = partial_position(&self.sbp, &self.hierarchy, coordinates);
        let (array, known) = &mut self.parts[position];
        for (i, &value) in shard.data.iter().enumerate() {
            let local = unravel_position(i, &shard.shape);
            let index: Vec<usize> =
                local.iter().zip(&region.rect.origin).map(|(i, o)| i + o).collect();
            let offset = array.offset_of_index(&index);
            if known[offset] && !close(array.data[offset], value) {
                return Err(format!("two ranks disagree at {index:?}"));
            }
            (array.data[offset], known[offset]) = (value, true);
        }
        Ok(())
    }

    fn whole(self) -> Result<Array, String> {
        if self.parts.iter().any(|(_, known)| known.contains(&false)) {
            return Err("no rank computes some element".into());
        }
        let mut arrays: Vec<Array> = self.parts.into_iter().map(|(array, _)| array).collect();
        for axis in (0..self.hierarchy.len()).rev() {
            if let Sbp::Partial(kind) = self.sbp.0[axis] {
                let groups = arrays.chunks(self.hierarchy[axis]);
                arrays = groups.map(|group| reduce(group, kind)).collect();
            }
        }
        Ok(arrays.swap_remove(0))
    }
}

fn reduce(arrays: &[Array], kind: ReduceKind) -> Array {
    let mut result = arrays[0].clone();
    for array in &arrays[1..] {
        for (a, b) in result.data.iter_mut().zip(&array.data) {
            *a = kind.combine(*a, *b);
        }
    }
    result
}

/// Whether two numbers are equal to 1e-9.
pub fn close(a: f64, b: f64) -> bool {
    a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 1e-9 * (1.0 + a.abs().max(b.abs()))
}

/// Whether two arrays are equal to 1e-9.
pub fn equal(a: &[Array], b: &[Array]) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|(a, b)| {
            a.shape == b.shape && a.data.iter().zip(&b.data).all(|(&a, &b)| close(a, b))
        })
}
