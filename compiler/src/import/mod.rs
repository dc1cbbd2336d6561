//! Importers: from a model file to a graph and its weights. The only place in the compiler that reads files.
//!
//! [`load_model`] picks by extension: `.onnx` by [`onnx::import_onnx`], `.gir` by [`graphc_ir::text`] with weights from
//! the safetensors file beside it; `hf:DIR` is a folder as transformers saves models. Weights stay on disk until somebody asks for their bytes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use graphc_ir::graph::Graph;
use graphc_ir::text::{ParseErrors, Unresolved};
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

/// A model as it was imported.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The graph, verified.
    pub graph: Graph,
    /// The content of its variables that begin as [`graphc_ir::ops::Init::Weights`].
    pub weights: Weights,
    /// What the user should know, a sentence each.
    pub warnings: Vec<String>,
    /// The symbolic extents, that of the batch first.
    pub symbols: Vec<String>,
    /// The module of PyTorch that a node of an ONNX file comes from, by the node's name: its path, and its class where the exporter
    /// says it.
    pub modules: BTreeMap<String, String>,
}

/// What the user says about an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportOptions {
    /// Weights that are not trained: names, or patterns with `*`.
    pub freeze: Vec<String>,
    /// Weights that are trained, whatever else is said about them: names, or patterns with `*`.
    pub train: Vec<String>,
}

/// Why a model cannot be imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The file cannot be read.
    #[error("cannot read the model {}: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
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
        /// Where: the byte, and the message within the file.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// A tensor in the file is damaged or of a kind that is not known.
    #[error("tensor `{name}`: {reason}")]
    Tensor {
        /// Its name.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// The graph's nodes and tensors do not fit together.
    #[error("the ONNX graph is not valid: {reason}")]
    Structure {
        /// What is wrong.
        reason: String,
    },
    /// Ops that graphc has not.
    #[error("{ops}")]
    Unsupported {
        /// All of the model's.
        ops: UnsupportedOps,
    },
    /// A node that does not fit its operands, or a form of an op that graphc has not.
    #[error("node `{node}` of type {op_type}: {reason}")]
    Node {
        /// The node's name.
        node: String,
        /// The type of the op.
        op_type: String,
        /// What is wrong.
        reason: String,
    },
    /// Several nodes in forms that graphc has not, or such nodes beside ops that it has not.
    #[error("{refused}")]
    Refused {
        /// All of the model's.
        refused: Refused,
    },
    /// Several symbolic extents without a value.
    #[error(
        "{} extents have no value: {}; give them with {}",
        dims.len(),
        dims.iter().map(|(name, input, dim)| format!("`{name}` (dim {dim} of input `{input}`)")).collect::<Vec<_>>().join(", "),
        dims.iter().map(|(name, ..)| format_extent_option(name, batch)).collect::<Vec<_>>().join(" ")
    )]
    Dims {
        /// Each, with the input and the dim where it is first.
        dims: Vec<(String, String, usize)>,
        /// That of the batch.
        batch: Option<String>,
    },
    /// A symbolic extent without a value, or a value that does not fit.
    #[error("dim {dim} of input `{input}`: {reason}")]
    Dim {
        /// The input.
        input: String,
        /// The dim.
        dim: usize,
        /// What is wrong.
        reason: String,
    },
    /// The configuration of a folder is not one of a model that is known.
    #[error("{}: {reason}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The text of a graph does not fit.
    #[error("{}:\n{errors}", path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// All that is wrong with it.
        errors: ParseErrors,
    },
    /// A graph that gives nothing.
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
    /// A pattern of names that fits none.
    #[error("{option} '{pattern}' matches no weight: they are {weights}")]
    Pattern {
        /// The option that gives it.
        option: &'static str,
        /// The pattern.
        pattern: String,
        /// The names that there are, the first of them.
        weights: String,
    },
    /// A pattern of tensors that fits none.
    #[error(
        "--stop-gradient '{pattern}' matches no floating-point tensor of the model{}; `graphc inspect` of its plan lists them",
        nearest.as_ref().map_or(String::new(), |name| format!(" (did you mean `{name}`?)"))
    )]
    NoTensor {
        /// The pattern.
        pattern: String,
        /// A name that is like it.
        nearest: Option<String>,
    },
    /// Weights that are to go into a model lack some of it.
    #[error(
        "they lack {} of its parameters, `{}` first: take a file or a checkpoint that holds all of them",
        names.len(),
        names.first().map_or("", String::as_str)
    )]
    Incomplete {
        /// The parameters.
        names: Vec<String>,
    },
    /// A weight that cannot be trained was to be.
    #[error("`{name}` cannot be trained: {reason}")]
    Train {
        /// The weight.
        name: String,
        /// Why not.
        reason: String,
    },
}

/// The option that gives an extent.
fn format_extent_option(name: &str, batch: &Option<String>) -> String {
    if batch.as_deref() == Some(name) {
        "--batch VALUE".into()
    } else {
        format!("--dim {name}=VALUE")
    }
}

/// Imports the model in a file. `dims` gives the values of symbolic extents; the value of `batch` counts for the symbol that
/// counts samples whatever that is called.
///
/// # Errors
/// Where the file cannot be read or is no model, and where the model does not fit.
pub fn load_model(
    path: &Path,
    dims: &BTreeMap<String, usize>,
    options: ImportOptions,
) -> Result<Imported, ImportError> {
    ModelFile::read(path)?.import(dims, options)
}

/// A model file that was read, for those who need to know its symbolic extents before they give them values.
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
    /// Where the file cannot be read or is no model. What else is wrong with it [`ModelFile::import`] says.
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

    /// Its symbolic extents.
    ///
    /// # Errors
    /// Where the file holds no graph.
    pub fn symbols(&self) -> Result<Symbols, ImportError> {
        match &self.content {
            ModelContent::Onnx(model) => model.symbols(),
            ModelContent::Gir(text) => Ok(gir::collect_symbols(text)),
            ModelContent::HuggingFace(folder) => Ok(folder.symbols()),
        }
    }

    /// See [`load_model`].
    ///
    /// # Errors
    /// Where the model does not fit.
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

/// The ONNX model in a file with these weights: [`onnx::onnx_with_weights`]. None of its parameters may be missing.
///
/// # Errors
/// Where the file cannot be read or is no ONNX model, and where the weights are not those of the model.
pub fn model_with_weights(path: &Path, weights: &Weights) -> Result<onnx::Rewritten, ImportError> {
    match detect_model_kind(path)? {
        ModelKind::Onnx => {
            let model = read_model_bytes(path)?;
            let decoded = onnx::Decoded::new(&model)?;
            // What has not changed stays as it is written, in whatever element type.
            let own = decoded.read_tensors(parent_folder(path))?;
            let mut changed = weights.clone();
            changed.tensors.retain(|name, tensor| own.get(name) != Some(tensor));
            let rewritten = onnx::onnx_with_weights(&model, &changed)?;
            let parameters = decoded.list_parameters(parent_folder(path))?;
            let missing: Vec<String> =
                parameters.into_iter().filter(|name| !weights.tensors.contains_key(name)).collect();
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

/// The folder in which files lie that a model names.
fn parent_folder(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

enum ModelKind {
    Onnx,
    Gir,
    HuggingFace(PathBuf),
}

/// The file that says which model a path names: the path itself, or the configuration of a folder.
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
