//! Gradients against central finite differences of the oracle, in `f64`.

use std::collections::BTreeMap;

use graphc_ir::array::Array;
use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::evaluate::evaluate_outputs;
use graphc_ir::gradients::{GradientNode, write_gradients};

use crate::cases::{Case, all, is_differentiable};
use crate::shards::{CONTEXT, Instance, Random};

const STEP: f64 = 1e-5;
const TOLERANCE: f64 = 1e-6;

#[test]
fn gradients_agree_with_finite_differences() {
    let mut checked = 0;
    // Nothing is learned through numbers of 8 bits, which no input gives.
    let is_wide = |case: &&Case| case.operands.iter().all(|x| !x.ty.dtype.is_float8());
    let cases = all();
    let differentiable = cases.iter().filter(|case| is_differentiable(&case.op)).filter(is_wide);
    for (key, case) in differentiable.enumerate() {
        let instance = Instance::new(case, key as u64);
        let results = instance.results.len();
        // All results at once, and each alone: others then have no gradient.
        let masks = (0..results).map(|only| (0..results).map(|i| i == only).collect());
        for mask in masks.chain([vec![true; results]]) {
            checked += check(case, &instance, &mask);
        }
    }
    assert!(checked > 2_000, "only {checked} derivatives were checked");
}

/// The loss is the sum of the chosen results times fixed weights.
fn check(case: &Case, instance: &Instance<'_>, mask: &[bool]) -> usize {
    let mut random = Random::new(77);
    let weight =
        |(array, &chosen): (&Array, &bool)| {
            Array::from_fn(array.shape.clone(), |_| {
                if chosen { random.uniform(-1.0, 1.0) } else { 0.0 }
            })
        };
    let weights: Vec<Array> = instance.results.iter().zip(mask).map(weight).collect();
    let mut checked = 0;
    for (operand, gradient) in analytic(instance, &weights, mask).iter().enumerate() {
        if !instance.types[operand].dtype.is_float() {
            assert!(gradient.is_none(), "{case}: an integer has no gradient");
            continue;
        }
        for element in 0..instance.arrays[operand].data.len() {
            let numeric = difference(instance, &weights, operand, element);
            let found = gradient.as_ref().map_or(0.0, |array| array.data[element]);
            let tolerance = TOLERANCE * (1.0 + numeric.abs());
            let place = format!("{case}: operand {operand} element {element} of results {mask:?}");
            assert!((found - numeric).abs() < tolerance, "{place}: {found} is not {numeric}");
            checked += 1;
        }
    }
    checked
}

fn analytic(instance: &Instance<'_>, weights: &[Array], mask: &[bool]) -> Vec<Option<Array>> {
    let g = GraphBuilder::new("gradient");
    let mut feeds = BTreeMap::new();
    let mut input = |name: String, ty: &graphc_ir::types::TensorType, array: &Array| {
        let tensor = g.input(&name, ty.dtype, ty.shape.clone());
        feeds.insert(name, array.clone());
        tensor
    };
    let operands: Vec<Tensor> = (0..instance.arrays.len())
        .map(|i| input(format!("x{i}"), &instance.types[i], &instance.arrays[i]))
        .collect();
    let gradients: Vec<Option<Tensor>> = (0..weights.len())
        .map(|i| mask[i].then(|| input(format!("w{i}"), &instance.result_types[i], &weights[i])))
        .collect();
    let results = g.apply_all(instance.op.clone(), &operands.iter().collect::<Vec<_>>());
    let wanted = vec![true; operands.len()];
    let node = GradientNode {
        operands: &operands,
        results: &results,
        gradients: &gradients,
        wanted: &wanted,
    };
    let found = write_gradients(instance.op, &node);
    assert_eq!(found.len(), operands.len(), "{:?}: a gradient for each operand", instance.op);
    for (i, (gradient, operand)) in found.iter().zip(&operands).enumerate() {
        let Some(gradient) = gradient else { continue };
        assert_eq!(gradient.ty(), operand.ty(), "{:?}: gradient of operand {i}", instance.op);
        g.output(&format!("g{i}"), gradient);
    }
    let graph = g.finish().unwrap_or_else(|errors| panic!("{:?}: {errors}", instance.op));
    let mut values = evaluate_outputs(&graph, &feeds, &CONTEXT).expect("the gradient evaluates");
    (0..operands.len()).map(|i| values.remove(&format!("g{i}"))).collect()
}

fn difference(instance: &Instance<'_>, weights: &[Array], operand: usize, element: usize) -> f64 {
    let loss = |step: f64| {
        let mut arrays = instance.arrays.clone();
        arrays[operand].data[element] += step;
        let results = instance.evaluate(&arrays);
        let products = results.iter().zip(weights).flat_map(|(result, weight)| {
            result.data.iter().zip(&weight.data).filter(|(_, w)| **w != 0.0).map(|(r, w)| r * w)
        });
        products.sum::<f64>()
    };
    (loss(STEP) - loss(-STEP)) / (2.0 * STEP)
}
