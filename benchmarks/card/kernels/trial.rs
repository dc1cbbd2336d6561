//! A call that a card is to execute, and how near its results are to the right ones.

use graphc_ir::op::{EvalContext, InPlace, Region};
use graphc_ir::types::{DType, TensorType};
use graphc_kernels::cuda::{self, Call, Launch};
use graphc_plan::FusedOp;
use graphc_runtime::cards::{Content, Workbench, WorkbenchError};

use crate::calls::{self, Executed};
use crate::cases::Example;
use crate::common::{Case, Memory, bytes, memory, other_ways, pairs, pool, rounded_room, shard};
use crate::growing::Chain;
use crate::products::{Joined, ROUNDINGS, unrounded_room};

/// The step and the seed of all trials.
pub const AT: EvalContext = EvalContext { seed: 5, step: 3 };

/// Work beyond which an op's own evaluation, which is plain and slow, gives way to the kernels of the processor: points of its
/// iteration space, and elements.
const MOST_EVALUATED: f64 = 2e8;

/// A call, and what comes out of it.
pub struct Trial {
    pub name: String,
    /// The op that it is, where it is one alone.
    pub op: Option<&'static str>,
    pub call: Call,
    pub case: Case,
    /// Results that always lie in the memory of operands.
    pub placed: Vec<InPlace>,
    /// Other ways in which results may lie there.
    pub shared: Vec<Vec<InPlace>>,
    pub right: Vec<Right>,
    pub oracle: Oracle,
    pub cx: EvalContext,
}

/// The source of the right values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Oracle {
    /// The ops' own evaluation, in f64.
    Evaluation,
    /// The kernels of the processor.
    Processor,
}

/// The right values of a result, and how far what is found may be from them.
pub struct Right {
    pub values: Vec<f64>,
    pub room: Room,
}

/// The error that a value may have.
pub enum Room {
    /// The value was computed in f32, with an error of at most `relative` times the sum of its size and 1, and `of_greatest` times the
    /// greatest number; then it was rounded `times` times.
    Rounded { relative: f64, of_greatest: f64, times: f64 },
    /// Each value has an error of its own.
    Each(Vec<f64>),
}

/// The element that is furthest from right, as a share of how far it may be.
#[derive(Clone, Copy, Debug, Default)]
pub struct Worst {
    pub share: f64,
    pub result: usize,
    pub element: usize,
    pub found: f64,
    pub right: f64,
}

impl Trial {
    /// An op, which `large` says to be of real size: then sums are long, and errors count by the greatest number too.
    pub fn of_op(example: Example, large: bool, threads: usize) -> Self {
        let Example { case, tolerance } = example;
        let shards: Vec<_> = case.operands.iter().map(|operand| shard(&operand.0)).collect();
        let results: Vec<_> = case.results.iter().map(shard).collect();
        let call = cuda::prepare_op(&case.op, &shards, &results)
            .unwrap_or_else(|error| panic!("{:?}: {error}", case.op));
        let (oracle, values) = expect(&case, threads);
        let times = if oracle == Oracle::Processor { 2.0 } else { 1.0 };
        let of_greatest = if large { 2e-6 } else { 0.0 };
        let room = || Room::Rounded { relative: tolerance, of_greatest, times };
        let right = values.into_iter().map(|values| Right { values, room: room() }).collect();
        let shared = pairs(&case).into_iter().map(|pair| vec![pair]).collect();
        let op = Some(case.op.name());
        Self { name: name(&case), op, call, case, placed: vec![], shared, right, oracle, cx: AT }
    }

    /// A call that is no op, with exactly one right answer.
    pub fn of_call(name: String, executed: Executed) -> Self {
        let Executed { call, case, placed, right } = executed;
        let exact = |values: Vec<f64>| Right { room: Room::Each(vec![0.0; values.len()]), values };
        let right = right.into_iter().map(exact).collect();
        let (oracle, cx) = (Oracle::Evaluation, EvalContext::default());
        Self { name, op: None, call, case, placed, shared: vec![], right, oracle, cx }
    }

    /// A chain that begins with a convolution, beside the processor's, which is within `near`.
    pub fn of_headed((fused, case): (FusedOp, Case), near: f64, threads: usize) -> Self {
        let found = calls::on_processor(&fused, &case, Some(&pool(threads)));
        let room = || Room::Rounded { relative: near, of_greatest: 0.0, times: 1.0 };
        let right = found.into_iter().map(|values| Right { values, room: room() }).collect();
        let name =
            format!("convolution with a chain, {} results, {}", case.results.len(), name(&case));
        let (call, oracle) = (calls::call_of(&fused, &case), Oracle::Processor);
        let cx = EvalContext::default();
        Self { name, op: None, call, case, placed: vec![], shared: vec![], right, oracle, cx }
    }

    /// A product and the chain behind it, whose results are within so much of the greatest of them.
    pub fn of_product(joined: Joined, near: f64, shared: Vec<InPlace>, oracle: Oracle) -> Self {
        let Joined { call, case, right } = joined;
        let room = || Room::Rounded { relative: 0.0, of_greatest: near, times: 1.0 };
        let right = right.into_iter().map(|values| Right { values, room: room() }).collect();
        let shared = if shared.is_empty() { vec![] } else { vec![shared] };
        let name = format!("product with {}", name(&case));
        let cx = EvalContext::default();
        Self { name, op: None, call, case, placed: vec![], shared, right, oracle, cx }
    }

    /// Makes a trial of a product at a real size, beside the ops in f32. The error that elements may have follows from how they are
    /// rounded.
    pub fn of_large_product(joined: Joined, all: &[usize], shared: Vec<InPlace>) -> Self {
        let room = |result: &Region| Room::Rounded {
            relative: 0.0,
            of_greatest: unrounded_room(result.dtype, result.rect.extent != all),
            times: ROUNDINGS,
        };
        let rooms: Vec<Room> = joined.case.results.iter().map(room).collect();
        let mut trial = Self::of_product(joined, 0.0, shared, Oracle::Processor);
        for (right, room) in trial.right.iter_mut().zip(rooms) {
            right.room = room;
        }
        trial
    }

    pub fn of_chain(chain: Chain, seed: u64) -> Self {
        let each = |result: usize| {
            let values = &chain.right[result][0];
            let room = |(place, &right): (usize, &f64)| {
                let [low, high] = chain.bounds(result, place);
                (high - right).max(right - low)
            };
            Room::Each(values.iter().enumerate().map(room).collect())
        };
        let rooms: Vec<Room> = (0..chain.right.len()).map(each).collect();
        let Chain { call, case, right, .. } = chain;
        let values = right.into_iter().map(|[values, _]| values);
        let right = values.zip(rooms).map(|(values, room)| Right { values, room }).collect();
        let fits = case.results[0] == case.operands[0].0;
        let shared = if fits { vec![vec![InPlace::new(0, 0)]] } else { vec![] };
        let name = format!("chain {seed} from {}", name(&case));
        let (oracle, cx) = (Oracle::Evaluation, EvalContext::default());
        Self { name, op: None, call, case, placed: vec![], shared, right, oracle, cx }
    }

    /// Executes it: apart, again, and with results in the memory of operands, which must give the same bits, except that a library may round
    /// otherwise where a product lies over its summand; products in other ways too.
    ///
    /// # Errors
    /// Returns an error if the card does not execute it.
    pub fn run(&self, card: &Workbench) -> Result<Outcome, WorkbenchError> {
        let found = self.execute(card, &self.call, &self.placed)?;
        let mut worst = self.compare(&found);
        let mut repeats = self.execute(card, &self.call, &self.placed)? == found;
        let mut in_place = None;
        for pairs in &self.shared {
            let over = self.execute(card, &self.call, pairs)?;
            if let Some(other) = self.compare_in_place(&found, &over) {
                // Whatever they are, they are the same each time.
                repeats &= self.execute(card, &self.call, pairs)? == over;
                in_place = in_place.or(Some(other));
            }
        }
        // Of products: what is taken where the library refuses one.
        for other in other_ways(&self.call) {
            let other = self.compare(&self.execute(card, &other, &self.placed)?);
            worst = if other.share > worst.share { other } else { worst };
        }
        let adds = |launch: &Launch| match launch {
            Launch::Product(product) => product.epilogue.added.is_some(),
            _ => false,
        };
        let may_round_otherwise = self.call.launches.iter().any(adds);
        Ok(Outcome { worst, repeats, in_place, may_round_otherwise })
    }

    fn execute(
        &self,
        card: &Workbench,
        call: &Call,
        pairs: &[InPlace],
    ) -> Result<Vec<Vec<u8>>, WorkbenchError> {
        let operands: Vec<Vec<u8>> = self.case.operands.iter().map(|o| bytes(&o.1)).collect();
        let contents = self.case.operands.iter().zip(&operands);
        let contents: Vec<Content<'_>> = contents.map(|(o, bytes)| (&o.0, &bytes[..])).collect();
        let results: Vec<&Region> = self.case.results.iter().collect();
        card.execute(&self.name, call.clone(), &contents, &results, pairs, &self.cx)
    }

    /// Compares results in memory of their own with those in the memory of operands; `None` where they have the same bits.
    fn compare_in_place(&self, apart: &[Vec<u8>], over: &[Vec<u8>]) -> Option<OtherBits> {
        if apart == over {
            return None;
        }
        let mut other = OtherBits { elements: 0, most: 0.0, share: self.compare(over).share };
        for ((region, apart), over) in self.case.results.iter().zip(apart).zip(over) {
            let values = [apart, over].map(|bytes| memory(region.dtype, bytes).values());
            let away = values[0].iter().zip(&values[1]).map(|(a, b)| (a - b).abs());
            for away in away.filter(|&away| away != 0.0) {
                other.elements += 1;
                other.most = if away.is_nan() { f64::INFINITY } else { other.most.max(away) };
            }
        }
        Some(other)
    }

    fn compare(&self, found: &[Vec<u8>]) -> Worst {
        let mut worst = Worst::default();
        for (result, (region, bytes)) in self.case.results.iter().zip(found).enumerate() {
            let found = memory(region.dtype, bytes).values();
            let (share, element) = self.right[result].worst(region.dtype, &found);
            if share > worst.share {
                let right = self.right[result].values[element];
                worst = Worst { share, result, element, found: found[element], right };
            }
        }
        worst
    }
}

/// The results of a trial.
pub struct Outcome {
    pub worst: Worst,
    /// Whether a second run gave the same bits.
    pub repeats: bool,
    /// The difference of results in the memory of operands from those beside it; `None` where they have the same bits.
    pub in_place: Option<OtherBits>,
    /// Whether a library adds a summand, over which the result may lie.
    pub may_round_otherwise: bool,
}

/// The difference between results in the memory of operands and those in memory of their own.
pub struct OtherBits {
    /// The number of elements that differ.
    pub elements: usize,
    /// The greatest difference.
    pub most: f64,
    /// The error of the results in the memory of operands, as a share of what is allowed.
    pub share: f64,
}

impl Outcome {
    /// The results of a trial that was not executed.
    pub const NOTHING: Self = Self {
        worst: Worst { share: 0.0, result: 0, element: 0, found: 0.0, right: 0.0 },
        repeats: true,
        in_place: None,
        may_round_otherwise: false,
    };

    pub fn is_right(&self) -> bool {
        let may_differ = |other: &OtherBits| self.may_round_otherwise && other.share <= 1.0;
        self.worst.share <= 1.0 && self.repeats && self.in_place.as_ref().is_none_or(may_differ)
    }
}

impl Right {
    /// The greatest share of its room that an element is away, and which.
    fn worst(&self, dtype: DType, found: &[f64]) -> (f64, usize) {
        let finite = self.values.iter().filter(|x| x.is_finite());
        let greatest = finite.fold(1.0f64, |most, x| most.max(x.abs()));
        let mut worst = (0.0, 0);
        for (place, (&found, &right)) in found.iter().zip(&self.values).enumerate() {
            let share = self.share(dtype, place, [found, right], greatest);
            if share > worst.0 {
                worst = (share, place);
            }
        }
        worst
    }

    fn share(&self, dtype: DType, place: usize, [found, right]: [f64; 2], greatest: f64) -> f64 {
        let is_same = found == right || found.is_nan() && right.is_nan();
        if is_same || found == Memory::of(dtype, &[right]).values()[0] {
            return 0.0;
        }
        let room = match &self.room {
            _ if !dtype.is_float() => 0.0,
            Room::Each(rooms) => rooms[place],
            Room::Rounded { relative, of_greatest, times } => {
                rounded_room(dtype, *relative, found, right)
                    + (times - 1.0) * rounded_room(dtype, 0.0, found, right)
                    + of_greatest * greatest
            }
        };
        let away = (found - right).abs();
        // Neither where one of them is no number.
        if away.is_finite() && room > 0.0 { away / room } else { f64::INFINITY }
    }
}

/// Computes the right values of a case.
fn expect(case: &Case, threads: usize) -> (Oracle, Vec<Vec<f64>>) {
    if work(case) <= MOST_EVALUATED {
        let arrays = case.oracle(&AT).unwrap_or_else(|error| panic!("{:?}: {error}", case.op));
        return (Oracle::Evaluation, arrays.into_iter().map(|array| array.data).collect());
    }
    (Oracle::Processor, on_processor(case, threads))
}

/// The results of the processor's kernel, by so many threads.
pub fn on_processor(case: &Case, threads: usize) -> Vec<Vec<f64>> {
    let found = case.kernel(&AT, Some(&pool(threads)));
    let found = found.unwrap_or_else(|error| panic!("{:?} on the processor: {error}", case.op));
    found.iter().map(Memory::values).collect()
}

/// Returns the work of an evaluation: floating-point operations, or elements that are read and written.
pub fn work(case: &Case) -> f64 {
    let part = |region: &Region| shard(region).ty;
    let whole = |region: &Region| TensorType::new(region.dtype, region.global.clone());
    // Parts do not always fit each other, such as some of the queries and all keys: the whole has more to do.
    let flops = flops(case, part).or_else(|| flops(case, whole)).unwrap_or(f64::INFINITY);
    let regions = case.operands.iter().map(|operand| &operand.0).chain(&case.results);
    let elements: usize = regions.map(|region| region.rect.elements()).sum();
    // An evaluation asks for the place of every element, and of those of products at every operation.
    (20.0 * flops).max(8.0 * elements as f64)
}

/// The floating-point operations of an op, of operands of such types; `None` where these do not fit each other.
fn flops(case: &Case, of: impl Fn(&Region) -> TensorType) -> Option<f64> {
    let types: Vec<TensorType> = case.operands.iter().map(|operand| of(&operand.0)).collect();
    let op = case.op.operation();
    let rule = op.rule(&types.iter().collect::<Vec<_>>()).ok()?;
    Some(op.flops(&rule))
}

/// Describes a case: `softmax of f32 [5, 37]`, of a shard `of f32 [3, 37] of [5, 37]`.
fn name(case: &Case) -> String {
    let of = |region: &Region| {
        let (extent, global) = (&region.rect.extent, &region.global);
        let part = if extent == global { String::new() } else { format!(" of {global:?}") };
        format!("{} {extent:?}{part}", region.dtype)
    };
    let regions: Vec<&Region> = case.operands.iter().map(|operand| &operand.0).collect();
    let shown = if regions.is_empty() { &case.results.iter().collect() } else { &regions };
    let shown: Vec<String> = shown.iter().take(4).map(|region| of(region)).collect();
    format!("{} of {}", case.op.name(), shown.join(", "))
}
