//! Tests that the properties that an op declares agree with what it computes.

use graphc_ir::array::Array;
use graphc_ir::op::Movement;

use crate::cases::all;
use crate::shards::Instance;

#[test]
fn sources_have_no_operands_and_all_others_have_some() {
    for case in all() {
        assert_eq!(case.op.operation().is_source(), case.operands.is_empty(), "{case}");
        assert!(!(case.op.is_given() && case.op.is_generator()), "{case}");
        assert!(!case.op.is_generator() || case.can_be_evaluated(), "{case}");
    }
}

#[test]
fn what_moves_elements_has_those_of_its_operand_alone() {
    let mut moving = 0;
    for (key, case) in all().iter().enumerate() {
        let Some(movement) = case.op.operation().movement() else { continue };
        moving += 1;
        let instance = Instance::new(case, key as u64);
        let ([from], [to]) = (instance.arrays.as_slice(), instance.results.as_slice()) else {
            panic!("{case} has one operand and one result");
        };
        assert!(to.data.iter().all(|element| from.data.contains(element)), "{case}");
        // Where a dim has no elements nothing is repeated.
        let grows = to.data.len() >= from.data.len() || to.data.is_empty();
        match movement {
            Movement::Rearranged => assert_eq!(sorted(from), sorted(to), "{case}"),
            Movement::Part => assert!(to.data.len() <= from.data.len(), "{case}"),
            Movement::Repeated => assert!(grows, "{case}"),
        }
    }
    assert!(moving >= 4, "only {moving} cases move elements");
}

#[test]
fn what_takes_little_of_each_element_is_elementwise() {
    for case in all() {
        let operation = case.op.operation();
        assert!(!operation.is_light() || operation.is_elementwise(), "{case}");
        assert!(!operation.is_light() || operation.flops_per_point() <= 1.0, "{case}");
    }
}

fn sorted(array: &Array) -> Vec<f64> {
    let mut elements = array.data.clone();
    elements.sort_by(f64::total_cmp);
    elements
}
