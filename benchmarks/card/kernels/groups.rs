//! The trials, in groups: a process of its own makes and executes each.

use std::collections::HashMap;

use graphc_ir::op::{EvalContext, InPlace, Op, Region};
use graphc_ir::ops::{Unary, UnaryFunction};
use graphc_ir::sbp::ReduceKind;
use graphc_ir::types::{DType, TensorType};
use graphc_kernels::cuda::{self, join_alike, joins};

use crate::cases::{self, Example};
use crate::common::{Case, Memory, Random, ordinary, shard};
use crate::growing::{SMALL, Size, random_chain};
use crate::joint::{joint, resized};
use crate::large;
use crate::products::{
    Chained, Extents, TYPES, evaluate, gradients, keeping, small, with_summands,
};
use crate::rectangles::{self, Part};
use crate::trial::{AT, Oracle, Right, Room, Trial, on_processor};

/// A group of trials.
pub struct Group {
    pub name: String,
    make: Box<dyn Fn(bool) -> Vec<Made>>,
}

/// Trials of each op, or of a group without ops of its own, that are a few.
const FEW: usize = 2;

/// A trial that is made when it is its turn.
pub type Made = Box<dyn FnOnce() -> Trial>;

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

    /// Of examples of ops.
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
            let made = |example| Box::new(move || Trial::of_op(example, large)) as Made;
            examples().into_iter().filter(&mut is_wanted).map(made).collect()
        };
        Self { name: name.into(), make: Box::new(make) }
    }

    /// Its trials, or a few of them.
    pub fn trials(&self, few: bool) -> Vec<Made> {
        (self.make)(few)
    }
}

/// All groups: small ones first, which are of all ops in all forms, then those of real sizes.
pub fn all() -> Vec<Group> {
    let mut groups = few();
    for ty in TYPES {
        groups.push(Group::new(format!("real products of {} with ends", ty.0), move || {
            products(&[Extents { rows: [1, 1024], inner: 768, columns: 3072 }], &[ty])
        }));
    }
    groups.push(Group::new("real chains", || chains(100..116, &LARGE)));
    groups.extend(large::groups());
    groups
}

/// Groups of small trials.
pub fn few() -> Vec<Group> {
    type Make = fn() -> Vec<Example>;
    let rooms: [(&str, Make); 12] = [
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
        ("sources", cases::sources::examples),
    ];
    let mut groups: Vec<Group> =
        rooms.into_iter().map(|(name, room)| Group::of_ops(name, false, room)).collect();
    groups.push(Group::new("products with ends", || products(&[small(9), small(24)], &TYPES)));
    groups.push(Group::new("chains", || chains(0..40, &SMALL)));
    groups.push(Group::new("joint updates", joint_updates));
    groups.push(Group::new("rectangles", copied_rectangles));
    groups
}

/// Chains of as many elements as layers of real models have.
const LARGE: Size<'static> = Size { most: 4 << 20, extents: &[1, 3, 64, 128, 500, 768, 1024] };

fn chains(seeds: std::ops::Range<u64>, size: &'static Size<'static>) -> Vec<Made> {
    let made = |seed| Box::new(move || Trial::of_chain(random_chain(seed, size), seed)) as Made;
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
            }
            // Of those of real size each takes seconds to evaluate.
            let step = if is_large { 2 } else { 1 };
            for chained in all.into_iter().step_by(step) {
                made.push(Box::new(move || product(&chained, dtype, near, is_large)));
            }
        }
    }
    made
}

fn product(chained: &Chained, dtype: DType, near: f64, is_large: bool) -> Trial {
    let (oracle, joined) = match is_large {
        true => (Oracle::Processor, chained.join(dtype, |case| on_processor(case).remove(0))),
        false => (Oracle::Evaluation, chained.join(dtype, evaluate)),
    };
    // Both factors stand before the chain's operands.
    let shared = chained.shared.iter().map(|pair| InPlace::new(pair.result, pair.operand + 2));
    Trial::of_product(joined.expect("it is joined"), near, shared.collect(), oracle)
}

/// Updates of several variables as one launch, which have the bits of their own; so nothing but these is right.
fn joint_updates() -> Vec<Made> {
    let mut made: Vec<Made> = Vec::new();
    for example in cases::updates::examples() {
        let Some(own) = joins(&example.case.op) else { continue };
        let of = &example.case.operands[0].0;
        let elements = of.rect.elements();
        if (of.dtype == DType::F32 || matches!(example.case.op, Op::AdamUpdate(_)))
            && (1..=300).contains(&elements)
        {
            made.push(Box::new(move || joint_update(&example, own)));
        }
    }
    made
}

fn joint_update(Example { case, tolerance }: &Example, own: usize) -> Trial {
    let members = [9000, 1, 0, 291, 8192].map(|elements| resized(case, own, elements));
    let shards = members
        .each_ref()
        .map(|member| member.operands.iter().map(|operand| shard(&operand.0)).collect::<Vec<_>>());
    let call = join_alike(&case.op, &shards).expect("they join");
    let (all, pairs) = joint(&members);
    let evaluated = members.iter().flat_map(|member| member.oracle(&AT).expect("an update"));
    let room = || Room::Rounded { relative: *tolerance, of_greatest: 0.0, times: 1.0 };
    let right = evaluated.map(|array| Right { values: array.data, room: room() }).collect();
    Trial {
        name: format!("{} variables by {}", members.len(), case.op.name()),
        call,
        case: all,
        placed: vec![],
        shared: vec![pairs],
        right,
        oracle: Oracle::Evaluation,
        cx: AT,
    }
}

/// Rectangles as boxing moves and joins them.
fn copied_rectangles() -> Vec<Made> {
    let kinds = [None, Some(ReduceKind::Sum), Some(ReduceKind::Max), Some(ReduceKind::Min)];
    let real: ([Part; 2], [usize; 3]) =
        ([([64, 512, 768], [3, 128, 256]), ([60, 200, 300], [1, 40, 44])], [50, 150, 256]);
    let mut made: Vec<Made> = Vec::new();
    for dtype in [DType::F32, DType::BF16, DType::I64, DType::U8] {
        for (parts, extent) in [rectangles::WIDE, rectangles::ODD, real] {
            for kind in kinds {
                made.push(Box::new(move || rectangle(dtype, parts, extent, kind)));
            }
        }
    }
    made
}

fn rectangle(
    dtype: DType,
    parts: [Part; 2],
    extent: [usize; 3],
    kind: Option<ReduceKind>,
) -> Trial {
    let random = &mut Random::new(1);
    let mut memory = |(of, _): Part| {
        let ty = TensorType::new(dtype, of);
        let data: Vec<f64> = (0..ty.elements()).map(|i| ordinary(random, i, dtype)).collect();
        (Region::whole(&ty), Memory::of(dtype, &data))
    };
    let operands = parts.map(&mut memory).to_vec();
    let [(of_from, from_start), (of_to, to_start)] = parts;
    let call = cuda::copy_rectangle(dtype, &of_from, &from_start, &of_to, &to_start, &extent, kind);
    let given: Vec<Vec<f64>> = operands.iter().map(|operand| operand.1.values()).collect();
    let joined = rectangles::joined([&given[0], &given[1]], parts, extent, |there, comes| {
        rectangles::join(dtype, kind, there, comes)
    });
    let values = Memory::of(dtype, &joined).values();
    let result = operands[1].0.clone();
    // The op only names it. The result is what was there, changed.
    let op = Op::Unary(Unary { function: UnaryFunction::Abs });
    let how = kind.map_or("copied".to_owned(), |kind| format!("joined by {kind:?}"));
    Trial {
        name: format!("rectangle of {dtype} {extent:?} {how}"),
        call,
        case: Case { op, operands, results: vec![result] },
        placed: vec![InPlace::new(0, 1)],
        shared: vec![],
        right: vec![Right { values, room: Room::Each(vec![0.0; joined.len()]) }],
        oracle: Oracle::Evaluation,
        cx: EvalContext::default(),
    }
}
