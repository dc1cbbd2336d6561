//! Commands about the machine.

use std::path::PathBuf;

use clap::Args;

use super::{DeviceName, Format};

/// `graphc devices`
#[derive(Args)]
pub(crate) struct DevicesArgs {
    /// Form of what is printed
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// `graphc clusters`
#[derive(Args)]
pub(crate) struct ClustersArgs {
    /// Form of what is printed
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// `graphc doctor`
#[derive(Args)]
pub(crate) struct DoctorArgs {
    /// The device; default cuda where NVIDIA's driver is there, else cpu
    #[arg(long, value_enum)]
    pub device: Option<DeviceName>,
    /// Leave out the speeds
    #[arg(long)]
    pub quick: bool,
    /// Form of what is printed
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// `graphc kernels`
#[derive(Args)]
pub(crate) struct KernelsArgs {
    /// The plans
    #[arg(required = true, value_name = "PLAN")]
    pub plans: Vec<PathBuf>,
    /// Compute capability of the cards, e.g. 9.0 for an H100 and 8.0 for an A100
    #[arg(long, value_name = "MAJOR.MINOR", value_parser = parse_capability)]
    pub capability: Capability,
    /// Where the kernels go: a folder, which GRAPHC_CACHE names on the machine with the cards
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,
}

/// Major and minor number of a card's architecture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capability(pub i32, pub i32);

fn parse_capability(text: &str) -> Result<Capability, String> {
    let number = |part: &str| part.parse::<u8>().ok().map(i32::from);
    let parsed = text.split_once('.').and_then(|(major, minor)| {
        Some(Capability(number(major)?, number(minor).filter(|minor| *minor < 10)?))
    });
    parsed.ok_or_else(|| "write it as `graphc devices` does, e.g. 9.0".into())
}

/// `graphc calibrate`
#[derive(Args)]
pub(crate) struct CalibrateArgs {
    /// Where the cluster file goes; without it, to standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// What is measured; default cpu
    #[arg(long, value_enum)]
    pub device: Option<DeviceName>,
    /// Ranks that work at the same time, each with its part of the cores, or a card; default 2, on cards as many as there are
    #[arg(long)]
    pub ranks: Option<usize>,
    /// Measure less, and less well
    #[arg(long)]
    pub quick: bool,
    /// Measure nothing: take what `train --profile` or `graphc_torch profile` has measured
    #[arg(long, value_name = "FILE", conflicts_with_all = ["device", "ranks", "quick"])]
    pub from: Option<PathBuf>,
}
