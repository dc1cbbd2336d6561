//! Models of 16-bit numbers run on the CPU: weights, inputs and outputs through files and sessions, on any mesh, with the
//! same bits on threads and in every run.

mod support;

use std::path::Path;

use graphc::ir::text::print;
use graphc::prelude::*;
use graphc::runtime::data::{load_safetensors, save_safetensors};
use support::succeeds;

const ROWS: usize = 8;
const WIDTH: usize = 40;

/// softmax(gelu(x w) + b), its mean over rows, and where it is greatest.
fn model(dtype: DType) -> String {
    let g = GraphBuilder::new("rows");
    let x = g.input("x", dtype, [ROWS, WIDTH]);
    let normal = Init::Normal { mean: 0.0.into(), std: 1.0.into() };
    let w = g.variable("w", dtype, [WIDTH], normal.clone());
    let b = g.variable("b", dtype, [WIDTH], normal);
    let y = ((x * w).gelu() + b).softmax(1);
    g.output("mean", &y.mean(&[0], false));
    g.output("y", &y);
    print(&g.finish().expect("a graph"))
}

fn input(dtype: DType) -> HostTensor {
    let data: Vec<f64> = (0..ROWS * WIDTH).map(|i| f64::from(i as u32 % 37) * 0.1 - 1.8).collect();
    HostTensor::from_f64(dtype, [ROWS, WIDTH], &data).expect("as many as the shape has")
}

/// The outputs of `graphc run` on a mesh.
fn run(folder: &Path, dtype: DType, mesh: &str) -> BTreeMap<String, HostTensor> {
    let path = |name: &str| folder.join(name).display().to_string();
    std::fs::write(path("model.gir"), model(dtype)).expect("a scratch file");
    let inputs = BTreeMap::from([("x".to_owned(), input(dtype))]);
    save_safetensors(Path::new(&path("in.safetensors")), &inputs).expect("the inputs are written");
    let (model, inputs, outputs) =
        (path("model.gir"), path("in.safetensors"), path("out.safetensors"));
    let options = ["run", &model, "--mesh", mesh, "--strategy", "data"];
    succeeds(options.into_iter().chain(["--inputs", &inputs, "--outputs", &outputs]));
    load_safetensors(Path::new(&path("out.safetensors"))).expect("the outputs are written")
}

#[test]
fn outputs_are_near_those_of_f32_and_of_the_models_type() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let exact = run(folder.path(), DType::F32, "1");
    for (dtype, tolerance) in [(DType::BF16, 0.1), (DType::F16, 0.0125)] {
        for mesh in ["1", "2", "4"] {
            let found = run(folder.path(), dtype, mesh);
            assert_eq!(found, run(folder.path(), dtype, mesh), "two runs, one result");
            for (name, found) in &found {
                assert_eq!(found.dtype(), dtype, "{name}");
                for (a, b) in found.to_f64().iter().zip(exact[name].to_f64()) {
                    assert!((a - b).abs() <= tolerance * b.abs() + 1e-4, "{dtype} {name} {mesh}");
                }
            }
        }
    }
}
