//! Updates of several variables as one.
#![allow(dead_code, reason = "each test binary uses a part")]

use graphc_ir::op::{InPlace, Region};
use graphc_ir::types::TensorType;

use crate::common::{Case, Memory};

/// An update of a variable of another extent, with the same numbers again and again, and scalars of its own.
pub fn resized(case: &Case, own: usize, elements: usize) -> Case {
    let region = |dtype| Region::whole(&TensorType::new(dtype, [elements]));
    let scalars = !case.operands[0].0.rect.extent.is_empty();
    let resized = |(index, (of, memory)): (usize, &(Region, Memory))| match index < own {
        true if scalars && of.rect.extent.is_empty() => {
            let values: Vec<f64> = memory.values().iter().map(|x| x * elements as f64).collect();
            (of.clone(), Memory::of(of.dtype, &values))
        }
        true => {
            let values: Vec<f64> = memory.values().into_iter().cycle().take(elements).collect();
            (region(of.dtype), Memory::of(of.dtype, &values))
        }
        false => (of.clone(), memory.clone()),
    };
    let operands = case.operands.iter().enumerate().map(resized).collect();
    // A sum is one number.
    let result = |of: &Region| match of.rect.extent.is_empty() {
        true => of.clone(),
        false => region(of.dtype),
    };
    let results = case.results.iter().map(result).collect();
    Case { op: case.op.clone(), operands, results }
}

/// Joins several updates as one: the operands and results of all, and which results lie where operands did.
pub fn joint(members: &[Case]) -> (Case, Vec<InPlace>) {
    let (mut all, mut pairs) =
        (Case { operands: vec![], results: vec![], ..members[0].clone() }, vec![]);
    for Case { op, operands, results } in members {
        let at = (all.results.len(), all.operands.len());
        let own = op.operation().updates();
        pairs.extend(own.iter().map(|pair| InPlace::new(at.0 + pair.0, at.1 + pair.1)));
        all.operands.extend(operands.iter().cloned());
        all.results.extend(results.iter().cloned());
    }
    (all, pairs)
}
