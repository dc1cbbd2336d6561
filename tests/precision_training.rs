//! Training in mixed precision: losses stay near those of float32 on every mesh, and are twice the same bits.

mod support;

use serde_json::Value;
use support::{Reference, losses, reference, train_reference};

/// The meshes and strategies that every reference must stay near its losses on.
const CONFIGURATIONS: [&[&str]; 5] = [
    &["--mesh", "1"],
    &["--mesh", "2"],
    &["--mesh", "2x2"],
    &["--mesh", "2", "--stages", "2", "--microbatches", "2"],
    &["--mesh", "2", "--strategy", "zero3"],
];

const PRECISIONS: [&str; 2] = ["bf16", "f16"];

/// The relative distance of each loss from that of float32.
fn distances(name: &str, found: &[f64]) -> Vec<f64> {
    let expected = Reference::load(name).losses;
    assert_eq!(found.len(), expected.len(), "{name}: steps");
    let pairs = found.iter().zip(&expected);
    pairs.map(|(found, expected)| (found - expected).abs() / expected).collect()
}

/// Trains twice, and holds the losses against the limit of each step.
fn check(name: &str, precision: &str, extra: &[&str], limits: &[f64]) {
    let extra = [extra, &["--precision", precision]].concat();
    let first = train_reference(name, &extra);
    let far = distances(name, &losses(&first));
    let near = far.iter().zip(limits).all(|(far, limit)| far <= limit);
    assert!(near, "{name} {extra:?}: {far:.4?} from float32, which is more than {limits:.4?}");
    assert!(first == train_reference(name, &extra), "{name} {extra:?}: two runs differ");
}

#[test]
fn gpt_stays_near_the_losses_of_float32() {
    let steps = Reference::load("gpt").steps();
    for precision in PRECISIONS {
        for extra in CONFIGURATIONS {
            check("gpt", precision, extra, &vec![0.02; steps]);
        }
    }
}

/// At each step no farther than one and a half times what PyTorch's autocast is at its farthest: rounding grows from step to
/// step, so PyTorch has run often, with pictures that differ by less than bf16 rounds them (`autocast.py` beside the
/// reference). Without microbatches, of which each has statistics of its own.
#[test]
fn resnet_stays_as_near_as_pytorchs_autocast() {
    let text =
        std::fs::read_to_string(reference("resnet").join("autocast.json")).expect("is there");
    let measured: Value = serde_json::from_str(&text).expect("JSON");
    for precision in PRECISIONS {
        let tries: Vec<Vec<f64>> =
            serde_json::from_value(measured[precision].clone()).expect("losses");
        let mut limits = vec![0.0_f64; Reference::load("resnet").steps()];
        for losses in &tries {
            let far = distances("resnet", losses);
            limits.iter_mut().zip(far).for_each(|(limit, far)| *limit = limit.max(1.5 * far));
        }
        for extra in CONFIGURATIONS.iter().filter(|extra| !extra.contains(&"--microbatches")) {
            check("resnet", precision, extra, &limits);
        }
    }
}
