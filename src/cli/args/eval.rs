//! The options of `graphc eval`.

use std::path::PathBuf;

use clap::Args;
use graphc_data::Source;

use super::values::parse_source;
use super::{RuntimeArgs, SharedArgs};

/// `graphc eval`
#[derive(Args)]
pub(crate) struct EvalArgs {
    /// The model (.onnx, .gir, hf:DIR) or a plan (.json)
    pub model: PathBuf,
    /// The data: a safetensors file, or the part that is held out of cifar10:DIR, cifar100:DIR, mnist:DIR, images:DIR,
    /// text:PATH, bpe:DIR
    #[arg(long, value_name = "FILE|NAME:DIR", value_parser = parse_source)]
    pub data: Source,
    /// Weights in the place of the model's: a safetensors file with the model's names, or a checkpoint
    #[arg(long, value_name = "FILE|CHECKPOINT")]
    pub weights_from: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub shared: SharedArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub runtime: RuntimeArgs,
}
