//! Plans whose ranks are processes: the same bits as threads give, and an end for every failure.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support;
use crate::support::{Reference, train_reference, training};
use graphc::runtime::job::free_port;
use graphc_ir::random::RandomStream;
use rustix::process::{Pid, Signal, kill_process};

/// The time to wait for what must come before the test says that it hangs: far more than a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(300);

/// `graphc launch` of so many processes of a training.
fn launch(processes: usize, transport: &str, args: &[String]) -> Output {
    let graphc = env!("CARGO_BIN_EXE_graphc");
    let processes = processes.to_string();
    Command::new(graphc)
        .args(["launch", "--standalone", "--nproc-per-node", &processes, "--", graphc])
        .args(args)
        .env("GRAPHC_TRANSPORT", transport)
        .stdin(Stdio::null())
        .output()
        .expect("graphc starts")
}

#[test]
fn processes_give_the_bits_of_threads_over_shared_memory_and_tcp() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let metrics = folder.path().join("losses.jsonl");
    for (name, processes, extra) in [
        ("mlp", 2, ["--mesh", "2"].as_slice()),
        ("mlp_mse", 4, &["--mesh", "4"]),
        ("gpt", 2, &["--mesh", "2", "--strategy", "zero3"]),
        ("gpt", 4, &["--mesh", "2x2"]),
        ("gpt", 4, &["--mesh", "2x2", "--stages", "2", "--microbatches", "2"]),
    ] {
        let threads = train_reference(name, extra);
        for transport in ["auto", "tcp"] {
            let mut args = training(name, extra);
            args.extend(Reference::load(name).args);
            args.extend(["--metrics".to_owned(), metrics.display().to_string()]);
            let output = launch(processes, transport, &args);
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{name} {extra:?} {transport}: {stderr}");
            let losses = std::fs::read(&metrics).expect("metrics");
            assert!(losses == threads, "{name} {extra:?} {transport}: other bits than threads");
        }
    }
}

/// Processes of a job, started without a launcher; none outlives the test.
struct Processes(Vec<Child>);

impl Processes {
    /// `change` may give a rank other arguments or another environment.
    fn start(world: usize, args: &[String], change: impl Fn(usize, &mut Command)) -> Self {
        Self::of(Path::new(env!("CARGO_BIN_EXE_graphc")), world, args, change)
    }

    /// Starts processes like [`Processes::start`], of another program.
    fn of(
        program: &Path,
        world: usize,
        args: &[String],
        change: impl Fn(usize, &mut Command),
    ) -> Self {
        let port = free_port().expect("a port").to_string();
        let start = |rank: usize| {
            let mut command = Command::new(program);
            command.args(args);
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", world.to_string());
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port);
            command.env("GRAPHC_JOB_TOKEN", "a secret of these tests");
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
            change(rank, &mut command);
            command.spawn().expect("graphc starts")
        };
        Self((0..world).map(start).collect())
    }

    fn signal(&self, rank: usize, signal: Signal) {
        let pid = Pid::from_child(&self.0[rank]);
        kill_process(pid, signal).expect("the process is there");
    }

    /// Waits until a rank has ended. Its exit status and standard error.
    fn end(&mut self, rank: usize) -> (Option<i32>, String) {
        let child = &mut self.0[rank];
        until(&format!("rank {rank} ends"), || child.try_wait().expect("a child").is_some());
        let mut text = String::new();
        let mut stderr = child.stderr.take().expect("a pipe");
        std::io::Read::read_to_string(&mut stderr, &mut text).expect("text");
        (child.wait().expect("a child").code(), text)
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Most have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits until something holds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Numbers that are the same in every run of the tests.
fn draw(stream: u64, index: u64) -> [u32; 4] {
    RandomStream { seed: 7, key: stream, step: 0 }.words(index)
}

/// A training that would go on for hours, and whose first losses are there.
fn endless(folder: &Path) -> Vec<String> {
    let metrics = folder.join("losses.jsonl");
    let mut args = training("mlp", &["--loss", "cross_entropy", "--optimizer", "sgd"]);
    args.extend(["--steps".to_owned(), "100000000".to_owned(), "--metrics".to_owned()]);
    args.push(metrics.display().to_string());
    args
}

/// Waits until so many losses are written.
fn wait_for_losses(folder: &Path, count: usize) {
    until("training goes on", || count_losses(folder) >= count);
}

fn count_losses(folder: &Path) -> usize {
    let text = std::fs::read(folder.join("losses.jsonl")).unwrap_or_default();
    text.iter().filter(|&&byte| byte == b'\n').count()
}

#[test]
fn a_rank_that_is_killed_or_stopped_ends_the_others_with_an_account() {
    // Most of the time is patience with who has been stopped, so several jobs wait beside each other.
    const LANES: u64 = 6;
    std::thread::scope(|scope| {
        for lane in 0..LANES {
            scope.spawn(move || (lane..50).step_by(LANES as usize).for_each(end_one_rank));
        }
    });
}

/// Starts a job that would never end, kills or stops one of its ranks at a moment that is drawn, and reads what the others say.
fn end_one_rank(run: u64) {
    let [a, b, c, d] = draw(1, run);
    let world = 2 + a as usize % 3;
    let victim = b as usize % world;
    // A death is seen at once, silence when the heartbeat's patience ends; a busy machine must not seem silent.
    let (signal, heartbeat) = match run % 5 {
        0 => (Signal::STOP, "5"),
        _ => (Signal::KILL, "300"),
    };
    let transport = if c % 2 == 0 { "auto" } else { "tcp" };
    let folder = tempfile::tempdir().expect("a scratch folder");
    let mut args = endless(folder.path());
    args.extend(["--mesh".to_owned(), world.to_string()]);
    let mut ranks = Processes::start(world, &args, |_, command| {
        command.env("GRAPHC_TRANSPORT", transport);
        command.env("GRAPHC_HEARTBEAT_TIMEOUT", heartbeat);
    });
    // The moment is drawn in steps: it may come in one, or between two.
    wait_for_losses(folder.path(), 1 + d as usize % 200);
    ranks.signal(victim, signal);
    for rank in (0..world).filter(|&rank| rank != victim) {
        let (status, account) = ranks.end(rank);
        let which = format!("run {run}, {signal:?} of {victim} of {world}, {transport}");
        assert_eq!(status, Some(1), "{which}: {account}");
        assert!(account.contains(&format!("error: rank {victim}")), "{which}: {account}");
        // Where rank 0 is gone each knows only its own part.
        let told = (0..world).filter(|&other| other != victim);
        for other in told.filter(|&other| victim != 0 || other == rank) {
            assert!(account.contains(&format!("\n  rank {other}: ")), "{which}: {account}");
        }
        assert!(!account.contains("panicked"), "{which}: {account}");
    }
}

/// Nobody is taken for dead where all have stood still for longer than a heartbeat's patience, as a job that its machine suspends.
#[test]
fn a_job_that_is_suspended_goes_on() {
    const HEARTBEAT: Duration = Duration::from_secs(2);
    let go_on = |transport: &str| {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let mut args = endless(folder.path());
        args.extend(["--mesh".to_owned(), "2".to_owned()]);
        let mut ranks = Processes::start(2, &args, |_, command| {
            command.env("GRAPHC_TRANSPORT", transport);
            command.env("GRAPHC_HEARTBEAT_TIMEOUT", HEARTBEAT.as_secs().to_string());
        });
        wait_for_losses(folder.path(), 3);
        (0..2).for_each(|rank| ranks.signal(rank, Signal::STOP));
        std::thread::sleep(HEARTBEAT);
        let before = count_losses(folder.path());
        std::thread::sleep(HEARTBEAT + HEARTBEAT / 2);
        assert_eq!(count_losses(folder.path()), before, "they stand still");
        (0..2).for_each(|rank| ranks.signal(rank, Signal::CONT));
        // A beat's time later silence would have been noticed.
        std::thread::sleep(HEARTBEAT);
        let after = count_losses(folder.path());
        wait_for_losses(folder.path(), after + 3);
        for child in &mut ranks.0 {
            assert_eq!(child.try_wait().expect("a child"), None, "{transport}");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| go_on("auto"));
        scope.spawn(|| go_on("tcp"));
    });
}

/// Collectives of one op and size, again and again for minutes, once so many rounds have been measured.
fn collectives(
    world: usize,
    op: &str,
    bytes: usize,
    (transport, measured): (&str, usize),
) -> Processes {
    let mut program = std::env::current_exe().expect("a path");
    program.pop();
    let program = program.with_file_name("examples").join("bench_collectives");
    let sizes = vec![bytes.to_string(); 5000].join(",");
    let args = ["--ops", op, "--sizes", &sizes, "--seconds", "0.02"].map(str::to_owned);
    let mut ranks = Processes::of(&program, world, &args, |rank, command| {
        command.env("GRAPHC_TRANSPORT", transport).env("GRAPHC_HEARTBEAT_TIMEOUT", "300");
        if rank == 0 {
            command.stdout(Stdio::piped());
        }
    });
    let stdout = ranks.0[0].stdout.take().expect("a pipe");
    let mut lines = BufReader::new(stdout).lines();
    for _ in 0..measured {
        lines.next().expect("a measurement").expect("text");
    }
    // Somebody has to take in the others.
    std::thread::spawn(move || lines.count());
    ranks
}

#[test]
fn a_rank_that_is_killed_in_a_collective_ends_the_others() {
    // In the slot, lent, and in segments.
    let (ops, sizes) =
        (["all_to_all", "broadcast", "all_reduce", "send_recv"], [64, 1 << 20, 16 << 20]);
    for run in 0..24 {
        let [a, b, c, d] = draw(3, run);
        let (op, bytes) = (ops[run as usize % 4], sizes[run as usize / 4 % 3]);
        let world = 2 + a as usize % 2;
        let victim = b as usize % world;
        let transport = if c % 4 == 0 { "tcp" } else { "auto" };
        let mut ranks = collectives(world, op, bytes, (transport, 1 + d as usize % 3));
        ranks.signal(victim, Signal::KILL);
        for rank in (0..world).filter(|&rank| rank != victim) {
            let (status, account) = ranks.end(rank);
            let which = format!("run {run}, {op} of {bytes} bytes on {world}, {transport}");
            assert_eq!(status, Some(1), "{which}, rank {rank} of {victim}: {account}");
            assert!(account.contains(&format!("rank {victim}")), "{which}: {account}");
            assert!(!account.contains("panicked"), "{which}: {account}");
        }
    }
}

#[test]
fn an_error_on_one_rank_is_told_by_all() {
    for victim in 0..3 {
        let args = training("mlp", &["--mesh", "3", "--loss", "cross_entropy", "--steps", "9"]);
        let args = [args, vec!["--optimizer".to_owned(), "sgd".to_owned()]].concat();
        let mut ranks = Processes::start(3, &args, |rank, command| {
            if rank == victim {
                command.args(["--weights-from", "/nowhere/weights.safetensors"]);
            }
        });
        for rank in 0..3 {
            let (status, account) = ranks.end(rank);
            assert_eq!(status, Some(1), "{account}");
            assert!(account.contains("/nowhere/weights.safetensors"), "{account}");
            let told = rank == victim || account.contains(&format!("error: rank {victim}: "));
            assert!(told, "{account}");
        }
    }
}

#[test]
fn noise_at_the_ports_does_no_harm() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let metrics = folder.path().join("losses.jsonl");
    let reference = Reference::load("gpt");
    let args = [training("gpt", &["--mesh", "2"]), reference.args].concat();
    let args = [args, vec!["--metrics".to_owned(), metrics.display().to_string()]].concat();
    let mut ranks = Processes::start(2, &args, |_, command| {
        command.env("GRAPHC_TRANSPORT", "tcp");
    });
    let pids: Vec<u32> = ranks.0.iter().map(Child::id).collect();
    let mut sent = 0;
    for round in 0..200 {
        for port in listening(&pids) {
            let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { continue };
            let [length, seed, ..] = draw(2, round);
            let bytes: Vec<u8> =
                (0..u64::from(length % 5000)).map(|i| draw(u64::from(seed), i)[0] as u8).collect();
            // The other end may hang up before it has read everything.
            sent += usize::from(stream.write_all(&bytes).is_ok());
        }
    }
    for rank in 0..2 {
        let (status, account) = ranks.end(rank);
        assert_eq!(status, Some(0), "{account}");
    }
    assert!(sent > 0, "some noise arrived");
    let threads = train_reference("gpt", &["--mesh", "2"]);
    assert!(std::fs::read(&metrics).expect("metrics") == threads, "other bits than threads");
}

/// TCP ports on which processes listen, read off /proc.
fn listening(pids: &[u32]) -> Vec<u16> {
    let mut sockets = Vec::new();
    for pid in pids {
        let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        let links = entries.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
        sockets.extend(links.map(|link| link.display().to_string()));
    }
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let port = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (address, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
        let listens = *state == "0A" && sockets.contains(&format!("socket:[{inode}]"));
        let port = address.rsplit_once(':')?.1;
        listens.then(|| u16::from_str_radix(port, 16).ok()).flatten()
    };
    table.lines().filter_map(port).collect()
}

#[test]
fn a_launched_training_whose_rank_dies_goes_on_from_its_checkpoint() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let mut args = training("gpt", &["--mesh", "2"]);
    args.extend(Reference::load("gpt").args);
    args.extend(["--metrics".to_owned(), at("losses.jsonl"), "--save-every".to_owned()]);
    args.extend(["3", "--save"].map(str::to_owned));
    args.extend([at("saved"), "--resume".to_owned(), at("saved")]);
    // The first time rank 1 dies once there is a checkpoint.
    let script = format!(
        "if [ $RANK = 1 ] && [ $GRAPHC_RESTART = 0 ]; then \
           \"$@\" & while [ ! -e '{0}'/step-00000003 ] && [ ! -e '{0}'/step-00000006 ]; do :; done; \
           kill -9 $!; exit 9; \
         fi; exec \"$@\"",
        at("saved")
    );
    let graphc = env!("CARGO_BIN_EXE_graphc");
    let output = Command::new(graphc)
        .args(["launch", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1", "--"])
        .args(["sh", "-c", &script, "sh", graphc])
        .args(&args)
        .output()
        .expect("graphc starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let losses = std::fs::read(at("losses.jsonl")).expect("metrics");
    assert!(losses == train_reference("gpt", &["--mesh", "2"]), "other losses than uninterrupted");
}

/// Sends a signal to a training of 3,000 steps on two ranks, as threads or launched, and lets it go on from what it has saved.
#[test]
fn a_training_that_is_interrupted_saves_and_goes_on() {
    let steps = |args: &[&str]| {
        let common = ["--loss", "cross_entropy", "--optimizer", "adam", "--mesh", "2"];
        training("mlp", &[&common[..], &["--steps", "3000", "--metrics"], args].concat())
    };
    let graphc = env!("CARGO_BIN_EXE_graphc");
    let folder = tempfile::tempdir().expect("a scratch folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    support::succeeds(steps(&[&at("whole.jsonl")]));
    let whole = std::fs::read(at("whole.jsonl")).expect("metrics");
    let launched = ["launch", "--standalone", "--nproc-per-node", "2", "--", graphc];
    for (start, signal, status) in
        [(&[][..], Signal::INT, 130), (&[], Signal::TERM, 143), (&launched, Signal::INT, 130)]
    {
        let _ = std::fs::remove_dir_all(at("saved"));
        let _ = std::fs::remove_file(at("losses.jsonl"));
        let args = steps(&[&at("losses.jsonl"), "--save", &at("saved"), "--resume", &at("saved")]);
        let mut command = Command::new(graphc);
        command.args(start).args(&args).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut ranks = Processes(vec![command.spawn().expect("graphc starts")]);
        wait_for_losses(folder.path(), 20);
        ranks.signal(0, signal);
        let (code, said) = ranks.end(0);
        assert_eq!(code, Some(status), "{start:?} {signal:?}: {said}");
        let done = count_losses(folder.path());
        let note = format!("note: interrupted after {done} of 3000 steps: go on with --resume");
        assert!((20..3000).contains(&done) && said.contains(&note), "{start:?}: {said}");
        support::succeeds(&args);
        let losses = std::fs::read(at("losses.jsonl")).expect("metrics");
        assert!(losses == whole, "{start:?} {signal:?}: other losses than uninterrupted");
    }
}

#[test]
fn ranks_that_were_started_otherwise_are_told_so_before_the_first_step() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let other = support::reference("gpt").join("data.safetensors").display().to_string();
    let cases: [(&[&str], &str); 5] = [
        (&["--seed", "1"], "the seed: 0 on ranks 0, 2; 1 on rank 1"),
        (&["--steps", "8"], "--steps: 9 on ranks 0, 2; 8 on rank 1"),
        (&["--lr", "0.5"], "--lr: not given on ranks 0, 2; 0.5 on rank 1"),
        (&["--data", &other], "the data: "),
        (&["--save", "here"], "--save: not given on ranks 0, 2; given on rank 1"),
    ];
    for (change, told) in cases {
        let metrics = folder.path().join("losses.jsonl");
        let mut args = training("mlp", &["--mesh", "3", "--loss", "cross_entropy"]);
        args.extend(["--optimizer", "sgd", "--metrics"].map(str::to_owned));
        args.push(metrics.display().to_string());
        let mut ranks = Processes::start(3, &args, |rank, command| {
            let overridden = |name: &str| rank == 1 && change[0] == name;
            if !overridden("--steps") {
                command.args(["--steps", "9"]);
            }
            if overridden("--data") {
                replace(command, "--data", change[1]);
            } else if rank == 1 {
                command.args(change);
            }
            command.current_dir(folder.path());
        });
        for rank in 0..3 {
            let (status, account) = ranks.end(rank);
            assert_eq!(status, Some(1), "{change:?}: {account}");
            assert!(account.contains(told), "{change:?}: {account}");
        }
        assert!(!metrics.exists(), "{change:?}: a step was made");
    }
}

/// The command with another value of an option.
fn replace(command: &mut Command, option: &str, value: &str) {
    let args: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    let at = args.iter().position(|arg| arg == option).expect("it is given");
    let mut other = Command::new(command.get_program());
    other.args(&args[..=at]).arg(value).args(&args[at + 2..]);
    for (name, set) in command.get_envs() {
        match set {
            Some(set) => other.env(name, set),
            None => other.env_remove(name),
        };
    }
    other.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    *command = other;
}

#[test]
fn where_rank_0_dies_under_launch_one_account_is_printed() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let pid = folder.path().join("pid");
    let script = format!("[ $RANK = 0 ] && echo $$ > '{}'; exec \"$@\"", pid.display());
    let graphc = env!("CARGO_BIN_EXE_graphc");
    let mut args = endless(folder.path());
    args.extend(["--mesh", "3"].map(str::to_owned));
    let launched = Command::new(graphc)
        .args(["launch", "--standalone", "--nproc-per-node", "3", "--grace", "300", "--"])
        .args(["sh", "-c", &script, "sh", graphc])
        .args(&args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("graphc starts");
    wait_for_losses(folder.path(), 3);
    let leader = std::fs::read_to_string(&pid).expect("rank 0 has said its number");
    let leader = Pid::from_raw(leader.trim().parse().expect("a number")).expect("not 0");
    kill_process(leader, Signal::KILL).expect("rank 0 is there");
    let output = launched.wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert_eq!(
        stderr.matches("error: rank 0, which leads the job, has died").count(),
        1,
        "{stderr}"
    );
    for rank in 1..3 {
        assert_eq!(stderr.matches(&format!("\n  rank {rank}: stream 0: ")).count(), 1, "{stderr}");
    }
    assert!(stderr.contains("rank 0 (local rank 0, process"), "{stderr}");
}
