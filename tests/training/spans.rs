//! Spans of `tracing`: what is opened, and what is part of what.

use std::cell::RefCell;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use graphc::prelude::*;
use graphc_runtime::job::{Job, JobOptions, free_port};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

thread_local! {
    /// The spans that this thread is in, the innermost last.
    static INSIDE: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// The name of a span, and of the span that it is part of the number. Numbers begin with 1.
type Opened = (&'static str, Option<u64>);

/// The spans that were opened, and the number of those that have ended.
#[derive(Clone, Default)]
struct Recorder {
    opened: Arc<Mutex<Vec<Opened>>>,
    closed: Arc<AtomicU64>,
}

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("graphc")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut opened = self.opened.lock().expect("no panic");
        let parent = INSIDE.with_borrow(|inside| inside.last().copied());
        opened.push((span.metadata().name(), parent));
        Id::from_u64(opened.len() as u64)
    }

    fn enter(&self, span: &Id) {
        INSIDE.with_borrow_mut(|inside| inside.push(span.into_u64()));
    }

    fn exit(&self, _: &Id) {
        INSIDE.with_borrow_mut(|inside| inside.pop());
    }

    fn try_close(&self, _: Id) -> bool {
        self.closed.fetch_add(1, Ordering::SeqCst);
        true
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
}

/// A plan, three steps of its session, a checkpoint that is saved and loaded, and a job.
fn work() -> Result<(), Box<dyn std::error::Error>> {
    let g = GraphBuilder::new("spans");
    let w = g.variable("w", DType::F32, [4, 4], Init::Fill(0.5.into()));
    g.output("loss", &g.input("x", DType::F32, [8, 4]).matmul(&w).mean(&[0, 1], false));
    let optimizer = Some(Optimizer::sgd(0.1));
    let options = CompileOptions { mesh: vec![2], optimizer, ..CompileOptions::default() };
    let cluster = preset("cpu").ok_or("no such cluster")?;
    let plan = compile(g.finish()?, &options, &cluster, None)?.plan;
    let mut session = Session::new(&plan, &BTreeMap::new(), SessionOptions::default())?;
    for _ in 0..3 {
        let x = HostTensor::from_f32([8, 4], &[0.5; 32])?;
        session.step(BTreeMap::from([("x".to_owned(), x)]))?.wait()?;
    }
    let folder = tempfile::tempdir()?;
    let mut checkpoints = Checkpoints::create(folder.path(), 1)?;
    session.save_checkpoint(&mut checkpoints)?;
    let saved = Checkpoint::latest(folder.path())?.ok_or("a checkpoint was saved")?;
    session.load_checkpoint(&saved)?;
    session.shutdown()?;
    let mut alone = JobOptions::from_url(&format!("tcp://127.0.0.1:{}", free_port()?), 0, 1)?;
    alone.token = "a token".into();
    drop(Job::join(alone)?);
    Ok(())
}

/// Set in the process that records.
const RECORDS: &str = "GRAPHC_TEST_RECORDS_SPANS";

#[test]
fn a_compilation_and_its_steps_are_spans() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::var_os(RECORDS).is_some() {
        return spans_are_recorded();
    }
    // Whether anybody listens to a place of spans is kept for the whole process. Another test that comes to a place for the first
    // time at the moment when a recorder begins would switch it off, so the recorder has a process of its own.
    let this = "spans::a_compilation_and_its_steps_are_spans";
    let mut program = Command::new(std::env::current_exe()?);
    let output = program.args([this, "--exact", "--nocapture"]).env(RECORDS, "1").output()?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    Ok(())
}

fn spans_are_recorded() -> Result<(), Box<dyn std::error::Error>> {
    // All places of spans are known before the recorder begins.
    work()?;
    let recorder = Recorder::default();
    let recorded = tracing::subscriber::set_default(recorder.clone());
    work()?;
    drop(recorded);

    let opened = recorder.opened.lock().expect("no panic").clone();
    let name = |number: u64| opened[number as usize - 1].0;
    let count = |wanted| opened.iter().filter(|(name, _)| *name == wanted).count();
    let once = ["compile", "open_session", "save_checkpoint", "load_checkpoint", "join_job"];
    for (name, times) in once.map(|name| (name, 1)).into_iter().chain([("step", 3)]) {
        assert_eq!(count(name), times, "{name}: {opened:?}");
    }
    // The planner may work in another thread, which this recorder does not see; the example `spans` shows that.
    for part in ["pass", "lower", "simulate"] {
        let whole = opened.iter().find(|(name, _)| *name == part).and_then(|(_, parent)| *parent);
        assert_eq!(whole.map(name), Some("compile"), "{part}: {opened:?}");
    }
    assert_eq!(recorder.closed.load(Ordering::SeqCst), opened.len() as u64, "all have ended");
    Ok(())
}
