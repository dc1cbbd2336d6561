//! Models in a folder as transformers saves them: `config.json` and safetensors. The graph is written with the builder, by what the
//! configuration says; its variables have the names of the file's tensors.
//!
//! A folder is named by `hf:DIR`. [`config`] reads the configuration, [`parts`] has what the architectures share, and each
//! architecture is a file. Weights stay on disk; where no file of weights is there they are missed once their bytes are needed.

mod bert;
mod config;
mod decoder;
mod experts;
mod files;
mod gpt2;
mod parts;
mod rotary;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::graph::Graph;
use graphc_ir::types::DType;
use graphc_ir::verify::verify_graph;

use super::trained::{choose_trained, variables_mut};
use super::weights::{WeightData, WeightTensor, Weights, WeightsError};
use super::{ImportError, ImportOptions, Imported, Symbols};
use config::HuggingFaceConfig;
use parts::HuggingFaceParts;

/// The prefix of a path that names a folder.
const PREFIX: &str = "hf:";

/// The name of the input of all models.
const TOKENS: &str = "input_ids";

/// The symbols of its dims.
const DIMS: [&str; 2] = ["batch", "time"];

/// Returns the folder of a path `hf:DIR`; `None` for other paths.
pub(super) fn parse_folder_path(path: &Path) -> Option<PathBuf> {
    path.to_str()?.strip_prefix(PREFIX).map(PathBuf::from)
}

/// Returns the path of the configuration of a folder, which says which model it is.
pub(super) fn config_path(folder: &Path) -> PathBuf {
    folder.join("config.json")
}

/// The content of a folder: its configuration, and the tensors in its files.
pub(super) struct HuggingFaceFolder {
    path: PathBuf,
    config: HuggingFaceConfig,
    architecture: Architecture,
    tensors: Option<BTreeMap<String, WeightTensor>>,
}

/// The architectures.
enum Architecture {
    /// LLaMA and what is like it.
    Decoder(Box<decoder::Decoder>),
    /// GPT-2.
    Gpt2(gpt2::HuggingFaceGpt2),
    /// BERT.
    Bert(bert::Bert),
}

/// The classes that are known, for messages.
const KNOWN: &str = "LlamaForCausalLM, MistralForCausalLM, MixtralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, GPT2LMHeadModel, BertForMaskedLM \
                     and BertForSequenceClassification";

impl Architecture {
    fn from_config(config: &HuggingFaceConfig) -> Result<Self, ImportError> {
        let name = config.architecture()?;
        match name.as_str() {
            "LlamaForCausalLM" | "MistralForCausalLM" | "MixtralForCausalLM"
            | "Qwen2ForCausalLM" | "Qwen3ForCausalLM" => {
                decoder::Decoder::from_config(config, &name).map(Box::new).map(Self::Decoder)
            }
            "GPT2LMHeadModel" => gpt2::HuggingFaceGpt2::from_config(config).map(Self::Gpt2),
            "BertForMaskedLM" | "BertForSequenceClassification" => {
                bert::Bert::from_config(config, &name).map(Self::Bert)
            }
            other => {
                Err(config
                    .config_error(format!("`{other}` is none of those that are known: {KNOWN}")))
            }
        }
    }

    /// Builds the model, and returns its logits.
    fn build_logits(&self, parts: &HuggingFaceParts<'_>, tokens: &Tensor) -> Tensor {
        match self {
            Self::Decoder(model) => model.build_logits(parts, tokens),
            Self::Gpt2(model) => model.build_logits(parts, tokens),
            Self::Bert(model) => model.build_logits(parts, tokens),
        }
    }

    /// Refuses sequences that are too long for the model.
    fn check_time(&self, config: &HuggingFaceConfig, time: usize) -> Result<(), ImportError> {
        match self {
            Self::Decoder(model) => model.check_time(config, time),
            Self::Gpt2(model) => model.check_time(config, time),
            Self::Bert(model) => model.check_time(config, time),
        }
    }

    /// Whether a tensor of the files is no part of the model, because it is a copy of another tensor or a mask that the model computes.
    fn is_copy(&self, name: &str) -> bool {
        match self {
            Self::Decoder(model) => model.is_tied() && name == "lm_head.weight",
            Self::Gpt2(_) => name == "lm_head.weight" || name.ends_with(".attn.bias"),
            Self::Bert(_) => name.starts_with("cls.predictions.decoder."),
        }
    }
}

impl HuggingFaceFolder {
    /// # Errors
    /// Returns an error if there is no configuration, the model is not supported, or a file of weights is damaged.
    pub(super) fn read(path: PathBuf) -> Result<Self, ImportError> {
        let config = HuggingFaceConfig::read(&config_path(&path))?;
        let architecture = Architecture::from_config(&config)?;
        let tensors = files::read_tensors(&path)?;
        Ok(Self { path, config, architecture, tensors })
    }

    pub(super) fn symbols(&self) -> Symbols {
        let dims = DIMS.map(|dim| Some(dim.to_owned())).to_vec();
        Symbols::new(vec![(TOKENS.to_owned(), dims)], Vec::new())
    }

    /// # Errors
    /// Returns an error if a dim has no value, or the weights are not those of the configuration.
    pub(super) fn import(
        self,
        dims: &BTreeMap<String, usize>,
        options: &ImportOptions,
    ) -> Result<Imported, ImportError> {
        let [batch, time] = [look_up_extent(dims, 0)?, look_up_extent(dims, 1)?];
        self.architecture.check_time(&self.config, time)?;
        let name = self.path.file_name().map_or("model".into(), |name| name.to_string_lossy());
        let g = GraphBuilder::from_graph(Graph::new(name));
        let nothing = BTreeMap::new();
        let tensors = self.tensors.as_ref().unwrap_or(&nothing);
        let draws = options.draws_missing && self.tensors.is_none();
        if let Some(unread) = files::find_unread_weights(&self.path).filter(|_| draws) {
            return Err(ImportError::Read {
                path: self.path,
                reason: format!(
                    "its weights are in {unread}, which is not read: save the model as safetensors, by \
                     `model.save_pretrained(DIR)` of transformers, or move that file away to train from scratch"
                ),
            });
        }
        let std = self.config.number_or("initializer_range", 0.02)?;
        let (dtype, drawn) = (self.config.default_dtype()?, draws.then_some(std));
        let parts = HuggingFaceParts { g: &g, tensors, dtype, drawn };
        let tokens = g.input(TOKENS, DType::I64, [batch, time]);
        g.output("logits", &self.architecture.build_logits(&parts, &tokens));
        let mut graph =
            g.finish().map_err(|errors| self.config.config_error(errors.to_string()))?;
        choose_trained(&mut graph, options)?;
        let symbols = self.symbols().all;
        let mut training_warnings = Vec::new();
        let weights = if draws {
            training_warnings.push(format!(
                "{} has no file of weights: they are drawn at random, for a training from scratch",
                self.path.display()
            ));
            Weights::default()
        } else {
            self.collect_weights(&mut graph)?
        };
        verify_graph(&graph)?;
        let (warnings, modules) = (Vec::new(), BTreeMap::new());
        Ok(Imported { graph, weights, warnings, training_warnings, symbols, modules })
    }

    /// The tensors of the files for the graph's variables, and the others.
    fn collect_weights(self, graph: &mut Graph) -> Result<Weights, ImportError> {
        let mut found = self.tensors;
        let mut weights = Weights::default();
        for variable in variables_mut(graph) {
            let (name, ty) = (&variable.name, &variable.ty);
            let tensor = match found.as_mut() {
                Some(tensors) => {
                    let missing = || WeightsError::Missing { name: name.clone() };
                    tensors.remove(name).ok_or_else(missing)?
                }
                None => absent_weight(&self.path, ty.dtype, &ty.shape),
            };
            if tensor.ty() != *ty {
                let (name, expected) = (name.clone(), ty.clone());
                let path = self.path.clone();
                return Err(WeightsError::Type { name, path, found: tensor.ty(), expected }.into());
            }
            weights.tensors.insert(name.clone(), tensor);
        }
        weights.others = found.unwrap_or_default();
        weights.others.retain(|name, _| !self.architecture.is_copy(name));
        Ok(weights)
    }
}

/// A weight whose file is not there.
fn absent_weight(folder: &Path, dtype: DType, shape: &[usize]) -> WeightTensor {
    let path = folder.join(files::SINGLE);
    WeightTensor {
        dtype,
        shape: shape.to_vec(),
        data: WeightData::File { path, offset: 0, folder: None },
    }
}

/// The value of a dim of the tokens.
fn look_up_extent(dims: &BTreeMap<String, usize>, dim: usize) -> Result<usize, ImportError> {
    let name = DIMS[dim];
    let fault = |reason| ImportError::Dim { input: TOKENS.into(), dim, reason };
    match dims.get(name) {
        Some(0) => Err(fault(format!("`{name}` is at least 1"))),
        Some(&extent) => Ok(extent),
        None => {
            let option =
                if dim == 0 { "--batch N" } else { "--dim time=N, the tokens of a sequence" };
            Err(fault(format!("`{name}` has no value: {option}")))
        }
    }
}
