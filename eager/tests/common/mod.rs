//! Support that the tests of eager tensors share.

#![allow(dead_code, reason = "each test uses some of it")]

use std::time::Duration;

use graphc_eager::{Eager, GlobalTensor};
use graphc_ir::sbp::NdSbp;
use graphc_runtime::HostTensor;
use graphc_runtime::dist::{self, Group};
use graphc_runtime::job::{Job, JobOptions, TransportLinks, free_port};

pub type Failure = Box<dyn std::error::Error>;

pub fn sbp(text: &str) -> NdSbp {
    text.parse().expect("an SBP")
}

/// Runs a program on ranks that are threads, and expects that all succeed.
pub fn on<T: Send>(ranks: u32, program: impl Fn(Eager) -> Result<T, Failure> + Sync) -> Vec<T> {
    let run = |group: Group| program(Eager::new(&group)?);
    dist::spawn(ranks, run).expect("every rank succeeds")
}

/// Runs a program on the ranks of a job. A group waits at most `timeout` for a peer.
pub fn on_job<T: Send>(
    (ranks, links): (u32, TransportLinks),
    timeout: Duration,
    program: impl Fn(Eager) -> Result<T, Failure> + Sync,
) -> Vec<Result<T, String>> {
    let url = format!("tcp://127.0.0.1:{}", free_port().expect("a port"));
    let one = |rank| -> Result<T, Failure> {
        let mut options = JobOptions::from_url(&url, rank, ranks)?;
        (options.token, options.links) = ("a token".into(), links);
        options.join_timeout = Duration::from_secs(300);
        let job = Job::join(options)?;
        let group = Group::on(&job, timeout);
        let result = program(Eager::new(&group)?);
        if let Err(error) = &result {
            group.fail(error);
        }
        result
    };
    std::thread::scope(|scope| {
        let one = &one;
        let ranks =
            (0..ranks).map(|rank| scope.spawn(move || one(rank).map_err(|e| e.to_string())));
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    })
}

pub fn wholes(tensors: &[GlobalTensor]) -> Result<Vec<HostTensor>, Failure> {
    Ok(tensors.iter().map(GlobalTensor::to_host).collect::<Result<_, _>>()?)
}

pub fn numbers(tensor: &HostTensor) -> Vec<f64> {
    tensor.to_f64()
}
