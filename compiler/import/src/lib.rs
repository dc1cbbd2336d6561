//! Importers: from a model file to a graph and its weights. Nothing else under the compiler's folder reads files.
//!
//! [`load_model`] picks by extension: `.onnx` by [`onnx::import_onnx`], `.gir` by [`graphc_ir::text`] with weights from
//! the safetensors file beside it; `hf:DIR` is a folder as transformers saves models. Weights stay on disk until somebody asks for their bytes.

#![warn(unreachable_pub)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use graphc_ir::graph::Graph;
use graphc_ir::text::{ParseErrors, Unresolved, suggest_name};
use graphc_ir::verify::VerifyErrors;

mod file;
mod gir;
mod hugging_face;
pub mod onnx;
mod refused;
mod safetensors;
mod stopped;
mod symbols;
mod trained;
mod unsupported;
pub mod weights;

pub use refused::{Refused, RefusedNode};
pub use stopped::stop_gradients;
pub use symbols::Symbols;
pub use trained::choose_trained;
pub use unsupported::{UnsupportedOp, UnsupportedOps};
use weights::{Weights, WeightsError};

/// A model that was imported.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The verified graph.
    pub graph: Graph,
    /// The content of the graph's variables that begin as [`graphc_ir::ops::Init::Weights`].
    pub weights: Weights,
    /// Warnings for the user, one sentence each.
    pub warnings: Vec<String>,
    /// Warnings that matter where the model is trained: which weights are, and which cannot be.
    pub training_warnings: Vec<String>,
    /// The names of the symbolic extents, that of the batch first.
    pub symbols: Vec<String>,
    /// The module of PyTorch that a node of an ONNX file comes from, by the node's name: its path, and its class where the exporter
    /// says it.
    pub modules: BTreeMap<String, String>,
}

/// The user's choices for an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportOptions {
    /// Weights that are not trained: names, or patterns with `*`.
    pub freeze: Vec<String>,
    /// Weights that are trained, whatever else is said about them: names, or patterns with `*`.
    pub train: Vec<String>,
    /// Whether the weights of a folder of transformers that has no file of weights are drawn at random, for a training from scratch. Otherwise they
    /// are expected to be there when they are read.
    pub draws_missing: bool,
}

/// An error that stops the import of a model.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The file cannot be read.
    #[error("cannot read the model {}: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The file is of a kind that is not known.
    #[error(
        "{} is no model: the name of a model ends in .onnx or .gir, or is hf:DIR with a folder that transformers has saved",
        path.display()
    )]
    Extension {
        /// The file.
        path: PathBuf,
    },
    /// The file is damaged.
    #[error("the ONNX file is corrupt: {place}: {reason}")]
    Corrupt {
        /// The place of the damage: the byte, and the message within the file.
        place: String,
        /// The reason.
        reason: String,
    },
    /// A tensor in the file is damaged or of a kind that is not known.
    #[error("tensor `{name}`: {reason}")]
    Tensor {
        /// The tensor's name.
        name: String,
        /// The reason.
        reason: String,
    },
    /// The graph's nodes and tensors do not fit together.
    #[error("the ONNX graph is not valid: {reason}")]
    Structure {
        /// The reason.
        reason: String,
    },
    /// The model has ops that graphc lacks.
    #[error("{ops}")]
    Unsupported {
        /// All such ops of the model.
        ops: UnsupportedOps,
    },
    /// A node does not fit its operands, or is a form of an op that graphc lacks.
    #[error("node `{node}` of type {op_type}: {reason}")]
    Node {
        /// The node's name.
        node: String,
        /// The type of the op.
        op_type: String,
        /// The reason.
        reason: String,
    },
    /// Several nodes are forms of ops that graphc lacks, or there are such nodes besides ops that it lacks.
    #[error("{refused}")]
    Refused {
        /// All such nodes and ops of the model.
        refused: Refused,
    },
    /// Several symbolic extents have no value.
    #[error(
        "{} extents have no value: {}; give them with {}",
        dims.len(),
        dims.iter().map(|(name, input, dim)| format!("`{name}` (dim {dim} of input `{input}`)")).collect::<Vec<_>>().join(", "),
        dims.iter().map(|(name, ..)| format_extent_option(name, batch)).collect::<Vec<_>>().join(" ")
    )]
    Dims {
        /// The symbols, each with the first input and dim that has it.
        dims: Vec<(String, String, usize)>,
        /// The symbol of the batch.
        batch: Option<String>,
    },
    /// A symbolic extent has no value, or a value that does not fit.
    #[error("dim {dim} of input `{input}`: {reason}")]
    Dim {
        /// The input.
        input: String,
        /// The dim.
        dim: usize,
        /// The reason.
        reason: String,
    },
    /// The configuration of a folder is not that of a model that is supported.
    #[error("{}: {reason}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The text of a graph has errors.
    #[error("{}:\n{errors}", path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// All errors in the text.
        errors: ParseErrors,
    },
    /// The graph has no outputs.
    #[error("{} has no outputs, so there is nothing to compute", path.display())]
    NoOutputs {
        /// The file.
        path: PathBuf,
    },
    /// The graph breaks an invariant.
    #[error(transparent)]
    Verify(#[from] VerifyErrors),
    /// The weights cannot be read or do not fit.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A pattern matches no weight.
    #[error("{option} '{pattern}' matches no weight: they are {weights}")]
    Pattern {
        /// The option that gives the pattern.
        option: &'static str,
        /// The pattern.
        pattern: String,
        /// The first names of the model's weights.
        weights: String,
    },
    /// A pattern matches no floating-point tensor.
    #[error(
        "--stop-gradient '{pattern}' matches no floating-point tensor of the model{}; `graphc inspect` of its plan lists them",
        suggest_name(nearest.as_deref())
    )]
    NoTensor {
        /// The pattern.
        pattern: String,
        /// A similar name, if there is one.
        nearest: Option<String>,
    },
    /// Weights that are to go into a model lack some of its parameters.
    #[error(
        "they lack {} of its parameters, `{}` first: take a file or a checkpoint that holds all of them",
        names.len(),
        names.first().map_or("", String::as_str)
    )]
    Incomplete {
        /// The names of the parameters that are missing.
        names: Vec<String>,
    },
    /// A weight that is to be trained cannot be.
    #[error("`{name}` cannot be trained: {reason}")]
    Train {
        /// The weight.
        name: String,
        /// The reason.
        reason: String,
    },
}

graphc_ir::readable_debug!(ImportError);

/// Writes the option that gives the value of a symbolic extent.
fn format_extent_option(name: &str, batch: &Option<String>) -> String {
    if batch.as_deref() == Some(name) {
        "--batch VALUE".into()
    } else {
        format!("--dim {name}=VALUE")
    }
}

/// Imports the model in a file. `dims` gives the values of symbolic extents. Its value for `batch` is that of the symbol that counts samples,
/// whatever the name of that symbol.
///
/// # Errors
/// Returns an error if the file cannot be read or is no model, or if the model does not fit.
pub fn load_model(
    path: &Path,
    dims: &BTreeMap<String, usize>,
    options: ImportOptions,
) -> Result<Imported, ImportError> {
    ModelFile::read(path)?.import(dims, options)
}

/// A model file that was read but not imported yet, for callers that need its symbolic extents before they give them values.
pub struct ModelFile {
    path: PathBuf,
    content: ModelContent,
}

enum ModelContent {
    Onnx(Box<onnx::Decoded>),
    Gir(Unresolved<'static>),
    HuggingFace(Box<hugging_face::HuggingFaceFolder>),
}

impl ModelFile {
    /// Reads a model.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or is no model. Other faults of the model are errors of [`ModelFile::import`].
    pub fn read(path: &Path) -> Result<Self, ImportError> {
        let content = match detect_model_kind(path)? {
            ModelKind::Onnx => {
                ModelContent::Onnx(Box::new(onnx::Decoded::new(&read_model_bytes(path)?)?))
            }
            ModelKind::Gir => ModelContent::Gir(Unresolved::new(read_text(path)?)),
            ModelKind::HuggingFace(folder) => {
                ModelContent::HuggingFace(Box::new(hugging_face::HuggingFaceFolder::read(folder)?))
            }
        };
        Ok(Self { path: path.into(), content })
    }

    /// Returns the model's symbolic extents.
    ///
    /// # Errors
    /// Returns an error if the file holds no graph.
    pub fn symbols(&self) -> Result<Symbols, ImportError> {
        match &self.content {
            ModelContent::Onnx(model) => model.symbols(),
            ModelContent::Gir(text) => Ok(gir::collect_symbols(text)),
            ModelContent::HuggingFace(folder) => Ok(folder.symbols()),
        }
    }

    /// Imports the model; see [`load_model`].
    ///
    /// # Errors
    /// Returns an error if the model does not fit.
    pub fn import(
        self,
        dims: &BTreeMap<String, usize>,
        options: ImportOptions,
    ) -> Result<Imported, ImportError> {
        match self.content {
            ModelContent::Onnx(model) => model.import(parent_folder(&self.path), dims, options),
            ModelContent::Gir(text) => gir::import_gir(&self.path, text, dims, &options),
            ModelContent::HuggingFace(folder) => folder.import(dims, &options),
        }
    }
}

/// Writes the ONNX model of a file with other weights; see [`onnx::onnx_with_weights`]. None of its parameters may be missing.
///
/// # Errors
/// Returns an error if the file cannot be read or is no ONNX model, or if the weights are not those of the model.
pub fn model_with_weights(path: &Path, weights: &Weights) -> Result<onnx::Rewritten, ImportError> {
    match detect_model_kind(path)? {
        ModelKind::Onnx => {
            let model = read_model_bytes(path)?;
            let decoded = onnx::Decoded::new(&model)?;
            // What has not changed stays as it is written, in whatever element type.
            let own = decoded.read_tensors(parent_folder(path))?;
            let (mut changed, missing) = decoded.write_as_exported(parent_folder(path), weights)?;
            changed.tensors.retain(|name, tensor| own.get(name) != Some(tensor));
            let rewritten = onnx::onnx_with_weights(&model, &changed)?;
            if missing.is_empty() {
                return Ok(rewritten);
            }
            Err(ImportError::Incomplete { names: missing })
        }
        ModelKind::Gir | ModelKind::HuggingFace(_) => {
            Err(ImportError::Extension { path: path.into() })
        }
    }
}

/// Returns the folder of a model's file, in which the files that it names lie.
fn parent_folder(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

enum ModelKind {
    Onnx,
    Gir,
    HuggingFace(PathBuf),
}

/// Returns the file that says which model a path names: the path itself, or the configuration of a folder.
pub fn document_path(path: &Path) -> PathBuf {
    hugging_face::parse_folder_path(path)
        .map_or_else(|| path.into(), |folder| hugging_face::config_path(&folder))
}

fn detect_model_kind(path: &Path) -> Result<ModelKind, ImportError> {
    if let Some(folder) = hugging_face::parse_folder_path(path) {
        return Ok(ModelKind::HuggingFace(folder));
    }
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("onnx") => Ok(ModelKind::Onnx),
        Some("gir") => Ok(ModelKind::Gir),
        _ => Err(ImportError::Extension { path: path.into() }),
    }
}

fn read_model_bytes(path: &Path) -> Result<Vec<u8>, ImportError> {
    let error = |e: std::io::Error| ImportError::Read { path: path.into(), reason: e.to_string() };
    file::read_file(path, file::LONGEST_MODEL).map_err(error)
}

fn read_text(path: &Path) -> Result<String, ImportError> {
    let reason = "it is no text in UTF-8".to_string();
    String::from_utf8(read_model_bytes(path)?)
        .map_err(|_| ImportError::Read { path: path.into(), reason })
}
