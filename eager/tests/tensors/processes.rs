//! Eager tensors on ranks that are joined as processes are, by shared memory and by TCP. The ranks are threads, each with a membership of its own, so
//! that everything but the launch is as between processes. One test has processes, because it kills one.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Failure, on, on_job, sbp, wholes};
use graphc_eager::Eager;
use graphc_ir::mesh::Placement;
use graphc_runtime::HostTensor;
use graphc_runtime::job::{TransportLinks, free_port};

const LONG: Duration = Duration::from_secs(600);

/// Computes numbers whose bits depend on the order of summation, through every kind of boxing and from mesh to mesh.
fn tour(eager: &Eager) -> Result<Vec<HostTensor>, Failure> {
    let (all, n) = (eager.all(), eager.world_size() as u32);
    let halves = [
        Placement::new((0..n / 2).collect(), vec![n as usize / 2])?,
        Placement::new((n / 2..n).rev().collect(), vec![n as usize / 2])?,
    ];
    let x = eager.randn([37, 19], &all, &sbp("S(0)"))?;
    let w = eager.randn([19, 37], &all, &sbp("S(0)"))?;
    let y = x.matmul(&w)?;
    let softmax = (y.exp()? / y.exp()?.sum(&[1], true)?)?;
    let large = eager.randn([300, 200], &all, &sbp("S(1)"))?;
    let sums = large.sum(&[1], false)?.to_global(&all, &sbp("P"))?;
    let there = y.to_global(&halves[0], &sbp("S(1)"))?.to_global(&halves[1], &sbp("S(0)"))?;
    let back = there.transpose(&[1, 0])?.to_global(&all, &sbp("S(0)"))?;
    let sum = (&back + &y)?;
    wholes(&[x, y, softmax, large, sums, there, sum])
}

#[test]
fn results_are_the_same_bits_on_threads_shared_memory_and_tcp() {
    for ranks in [2, 4] {
        let expected = on(ranks, |eager| tour(&eager)).remove(0);
        for links in [TransportLinks::Auto, TransportLinks::Tcp] {
            for result in on_job((ranks, links), LONG, |eager| tour(&eager)) {
                assert_eq!(result.as_ref(), Ok(&expected), "{ranks} ranks over {links:?}");
            }
        }
    }
}

#[test]
fn ranks_that_differ_are_named_on_all() {
    for links in [TransportLinks::Auto, TransportLinks::Tcp] {
        let all = on_job((3, links), LONG, |eager| {
            let x = eager.ones([3, 3], &eager.all(), &sbp("S(0)"))?;
            let y = if eager.rank() == 1 { x.exp()? } else { x.sum(&[0], true)? };
            Ok(y.to_host()?)
        });
        for result in all {
            let text = result.expect_err("rank 1 differs");
            assert!(text.contains("rank 1 calls exp of f32[3, 3] S(0)"), "{text}");
            assert!(text.contains("calls sum [0], keeping dims of f32[3, 3] S(0)"), "{text}");
        }
    }
}

#[test]
fn a_rank_that_does_not_come_is_an_error_after_the_timeout() {
    let begun = Instant::now();
    let all = on_job((2, TransportLinks::Auto), Duration::from_millis(300), |eager| {
        let x = eager.ones([4], &eager.all(), &sbp("S(0)"))?;
        if eager.rank() == 1 {
            // Longer than the timeout, and as long as the job lives.
            while x.to_local().is_some() && begun.elapsed() < Duration::from_secs(2) {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        Ok((&x + &x)?)
    });
    let text = all[0].as_ref().expect_err("rank 1 is late");
    assert!(text.contains("rank 0 has waited 0.3 s for rank 1"), "{text}");
    assert!(all[1].as_ref().is_err_and(|text| text.contains("rank 0 has waited")), "{all:?}");
}

/// Starts the example `overhead`, with a great number of rounds, as one of two processes.
fn process(rank: u32, port: u16) -> Child {
    let mut program = std::env::current_exe().expect("a path");
    program.pop();
    program.pop();
    let mut command = Command::new(program.join("examples/overhead"));
    command.arg("1000000").stderr(Stdio::piped()).stdout(Stdio::null());
    command.envs([("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")]);
    command.envs([("RANK", rank.to_string()), ("LOCAL_RANK", rank.to_string())]);
    command.env("MASTER_PORT", port.to_string()).env("GRAPHC_JOB_TOKEN", "a token");
    command.spawn().expect("`cargo test` builds examples")
}

#[test]
fn a_process_that_is_killed_ends_the_calls_of_the_others() {
    let port = free_port().expect("a port");
    let (mut first, mut second) = (process(0, port), process(1, port));
    let mut said = BufReader::new(first.stderr.take().expect("piped"));
    let mut text = String::new();
    said.read_line(&mut text).expect("it begins");
    assert_eq!(text, "1000000 rounds on 2 ranks\n");
    second.kill().expect("it runs");
    second.wait().expect("it has ended");
    said.read_to_string(&mut text).expect("it ends");
    assert!(!first.wait().expect("it has ended").success());
    assert!(text.contains("rank 1") && text.contains("has died"), "{text}");
}
