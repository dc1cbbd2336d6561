//! Random chains of elementwise ops, as one kernel on a double of a card, have the values of their ops one after the other: the same
//! bits where an op has one right answer.

use crate::growing::{Chain, SMALL, random_chain};
use crate::on_card::{Bench, bench};
use graphc_ir::op::{EvalContext, InPlace};

/// Chains that are tried.
const CHAINS: u64 = 40;
fn check(bench: &mut Bench, seed: u64) {
    let chain = random_chain(seed, &SMALL);
    let Chain { fused, call, case, right } = &chain;
    let fits = case.results[0] == case.operands[0].0;
    let over = [InPlace::new(0, 0)];
    for pairs in [&[][..], &over[..usize::from(fits)]] {
        let found = bench.execute(call, case, pairs, &EvalContext::default()).expect("no fault");
        for (result, (found, [right, _])) in found.iter().zip(right).enumerate() {
            let found = found.values();
            assert_eq!(found.len(), right.len(), "chain {seed}, result {result}");
            for (place, (&found, &right)) in found.iter().zip(right).enumerate() {
                let bounds = chain.bounds(result, place);
                let near = bounds[0] <= found && found <= bounds[1];
                let same = found == right || found.is_nan() && right.is_nan();
                assert!(
                    same || near,
                    "chain {seed}, result {result}: {found}, not {right}: {fused:?}"
                );
            }
        }
    }
}

#[test]
fn random_chains_have_the_values_of_their_ops() {
    let Some(mut bench) = bench() else { return };
    for seed in 0..CHAINS {
        check(&mut bench, seed);
    }
}
