//! Commands about the machine.

use std::path::PathBuf;

use clap::Args;

use super::{DeviceName, Format};

/// `graphc devices`
#[derive(Args)]
pub struct DevicesArgs {
    /// Form of what is printed
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// `graphc doctor`
#[derive(Args)]
pub struct DoctorArgs {
    /// The device; default cuda
    #[arg(long, value_enum)]
    pub device: Option<DeviceName>,
    /// Leave out the speeds
    #[arg(long)]
    pub quick: bool,
    /// Form of what is printed
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// `graphc calibrate`
#[derive(Args)]
pub struct CalibrateArgs {
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
    /// Measure nothing: take what `graphc_torch profile` has measured
    #[arg(long, value_name = "FILE", conflicts_with_all = ["device", "ranks", "quick"])]
    pub from: Option<PathBuf>,
}
