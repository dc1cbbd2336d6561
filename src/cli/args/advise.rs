//! `graphc advise`.

use std::path::PathBuf;

use clap::Args;
use graphc_ir::mesh::MOST_RANKS;

use super::SharedArgs;
use crate::cli::numbers::{parse_positive, parse_whole};

/// `graphc advise`
#[derive(Args)]
#[command(group = clap::ArgGroup::new("asked").required(true).args(["ranks", "will_it_fit"]))]
pub(crate) struct AdviseArgs {
    /// The model: .onnx or .gir
    pub model: PathBuf,
    /// Ranks of the job: each mesh of so many is looked at
    #[arg(long, value_name = "N", value_parser = parse_ranks, conflicts_with = "mesh")]
    pub ranks: Option<usize>,
    /// Say on how few ranks the training fits, instead
    #[arg(long, conflicts_with_all = ["mesh", "stages", "ways", "plans"])]
    pub will_it_fit: bool,
    /// Ways that are told
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = parse_positive::<usize>)]
    pub ways: usize,
    /// The best of these by the prices of their layers, of which whole plans are made
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = parse_whole::<usize>)]
    pub plans: usize,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub shared: SharedArgs,
}

fn parse_ranks(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=MOST_RANKS).contains(number));
    number.ok_or_else(|| format!("write a number of ranks from 1 to {MOST_RANKS}"))
}
