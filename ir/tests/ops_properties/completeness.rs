//! No valid signature is missing: on one axis of 2 ranks, an assignment of {B, S(dim), P(sum)} to operands and
//! results that is not derived does not compute the whole.
//!
//! Left out are assignments that say nothing about an op:
//! - those that a derived signature gives by slicing locally what every rank holds: an operand that is B where the
//!   derived one is S, a result that is S where the derived one is B;
//! - those that split one result and not the other, or along another factor: a factor splits both results of cross entropy, of
//!   which one does not read the labels, so that split labels would do for it whole, and ranks that hold all images can
//!   normalize some of the channels and give the statistics of some of the images;
//! - those that take partial sums and give them in one result and not in another: attention's output is linear in the
//!   values, which its log-sum-exp does not read;
//! - splits of dims of extent 1, and of dims that the rule calls whole: slice, pad, concat and split keep a dim whole
//!   by design, although a symmetric slice, say, could be split;
//! - partial sums of truth values, which a truth value cannot hold;
//! - partial operands of the count of what is not finite: a sum may overflow whose summands do not, which numbers that are drawn
//!   do not show;
//! - partial variables: plain SGD is linear, but an update's result has its variable's layout, which is not partial.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};

use graphc_ir::op::Op;
use graphc_ir::rule::{DimRule, Rule, Signature};
use graphc_ir::sbp::{NdSbp, Sbp};
use graphc_ir::types::{DType, TensorType};

use crate::cases::{Case, all};
use crate::extremes::with_extremes;
use crate::shards::{Instance, Summands, equal};

thread_local! {
    /// Whether a panic on this thread is an expected answer: an evaluation that reads what its rank does not hold.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Times that an assignment must compute the whole, on other numbers each, to be called valid.
const TRIALS: u64 = 6;

#[test]
fn no_valid_signature_is_missing() {
    let default = take_hook();
    set_hook(Box::new(move |info| {
        if !QUIET.get() {
            default(info);
        }
    }));
    let (mut tried, mut missing) = (0, Vec::new());
    for (key, case) in all().iter().filter(|case| case.complete).enumerate() {
        tried += check(case, key as u64, &mut missing);
    }
    assert!(missing.is_empty(), "valid, but not derived:\n{}", missing.join("\n"));
    assert!(tried > 5_000, "only {tried} assignments were tried");
}

fn check(case: &Case, key: u64, missing: &mut Vec<String>) -> usize {
    let instance = Instance::new(case, key);
    let rule = case.op.operation().rule(&instance.types.iter().collect::<Vec<_>>()).expect("fits");
    let derived = rule.signatures(&[2]);
    let mut dims: Vec<Vec<Sbp>> = layouts(&instance.types, &rule.operands);
    dims.extend(layouts(&instance.result_types, &rule.results));
    let is_update = !case.op.operation().updates().is_empty();
    let counts = matches!(case.op, Op::NonFinite(_));
    let mut tried = 0;
    for assignment in product(&dims) {
        let (operands, results) = assignment.split_at(instance.types.len());
        let skipped = is_update && assignment.contains(&Sbp::PARTIAL)
            || counts && operands.contains(&Sbp::PARTIAL)
            || differ(operands, results)
            || factors(&rule, results).len() > 1;
        if skipped || derived.iter().any(|signature| gives(signature, operands, results)) {
            continue;
        }
        tried += 1;
        if (0..TRIALS).all(|trial| computes_whole(case, (key, trial), operands, results)) {
            missing.push(format!("{case}: {operands:?} -> {results:?}"));
        }
    }
    tried
}

/// Checks that ranks together compute the whole. In every other trial some numbers are 0, and ranks have summands that are 0.
fn computes_whole(
    case: &Case,
    (key, trial): (u64, u64),
    operands: &[Sbp],
    results: &[Sbp],
) -> bool {
    let key = key + 1000 * trial;
    let instance = match trial % 2 {
        0 => Instance::new(case, key),
        _ => with_extremes(case, key, &[0.0], Summands::Held),
    };
    let [on, to] = [operands, results].map(one_axis);
    QUIET.set(true);
    let found = catch_unwind(AssertUnwindSafe(|| instance.distributed(&[2], &on, &to)));
    QUIET.set(false);
    matches!(found, Ok(Ok(found)) if equal(&found, &instance.results))
}

/// The layouts of each tensor that are tried.
fn layouts(types: &[TensorType], dims: &[Vec<DimRule>]) -> Vec<Vec<Sbp>> {
    let of = |(ty, dims): (&TensorType, &Vec<DimRule>)| {
        let may_split = |&dim: &usize| ty.shape[dim] > 1 && !matches!(dims[dim], DimRule::Whole(_));
        let splits = (0..ty.shape.len()).filter(may_split).map(Sbp::Split);
        let partial = (ty.dtype != DType::Bool).then_some(Sbp::PARTIAL);
        [Sbp::Broadcast].into_iter().chain(partial).chain(splits).collect()
    };
    types.iter().zip(dims).map(of).collect()
}

fn product(choices: &[Vec<Sbp>]) -> Vec<Vec<Sbp>> {
    choices.iter().fold(vec![Vec::new()], |prefixes: Vec<Vec<Sbp>>, choices| {
        let extend = |prefix: &Vec<Sbp>| {
            let prefix = prefix.clone();
            choices.iter().map(move |&sbp| [prefix.as_slice(), &[sbp]].concat())
        };
        prefixes.iter().flat_map(extend).collect()
    })
}

fn one_axis(sbps: &[Sbp]) -> Vec<NdSbp> {
    sbps.iter().map(|&sbp| NdSbp(vec![sbp])).collect()
}

/// Whether an assignment is this derived signature, up to slicing locally.
fn gives(derived: &Signature, operands: &[Sbp], results: &[Sbp]) -> bool {
    let sliced =
        |from: Sbp, to: Sbp| from == to || from == Sbp::Broadcast && matches!(to, Sbp::Split(_));
    derived.operands.iter().zip(operands).all(|(derived, &given)| sliced(given, derived.0[0]))
        && derived.results.iter().zip(results).all(|(derived, &given)| sliced(derived.0[0], given))
}

fn differ(operands: &[Sbp], results: &[Sbp]) -> bool {
    let some = |sbp: Sbp| results.contains(&sbp) && results.iter().any(|&other| other != sbp);
    let split = results.iter().any(|sbp| matches!(sbp, Sbp::Split(_)));
    results.contains(&Sbp::Broadcast) && split
        || operands.contains(&Sbp::PARTIAL) && some(Sbp::PARTIAL)
}

/// The factors along which results are split.
fn factors(rule: &Rule, results: &[Sbp]) -> BTreeSet<usize> {
    let of = |(&sbp, dims): (&Sbp, &Vec<DimRule>)| match sbp {
        Sbp::Split(dim) => dims[dim].factors().first().copied(),
        _ => None,
    };
    results.iter().zip(&rule.results).filter_map(of).collect()
}

/// The check finds what a rule forgets: without its linear groups a matmul lacks two signatures.
#[test]
fn a_forgotten_signature_is_found() {
    let cases = all();
    let case = cases.iter().find(|case| case.op.name() == "matmul" && case.complete);
    let case = case.expect("matmul has a complete case");
    let instance = Instance::new(case, 0);
    let rule = case.op.operation().rule(&instance.types.iter().collect::<Vec<_>>()).expect("fits");
    let forgetful = Rule { linear: Vec::new(), ..rule.clone() };
    let lacking = |signature: &Signature| !forgetful.signatures(&[2]).contains(signature);
    let missing: Vec<Signature> = rule.signatures(&[2]).into_iter().filter(lacking).collect();
    assert_eq!(missing.len(), 2);
    for signature in missing {
        let found = instance.distributed(&[2], &signature.operands, &signature.results);
        assert!(equal(&found.expect("valid"), &instance.results));
    }
}
