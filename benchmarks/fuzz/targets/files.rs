//! Files of tensors, checkpoints, records and cluster files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use graphc::compiler::cluster::{parse_cluster, parse_fitted};
use graphc::compiler::import::{ImportOptions, load_model};
use graphc::data::{Dataset, TensorSet, cifar10, mnist};
use graphc::prelude::*;
use graphc::runtime::data::{TensorFile, load_safetensors, save_safetensors};

use super::{Outcome, at, words};

/// The model whose weights are read.
const MODEL: &str = r#"graph @model {
  %x = input "x" : f32[4, 6]
  %w = variable "w" {init={"uniform": {"low": -0.1, "high": 0.1}}, trainable=true} : f32[6, 5]
  %2 = matmul %x, %w : f32[4, 5]
  return "y" = %2
}
"#;

fn small_graph() -> Graph {
    let g = GraphBuilder::new("small");
    let x = g.input("x", DType::F32, [4, 6]);
    let y = nn::Module::forward(&nn::Linear::new(&g, "layer", 6, 5), &x);
    g.output("loss", &(&y * &y).mean(&[0, 1], false));
    g.finish().expect("a graph")
}

fn small_options(mesh: usize) -> CompileOptions {
    let sgd = Optimizer::Sgd { lr: 0.1, momentum: 0.9, nesterov: false, weight_decay: 0.0 };
    CompileOptions { mesh: vec![mesh], optimizer: Some(sgd), ..CompileOptions::default() }
}

/// A checkpoint of a small training, which is written once and of which the manifest is edited.
struct Saved {
    folder: tempfile::TempDir,
    checkpoint: PathBuf,
    plan: VerifiedPlan,
}

fn saved() -> &'static Saved {
    static SAVED: OnceLock<Saved> = OnceLock::new();
    SAVED.get_or_init(|| {
        let cluster = preset("cpu").expect("a preset");
        let plan = compile(small_graph(), &small_options(2), &cluster, None).expect("a plan").plan;
        let folder = tempfile::tempdir().expect("a scratch folder");
        let mut session =
            Session::new(&plan, &BTreeMap::new(), SessionOptions::default()).expect("a session");
        let mut checkpoints = Checkpoints::create(folder.path(), 1).expect("a folder");
        let checkpoint = session.save_checkpoint(&mut checkpoints).expect("it is saved");
        Saved { folder, checkpoint, plan }
    })
}

/// The manifest of a checkpoint.
pub fn checkpoint_corpus() -> Vec<Vec<u8>> {
    vec![std::fs::read(saved().checkpoint.join("manifest.json")).expect("a manifest")]
}

/// Opens a checkpoint of this manifest beside the true files, reads all of it, and loads it.
pub fn feed_checkpoint(input: &[u8], folder: &Path) -> Outcome {
    let Saved { folder: _kept, checkpoint: from, plan } = saved();
    for file in std::fs::read_dir(from).expect("a checkpoint").flatten() {
        let to = folder.join(file.file_name());
        if !to.exists() {
            std::fs::copy(file.path(), to).expect("the folder is writable");
        }
    }
    std::fs::write(folder.join("manifest.json"), input).expect("the folder is writable");
    let checkpoint = Checkpoint::open(folder).map_err(words)?;
    let names: Vec<&str> = checkpoint.variables().keys().map(String::as_str).collect();
    let read = checkpoint.read(&names).map(drop).map_err(words);
    let options = SessionOptions {
        first_step: checkpoint.step(),
        seed: checkpoint.seed(),
        ..SessionOptions::default()
    };
    let mut session = Session::new(plan, &BTreeMap::new(), options).map_err(words)?;
    read.and(session.load_checkpoint(&checkpoint).map_err(words))
}

/// Cluster files that tests use, and the file of fitted constants.
pub fn cluster_corpus() -> Vec<Vec<u8>> {
    let answers = at("tests/known_answers");
    let names = ["slow_matmul.toml", "slow_matmul_2d.toml", "slow_matmul_2d_alpha_2.toml"];
    let files = names.map(|name| answers.join(name)).into_iter();
    let files = files.chain([at("compiler/src/cluster/fitted.toml")]);
    let files = files.map(|path| std::fs::read(path).expect("a file of tests"));
    files.chain([CLUSTER.as_bytes().to_vec()]).collect()
}

const CLUSTER: &str = r#"name = "two levels"

[device]
kind = "cuda"
memory = "80GiB"
flops = { f32 = 19.5e12, bf16 = 312e12 }
bandwidth = 2.0e12
matmul_efficiency = [[1024.0, 0.3], [4096.0, 0.6]]
launch = 4e-6

[[level]]
size = 8
latency = 5e-6
bandwidth = 300e9

[[level]]
latency = 1e-5
bandwidth = 25e9
"#;

/// Reads a cluster, and compiles a graph for it.
pub fn feed_cluster(input: &[u8]) -> Outcome {
    let text = std::str::from_utf8(input).map_err(words)?;
    let fitted = parse_fitted(text).map(drop).map_err(words);
    let cluster = match parse_cluster(text) {
        Ok(cluster) => cluster,
        Err(error) => return fitted.or(Err(words(error))),
    };
    let plan = compile(small_graph(), &small_options(4), &cluster, None).map_err(words)?.plan;
    graphc::compiler::null_device::simulate(&plan).expect("a plan that was made runs");
    Ok(())
}

/// A file of tensors of all types that graphc has.
pub fn safetensors_corpus() -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("tensors.safetensors");
    let tensor = |dtype, shape: &[usize]| {
        let count: usize = shape.iter().product();
        let numbers: Vec<f64> = (0..count).map(|i| (i % 2) as f64).collect();
        HostTensor::from_f64(dtype, shape.to_vec(), &numbers).expect("as many as the shape has")
    };
    let tensors = BTreeMap::from([
        ("w".to_string(), tensor(DType::F32, &[6, 5])),
        ("b".to_string(), tensor(DType::BF16, &[5])),
        ("x".to_string(), tensor(DType::F16, &[4, 3])),
        ("labels".to_string(), tensor(DType::I64, &[4])),
        ("images".to_string(), tensor(DType::U8, &[4, 1, 2, 2])),
        ("mask".to_string(), tensor(DType::Bool, &[4, 2])),
        ("nothing".to_string(), tensor(DType::I32, &[0, 7])),
    ]);
    save_safetensors(&path, &tensors).expect("a file");
    vec![std::fs::read(&path).expect("it was written")]
}

/// Reads a file as tensors, row by row, as a data set, and as the weights of a model.
pub fn feed_safetensors(input: &[u8], folder: &Path) -> Outcome {
    let path = folder.join("model.safetensors");
    std::fs::write(&path, input).expect("the folder is writable");
    std::fs::write(folder.join("model.gir"), MODEL).expect("the folder is writable");
    let whole = load_safetensors(&path).map(drop).map_err(words);
    let dims = BTreeMap::new();
    let model = load_model(&folder.join("model.gir"), &dims, ImportOptions::default());
    let weights: Outcome = model.map_err(words).and_then(|model| {
        let mut names = model.weights.tensors.keys();
        names.try_for_each(|name| model.weights.bytes(name).map(drop).map_err(words))
    });
    let set = TensorSet::open(&path).map_err(words).and_then(|set| read_samples(&set));
    let rows = TensorFile::open(&path).map_err(words).and_then(|file| read_rows(&file));
    whole.and(weights).and(set).and(rows)
}

fn read_rows(file: &TensorFile) -> Outcome {
    for (name, ty) in file.tensors() {
        file.read(name).map_err(words)?;
        for dim in 0..ty.shape.len().min(2) {
            let row = ty.bytes() / ty.shape[dim].max(1);
            let mut into = vec![0; row];
            // Where there is no row that is said.
            let _ = file.read_row(name, (dim, 0), &mut into).map_err(words);
        }
    }
    Ok(())
}

/// Reads all fields of the first samples and of the last.
pub fn read_samples(set: &dyn Dataset) -> Outcome {
    let samples = set.samples();
    for sample in (0..samples.min(3)).chain(samples.checked_sub(1)) {
        for (field, of) in set.fields().iter().enumerate() {
            set.read(sample, field, &mut vec![0; of.ty.bytes()]).map_err(words)?;
        }
    }
    Ok(())
}

/// Images of IDX, labels of IDX and records of CIFAR-10, told apart by their first byte.
pub fn records_corpus() -> Vec<Vec<u8>> {
    let idx = |dims: &[u32], data: &[u8]| {
        let head = [0, 0, 8, dims.len() as u8];
        let dims: Vec<u8> = dims.iter().flat_map(|dim| dim.to_be_bytes()).collect();
        [&head, &dims[..], data].concat()
    };
    let tagged = |tag: u8, file: &[u8]| [&[tag], file].concat();
    let record: Vec<u8> = (0..2 * 3073).map(|i| (i % 10) as u8).collect();
    vec![
        tagged(0, &idx(&[3, 4, 5], &[7; 60])),
        tagged(1, &idx(&[3], &[1, 2, 9])),
        tagged(2, &record),
    ]
}

/// Reads records, beside good files where there must be others.
pub fn feed_records(input: &[u8], folder: &Path) -> Outcome {
    let Some((tag, file)) = input.split_first() else { return Err("there is nothing".into()) };
    let corpus = records_corpus();
    let good = |tag: usize| &corpus[tag][1..];
    let write = |name: &str, content: &[u8]| {
        std::fs::write(folder.join(name), content).expect("the folder is writable");
    };
    write("t10k-images-idx3-ubyte", if tag % 3 == 0 { file } else { good(0) });
    write("t10k-labels-idx1-ubyte", if tag % 3 == 1 { file } else { good(1) });
    write("test_batch.bin", if tag % 3 == 2 { file } else { good(2) });
    let digits = mnist(folder, Split::Test).map_err(words).and_then(|set| read_samples(&set));
    let images = cifar10(folder, Split::Test).map_err(words).and_then(|set| read_samples(&set));
    digits.and(images)
}
