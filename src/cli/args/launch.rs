//! The options of `launch`.

use std::path::PathBuf;

use clap::Args;

use super::values::parse_port;
use crate::cli::numbers::{parse_positive, parse_whole};

/// `graphc launch`
#[derive(Args)]
pub(crate) struct LaunchArgs {
    /// One machine, a free port, a fresh secret: nothing else needs to be said
    #[arg(long, conflicts_with_all = ["nnodes", "node_rank", "master_addr", "master_port"])]
    pub standalone: bool,
    /// Machines of the job
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_positive::<usize>)]
    pub nnodes: usize,
    /// Which of them this is, from 0
    #[arg(long, value_name = "R", default_value_t = 0, value_parser = parse_whole::<usize>)]
    pub node_rank: usize,
    /// Ranks on each machine; default 1, or under Slurm and mpirun the one rank that their environment names
    #[arg(long, value_name = "P", value_parser = parse_positive::<usize>)]
    pub nproc_per_node: Option<usize>,
    /// Name or address of the machine of rank 0
    #[arg(long, value_name = "A")]
    pub master_addr: Option<String>,
    /// A free port of that machine
    #[arg(long, value_name = "PORT", default_value_t = 29500, value_parser = parse_port)]
    pub master_port: u16,
    /// How often all processes are started again where one fails: after a second, and twice as long each time
    #[arg(long, value_name = "K", default_value_t = 0, value_parser = parse_whole::<u32>)]
    pub max_restarts: u32,
    /// Seconds that processes have to end before they are killed [default: 3 after a peer has failed, 30 after Ctrl-C or SIGTERM]
    #[arg(long, value_name = "SECONDS")]
    pub grace: Option<f64>,
    /// Write the output of rank N to DIR/rank-N/stdout.log and stderr.log
    #[arg(long, value_name = "DIR")]
    pub logdir: Option<PathBuf>,
    /// Write output to the logs alone
    #[arg(long, conflicts_with = "tee")]
    pub redirect: bool,
    /// Write output to the logs and here, each line with its rank
    #[arg(long)]
    pub tee: bool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<std::ffi::OsString>,
}
