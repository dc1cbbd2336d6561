//! Targets: the code that reads input which somebody else has written. Each has a corpus, a format of inputs, and a function that reads
//! one.

mod faulty;
mod files;
mod models;
mod plans;
#[cfg(any(feature = "images", feature = "bpe"))]
mod sets;

use std::path::Path;

use clap::ValueEnum;

use crate::mutate::{Form, frame};

/// The result of an input: it was taken, or refused with these words.
pub type Outcome = Result<(), String>;

/// A reader of input that is fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Target {
    /// ONNX models: imported, compiled, written again with their weights.
    Onnx,
    /// Graphs as text: parsed, written, compiled.
    Gir,
    /// Plans: read, checked, simulated, shown.
    Plan,
    /// Checkpoints: the manifest, and the tensors it speaks of.
    Checkpoint,
    /// Cluster files, by which a graph is compiled.
    Cluster,
    /// Safetensors: as data, as weights, row by row.
    Safetensors,
    /// Messages between processes of a job.
    Frames,
    /// Files of measured seconds.
    Measured,
    /// Records of MNIST and CIFAR-10.
    Records,
    /// Images in folders.
    #[cfg(feature = "images")]
    Images,
    /// `tokenizer.json`.
    #[cfg(feature = "bpe")]
    Tokenizer,
    /// Breaks on purpose: holds that what breaks is found.
    #[value(hide = true)]
    Faulty,
}

impl Target {
    /// Returns all targets that read real input.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::value_variants().iter().copied().filter(|&target| target != Self::Faulty)
    }

    /// Returns its name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Returns the format of its inputs.
    pub fn form(self) -> Form {
        match self {
            Self::Onnx => Form::Wire,
            Self::Gir | Self::Cluster => Form::Text,
            Self::Plan | Self::Measured => Form::Json,
            Self::Checkpoint => Form::Sealed,
            Self::Safetensors => Form::Headed,
            Self::Frames => Form::Frames,
            Self::Records | Self::Faulty => Form::Bytes,
            #[cfg(feature = "images")]
            Self::Images => Form::Chunks,
            #[cfg(feature = "bpe")]
            Self::Tokenizer => Form::Json,
        }
    }

    /// Inputs that others are made of: all are good, but for those that once broke something.
    pub fn corpus(self) -> Vec<Vec<u8>> {
        let mut corpus = match self {
            Self::Onnx => models::onnx_corpus(),
            Self::Gir => models::gir_corpus(),
            Self::Plan => plans::corpus(),
            Self::Checkpoint => files::checkpoint_corpus(),
            Self::Cluster => files::cluster_corpus(),
            Self::Safetensors => files::safetensors_corpus(),
            Self::Frames => frames_corpus(),
            Self::Measured => plans::measured_corpus(),
            Self::Records => files::records_corpus(),
            #[cfg(feature = "images")]
            Self::Images => sets::images_corpus(),
            #[cfg(feature = "bpe")]
            Self::Tokenizer => sets::tokenizer_corpus(),
            Self::Faulty => vec![b"corpus".to_vec()],
        };
        assert!(!corpus.is_empty(), "{} has no corpus", self.name());
        corpus.extend(found(&self.name()));
        corpus
    }

    /// Feeds an input. Files go to the folder, which is this target's own.
    pub fn feed(self, input: &[u8], folder: &Path) -> Outcome {
        match self {
            Self::Onnx => models::feed_onnx(input, folder),
            Self::Gir => models::feed_gir(input),
            Self::Plan => plans::feed(input),
            Self::Checkpoint => files::feed_checkpoint(input, folder),
            Self::Cluster => files::feed_cluster(input),
            Self::Safetensors => files::feed_safetensors(input, folder),
            Self::Frames => feed_frames(input),
            Self::Measured => plans::feed_measured(input, folder),
            Self::Records => files::feed_records(input, folder),
            #[cfg(feature = "images")]
            Self::Images => sets::feed_image(input, folder),
            #[cfg(feature = "bpe")]
            Self::Tokenizer => sets::feed_tokenizer(input, folder),
            Self::Faulty => faulty::feed(input),
        }
    }
}

/// Inputs that once broke something, in the order of their names.
fn found(target: &str) -> Vec<Vec<u8>> {
    read_folder(&at("benchmarks/fuzz/found").join(target))
}

/// The content of all files of a folder, in the order of their names; none where it is not there.
fn read_folder(folder: &Path) -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().flat_map(std::fs::read).collect()
}

/// A path of the repository.
fn at(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn words(error: impl std::fmt::Display) -> String {
    let words = error.to_string();
    assert!(!words.trim().is_empty(), "an input is refused without a word");
    words
}

/// Frames of queues, and messages of the control plane.
fn frames_corpus() -> Vec<Vec<u8>> {
    let messages = [
        r#"{"Join":{"rank":1,"world_size":2,"address":"127.0.0.1","port":9,"host":"h","pid":7,"segment":[3,4096],"version":"0.1.0"}}"#,
        r#"{"Gathered":{"key":"exchange 0","lengths":[3,5]}}"#,
        r#"{"Ready":{"shares":true}}"#,
        r#""Beat""#,
    ];
    let message = |head: &&str| {
        let bytes = b"12345678";
        let lengths = [&(head.len() as u32).to_le_bytes()[..], &8_u64.to_le_bytes()].concat();
        [&lengths, head.as_bytes(), bytes].concat()
    };
    let mut corpus: Vec<Vec<u8>> = messages.iter().map(message).collect();
    corpus.push(frame(0, [5, 0], &[b"a message"]));
    corpus.push(frame(0, [5, 1], &[b"head", b"and a body"]));
    corpus.push(frame(1, [5, 2], &[]));
    corpus
}

fn feed_frames(input: &[u8]) -> Outcome {
    let queues = graphc::runtime::transport::count_frames(input).map_err(words);
    let control = graphc::runtime::job::count_messages(input).map_err(words);
    queues.or(control).map(drop)
}
