//! Jobs of several ranks, joined by shared memory and by TCP. The ranks are threads here, each with a membership of its
//! own, so that everything but the launch is as between processes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common;
use crate::tour::{feeds, grand_tour};
use graphc_plan::Rate;
use graphc_runtime::job::{Job, JobError, JobOptions, TransportLinks, free_port};
use graphc_runtime::{HostTensor, RuntimeError, Session, SessionOptions};

/// Of what goes on tour.
const SHAPE: [usize; 2] = [13, 6000];

/// Options of each rank of a job that meets on this host.
fn options(world: u32, links: TransportLinks) -> Vec<JobOptions> {
    let url = format!("tcp://127.0.0.1:{}", free_port().expect("a port"));
    let one = |rank| {
        let mut options = JobOptions::from_url(&url, rank, world).expect("a URL");
        options.token = "a token".into();
        options.links = links;
        options.join_timeout = Duration::from_secs(300);
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

/// Waits until something holds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(300);
    while !holds() {
        assert!(Instant::now() < end, "not within 300 s: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn session_options() -> SessionOptions {
    SessionOptions { timeout: Duration::from_secs(600), ..SessionOptions::default() }
}

#[test]
fn every_boxing_gives_on_every_rank_what_was_fed() {
    for links in [TransportLinks::Auto, TransportLinks::Tcp] {
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
    let results = on_ranks(options(3, TransportLinks::Auto), |job| {
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
    let results = on_ranks(options(3, TransportLinks::Auto), |job| {
        let job = job.expect("all come");
        if job.rank() == 1 {
            job.fail("the disk is full");
        }
        job.barrier().expect_err("rank 1 fails").to_string()
    });
    for report in &results {
        assert!(report.starts_with("rank 1: the disk is full"), "{report}");
        assert_eq!(report, &results[0]);
    }
}

#[test]
fn the_account_says_what_the_others_waited_for() {
    let plan = grand_tour(3, SHAPE);
    let jobs = Mutex::new(Vec::new());
    let results = on_ranks(options(3, TransportLinks::Auto), |job| {
        let job = job.expect("all come");
        jobs.lock().expect("no panic").push(Arc::clone(&job));
        let session = Session::on(&job, &plan, &BTreeMap::new(), session_options());
        let mut session = session.expect("the plan fits");
        session.step(feeds(SHAPE)).expect("alive").wait().expect("done");
        if job.rank() == 2 {
            // Until both others wait for this rank.
            let waits = |job: &Arc<Job>| {
                job.activity_lines().iter().any(|line| line.contains("for rank 2"))
            };
            let both = || jobs.lock().expect("no panic").iter().filter(|job| waits(job)).count();
            until("the others wait", || both() == 2);
            job.fail("out of data");
            return job.end_reason().expect("it has").to_string();
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
    let results = on_ranks(options(2, TransportLinks::Auto), |job| {
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
    let mut all = options(3, TransportLinks::Auto);
    // So long that the others are there before on the busiest machine.
    all[0].join_timeout = Duration::from_secs(5);
    all.remove(1);
    for result in on_ranks(all, |job| job.expect_err("rank 1 is missing").to_string()) {
        assert!(result.contains("the job still lacks rank 1"), "{result}");
    }
}

#[test]
fn a_stranger_does_not_get_in_and_the_job_goes_on() {
    let all = options(2, TransportLinks::Auto);
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
    let all = options(2, TransportLinks::Auto);
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
    let results = on_ranks(options(2, TransportLinks::Auto), |job| {
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
    let one = |rank| JobOptions::from_url(&url, rank, 2).expect("a URL");
    let results = on_ranks((0..2).map(one).collect(), |job| {
        job.expect("all come").all_gather(b"x").expect("all bring theirs").len()
    });
    assert_eq!(results, [2, 2]);
    assert!(!path.exists());
}

/// A file that rank 0 of a job of two has written, once it is there, and where it listens.
fn invited(path: &std::path::Path) -> String {
    let text = || std::fs::read_to_string(path).unwrap_or_default();
    until("rank 0 says where it listens", || !text().is_empty());
    text().lines().next().expect("an address").to_owned()
}

#[test]
fn who_has_not_read_the_file_is_no_rank_and_rank_0_listens_at_the_loopback_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("meeting");
    let url = format!("file://{}", path.display());
    let rank = |rank| JobOptions::from_url(&url, rank, 2).expect("a URL");
    std::thread::scope(|scope| {
        let leading = scope.spawn(|| Job::join(rank(0)).expect("both come").barrier());
        let address = invited(&path);
        assert!(address.starts_with("127.0.0.1:"), "{address}");
        let stranger = JobOptions::from_url(&format!("tcp://{address}"), 1, 2).expect("a URL");
        let refused = Job::join(stranger).expect_err("it knows no secret").to_string();
        assert!(refused.contains("token"), "{refused}");
        Job::join(rank(1)).expect("it has read the file").barrier().expect("both come");
        leading.join().expect("no panic").expect("both come");
    });
}

#[test]
fn a_token_is_asked_for_besides_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("file://{}", folder.path().join("meeting").display());
    let rank = |rank, token: &str| {
        let mut options = JobOptions::from_url(&url, rank, 2).expect("a URL");
        options.token = token.into();
        options
    };
    std::thread::scope(|scope| {
        let leading = scope.spawn(|| Job::join(rank(0, "ours")).expect("both come").barrier());
        let mut other = rank(1, "theirs");
        other.join_timeout = Duration::from_millis(1);
        Job::join(other).expect_err("another token");
        Job::join(rank(1, "ours")).expect("the same").barrier().expect("both come");
        leading.join().expect("no panic").expect("both come");
    });
}

#[test]
fn without_a_secret_nobody_meets_where_others_can_come() {
    let options = JobOptions::from_url("tcp://0.0.0.0:1", 0, 2).expect("a URL");
    let error = Job::join(options).expect_err("no secret").to_string();
    assert!(error.contains("GRAPHC_JOB_TOKEN"), "{error}");
}

#[test]
fn silent_strangers_do_not_keep_a_job_from_starting() {
    let all = options(3, TransportLinks::Tcp);
    let (leader, others) = (all[0].clone(), [all[1].clone(), all[2].clone()]);
    std::thread::scope(|scope| {
        let leading = scope.spawn(|| Job::join(leader).expect("all come").barrier());
        let address = all[0].meeting.to_string();
        until("rank 0 listens", || std::net::TcpStream::connect(&address).is_ok());
        let connect = |_| std::net::TcpStream::connect(&address).expect("rank 0 listens");
        let strangers: Vec<_> = (0..400).map(connect).collect();
        let join = |options| scope.spawn(|| Job::join(options).expect("let in").barrier());
        for rank in others.map(join).into_iter().chain([leading]) {
            rank.join().expect("no panic").expect("all come");
        }
        drop(strangers);
    });
}

#[test]
fn ranks_that_differ_are_told_so_on_all_before_the_first_step() {
    let plan = grand_tour(3, SHAPE);
    let results = on_ranks(options(3, TransportLinks::Auto), |job| {
        let job = job.expect("all come");
        let seed = u64::from(job.rank() == 1) * 7;
        let options = SessionOptions { seed, ..session_options() };
        let session = Session::on(&job, &plan, &BTreeMap::new(), options);
        session.expect_err("rank 1 has another seed").to_string()
    });
    for error in &results {
        assert!(error.contains("\n  the seed: 0 on ranks 0, 2; 7 on rank 1"), "{error}");
        assert!(!error.contains("plan"), "{error}");
    }
}

#[test]
fn ranks_with_other_plans_are_told_what_differs() {
    let results = on_ranks(options(2, TransportLinks::Auto), |job| {
        let job = job.expect("all come");
        let shape = [13, 6000 + job.rank() as usize];
        let plan = grand_tour(2, shape);
        let session = Session::on(&job, &plan, &BTreeMap::new(), session_options());
        session.expect_err("rank 1 has another plan").to_string()
    });
    for error in &results {
        assert!(error.contains("\n  the plan's layouts: of digest "), "{error}");
        assert!(!error.contains("the seed"), "{error}");
    }
}

/// The rows that a rank reads, out of the whole.
fn rows_alone(session: &Session, whole: &HostTensor) -> HostTensor {
    let (width, rows) = (whole.shape()[1] * whole.dtype().size(), &session.feed_rows()["x"]);
    let bytes: Vec<u8> =
        rows.iter().flat_map(|r| &whole.bytes()[r.start * width..r.end * width]).copied().collect();
    let count = rows.iter().map(|range| range.len()).sum::<usize>();
    HostTensor::new(whole.dtype(), [count, whole.shape()[1]], bytes).expect("whole rows")
}

#[test]
fn a_process_may_be_fed_the_rows_of_its_rank_alone() {
    let (shape, ranks) = ([15, 3], [0, 1, 2]);
    // A rank has rows of each of the three microbatches of 5; by columns it has all rows.
    for (sbp, held) in [("S(0)", [6, 6, 3]), ("S(1)", [15; 3]), ("B", [15; 3])] {
        let mut builder = common::Builder::new(3, 3);
        let layout = common::by_rows(common::f32s(&shape, &ranks, sbp));
        let register = builder.tensor(&layout, Rate::Microbatch, 3);
        builder.feed("x", register, Rate::Microbatch);
        builder.fetch("y", register, Rate::Microbatch);
        let (plan, whole) = (builder.verified(), &feeds(shape)["x"]);
        let results = on_ranks(options(3, TransportLinks::Auto), |job| {
            let session =
                Session::on(&job.expect("all come"), &plan, &BTreeMap::new(), session_options());
            let mut session = session.expect("the plan fits");
            let part = rows_alone(&session, whole);
            let rows = part.shape()[0];
            let step = |feed: &HostTensor, session: &mut Session| {
                session.step(BTreeMap::from([("x".to_owned(), feed.clone())]))
            };
            let parts = step(&part, &mut session).expect("alive").wait().expect("done");
            let wholes = step(whole, &mut session).expect("alive").wait().expect("done");
            let short = HostTensor::zeros(whole.dtype(), [2, 3]);
            let refused = step(&short, &mut session).map(drop).expect_err("2 rows").to_string();
            assert!(refused.contains("f32[2, 3]") && refused.contains("f32[15, 3]"), "{refused}");
            session.shutdown().expect("no rank fails");
            (rows, parts, wholes)
        });
        for ((rows, parts, wholes), held) in results.into_iter().zip(held) {
            assert_eq!(rows, held, "{sbp}");
            assert!(parts["y"] == *whole && wholes["y"] == *whole, "{sbp}");
        }
    }
}
