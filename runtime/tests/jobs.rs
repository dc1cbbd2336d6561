//! Jobs of several ranks, joined by shared memory and by TCP. The ranks are threads here, each with a membership of its
//! own, so that everything but the launch is as between processes.

#[allow(dead_code, reason = "shared by several tests and an example")]
mod common;
#[path = "common/tour.rs"]
mod tour;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use graphc_runtime::job::{Job, JobError, JobOptions, Links};
use graphc_runtime::{RuntimeError, Session, SessionOptions};
use tour::{feeds, grand_tour};

/// Of what goes on tour.
const SHAPE: [usize; 2] = [13, 6000];

/// A port that was free a moment ago.
fn port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

/// Options of each rank of a job that meets on this host.
fn options(world: u32, links: Links) -> Vec<JobOptions> {
    let url = format!("tcp://127.0.0.1:{}", port());
    let one = |rank| {
        let mut options = JobOptions::at(&url, rank, world).expect("a URL");
        options.token = "a token".into();
        options.links = links;
        options.join_timeout = Duration::from_secs(30);
        options
    };
    (0..world).map(one).collect()
}

/// Runs `work` on each rank of a job.
fn on_ranks<T: Send>(
    options: Vec<JobOptions>,
    work: impl Fn(Result<Arc<Job>, JobError>) -> T + Sync,
) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let ranks =
            options.into_iter().map(|options| scope.spawn(move || work(Job::join(options))));
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    })
}

fn session_options() -> SessionOptions {
    SessionOptions { timeout: Duration::from_secs(20), ..SessionOptions::default() }
}

#[test]
fn every_boxing_gives_on_every_rank_what_was_fed() {
    for links in [Links::Auto, Links::Tcp] {
        for world in [1, 2, 3, 5] {
            let plan = grand_tour(world, SHAPE);
            let results = on_ranks(options(world, links), |job| {
                let job = job.expect("all come");
                let session = Session::on(&job, &plan, &BTreeMap::new(), session_options());
                let mut session = session.expect("the plan fits");
                let handles = (0..20).map(|_| session.step(feeds(SHAPE)).expect("alive"));
                let handles: Vec<_> = handles.collect();
                let outputs = handles.into_iter().map(|handle| handle.wait().expect("done"));
                outputs.collect::<Vec<_>>()
            });
            for outputs in results {
                assert_eq!(outputs.len(), 20);
                outputs
                    .iter()
                    .for_each(|y| assert_eq!(y["y"], feeds(SHAPE)["x"], "{links:?} {world}"));
            }
        }
    }
}

#[test]
fn bytes_are_gathered_in_the_order_of_ranks() {
    let results = on_ranks(options(3, Links::Auto), |job| {
        let job = job.expect("all come");
        let mine = vec![job.rank() as u8; job.rank() as usize];
        let first = job.all_gather(&mine).expect("all bring theirs");
        let second = job.from_rank_0(b"plan").expect("rank 0 brings it");
        job.barrier().expect("all come");
        (first, second)
    });
    for (first, second) in results {
        assert_eq!(first, [vec![], vec![1], vec![2, 2]]);
        assert_eq!(second, b"plan");
    }
}

#[test]
fn a_failure_ends_all_ranks_with_one_account() {
    let begun = std::time::Instant::now();
    let results = on_ranks(options(3, Links::Auto), |job| {
        let job = job.expect("all come");
        if job.rank() == 1 {
            std::thread::sleep(Duration::from_millis(200));
            job.fail("the disk is full");
        }
        job.barrier().expect_err("rank 1 fails").to_string()
    });
    for report in &results {
        assert!(report.starts_with("rank 1: the disk is full"), "{report}");
        assert_eq!(report, &results[0]);
    }
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[test]
fn the_account_says_what_the_others_waited_for() {
    let plan = grand_tour(3, SHAPE);
    let results = on_ranks(options(3, Links::Auto), |job| {
        let job = job.expect("all come");
        let session = Session::on(&job, &plan, &BTreeMap::new(), session_options());
        let mut session = session.expect("the plan fits");
        session.step(feeds(SHAPE)).expect("alive").wait().expect("done");
        if job.rank() == 2 {
            std::thread::sleep(Duration::from_millis(500));
            job.fail("out of data");
            return job.ended().expect("it has").to_string();
        }
        let result = session.step(feeds(SHAPE)).and_then(|handle| handle.wait());
        result.expect_err("rank 2 does not come").to_string()
    });
    for report in &results {
        assert!(report.starts_with("rank 2: out of data\n"), "{report}");
        assert!(report.contains("rank 0: stream 0: step 1, "), "{report}");
        assert!(report.contains("waiting for rank 2 to send in "), "{report}");
    }
}

#[test]
fn who_has_left_is_not_waited_for() {
    let plan = grand_tour(2, SHAPE);
    let results = on_ranks(options(2, Links::Auto), |job| {
        let job = job.expect("all come");
        let session = Session::on(&job, &plan, &BTreeMap::new(), session_options());
        let mut session = session.expect("the plan fits");
        session.step(feeds(SHAPE)).expect("alive").wait().expect("done");
        if job.rank() == 1 {
            return None;
        }
        let result = session.step(feeds(SHAPE)).and_then(|handle| handle.wait());
        Some(result.expect_err("rank 1 has left").to_string())
    });
    let report = results[0].as_ref().expect("rank 0 fails");
    assert!(report.contains("but that has left the job"), "{report}");
}

#[test]
fn a_missing_rank_is_named() {
    let mut all = options(3, Links::Auto);
    all.iter_mut().for_each(|options| options.join_timeout = Duration::from_millis(600));
    all.remove(1);
    for result in on_ranks(all, |job| job.expect_err("rank 1 is missing").to_string()) {
        assert!(result.contains("the job still lacks rank 1"), "{result}");
    }
}

#[test]
fn a_stranger_does_not_get_in_and_the_job_goes_on() {
    let all = options(2, Links::Auto);
    let (leader, other) = (all[0].clone(), all[1].clone());
    let refused = std::thread::scope(|scope| {
        // Rank 0 waits for rank 1, which comes after the stranger was sent away.
        let leading = scope.spawn(|| Job::join(leader).expect("all come").barrier());
        let stranger = JobOptions { token: "a guess".into(), ..other.clone() };
        let refused = Job::join(stranger).expect_err("refused").to_string();
        noise(&other);
        Job::join(other).expect("let in").barrier().expect("all come");
        leading.join().expect("no panic").expect("all come");
        refused
    });
    assert!(refused.contains("token"), "{refused}");
}

/// Writes what is no protocol to where a job meets.
fn noise(options: &JobOptions) {
    let address = options.meeting.to_string();
    for length in [0_usize, 1, 11, 28, 4096, 1 << 20] {
        let mut stream = std::net::TcpStream::connect(&address).expect("rank 0 listens");
        let bytes: Vec<u8> = (0..length).map(|i| (i * 131 % 251) as u8).collect();
        // The other end may hang up before it has read everything.
        let _ = std::io::Write::write_all(&mut stream, &bytes);
    }
}

#[test]
fn two_processes_of_one_rank_are_refused() {
    let all = options(2, Links::Auto);
    let refused = std::thread::scope(|scope| {
        let leading = scope.spawn(|| Job::join(all[0].clone()).expect("all come").barrier());
        let job = Job::join(all[1].clone()).expect("let in");
        let refused = Job::join(all[1].clone()).expect_err("refused").to_string();
        job.barrier().expect("all come");
        drop(job); // rank 0 waits for its goodbye
        leading.join().expect("no panic").expect("all come");
        refused
    });
    assert!(refused.contains("there are two processes of rank 1"), "{refused}");
}

#[test]
fn a_plan_for_another_world_is_refused() {
    let results = on_ranks(options(2, Links::Auto), |job| {
        let job = job.expect("all come");
        let plan = grand_tour(3, SHAPE);
        Session::on(&job, &plan, &BTreeMap::new(), session_options()).err()
    });
    for error in results {
        let Some(RuntimeError::Plan { reason }) = error else { panic!("refused: {error:?}") };
        assert!(reason.contains("it is for 3 ranks, and the job has 2 processes"), "{reason}");
    }
}

#[test]
fn ranks_meet_by_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("meeting");
    let url = format!("file://{}", path.display());
    let one = |rank| JobOptions::at(&url, rank, 2).expect("a URL");
    let results = on_ranks((0..2).map(one).collect(), |job| {
        job.expect("all come").all_gather(b"x").expect("all bring theirs").len()
    });
    assert_eq!(results, [2, 2]);
    assert!(!path.exists());
}
