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

/// The greatest relative distance of losses from those of float32.
fn distance(name: &str, found: &[f64]) -> f64 {
    let expected = Reference::load(name).losses;
    assert_eq!(found.len(), expected.len(), "{name}: steps");
    let pairs = found.iter().zip(&expected);
    pairs.map(|(found, expected)| (found - expected).abs() / expected).fold(0.0, f64::max)
}

/// Trains twice, and holds the losses against a limit.
fn check(name: &str, precision: &str, extra: &[&str], limit: f64) {
    let extra = [extra, &["--precision", precision]].concat();
    let first = train_reference(name, &extra);
    let far = distance(name, &losses(&first));
    assert!(far <= limit, "{name} {extra:?}: {far:.4} from float32, which is more than {limit:.4}");
    assert!(first == train_reference(name, &extra), "{name} {extra:?}: two runs differ");
}

#[test]
fn gpt_stays_near_the_losses_of_float32() {
    for precision in PRECISIONS {
        for extra in CONFIGURATIONS {
            check("gpt", precision, extra, 0.02);
        }
    }
}

/// No farther than twice what PyTorch's autocast is: see `autocast.py` beside the reference. Without microbatches, of which
/// each has statistics of its own.
#[test]
fn resnet_stays_as_near_as_twice_pytorchs_autocast() {
    let text =
        std::fs::read_to_string(reference("resnet").join("autocast.json")).expect("is there");
    let measured: Value = serde_json::from_str(&text).expect("JSON");
    for precision in PRECISIONS {
        let torch: Vec<f64> = serde_json::from_value(measured[precision].clone()).expect("losses");
        let limit = 2.0 * distance("resnet", &torch);
        for extra in CONFIGURATIONS.iter().filter(|extra| !extra.contains(&"--microbatches")) {
            check("resnet", precision, extra, limit);
        }
    }
}
