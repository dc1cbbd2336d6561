//! The trials, in groups: a process of its own makes and executes each.

use std::collections::{HashMap, HashSet};

use graphc_ir::op::{InPlace, Op};
use graphc_ir::types::DType;
use graphc_kernels::cuda::{Shard, join_alike, joinable_tensors};

use crate::cases::{self, Example};
use crate::common::{Case, Random, shard};
use crate::growing::{SMALL, Size, random_chain};
use crate::joint::{joint, resized};
use crate::products::{
    Chained, Extents, SummedFactor, TYPES, evaluate, gradients, keeping, small, widened,
    with_other_sums, with_summands,
};
use crate::trial::{AT, Oracle, Right, Room, Trial, on_processor};
use crate::{alone, large};

/// A group of trials.
pub struct Group {
    pub name: String,
    make: Box<dyn Fn(bool) -> Vec<Made>>,
}

/// Trials of each op, or of a group without ops of its own, that are a few.
const FEW: usize = 2;

/// A trial that is made when it is its turn; so many threads compute what is right.
pub type Made = Box<dyn FnOnce(usize) -> Trial>;

impl Group {
    pub fn new(name: impl Into<String>, make: impl Fn() -> Vec<Made> + 'static) -> Self {
        let make = move |few: bool| {
            let mut made = make();
            if few {
                made.truncate(FEW);
            }
            made
        };
        Self { name: name.into(), make: Box::new(make) }
    }

    /// Makes a group of examples of ops.
    pub fn of_ops(
        name: impl Into<String>,
        large: bool,
        examples: impl Fn() -> Vec<Example> + 'static,
    ) -> Self {
        let make = move |few: bool| {
            let mut counts: HashMap<&'static str, usize> = HashMap::new();
            let mut is_wanted = |example: &Example| {
                let count = counts.entry(example.case.op.name()).or_default();
                *count += 1;
                !few || *count <= FEW
            };
            let made =
                |example| Box::new(move |threads| Trial::of_op(example, large, threads)) as Made;
            examples().into_iter().filter(&mut is_wanted).map(made).collect()
        };
        Self { name: name.into(), make: Box::new(make) }
    }

    /// Returns the name without element types and sizes, which groups of the same ops have in common.
    fn family(&self) -> &str {
        self.name.split(" of ").next().unwrap_or_default()
    }

    /// Returns its trials, or a few of them.
    pub fn trials(&self, few: bool) -> Vec<Made> {
        (self.make)(few)
    }
}

/// Returns all groups: small ones first, which are of all ops in all forms; then those of real sizes, one of each family before all others,
/// so that of a part that has no time for all no family is left out.
pub fn all() -> Vec<Group> {
    let mut real = large::groups();
    for ty in TYPES {
        real.push(Group::new(format!("real products with ends of {}", ty.0), move || {
            products(&[Extents { rows: [1, 1024], inner: 768, columns: 3072 }], &[ty])
        }));
    }
    real.push(Group::new("real chains", || chains(100..116, &LARGE)));
    real.push(Group::new("real joint updates", || {
        joint_updates(&cases::updates::few(), &[2_359_296, 768, 3072, 590_592])
    }));
    real.push(Group::new("real calls", alone::real));
    for dtype in alone::MOVED {
        real.push(Group::new(format!("real rectangles of {dtype}"), move || {
            alone::real_rectangles(dtype)
        }));
    }
    let mut families = HashSet::new();
    let is_first = |group: &Group| families.insert(group.family().to_owned());
    let (first, others): (Vec<Group>, Vec<Group>) = real.into_iter().partition(is_first);
    few().into_iter().chain(first).chain(others).collect()
}

/// Groups of small trials.
pub fn few() -> Vec<Group> {
    type Make = fn() -> Vec<Example>;
    let rooms: [(&str, Make); 13] = [
        ("attention", cases::attention::examples),
        ("convolutions and pools", cases::images::examples),
        ("recurrences", cases::recurrences::examples),
        ("rows", cases::rows::examples),
        ("updates", cases::updates::examples),
        ("sums and products", cases::sums::examples),
        ("losses", cases::losses::examples),
        ("elementwise", cases::elementwise::examples),
        ("movements", cases::movements::examples),
        ("places", cases::places::examples),
        ("experts", cases::experts::examples),
        ("experts that share places", cases::experts::shared_blocks),
        ("sources", cases::sources::examples),
    ];
    let mut groups: Vec<Group> =
        rooms.into_iter().map(|(name, room)| Group::of_ops(name, false, room)).collect();
    groups.push(Group::new("products with ends", || products(&[small(9), small(24)], &TYPES)));
    groups.push(Group::new("products with sums of factors", summed_factors));
    groups.push(Group::of_ops("products of many tiles", false, cases::sums::tiled));
    groups.push(Group::new("chains", || chains(0..40, &SMALL)));
    groups.push(Group::new("joint updates", || {
        joint_updates(&cases::updates::examples(), &[9000, 1, 0, 291, 8192])
    }));
    groups.push(Group::new("rectangles", alone::rectangles));
    groups.push(Group::new("accumulators", alone::accumulators));
    groups.push(Group::new("identities", alone::identities));
    groups.push(Group::new("convolutions with chains", alone::headed_chains));
    groups
}

/// Chains of as many elements as layers of real models have.
const LARGE: Size<'static> = Size { most: 4 << 20, extents: &[1, 3, 64, 128, 500, 768, 1024] };

fn chains(seeds: std::ops::Range<u64>, size: &'static Size<'static>) -> Vec<Made> {
    let made = |seed| Box::new(move |_| Trial::of_chain(random_chain(seed, size), seed)) as Made;
    seeds.map(made).collect()
}

/// Products with all ends that a library has; rows of 9 elements are not kept.
fn products(extents: &[Extents], types: &[(DType, f64)]) -> Vec<Made> {
    let mut made: Vec<Made> = Vec::new();
    for &of in extents {
        let is_large = of.rows[1] > 100;
        for &(dtype, near) in types {
            let mut all = with_summands(of);
            if of.columns.is_multiple_of(8) {
                all.extend(keeping(of).into_iter().chain(gradients(of)));
                all.push(with_other_sums(of));
            }
            if dtype != DType::F32 {
                all.push(widened(of));
            }
            // Of those of real size each takes seconds to evaluate.
            let step = if is_large { 2 } else { 1 };
            for chained in all.into_iter().step_by(step) {
                made.push(Box::new(move |threads| {
                    product(&chained, dtype, near, is_large.then_some(threads))
                }));
            }
        }
    }
    made
}

/// One of them; those of real size are multiplied by so many threads of the processor.
fn product(chained: &Chained, dtype: DType, near: f64, threads: Option<usize>) -> Trial {
    // Both factors stand before the chain's operands.
    let shared = chained.shared.iter().map(|pair| InPlace::new(pair.result, pair.operand + 2));
    let shared = shared.collect();
    let joined = match threads {
        Some(threads) => {
            let multiply = |case: &Case| on_processor(case, threads).remove(0);
            chained.join_unrounded(dtype, multiply)
        }
        None => chained.join(dtype, evaluate),
    };
    let joined = joined.expect("it is joined");
    match threads {
        Some(_) => Trial::of_large_product(joined, &chained.extents.all(), shared),
        None => Trial::of_product(joined, near, shared, Oracle::Evaluation),
    }
}

/// Products that bring sums of a factor, whichever way it is stored.
fn summed_factors() -> Vec<Made> {
    let mut made: Vec<Made> = Vec::new();
    for case in 0..8 {
        for (dtype, near) in TYPES {
            made.push(Box::new(move |_| {
                let stored = [1, 2, 4].map(|bit| case & bit != 0);
                let of = SummedFactor::new(&mut Random::new(2), dtype, [5, 11, 9], stored);
                let joined = of.join().expect("it is joined");
                Trial::of_product(joined, near, vec![], Oracle::Evaluation)
            }));
        }
    }
    made
}

/// Updates of several variables as one launch, which have the bits of their own; so nothing but these is right.
fn joint_updates(examples: &[Example], extents: &'static [usize]) -> Vec<Made> {
    let mut made: Vec<Made> = Vec::new();
    for Example { case, tolerance } in examples {
        let Some(own) = joinable_tensors(&case.op) else { continue };
        let of = &case.operands[0].0;
        if (of.dtype == DType::F32 || matches!(case.op, Op::AdamUpdate(_)))
            && (1..=300).contains(&of.rect.elements())
        {
            let (case, tolerance) = (case.clone(), *tolerance);
            made.push(Box::new(move |_| joint_update(&case, tolerance, own, extents)));
        }
    }
    made
}

fn joint_update(case: &Case, tolerance: f64, own: usize, extents: &[usize]) -> Trial {
    let members: Vec<Case> = extents.iter().map(|&extent| resized(case, own, extent)).collect();
    let shards = |member: &Case| -> Vec<Shard> {
        member.operands.iter().map(|operand| shard(&operand.0)).collect()
    };
    let shards: Vec<Vec<Shard>> = members.iter().map(shards).collect();
    let call = join_alike(&case.op, &shards).expect("they join");
    let (all, pairs) = joint(&members);
    let evaluated = members.iter().flat_map(|member| member.oracle(&AT).expect("an update"));
    let room = || Room::Rounded { relative: tolerance, of_greatest: 0.0, times: 1.0 };
    let right = evaluated.map(|array| Right { values: array.data, room: room() }).collect();
    Trial {
        name: format!("{} variables by {}", members.len(), case.op.name()),
        op: None,
        call,
        case: all,
        placed: vec![],
        shared: vec![pairs],
        right,
        oracle: Oracle::Evaluation,
        cx: AT,
    }
}
