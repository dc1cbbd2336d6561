//! Models whose exports say or leave out what a training depends on: losses are those of PyTorch.

use std::path::Path;

use crate::support;
use crate::support::{fails, graphc, losses, succeeds};
use graphc::runtime::data::load_safetensors;

fn export(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exports").join(name).display().to_string()
}

/// The losses of a training on a model's data.
fn train(name: &str, options: &[&str]) -> Vec<f64> {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let metrics = folder.path().join("metrics").display().to_string();
    let (model, data) = (export(&format!("{name}.onnx")), export(&format!("{name}.safetensors")));
    let own = ["train", &model, "--data", &data, "--metrics", &metrics];
    succeeds([&own[..], options].concat());
    losses(&std::fs::read(metrics).expect("metrics"))
}

fn are_those_of_pytorch(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() < 2e-5, "step {step}: {found}, PyTorch {expected}");
    }
}

#[test]
fn nothing_is_learned_through_what_is_detached() {
    let options = ["--batch", "4", "--loss", "sum", "--optimizer", "sgd", "--lr", "0.05"];
    let found = train("detached", &[&options[..], &["--steps", "5"]].concat());
    are_those_of_pytorch(&found, &[0.00117, -0.35546, -0.67853, -0.96121, -1.20586]);
}

#[test]
fn the_row_of_a_table_that_is_padding_learns_nothing() {
    let options = ["--batch", "4", "--loss", "cross_entropy", "--optimizer", "sgd", "--lr", "0.5"];
    for mesh in ["1", "2x2"] {
        let found =
            train("padded_table", &[&options[..], &["--steps", "6", "--mesh", mesh]].concat());
        are_those_of_pytorch(&found, &[1.69488, 1.63099, 1.45493, 1.50419, 1.39246, 1.43242]);
    }
}

#[test]
fn gradients_end_where_they_are_told_to_and_batch_norms_keep_what_they_know() {
    let options = ["--batch", "8", "--loss", "cross_entropy", "--optimizer", "sgd", "--lr", "0.5"];
    let stop = ["--stop-gradient", "/Relu_out*"];
    let (both, of_pytorch) = ([&stop[..], &["--keep-eval"]].concat(), "two_batch_norms_plain");
    for (more, expected) in [
        (&["--keep-eval"][..], [1.54655, 1.85008, 1.44226, 1.69441]),
        (&stop, [1.48427, 2.16113, 1.67891, 1.84988]),
        (&both, [1.54655, 1.83607, 1.43824, 1.69862]),
    ] {
        for mesh in [&["--steps", "4"][..], &["--steps", "4", "--mesh", "2", "--microbatches", "2"]]
        {
            // Batch norms take the statistics of a microbatch.
            if mesh.len() > 2 && !more.contains(&"--keep-eval") {
                continue;
            }
            let found = train(of_pytorch, &[&options[..], more, mesh].concat());
            are_those_of_pytorch(&found, &expected);
        }
    }
    let model = export("two_batch_norms_plain.onnx");
    let own = ["compile", &model, "--batch", "8", "--stop-gradient", "/Relu_output_1"];
    let said = fails(own);
    let expected = "--stop-gradient '/Relu_output_1' matches no floating-point tensor of the model (did you mean `/Relu_output_0`?)";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn dropout_drops_nothing_where_a_model_is_kept_as_it_is_evaluated() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let text = "graph @dropped {
  %x = input \"x\" : f32[4, 6]
  %a = variable \"a\" {init={\"fill\": 0.5}, trainable=true} : f32[6, 3]
  %d = dropout %x {probability=0.5, key=1, training=true}
  %y = matmul %d, %a
  return \"y\" = %y
}
";
    std::fs::write(path("dropped.gir"), text).expect("writable");
    std::fs::write(path("whole.gir"), text.replace("0.5, key", "0.0, key")).expect("writable");
    let (data, metrics) = (export("quantized.safetensors"), path("metrics"));
    let losses_of = |model: &str, more: &[&str]| {
        let own = ["train", model, "--data", &data, "--metrics", &metrics, "--steps", "2"];
        let options = ["--loss", "sum", "--optimizer", "sgd", "--lr", "0.1"];
        succeeds([&own[..], &options, more].concat());
        losses(&std::fs::read(&metrics).expect("metrics"))
    };
    let whole = losses_of(&path("whole.gir"), &[]);
    assert_ne!(losses_of(&path("dropped.gir"), &[]), whole);
    assert_eq!(losses_of(&path("dropped.gir"), &["--keep-eval"]), whole);
    let plan = path("plan.json");
    let dropped = path("dropped.gir");
    let own = ["compile", &dropped, "--loss", "sum", "--optimizer", "sgd", "--lr", "0.1"];
    succeeds([&own[..], &["--keep-eval", "-o", &plan]].concat());
    for option in [&["--keep-eval"][..], &["--stop-gradient", "d"]] {
        let own = ["train", &plan, "--data", &data, "--steps", "1"];
        let said = fails([&own[..], option].concat());
        assert!(said.contains("contradicts") && said.contains(option[0]), "{said}");
    }
}

#[test]
fn nothing_is_learned_from_rows_that_are_masked() {
    let options = ["--batch", "4", "--loss", "mse", "--optimizer", "sgd", "--lr", "0.02"];
    let folder = tempfile::tempdir().expect("a scratch folder");
    let weights = folder.path().join("weights").display().to_string();
    let more = ["--steps", "5", "--weights", &weights];
    let found = train("masked_rows_plain", &[&options[..], &more].concat());
    are_those_of_pytorch(&found, &[1.27037, 1.25886, 1.24771, 1.23689, 1.22638]);
}

#[test]
fn a_loss_that_the_model_computes_is_trained_on() {
    let options = ["--batch", "4", "--optimizer", "sgd", "--lr", "0.5", "--steps", "5"];
    let expected = [2.63847, 2.41432, 2.25265, 2.13426, 2.04248];
    for more in [&["--loss", "output:y0"][..], &["--loss", "output:y0", "--mesh", "2x2"], &[]] {
        let found = train("loss_inside", &[&options[..], more].concat());
        are_those_of_pytorch(&found, &expected);
    }
    let model = export("loss_inside.onnx");
    let own = ["compile", &model, "--batch", "4", "--optimizer", "sgd"];
    let said = fails([&own[..], &["--loss", "output:y1"]].concat());
    assert!(said.contains("--loss output:y1 does not fit"), "{said}");
    assert!(said.contains("the model has no output `y1`: its outputs are y0"), "{said}");
}

#[test]
fn a_plan_that_trains_on_an_output_is_verified_and_knows_which() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let text = "graph @two {
  %x = input \"x\" : f32[rows, 4]
  %a = variable \"a\" {init={\"fill\": 0.5}, trainable=true} : f32[4, 3]
  %y = matmul %x, %a
  %e = binary %y, %y {function=\"mul\"}
  return \"scores\" = %y, \"errors\" = %e
}
";
    std::fs::write(path("two.gir"), text).expect("writable");
    let (model, plan) = (path("two.gir"), path("plan.json"));
    let options = ["--batch", "4", "--optimizer", "sgd", "--lr", "0.1", "--mesh", "2"];
    let own = ["compile", &model, "--loss", "output:errors", "-o", &plan];
    succeeds([&own[..], &options].concat());
    assert!(succeeds(["verify", &plan, &model]).contains("computes what"));
    let data = export("quantized.safetensors");
    let given = ["train", &plan, "--data", &data, "--steps", "1", "--loss"];
    let said = fails([&given[..], &["output:scores"]].concat());
    assert!(said.contains("--loss output:scores contradicts"), "{said}");
    assert!(said.contains("which was compiled with output:errors"), "{said}");
    let nameless = graphc([&given[..], &["output:"]].concat());
    let said = String::from_utf8_lossy(&nameless.stderr).into_owned();
    assert_eq!(nameless.status.code(), Some(2), "{said}");
    assert!(said.contains("output:NAME, with the name of an output"), "{said}");
}

/// Positions that all samples look up alike (BART), and ids that are looked up with time before samples (XLNet).
#[test]
fn look_ups_are_cut_into_microbatches_along_the_batch() {
    let options = ["--batch", "4", "--loss", "cross_entropy", "--optimizer", "sgd", "--lr", "0.02"];
    for name in ["positions_expanded", "time_first_look_up"] {
        let of = |more: &[&str]| train(name, &[&options[..], &["--steps", "5"], more].concat());
        let whole = of(&[]);
        for cut in [
            &["--microbatches", "2"][..],
            &["--microbatches", "4", "--mesh", "2"],
            &["--microbatches", "2", "--mesh", "2", "--stages", "2"],
        ] {
            are_those_of_pytorch(&of(cut), &whole);
        }
    }
}

/// Windows that overlap with time before samples and a row of each sample (Longformer), and rows that all frames have alike (TimeSformer).
#[test]
fn rows_of_merged_dims_are_cut_into_microbatches_along_the_batch() {
    let options = ["--loss", "cross_entropy", "--optimizer", "sgd", "--lr", "0.1", "--steps", "5"];
    for (name, expected) in [
        ("windows_plain", [1.92442, 1.82107, 1.72519, 1.63576, 1.55201]),
        ("frames_plain", [1.56649, 1.50216, 1.44758, 1.40143, 1.36253]),
    ] {
        for cut in [
            &[][..],
            &["--microbatches", "2"],
            &["--microbatches", "2", "--mesh", "2"],
            &["--microbatches", "2", "--mesh", "2", "--stages", "2"],
        ] {
            are_those_of_pytorch(&train(name, &[&options[..], cut].concat()), &expected);
        }
    }
}

#[test]
fn forms_that_are_composed_learn_as_those_of_pytorch() {
    let sum = ["--batch", "4", "--loss", "sum", "--optimizer", "sgd", "--steps"];
    for (name, steps, lr, expected) in [
        ("quantized", "4", "0.05", &[1.14151, -7.05301, -17.45117, -36.27553][..]),
        ("volumes", "3", "0.002", &[-2.76167, -3.67127, -4.76626]),
        ("sampled", "3", "0.0001", &[-0.51828, -7.71223, -14.90617]),
        ("scanned", "3", "0.02", &[3.57916, -6.06642, -21.24435]),
    ] {
        let found = train(name, &[&sum[..], &[steps, "--lr", lr]].concat());
        are_those_of_pytorch(&found, expected);
    }
}

#[test]
fn weights_that_a_loop_reads_are_trained() {
    let options = ["--batch", "4", "--loss", "bce", "--optimizer", "sgd", "--lr", "0.02"];
    let found = train("looped_plain", &[&options[..], &["--steps", "5"]].concat());
    are_those_of_pytorch(&found, &[0.55868, 0.55691, 0.55531, 0.55386, 0.55255]);
}

#[test]
fn what_is_computed_of_data_in_double_is_refused() {
    let (model, data) = (export("double.onnx"), export("double.safetensors"));
    let outputs = tempfile::NamedTempFile::new().expect("a scratch file");
    let outputs = outputs.path().display().to_string();
    let said = fails(["run", &model, "--inputs", &data, "--outputs", &outputs]);
    assert!(
        said.contains("node `node_add` of type Add: it computes in DOUBLE")
            && said.contains("model.float()"),
        "{said}"
    );
}

/// The exporter has turned the table of tokens for the head: both are one weight, as they are in PyTorch, and so in the file that is exported
/// with what was trained.
#[test]
fn a_turned_copy_of_a_weight_is_that_weight() {
    let options = ["--batch", "4", "--loss", "cross_entropy", "--optimizer", "sgd", "--lr", "0.5"];
    let expected = [3.12386, 2.42557, 2.20807, 2.09769, 2.02564];
    for mesh in ["1", "2"] {
        let own = ["--steps", "5", "--mesh", mesh];
        are_those_of_pytorch(&train("tied_plain", &[&options[..], &own].concat()), &expected);
    }
    // Frozen by its own name it is a weight of its own.
    let own = ["--steps", "2", "--freeze", "onnx::MatMul_12"];
    are_those_of_pytorch(&train("tied_plain", &[&options[..], &own].concat()), &[3.12386, 2.44005]);
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (saved, trained) = (path("saved"), path("trained.onnx"));
    train("tied_plain", &[&options[..], &["--steps", "3", "--save", &saved]].concat());
    let model = export("tied_plain.onnx");
    succeeds(["export", &saved, "--model", &model, "-o", &trained]);
    let data = export("tied_plain.safetensors");
    let metrics = path("metrics");
    let own = ["train", &trained, "--data", &data, "--metrics", &metrics, "--steps", "2"];
    succeeds([&own[..], &options].concat());
    let found = losses(&std::fs::read(metrics).expect("metrics"));
    are_those_of_pytorch(&found, &expected[3..]);
}

/// Weights that the exporter's optimizer has turned, moved, repeated or raised learn as in PyTorch, have PyTorch's names where they are whole, and go
/// back into the model's file.
#[test]
fn what_the_exporter_has_folded_learns_as_it_would_have() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let data = export("folded.safetensors");
    for (name, moved) in
        [("folded", ["embedding_1", "expand_1"]), ("folded_dynamic", ["positions.weight", "first"])]
    {
        let model = export(&format!("{name}.onnx"));
        let (metrics, weights, trained) = (path("metrics"), path("weights"), path("trained.onnx"));
        for mesh in [&["--mesh", "1"][..], &["--mesh", "2", "--stages", "2", "--microbatches", "2"]]
        {
            let own =
                ["train", &model, "--data", &data, "--metrics", &metrics, "--weights", &weights];
            let options = "--batch 4 --loss cross_entropy --optimizer sgd --lr 0.5 --steps 6";
            let all: Vec<&str> =
                own.into_iter().chain(options.split(' ')).chain(mesh.iter().copied()).collect();
            succeeds(all);
            let found = losses(&std::fs::read(&metrics).expect("metrics"));
            are_those_of_pytorch(&found, &[2.77100, 2.74875, 2.42719, 2.48369, 2.40234, 2.49952]);
        }
        let written = load_safetensors(weights.as_ref()).expect("weights");
        for own in
            ["head.weight", "inner.weight", "scale", "permute", "select_1"].iter().chain(&moved)
        {
            assert!(written.contains_key(*own), "{own} of {name}: {:?}", written.keys());
        }
        assert_eq!(written["inner.weight"].shape(), [6, 6]);
        let scale = written["scale"].to_f64()[0];
        assert!((scale + 0.27394).abs() < 1e-5, "{scale}");
        // The model with these weights computes what the weights do.
        succeeds(["export", &weights, "--model", &model, "-o", &trained]);
        let run = |model: &str, more: &[&str]| {
            let outputs = path("outputs");
            let own = ["run", model, "--inputs", &data, "--outputs", &outputs, "--batch", "4"];
            let output = graphc([&own[..], more].concat());
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.success() && said.is_empty(),
                "what matters to a training: {said}"
            );
            load_safetensors(outputs.as_ref()).expect("outputs")["y"].to_f64()
        };
        let (of_model, of_weights) =
            (run(&trained, &[]), run(&model, &["--weights-from", &weights]));
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-6 * b.abs().max(1.0);
        assert!(of_model.iter().zip(&of_weights).all(near), "{of_model:?} is not {of_weights:?}");
        assert!(of_model != run(&model, &[]), "the weights have changed");
    }
    let said = said_of("folded.onnx", &["--loss", "cross_entropy"]);
    let left = "3 parameters are not in the file, as another name has the same weight, nothing uses them, or the optimizer left them out: \
                `lost.bias`, `lost.weight`, `tokens.weight`";
    assert!(said.contains(left), "{said}");
}

/// Weights that the exporter has written once because they began alike, or left out because they began as zeros, learn apart as in PyTorch, whereas one that
/// is shared stays one. Joined biases, sums and positions learn in their place. All go back into the model's file.
#[test]
fn what_the_exporter_has_merged_learns_apart() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (model, data) = (export("merged.onnx"), export("merged.safetensors"));
    let (metrics, weights, trained) = (path("metrics"), path("weights"), path("trained.onnx"));
    let expected = [2.52589, 2.48282, 3.86923, 2.69760, 2.14078, 1.30030];
    let options = "--batch 4 --loss cross_entropy --optimizer sgd --lr 0.5";
    for mesh in [
        &["--mesh", "1"][..],
        &["--mesh", "2x2"],
        &["--mesh", "2", "--stages", "2", "--microbatches", "2"],
    ] {
        let own = ["train", &model, "--data", &data, "--metrics", &metrics, "--weights", &weights];
        let all = own.into_iter().chain(options.split(' ')).chain(["--steps", "6"]);
        succeeds(all.chain(mesh.iter().copied()).collect::<Vec<_>>());
        let found = losses(&std::fs::read(&metrics).expect("metrics"));
        are_those_of_pytorch(&found, &expected);
    }
    let written = load_safetensors(weights.as_ref()).expect("weights");
    let names = ["layers.2.inner.weight", "layers.1.norm.weight", "first.bias", "cat_2", "add_14"];
    for own in names {
        assert!(written.contains_key(own), "{own}: {:?}", written.keys());
    }
    // Keys have no bias.
    assert_eq!(written["cat_1"].to_f64()[6..12], [0.0; 6]);
    // The model with what three steps have taught goes on where they ended.
    let saved = path("saved");
    let first = ["train", &model, "--data", &data, "--steps", "3", "--save", &saved];
    succeeds(first.into_iter().chain(options.split(' ')).collect::<Vec<_>>());
    succeeds(["export", &saved, "--model", &model, "-o", &trained]);
    let rest = ["train", &trained, "--data", &data, "--steps", "3", "--metrics", &metrics];
    succeeds(rest.into_iter().chain(options.split(' ')).collect::<Vec<_>>());
    are_those_of_pytorch(&losses(&std::fs::read(&metrics).expect("metrics")), &expected[3..]);
    // A parameter is frozen by its own name wherever the exporter has put it.
    let frozen = ["--freeze", "positions.weight", "--steps", "1", "--weights", &weights];
    let own = ["train", &model, "--data", &data].into_iter().chain(frozen);
    succeeds(own.chain(options.split(' ')).collect::<Vec<_>>());
    let kept = load_safetensors(weights.as_ref()).expect("weights");
    let before = path("before");
    let first =
        ["train", &model, "--data", &data, "--lr", "0", "--steps", "1", "--weights", &before];
    let others = "--batch 4 --loss cross_entropy --optimizer sgd";
    succeeds(first.into_iter().chain(others.split(' ')).collect::<Vec<_>>());
    let before = load_safetensors(before.as_ref()).expect("weights");
    assert_eq!(kept["embedding_1"].to_f64(), before["embedding_1"].to_f64());
    assert!(kept["head.weight"].to_f64() != before["head.weight"].to_f64());
}

/// Returns the standard error of the command that compiles a model for training.
fn said_of(name: &str, extra: &[&str]) -> String {
    let plan = tempfile::NamedTempFile::new().expect("a scratch file");
    let plan = plan.path().display().to_string();
    let model = export(name);
    let own = ["compile", &model, "--batch", "4", "--optimizer", "sgd", "--lr", "0.1", "-o", &plan];
    let output = graphc([&own[..], extra].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    said
}

#[test]
fn what_a_file_without_marks_leaves_open_is_named() {
    let said = said_of("tied_plain.onnx", &["--loss", "cross_entropy"]);
    assert!(said.contains("has made them of: `onnx::MatMul_12` (`e.weight`)"), "{said}");
    let said = said_of("basis_plain.onnx", &["--loss", "mse"]);
    assert!(said.contains("1 is called neither weight nor bias, as buffers are: `b`"), "{said}");
}

#[test]
fn weights_that_the_loss_does_not_depend_on_are_named() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let text = "graph @heads {
  %x = input \"x\" : f32[rows, 4]
  %a = variable \"a\" {init={\"fill\": 0.5}, trainable=true} : f32[4, 3]
  %b = variable \"b\" {init={\"fill\": 0.5}, trainable=true} : f32[4, 2]
  %y = matmul %x, %a
  %z = matmul %x, %b
  return \"y\" = %y, \"z\" = %z
}
";
    std::fs::write(path("heads.gir"), text).expect("writable");
    let (model, plan) = (path("heads.gir"), path("plan.json"));
    let options = ["--batch", "4", "--loss", "sum", "--optimizer", "sgd", "--lr", "0.1"];
    let own = ["compile", &model, "-o", &plan];
    let output = graphc([&own[..], &options].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("the loss does not depend on `b`: not trained"), "{said}");
}

/// Returns what `graphc inspect` says of the attention of a plan that trains an exported model.
fn attention_of(model: &str) -> (String, serde_json::Value) {
    let plan = tempfile::NamedTempFile::new().expect("a scratch file");
    let plan = plan.path().display().to_string();
    let own = ["compile", model, "--batch", "4", "--optimizer", "sgd", "--lr", "0.1", "-o", &plan];
    succeeds([&own[..], &["--loss", "mse"]].concat());
    let text = succeeds(["inspect", &plan]);
    let json = serde_json::from_str::<serde_json::Value>(&succeeds([
        "inspect", &plan, "--format", "json",
    ]));
    (text, json.expect("JSON")["attention"].clone())
}

#[test]
fn inspect_counts_functions_that_a_model_writes_in_parts() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let text = "graph @gated {
  %x = input \"x\" : f32[4, 3]
  %w = variable \"w\" {init={\"fill\": 0.5}, trainable=true} : f32[3, 3]
  %h = matmul %x, %w
  %gate = unary %h {function=\"sigmoid\"}
  %y = binary %h, %gate {function=\"mul\"}
  return \"y\" = %y
}
";
    let (model, plan) = (path("gated.gir"), path("plan.json"));
    std::fs::write(&model, text).expect("writable");
    let inspected = |more: &[&str]| {
        succeeds([&["compile", &model, "-o", &plan][..], more].concat());
        let json = succeeds(["inspect", &plan, "--format", "json"]);
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        (succeeds(["inspect", &plan]), json["functions"].clone())
    };
    let (text, json) = inspected(&[]);
    assert!(text.contains("functions in parts: 1 silu as one op each, 0 in parts"), "{text}");
    assert_eq!(json["one_op"], serde_json::json!({ "silu": 1 }));
    let (text, json) = inspected(&["--pin", "gate=B"]);
    assert!(text.contains("silu in parts: `y`: a layout is asked for inside"), "{text}");
    assert_eq!(json["in_parts"][0]["function"], "silu");
}

#[test]
fn inspect_says_which_attention_is_one_op_and_why_another_is_none() {
    let (text, json) = attention_of(&export("masked_rows_plain.onnx"));
    assert!(text.contains("attention: 1 as one op, 0 in parts\n"), "{text}");
    assert_eq!(json["one_op"], 1);
    let folder = tempfile::tempdir().expect("a scratch folder");
    let model = folder.path().join("weights.gir").display().to_string();
    let text = "graph @weights {
  %x = input \"x\" : f32[rows, 3, 8]
  %w = variable \"w\" {init={\"fill\": 0.5}, trainable=true} : f32[8, 8]
  %q = matmul %x, %w
  %s = matmul %q, %x {transpose_b=true}
  %p = softmax %s {axis=1}
  %y = matmul %p, %x
  return \"y\" = %y
}
";
    std::fs::write(&model, text).expect("writable");
    let (text, json) = attention_of(&model);
    let reason = "softmax over another dim";
    assert!(text.contains("attention: 0 as one op, 1 in parts\n  in parts: `"), "{text}");
    assert!(text.contains(reason), "{text}");
    assert_eq!((&json["one_op"], &json["in_parts"][0]["reason"]), (&0.into(), &reason.into()));
    let gpt = support::reference("gpt").join("model.onnx").display().to_string();
    let plan = tempfile::NamedTempFile::new().expect("a scratch file");
    let plan = plan.path().display().to_string();
    let own = ["compile", &gpt, "--batch", "8", "--loss", "cross_entropy", "--optimizer", "adamw"];
    succeeds([&own[..], &["--lr", "0.01", "-o", &plan]].concat());
    let text = succeeds(["inspect", &plan]);
    assert!(text.contains(" as one op, 0 in parts\n") && !text.contains(": 0 as one"), "{text}");
}
