//! `graphc check`.

use std::path::PathBuf;

use clap::Args;

use super::values::not_negative;
use super::{RuntimeArgs, SharedArgs};

/// `graphc check`
#[derive(Args)]
pub(crate) struct CheckArgs {
    /// The model: .onnx, .gir or hf:DIR
    pub model: PathBuf,
    /// What another program computed: a safetensors file with values of the model by their names
    #[arg(long, value_name = "FILE")]
    pub against: PathBuf,
    /// The inputs: a safetensors file with one tensor per graph input; default the file of --against
    #[arg(long, value_name = "FILE")]
    pub inputs: Option<PathBuf>,
    /// By how much a value may differ, as a share of its largest element; integers may not. Default 1e-4, more in half precision
    #[arg(long, value_name = "SHARE", value_parser = not_negative)]
    pub tolerance: Option<f64>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub shared: SharedArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub runtime: RuntimeArgs,
}
