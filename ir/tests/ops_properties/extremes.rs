//! Every derived signature equals the whole also for zeros, denormal numbers, infinities and what is no number, as far as
//! [`graphc_ir::rule::Rule::linear`] promises it.

use graphc_ir::array::Array;
use graphc_ir::rule::{Choice, Signature};

use crate::cases::{Case, all};
use crate::shards::{Instance, Random, Summands, close, equal};

const HIERARCHIES: [&[usize]; 3] = [&[2], &[3], &[2, 2]];
const FINITE: [f64; 6] = [0.0, -0.0, 5e-324, -1e-310, 1e-300, -1.0];
const NOT_FINITE: [f64; 4] = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 0.0];

/// The case with every other floating-point number one of these.
pub fn with_extremes<'a>(
    case: &'a Case,
    key: u64,
    extremes: &[f64],
    summands: Summands,
) -> Instance<'a> {
    let mut random = Random::new(key);
    let mut arrays: Vec<Array> =
        case.operands.iter().map(|sample| sample.draw(&mut random)).collect();
    for (array, sample) in arrays.iter_mut().zip(&case.operands) {
        for x in array.data.iter_mut().filter(|_| sample.ty.dtype.is_float()) {
            let drawn = random.integer(0, 2 * extremes.len() as i64) as usize;
            *x = extremes.get(drawn).copied().unwrap_or(*x);
        }
    }
    Instance::of(case, arrays, summands)
}

#[test]
fn every_signature_equals_the_whole_for_all_that_is_finite() {
    hold(&FINITE, |_, found, whole| equal(found, whole));
}

#[test]
fn no_signature_makes_finite_what_is_not() {
    hold(&NOT_FINITE, |signature, found, whole| {
        let linear = |choice: &Choice| matches!(choice, Choice::Linear(_));
        match signature.choices.iter().any(linear) {
            true => equally_finite(found, whole),
            false => equal(found, whole),
        }
    });
}

/// Whether the same elements are finite, and these equal.
fn equally_finite(found: &[Array], whole: &[Array]) -> bool {
    let same = |(&found, &whole): (&f64, &f64)| match whole.is_finite() {
        true => close(found, whole),
        false => !found.is_finite(),
    };
    let mut pairs = found.iter().zip(whole);
    pairs.all(|(found, whole)| found.data.iter().zip(&whole.data).all(same))
}

/// Holds every signature of every case, with these numbers among its operands, to what a check says.
fn hold(extremes: &[f64], holds: impl Fn(&Signature, &[Array], &[Array]) -> bool) {
    let (mut executed, mut wrong) = (0, Vec::new());
    for (key, case) in all().iter().filter(|case| case.can_be_evaluated()).enumerate() {
        for (trial, summands) in [Summands::Drawn, Summands::Held].into_iter().enumerate() {
            let instance = with_extremes(case, 2 * key as u64 + trial as u64, extremes, summands);
            let types: Vec<_> = instance.types.iter().collect();
            let rule = case.op.operation().rule(&types).expect("fits");
            for hierarchy in HIERARCHIES {
                for signature in rule.signatures(hierarchy) {
                    let (operands, results) = (&signature.operands, &signature.results);
                    let found = instance.distributed(hierarchy, operands, results);
                    executed += 1;
                    match found {
                        Ok(found) if holds(&signature, &found, &instance.results) => {}
                        found => wrong.push(format!(
                            "{case} on {hierarchy:?}, {signature:?}, {summands:?}\nof {:?}\nwhole {:?}\nfound {found:?}",
                            instance.arrays, instance.results
                        )),
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {executed}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(executed > 10_000, "only {executed} signatures were executed");
}

/// The check finds a quotient that is linear in its numerator: the sum of what is divided by 0 is no number.
#[test]
fn a_quotient_of_partial_sums_is_found() {
    use graphc_ir::op::Op;
    use graphc_ir::ops::{Binary, BinaryFunction};
    use graphc_ir::sbp::{NdSbp, Sbp};

    use crate::cases::floats;

    let divide = Op::Binary(Binary { function: BinaryFunction::Div });
    let case = Case::new(divide, vec![floats(&[1]), floats(&[1])]);
    let arrays = [7.0, 0.0].map(|x| Array::new([1], vec![x])).to_vec();
    let instance = Instance::of(&case, arrays, Summands::Held);
    let [partial, whole] = [Sbp::PARTIAL, Sbp::Broadcast].map(|sbp| NdSbp(vec![sbp]));
    let found = instance.distributed(&[2], &[partial.clone(), whole], &[partial]).expect("valid");
    assert!(instance.results[0].data[0] == f64::INFINITY && found[0].data[0].is_nan());
}
