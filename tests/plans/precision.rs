//! Mixed precision from the command line: plans say it, and an overflow under loss scaling skips one update on all ranks alike.

use std::path::PathBuf;

use crate::support;
use crate::support::{Reference, reference, succeeds};
use serde_json::Value;

/// A model whose gradients overflow in step 1.
struct Overflow {
    folder: tempfile::TempDir,
}

impl Overflow {
    const MODEL: &str = "graph @overflow {
  %x = input \"x\" : f32[4, 8]
  %w = variable \"w\" {init={\"fill\": 0.5}, trainable=true} : f32[8, 8]
  %v = variable \"v\" {init={\"fill\": 0.25}, trainable=true} : f32[8, 8]
  %3 = matmul %x, %w : f32[4, 8]
  %4 = unary %3 {function=\"relu\"} autocast f16 : f32[4, 8]
  %5 = matmul %4, %v : f32[4, 8]
  %6 = reduce %5 {function=\"mean\", axes=[0, 1]} : f32[]
  return \"loss\" = %6
}
";

    /// The rectifier is in a region of f16, so the loss is scaled; the products are outside, so their gradients are of f32.
    fn new() -> Self {
        Self::of(Self::MODEL, 1e35)
    }

    /// The products' gradients are of f16 (`--precision f16`): those of `v` are 2^15 where inputs are 1, at the first scale.
    fn of_products() -> Self {
        Self::of(&Self::MODEL.replace(" autocast f16", ""), 10.0)
    }

    /// Rows of one number each: of step 1 they are so large that the gradients are not finite.
    fn of(model: &str, large: f32) -> Self {
        let folder = tempfile::tempdir().expect("a scratch folder");
        std::fs::write(folder.path().join("model.gir"), model).expect("is writable");
        let row = |row: usize| if row / 4 == 1 { large } else { 1.0 };
        let numbers: Vec<u8> =
            (0..16usize).flat_map(|r| [row(r); 8]).flat_map(f32::to_le_bytes).collect();
        let header = format!(
            "{{\"x\":{{\"dtype\":\"F32\",\"shape\":[16,8],\"data_offsets\":[0,{}]}}}}",
            numbers.len()
        );
        let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &numbers].concat();
        std::fs::write(folder.path().join("data.safetensors"), file).expect("is writable");
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Trains with Adam, and gives the lines of metrics and the bytes of the weights.
    fn train(&self, extra: &[&str]) -> (Vec<Value>, Vec<u8>) {
        self.train_with(&[&["--optimizer", "adam"], extra].concat())
    }

    /// Trains with the optimizer that `extra` names, and gives the same as [`Self::train`].
    fn train_with(&self, extra: &[&str]) -> (Vec<Value>, Vec<u8>) {
        let text = |name: &str| self.path(name).display().to_string();
        let (model, data) = (text("model.gir"), text("data.safetensors"));
        let (metrics, weights) = (text("metrics.jsonl"), text("weights.safetensors"));
        let own = [
            "train",
            &model,
            "--data",
            &data,
            "--metrics",
            &metrics,
            "--weights",
            &weights,
            "--lr",
            "0.01",
        ];
        succeeds([&own[..], extra].concat());
        let lines = std::fs::read_to_string(&metrics).expect("metrics");
        let lines = support::json_lines(&lines);
        (lines, std::fs::read(&weights).expect("weights"))
    }
}

#[test]
fn an_overflow_skips_the_update_halves_the_scale_and_training_goes_on() {
    skips_one_update(&Overflow::new(), &[]);
}

#[test]
fn an_overflow_in_products_of_f16_skips_the_update() {
    skips_one_update(&Overflow::of_products(), &["--precision", "f16"]);
}

fn skips_one_update(overflow: &Overflow, precision: &[&str]) {
    for extra in [
        &["--mesh", "1"][..],
        &["--mesh", "2", "--strategy", "data"],
        &["--mesh", "2", "--strategy", "zero3"],
        &["--mesh", "2x2"],
        &["--mesh", "2", "--stages", "2", "--microbatches", "2"],
    ] {
        let extra = &[extra, precision].concat()[..];
        let (first, before) = overflow.train(&[extra, &["--steps", "1"]].concat());
        assert_eq!(
            (&first[0]["loss_scale"], &first[0]["skipped"]),
            (&65536.0.into(), &false.into())
        );
        let (_, after) = overflow.train(&[extra, &["--steps", "2"]].concat());
        assert!(before == after, "{extra:?}: the weights of all ranks stay as they were");
        let (lines, trained) = overflow.train(&[extra, &["--steps", "4"]].concat());
        let of = |key: &str| lines.iter().map(|line| line[key].clone()).collect::<Vec<_>>();
        assert_eq!(of("skipped"), [false, true, false, false].map(Value::from), "{extra:?}");
        let scales = [65536.0, 65536.0, 32768.0, 32768.0].map(Value::from);
        assert_eq!(of("loss_scale"), scales, "{extra:?}");
        assert!(trained != after, "{extra:?}: training goes on");
    }
}

/// The bias correction counts updates that were made: training goes on as if the step that overflowed had not been.
#[test]
fn a_skipped_step_does_not_count() {
    let overflow = Overflow::new();
    let (_, with) = overflow.train(&["--mesh", "1", "--steps", "3"]);
    // Without the step that overflows the same rows are steps 0 and 1.
    let text = std::fs::read(overflow.path("data.safetensors")).expect("data");
    let header = u64::from_le_bytes(text[..8].try_into().expect("8 bytes")) as usize + 8;
    let mut calm = text.clone();
    let ones = text[header..header + 128].to_vec();
    calm[header + 128..header + 256].copy_from_slice(&ones);
    std::fs::write(overflow.path("data.safetensors"), calm).expect("is writable");
    let (_, without) = overflow.train(&["--mesh", "1", "--steps", "2"]);
    assert!(with == without, "weights differ");
}

#[test]
fn the_scale_is_saved_and_restored() {
    let overflow = Overflow::new();
    let save = overflow.path("checkpoints").display().to_string();
    overflow.train(&["--mesh", "1", "--steps", "2", "--save", &save]);
    let (lines, _) = overflow.train(&["--mesh", "1", "--steps", "3", "--resume", &save]);
    let last = lines.last().expect("a line");
    assert_eq!((&last["step"], &last["loss_scale"]), (&2.into(), &32768.0.into()));
}

#[test]
fn plans_say_their_precision_and_hold() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let plan = folder.path().join("plan.json").display().to_string();
    let model = reference("gpt").join("model.onnx").display().to_string();
    let own = Reference::load("gpt").args;
    let steps = own.iter().position(|arg| arg == "--steps").expect("steps");
    let stages = ["--mesh", "2x2", "--stages", "2", "--microbatches", "2", "--precision", "bf16"];
    let mut compile: Vec<&str> = vec!["compile", &model, "-o", &plan];
    compile.extend(stages);
    compile.extend(
        own.iter().enumerate().filter(|(at, _)| at / 2 != steps / 2).map(|(_, arg)| arg.as_str()),
    );
    succeeds(compile);
    succeeds(["verify", &plan]);
    let text = succeeds(["inspect", &plan]);
    assert!(text.contains("precision: bf16"), "{text}");
}

/// The norm that is clipped is that of the gradient, not of the scaled one, and a step that overflows is skipped all the same.
#[test]
fn scaled_gradients_are_clipped_by_their_own_norm() {
    let overflow = Overflow::new();
    let clipped = ["--clip-norm", "0.5", "--steps", "4"];
    for extra in [
        &["--mesh", "1"][..],
        &["--mesh", "2", "--strategy", "zero3"],
        &["--mesh", "2", "--stages", "2", "--microbatches", "2"],
    ] {
        let (lines, _) = overflow.train(&[extra, &clipped].concat());
        let skipped: Vec<&Value> = lines.iter().map(|line| &line["skipped"]).collect();
        assert_eq!(skipped, [false, true, false, false], "{extra:?}");
        // Of step 0: 4 rows of ones; dv = 4 / 32 in each of its 64 elements times h = 4, and dw = 8 (1/4) / 32 times x = 1, of 4 rows.
        let (dv, dw) = (4.0 * 4.0 / 32.0, 4.0 * 8.0 * 0.25 / 32.0);
        let norm = (64.0f64 * (dv * dv + dw * dw)).sqrt();
        let found = lines[0]["grad_norm"].as_f64().expect("a norm");
        assert!((found - norm).abs() < 1e-3 * norm, "{extra:?}: {found} is not {norm}");
    }
}

/// LAMB leaves variables and states as they are where the update is not made.
#[test]
fn lamb_and_rmsprop_skip_what_overflows() {
    let overflow = Overflow::new();
    for optimizer in ["lamb", "rmsprop"] {
        for mesh in [&["--mesh", "1"][..], &["--mesh", "2", "--strategy", "zero2"]] {
            let of = |steps| {
                let extra = ["--optimizer", optimizer, "--steps", steps];
                overflow.train_with(&[mesh, &extra].concat())
            };
            let ((_, before), (_, after), (lines, later)) = (of("1"), of("2"), of("3"));
            assert!(before == after, "{optimizer} {mesh:?}: the weights stay as they were");
            assert!(after != later, "{optimizer} {mesh:?}: training goes on");
            assert_eq!(lines[1]["skipped"], true);
        }
    }
}
