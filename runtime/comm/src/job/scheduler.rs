//! The rank of a process that Slurm or mpirun has started, by its environment.
//!
//! A program that is started so needs no launcher of ours. Where ranks meet is then the machine of rank 0, at a port that follows
//! from the job's name.

use super::JobError;

/// A finding in the environment, or why it makes no sense.
type Result<T> = std::result::Result<T, JobError>;

/// Looks up a variable of the environment.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The one rank of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerTask {
    /// The rank among all ranks.
    pub rank: usize,
    /// Ranks of the job.
    pub size: usize,
    /// The rank among those of this machine.
    pub local_rank: usize,
    /// Ranks of this machine.
    pub local_size: usize,
    /// The number of this machine.
    pub node: usize,
    /// Machines of the job.
    pub nodes: usize,
    /// The machine of rank 0, where the environment says so.
    pub host: Option<String>,
}

/// Finds the rank that Open MPI, Slurm or another MPI (PMI) has given this process; `None` where none of them started
/// it.
///
/// mpirun in a Slurm allocation leaves Slurm's variables of its own daemon in place, so those of MPI come first; where
/// both say the same it was Slurm that started the ranks, and Slurm says more.
pub fn find_task(environment: Environment<'_>) -> Result<Option<SchedulerTask>> {
    if environment("OMPI_COMM_WORLD_RANK").is_some() {
        return read_mpi_task(environment, OPEN_MPI).map(Some);
    }
    let same = |one: &str, other: &str| environment(one) == environment(other);
    let slurm_started = environment("SLURM_PROCID").is_some()
        && environment("SLURM_NTASKS").is_some()
        && (environment("PMI_RANK").is_none()
            || same("PMI_RANK", "SLURM_PROCID") && same("PMI_SIZE", "SLURM_NTASKS"));
    if slurm_started {
        return read_slurm_task(environment).map(Some);
    }
    if environment("PMI_RANK").is_some() {
        return read_mpi_task(environment, PMI).map(Some);
    }
    Ok(None)
}

/// Finds the rank of a program that was started without a launcher; `None` where it is alone. A batch script is no step of Slurm's:
/// a program in it runs once, whatever the tasks of its job.
pub(super) fn find_started_task(environment: Environment<'_>) -> Result<Option<SchedulerTask>> {
    let by_mpi =
        ["OMPI_COMM_WORLD_RANK", "PMI_RANK"].iter().any(|&name| environment(name).is_some());
    if !by_mpi && environment("SLURM_STEP_ID").is_none() {
        return Ok(None);
    }
    Ok(find_task(environment)?.filter(|task| task.size > 1))
}

/// Returns where the ranks of such programs meet: the machine of rank 0, and the port that MASTER_PORT says or the job's
/// name gives.
pub(super) fn meeting_address(
    environment: Environment<'_>,
    task: &SchedulerTask,
) -> Result<(String, u16)> {
    let said = environment("MASTER_ADDR").or_else(|| task.host.clone());
    let host = match task.nodes {
        1 => "127.0.0.1".to_owned(),
        _ => said.ok_or_else(|| {
            environment_error(
                "the environment does not say on which machine rank 0 is: set MASTER_ADDR".into(),
            )
        })?,
    };
    let port = match environment("MASTER_PORT") {
        Some(text) => text
            .trim()
            .parse()
            .map_err(|_| environment_error(format!("MASTER_PORT is `{text}`: no port")))?,
        None => port_of(environment),
    };
    Ok((host, port))
}

/// Returns the meeting place of ranks that torchrun may have started. It listens at MASTER_PORT itself, so they meet at another
/// port; where all are on one machine, at its loopback.
pub(super) fn beside_torchrun(
    environment: Environment<'_>,
    (host, port): (String, u16),
) -> (String, u16) {
    let of_torchrun = environment("TORCHELASTIC_RUN_ID").is_some();
    let has_store = environment("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|said| said == "True");
    let is_here = environment("LOCAL_WORLD_SIZE") == environment("WORLD_SIZE");
    let host = if of_torchrun && is_here { "127.0.0.1".to_owned() } else { host };
    match of_torchrun && has_store {
        true => (host, hash_port(&port.to_string())),
        false => (host, port),
    }
}

/// The first port of jobs that say none, and how many there are: below those that systems give to whoever asks.
const PORTS: (u16, u32) = (20_000, 12_000);

/// Returns a port that all ranks of a job work out alike, and jobs of one machine hardly share.
fn port_of(environment: Environment<'_>) -> u16 {
    let names = ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID", "SLURM_STEP_ID"];
    let name: Vec<String> = names.iter().filter_map(|name| environment(name)).collect();
    hash_port(&name.join("."))
}

/// Returns a port by a job's name.
fn hash_port(name: &str) -> u16 {
    PORTS.0 + (crc32fast::hash(name.as_bytes()) % PORTS.1) as u16
}

/// The variables of an MPI: rank, size, rank and size on this machine.
type Names = [&'static str; 4];

const OPEN_MPI: Names = [
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
];

const PMI: Names = ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"];

fn read_mpi_task(environment: Environment<'_>, names: Names) -> Result<SchedulerTask> {
    let [rank, size, local_rank, local_size] = names;
    let (rank, size) = (read_number(environment, rank)?, read_number(environment, size)?);
    // Where nothing is said of machines there is one.
    let local_size = read_optional_number(environment, local_size)?.unwrap_or(size);
    let local_rank = read_optional_number(environment, local_rank)?.unwrap_or(rank);
    if rank >= size || local_rank >= local_size || local_size > size {
        return Err(environment_error(format!(
            "{} is {rank} of {size}, on this machine {local_rank} of {local_size}: that is no rank",
            names[0]
        )));
    }
    let (node, nodes) = (rank / local_size, size.div_ceil(local_size));
    let host = if nodes == 1 { Some("127.0.0.1".into()) } else { first_node(environment)? };
    Ok(SchedulerTask { rank, size, local_rank, local_size, node, nodes, host })
}

fn read_slurm_task(environment: Environment<'_>) -> Result<SchedulerTask> {
    let rank = read_number(environment, "SLURM_PROCID")?;
    let size = read_number(environment, "SLURM_NTASKS")?;
    let local_rank = read_optional_number(environment, "SLURM_LOCALID")?.unwrap_or(0);
    let nodes = read_optional_number(environment, "SLURM_NNODES")?.unwrap_or(1);
    let node = read_optional_number(environment, "SLURM_NODEID")?.unwrap_or(0);
    if rank >= size || nodes == 0 || node >= nodes {
        return Err(environment_error(format!(
            "SLURM_PROCID is {rank} of {size}, SLURM_NODEID {node} of {nodes}: that is no rank"
        )));
    }
    let tasks = ["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"];
    let tasks = tasks.iter().find_map(|name| environment(name));
    let listed = tasks.map(|tasks| tasks_of(&tasks, node)).transpose()?.flatten();
    let local_size = listed.unwrap_or(size.div_ceil(nodes)).max(local_rank + 1);
    let host = first_node(environment)?;
    let host = host.or_else(|| (nodes == 1).then(|| "127.0.0.1".into()));
    Ok(SchedulerTask { rank, size, local_rank, local_size, node, nodes, host })
}

fn first_node(environment: Environment<'_>) -> Result<Option<String>> {
    let names = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"];
    let list = names.iter().find_map(|name| environment(name));
    list.map(|list| first_host(&list)).transpose()
}

fn read_number(environment: Environment<'_>, name: &str) -> Result<usize> {
    let missing = || environment_error(format!("{name} is not set, its peers are"));
    read_optional_number(environment, name)?.ok_or_else(missing)
}

fn read_optional_number(environment: Environment<'_>, name: &str) -> Result<Option<usize>> {
    let Some(text) = environment(name) else { return Ok(None) };
    text.trim()
        .parse()
        .map(Some)
        .map_err(|_| environment_error(format!("{name} is `{text}`: no number")))
}

/// Returns the first host of a list such as `a,b`, `n[01-03,07]` or `rack[1-2]-n[4,6]x`.
fn first_host(list: &str) -> Result<String> {
    let (mut host, mut rest) = (String::new(), list);
    loop {
        let Some(end) = rest.find(['[', ',']) else {
            host.push_str(rest);
            break;
        };
        host.push_str(&rest[..end]);
        if rest[end..].starts_with(',') {
            break;
        }
        let close = rest[end..].find(']').map(|close| close + end);
        let inside = close.map(|close| &rest[end + 1..close]);
        let first = inside.and_then(|inside| inside.split([',', '-']).next());
        match (first, close) {
            (Some(first), Some(close)) if !first.is_empty() => {
                host.push_str(first);
                rest = &rest[close + 1..];
            }
            _ => return Err(no_hosts(list)),
        }
    }
    if host.is_empty() { Err(no_hosts(list)) } else { Ok(host) }
}

fn no_hosts(list: &str) -> JobError {
    environment_error(format!("`{list}` is no list of hosts"))
}

fn environment_error(reason: String) -> JobError {
    JobError::Environment { reason }
}

/// Returns the number at a place of a list such as `2(x3),1`: 2, 2, 2, 1.
fn tasks_of(list: &str, node: usize) -> Result<Option<usize>> {
    let bad = || environment_error(format!("`{list}` is no list of tasks per node"));
    let mut passed = 0usize;
    for item in list.split(',') {
        let (tasks, times) = match item.split_once("(x") {
            Some((tasks, times)) => (tasks, times.strip_suffix(')').ok_or_else(bad)?),
            None => (item, "1"),
        };
        passed = passed.saturating_add(times.parse().map_err(|_| bad())?);
        if node < passed {
            return tasks.parse().map(Some).map_err(|_| bad());
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Option<SchedulerTask>> {
        let find = |name: &str| variables.iter().find(|(n, _)| *n == name);
        find_task(&|name| find(name).map(|(_, value)| value.to_string()))
    }

    fn numbers(task: &SchedulerTask) -> [usize; 6] {
        [task.rank, task.size, task.local_rank, task.local_size, task.node, task.nodes]
    }

    #[test]
    fn lists_of_hosts_have_a_first() {
        for (list, first) in [
            ("n[01-03,07]", "n01"),
            ("a,b", "a"),
            ("gpu-7", "gpu-7"),
            ("rack[1-2]-n[4,6]x,c", "rack1-n4x"),
            ("a.b.c,n[1-2]", "a.b.c"),
        ] {
            assert_eq!(first_host(list).expect("a list"), first);
        }
        for list in ["", "n[", "n[]", ",a", "n[1"] {
            first_host(list).expect_err(list);
        }
    }

    #[test]
    fn slurm_says_rank_machine_and_host() {
        let task = of(&[
            ("SLURM_PROCID", "6"),
            ("SLURM_NTASKS", "7"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_NNODES", "4"),
            ("SLURM_NODEID", "3"),
            ("SLURM_JOB_NODELIST", "n[01-03,07]"),
            ("SLURM_TASKS_PER_NODE", "2(x3),1"),
        ]);
        let task = task.expect("sound").expect("Slurm");
        assert_eq!(numbers(&task), [6, 7, 0, 1, 3, 4]);
        assert_eq!(task.host.as_deref(), Some("n01"));
    }

    #[test]
    fn mpi_comes_before_slurm_unless_they_agree() {
        let slurm = [("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2"), ("SLURM_NNODES", "2")];
        let ompi = [
            ("OMPI_COMM_WORLD_RANK", "5"),
            ("OMPI_COMM_WORLD_SIZE", "8"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
        ];
        let both = of(&[&slurm[..], &ompi].concat()).expect("sound").expect("Open MPI");
        assert_eq!(numbers(&both), [5, 8, 1, 4, 1, 2]);
        let pmi = [("PMI_RANK", "3"), ("PMI_SIZE", "4")];
        let hydra = of(&[&slurm[..], &pmi].concat()).expect("sound").expect("PMI");
        assert_eq!(numbers(&hydra), [3, 4, 3, 4, 0, 1]);
        let agree = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("SLURM_NODEID", "1")];
        let srun = of(&[&slurm[..], &agree].concat()).expect("sound").expect("Slurm");
        assert_eq!(numbers(&srun), [1, 2, 0, 1, 1, 2]);
        assert_eq!(of(&[]).expect("nothing"), None);
    }

    /// The variables that `srun -N 2 -n 3` gave to rank 1, and Open MPI 4.1's mpirun to rank 1 of 2.
    #[test]
    fn a_program_finds_its_job_without_a_launcher() {
        let find = |variables: &[(&str, &str)], name: &str| {
            let found = variables.iter().find(|(own, _)| *own == name);
            found.map(|(_, value)| value.to_string())
        };
        let srun = [
            ("SLURM_JOB_ID", "4711"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "1"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_NTASKS", "3"),
            ("SLURM_NNODES", "2"),
            ("SLURM_NODEID", "0"),
            ("SLURM_STEP_NODELIST", "node[07-08]"),
            ("SLURM_JOB_NODELIST", "node[07-09]"),
            ("SLURM_STEP_TASKS_PER_NODE", "2,1"),
        ];
        let of_srun = |name: &str| find(&srun, name);
        let task = find_started_task(&of_srun).expect("sound").expect("Slurm");
        assert_eq!(numbers(&task), [1, 3, 1, 2, 0, 2]);
        let (host, port) = meeting_address(&of_srun, &task).expect("it is said");
        assert!(host == "node07" && (20_000..32_000).contains(&port), "{host}:{port}");
        let other =
            |name: &str| if name == "SLURM_STEP_ID" { Some("1".into()) } else { of_srun(name) };
        assert_ne!(meeting_address(&other, &task).expect("it is said").1, port);
        let said =
            |name: &str| if name == "MASTER_PORT" { Some("29500".into()) } else { of_srun(name) };
        assert_eq!(meeting_address(&said, &task).expect("it is said").1, 29500);
        // A batch script has the variables of its job, and is no step of it.
        let script = |name: &str| of_srun(name).filter(|_| name != "SLURM_STEP_ID");
        assert_eq!(find_started_task(&script).expect("sound"), None);
        let mpirun = [
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("PMIX_NAMESPACE", "2713321473"),
        ];
        let of_mpirun = |name: &str| find(&mpirun, name);
        let task = find_started_task(&of_mpirun).expect("sound").expect("Open MPI");
        assert_eq!(meeting_address(&of_mpirun, &task).expect("it is said").0, "127.0.0.1");
        let alone = |name: &str| match name {
            "OMPI_COMM_WORLD_RANK" => Some("0".into()),
            "OMPI_COMM_WORLD_SIZE" | "OMPI_COMM_WORLD_LOCAL_SIZE" => Some("1".into()),
            _ => None,
        };
        assert_eq!(find_started_task(&alone).expect("sound"), None);
    }

    #[test]
    fn ranks_of_torchrun_meet_beside_its_own_port() {
        let of = |variables: &[(&str, &str)]| {
            let find = |name: &str| {
                let found = variables.iter().find(|(own, _)| *own == name);
                found.map(|(_, value)| value.to_string())
            };
            beside_torchrun(&find, ("node0".into(), 29500))
        };
        assert_eq!(of(&[("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2")]), ("node0".into(), 29500));
        let (store, run) = (("TORCHELASTIC_USE_AGENT_STORE", "True"), ("TORCHELASTIC_RUN_ID", "7"));
        let (host, port) = of(&[store, run, ("WORLD_SIZE", "4"), ("LOCAL_WORLD_SIZE", "2")]);
        assert!(host == "node0" && port != 29500);
        let here = of(&[store, run, ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2")]);
        assert_eq!(here, ("127.0.0.1".into(), port));
    }

    #[test]
    fn nonsense_is_an_error() {
        for variables in [
            [("SLURM_PROCID", "2"), ("SLURM_NTASKS", "2")],
            [("SLURM_PROCID", "x"), ("SLURM_NTASKS", "2")],
            [("PMI_RANK", "0"), ("SLURM_X", "")],
            [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "0")],
        ] {
            assert!(of(&variables).is_err(), "{variables:?}");
        }
    }
}
