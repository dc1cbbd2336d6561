//! Every derived signature, executed on shards, equals the whole.

use crate::cases::{Case, all};
use crate::shards::{Instance, equal};

const HIERARCHIES: [&[usize]; 5] = [&[2], &[3], &[4], &[2, 2], &[2, 3]];

#[test]
fn every_signature_equals_the_whole() {
    let mut executed = 0;
    for (key, case) in all().iter().filter(|case| case.can_be_evaluated()).enumerate() {
        for hierarchy in HIERARCHIES {
            executed += check(case, key as u64, hierarchy);
        }
    }
    assert!(executed > 10_000, "only {executed} signatures were executed");
}

fn check(case: &Case, key: u64, hierarchy: &[usize]) -> usize {
    let instance = Instance::new(case, key);
    let types: Vec<_> = instance.types.iter().collect();
    let signatures = case.op.operation().rule(&types).expect("fits").signatures(hierarchy);
    for signature in &signatures {
        let found = instance.distributed(hierarchy, &signature.operands, &signature.results);
        let place = || format!("{case} on {hierarchy:?}, {signature:?}");
        match found {
            Err(error) => panic!("{}: {error}", place()),
            Ok(found) if !equal(&found, &instance.results) => {
                panic!("{}\nwhole {:?}\nfound {found:?}", place(), instance.results)
            }
            Ok(_) => {}
        }
    }
    signatures.len()
}
