//! Jobs that MPI joins: without mpirun this program starts itself with it, as jobs of several sizes; each of their
//! processes is a rank.

#[path = "common/collectives.rs"]
mod collectives;
#[allow(dead_code, reason = "shared by several tests and an example")]
mod common;
#[path = "common/tour.rs"]
mod tour;

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use collectives::{check_moves, check_reductions};
use graphc_ir::types::DType;
use graphc_runtime::dist::Group;
use graphc_runtime::job::{Job, JobOptions, TransportLinks};
use graphc_runtime::{Session, SessionOptions};
use tour::{feeds, grand_tour};

fn main() {
    if std::env::var("OMPI_COMM_WORLD_SIZE").is_ok() {
        return rank();
    }
    let program = std::env::current_exe().expect("this program");
    for world in 1..=5 {
        for transport in ["mpi", "auto"] {
            let mut command = Command::new("mpirun");
            command.args(["--oversubscribe", "-n", &world.to_string()]).arg(&program);
            for name in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
                command.env(name, "1");
            }
            let status = command.env("GRAPHC_TRANSPORT", transport).status();
            let status = status.expect("mpirun starts: it comes with Open MPI");
            assert!(status.success(), "{world} ranks, {transport}: {status}");
            println!("{world} ranks, {transport}: ok");
        }
    }
}

/// Does the work of each process.
fn rank() {
    let options = JobOptions::from_environment().expect("sound").expect("mpirun has started it");
    let links = options.links;
    let job = Job::join(options.clone()).expect("all come");
    assert_eq!((job.rank(), job.world_size()), (options.rank, options.world_size));
    assert_eq!((job.local_rank(), job.nodes()), (job.rank(), 1));
    let neighbours = if links == TransportLinks::Mpi { 1 } else { job.world_size() as usize };
    assert_eq!(job.neighbours(), neighbours);
    bytes_are_gathered(&job);
    // Messages that the library sends at once, and such that it asks the receiver for.
    for (shape, steps) in [([13, 60], 200), ([13, 6000], 20), ([16, 1 << 18], 3)] {
        every_boxing_gives_what_was_fed(&job, shape, steps);
    }
    let group = Group::on(&job, Duration::from_secs(60));
    every_collective_is_as_the_serial_reference(&group);
    sixty_four_mebibytes_go_around(&group);
    drop(group);
    job.barrier().expect("all come");
    // Some leave early, and are waited for by nobody.
    if job.rank() == 0 {
        std::thread::sleep(Duration::from_millis(300));
    }
    drop(job);
    let again = Job::join(options).expect_err("MPI has ended").to_string();
    assert!(again.contains("MPI"), "{again}");
}

fn bytes_are_gathered(job: &Job) {
    let mine = vec![job.rank() as u8; job.rank() as usize];
    let all = job.all_gather(&mine).expect("all bring theirs");
    let expected: Vec<Vec<u8>> =
        (0..job.world_size()).map(|rank| vec![rank as u8; rank as usize]).collect();
    assert_eq!(all, expected);
}

fn every_boxing_gives_what_was_fed(job: &Arc<Job>, shape: [usize; 2], steps: usize) {
    let plan = grand_tour(job.world_size(), shape);
    let options = SessionOptions { timeout: Duration::from_secs(60), ..SessionOptions::default() };
    let session = Session::on(job, &plan, &BTreeMap::new(), options);
    let mut session = session.expect("the plan fits");
    let fed = feeds(shape);
    let handles: Vec<_> = (0..steps).map(|_| session.step(fed.clone()).expect("alive")).collect();
    for handle in handles {
        let output = handle.wait().expect("done");
        assert_eq!(output["y"], fed["x"], "rank {}, {shape:?}", job.rank());
    }
}

fn every_collective_is_as_the_serial_reference(group: &Group) {
    for dtype in DType::ALL {
        for elements in [0, 1, 7, 4096 / dtype.size(), 5003] {
            if !dtype.is_float8() {
                check_reductions(group, dtype, elements);
            }
            check_moves(group, dtype, elements);
        }
    }
}

fn sixty_four_mebibytes_go_around(group: &Group) {
    let (n, me) = (group.world_size(), group.rank());
    if n == 1 {
        return;
    }
    let (next, last) = ((me + 1) % n, (me + n - 1) % n);
    let sent = group.isend(vec![me as f32; 16 << 20], next).expect("started");
    let mut data = vec![-1.0_f32; 16 << 20];
    group.recv(&mut data, last).expect("received");
    assert!(data.iter().all(|&x| x == last as f32));
    assert_eq!(sent.wait().expect("sent").len(), data.len());
}
