//! The world of a launch: the ranks of this machine among all, and where they meet.

use anyhow::{Context, Result};
use graphc_ir::hex::encode_hex;
use graphc_ir::mesh::MOST_RANKS;
use graphc_runtime::job::{Environment, find_task, free_port};
use sha2::{Digest, Sha256};

use super::{fail_usage, print_note};
use crate::cli::args::LaunchArgs;

/// The ranks that this launch starts, and their job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct World {
    /// Ranks of the job.
    pub size: usize,
    /// Rank and local rank of each process.
    pub seats: Vec<Seat>,
    /// Ranks of this machine.
    pub local_size: usize,
    /// The number of this machine.
    pub node: usize,
    /// Machines of the job.
    pub nodes: usize,
    /// The machine of rank 0.
    pub master_addr: String,
    /// Its port.
    pub master_port: u16,
    /// The secret that processes of the job show each other.
    pub token: String,
}

/// A rank to be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seat {
    /// The rank among all ranks.
    pub rank: usize,
    /// The rank among the ranks of this machine.
    pub local_rank: usize,
}

/// The most ranks of a machine: more than any has cores and cards, as each is a process.
const MOST_LOCAL_RANKS: usize = 1024;

/// The variable that holds the secret of a job.
const TOKEN: &str = "GRAPHC_JOB_TOKEN";

impl World {
    /// The world that the command line describes, or where it says nothing of processes Slurm or mpirun.
    pub(super) fn from_args(args: &LaunchArgs, environment: Environment<'_>) -> Result<Self> {
        if args.nproc_per_node.is_none()
            && !args.standalone
            && let Some(task) = find_task(environment)?
        {
            let addr = args.master_addr.clone().or(task.host);
            let addr = addr.context(
                "the environment does not say on which machine rank 0 is: give --master-addr",
            )?;
            let port = args.master_port;
            let token =
                find_token(environment, &addr, port, task.size, task.size == 1, task.rank == 0)?;
            return Ok(Self {
                size: task.size,
                seats: vec![Seat { rank: task.rank, local_rank: task.local_rank }],
                local_size: task.local_size,
                node: task.node,
                nodes: task.nodes,
                master_addr: addr,
                master_port: port,
                token,
            });
        }
        Self::of_arguments(args, environment)
    }

    fn of_arguments(args: &LaunchArgs, environment: Environment<'_>) -> Result<Self> {
        let (nodes, node, local_size) =
            (args.nnodes, args.node_rank, args.nproc_per_node.unwrap_or(1));
        if node >= nodes {
            fail_usage(&format!(
                "--node-rank {node} is not below --nnodes {nodes}: machines count from 0"
            ));
        }
        if local_size > MOST_LOCAL_RANKS {
            fail_usage(&format!(
                "{local_size} ranks on a machine: it has at most {MOST_LOCAL_RANKS}"
            ));
        }
        let size = nodes.checked_mul(local_size).filter(|&size| size <= MOST_RANKS);
        let Some(size) = size else {
            fail_usage(&format!("{nodes} x {local_size} ranks: a job has at most {MOST_RANKS}"));
        };
        let addr = match &args.master_addr {
            Some(addr) => addr.clone(),
            None if nodes == 1 => "127.0.0.1".into(),
            None => fail_usage("with several machines --master-addr names the one of rank 0"),
        };
        let port = if args.standalone {
            free_port().context("no port is free")?
        } else {
            args.master_port
        };
        let seat = |local_rank| Seat { rank: node * local_size + local_rank, local_rank };
        Ok(Self {
            size,
            seats: (0..local_size).map(seat).collect(),
            local_size,
            node,
            nodes,
            token: find_token(environment, &addr, port, size, nodes == 1, node == 0)?,
            master_addr: addr,
            master_port: port,
        })
    }

    /// The variables of a process's environment.
    pub(super) fn variables(&self, seat: Seat, restart: u32) -> [(&'static str, String); 10] {
        [
            ("RANK", seat.rank.to_string()),
            ("LOCAL_RANK", seat.local_rank.to_string()),
            ("WORLD_SIZE", self.size.to_string()),
            ("LOCAL_WORLD_SIZE", self.local_size.to_string()),
            ("GROUP_RANK", self.node.to_string()),
            ("NODE_COUNT", self.nodes.to_string()),
            ("MASTER_ADDR", self.master_addr.clone()),
            ("MASTER_PORT", self.master_port.to_string()),
            (TOKEN, self.token.clone()),
            ("GRAPHC_RESTART", restart.to_string()),
        ]
    }
}

/// The secret of the job: that of the environment; a fresh one where all processes are `own`; else one that all launches
/// work out alike, which keeps jobs apart but no stranger out, as the `first` launch says.
fn find_token(
    environment: Environment<'_>,
    addr: &str,
    port: u16,
    size: usize,
    own: bool,
    first: bool,
) -> Result<String> {
    if let Some(token) = environment(TOKEN).filter(|token| !token.is_empty()) {
        return Ok(token);
    }
    if own {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)
            .map_err(|error| anyhow::anyhow!("the system gives no random bytes: {error}"))?;
        return Ok(encode_hex(&bytes));
    }
    if first {
        print_note(&format!(
            "{TOKEN} is not set: on a network that others use, set it to the same secret on all machines"
        ));
    }
    let digest = Sha256::digest(format!("graphc job at {addr}:{port} of {size} ranks"));
    Ok(encode_hex(&digest[..16]))
}
