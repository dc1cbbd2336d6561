//! Sessions of one job, one after the other: however many there are, the memory that its processes share stays the same.
//! `GRAPHC_SESSIONS=10000 cargo test -p graphc-runtime --test sessions runs::` makes more of them.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use crate::tour::{feeds, grand_tour};
use graphc_runtime::job::{Job, JobOptions, free_port};
use graphc_runtime::{Session, SessionOptions};

const SHAPE: [usize; 2] = [5, 30];
/// After so many, memory that is used again has been used before.
const SETTLED: usize = 50;

/// Bytes of memory without a name that the processes of the job, threads here, have made and touched.
fn shared_bytes() -> u64 {
    let entries = std::fs::read_dir("/proc/self/fd").expect("this process").flatten();
    let ours = entries.map(|entry| entry.path()).filter(|path| {
        let link = std::fs::read_link(path).unwrap_or_default();
        link.to_string_lossy().starts_with("/memfd:graphc")
    });
    ours.filter_map(|path| std::fs::metadata(path).ok()).map(|file| file.blocks() * 512).sum()
}

/// One session: a step, now and then several, and its end.
fn session(job: &Arc<Job>, number: usize) {
    let options = SessionOptions { timeout: Duration::from_secs(600), ..SessionOptions::default() };
    let plan = grand_tour(2, SHAPE);
    let mut session = Session::on(job, &plan, &BTreeMap::new(), options).expect("the plan fits");
    for _ in 0..number % 3 {
        let outputs = session.step(feeds(SHAPE)).expect("alive").wait().expect("done");
        assert_eq!(outputs["y"], feeds(SHAPE)["x"]);
    }
    session.shutdown().expect("no rank fails");
}

#[test]
fn sessions_in_a_row_leave_no_memory_behind() {
    let sessions = std::env::var("GRAPHC_SESSIONS").ok().and_then(|text| text.parse().ok());
    let sessions: usize = sessions.unwrap_or(900);
    let url = format!("tcp://127.0.0.1:{}", free_port().expect("a port"));
    let bytes: Vec<[u64; 2]> = std::thread::scope(|scope| {
        let rank = |rank| {
            let options = JobOptions::from_url(&url, rank, 2).expect("a URL");
            move || {
                let job = Job::join(options).expect("all come");
                let measured = |range: std::ops::Range<usize>| {
                    range.for_each(|number| session(&job, number));
                    job.barrier().expect("all come");
                    let bytes = shared_bytes();
                    job.barrier().expect("all come");
                    bytes
                };
                [measured(0..SETTLED), measured(SETTLED..sessions)]
            }
        };
        let ranks = [0, 1].map(|number| scope.spawn(rank(number)));
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    });
    for [settled, end] in bytes {
        // A few pages more or less: ends of queues go in one order or another.
        assert!(end < settled + (256 << 10), "{settled} bytes after {SETTLED}, {end} at the end");
    }
}
