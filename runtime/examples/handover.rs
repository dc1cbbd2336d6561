//! The cost of an action besides its kernel, and the speed at which ranks hand over to each other. Run with `cargo run
//! --release -p graphc-runtime --example handover`.

#[allow(dead_code, reason = "shared with tests")]
#[path = "../tests/common/mod.rs"]
mod common;

use std::collections::BTreeMap;
use std::time::Instant;

use common::{Builder, layout};
use graphc_ir::ops::Init;
use graphc_ir::types::DType;
use graphc_plan::{Action, BoxingKind, Rate};
use graphc_runtime::{HostTensor, RuntimeError, Session, SessionOptions};

fn main() -> Result<(), RuntimeError> {
    for (ranks, actors) in [(1, 1000), (2, 1000)] {
        let nanoseconds = per_action(local(ranks, actors), actors)?;
        println!("{nanoseconds:8.0} ns per action that copies 8 bytes, {ranks} ranks");
    }
    for ranks in [2, 4] {
        for bytes in [8, 4 << 10, 64 << 10, 4 << 20] {
            let actors = if bytes > 1 << 20 { 20 } else { 500 };
            let nanoseconds = per_action(all_reduce(ranks, actors, bytes), actors)?;
            println!("{nanoseconds:8.0} ns per all-reduce of {bytes} bytes, {ranks} ranks");
        }
    }
    for ranks in [1, 2] {
        let (piped, waited) = per_step(ranks)?;
        println!("{piped:8.0} ns per step with one all-reduce, {ranks} ranks, un-awaited");
        println!("{waited:8.0} ns per step with one all-reduce, {ranks} ranks, awaited");
    }
    Ok(())
}

/// Each rank copies a tensor of 8 bytes to and fro.
fn local(ranks: usize, actors: usize) -> Builder {
    let mut builder = Builder::new(ranks, 1);
    let all: Vec<u32> = (0..ranks as u32).collect();
    let pair = layout(&[2], DType::F32, &all, &[ranks], "B");
    let mut at = builder.variable("x", &pair, Init::Fill(0.0.into()));
    for _ in 0..actors {
        let next = builder.tensor(&pair, Rate::Step, 1);
        let action = Action::Local { kind: BoxingKind::Slice };
        builder.actor("copy", action, Rate::Step, [&[at], &[next], &[]]);
        at = next;
    }
    builder
}

fn all_reduce(ranks: usize, actors: usize, bytes: usize) -> Builder {
    let mut builder = Builder::new(ranks, 1);
    let all: Vec<u32> = (0..ranks as u32).collect();
    let of = |sbp| layout(&[bytes / 4], DType::F32, &all, &[ranks], sbp);
    let from = builder.variable("x", &of("P"), Init::Fill(1.0.into()));
    let to = builder.tensor(&of("B"), Rate::Step, 1);
    for _ in 0..actors {
        builder.collective(BoxingKind::AllReduce, 0, &[from], &[to], Rate::Step);
    }
    builder
}

/// The median over steps, in nanoseconds per action.
fn per_action(builder: Builder, actors: usize) -> Result<f64, RuntimeError> {
    let mut session = session(builder)?;
    let mut times = Vec::new();
    for _ in 0..50 {
        let begun = Instant::now();
        session.step(BTreeMap::new())?.wait()?;
        times.push(begun.elapsed().as_secs_f64() * 1e9 / actors as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Nanoseconds per step of a small job: many under way, and one at a time.
fn per_step(ranks: usize) -> Result<(f64, f64), RuntimeError> {
    let mut builder = Builder::new(ranks, 1);
    let all: Vec<u32> = (0..ranks as u32).collect();
    let of = |sbp| layout(&[4, 2], DType::F32, &all, &[ranks], sbp);
    let [x, part, sum] = ["B", "P", "B"].map(|sbp| builder.tensor(&of(sbp), Rate::Step, 1));
    builder.feed("x", x, Rate::Step);
    let mask = Action::Local { kind: BoxingKind::Mask };
    builder.actor("mask", mask, Rate::Step, [&[x], &[part], &[]]);
    builder.collective(BoxingKind::AllReduce, 0, &[part], &[sum], Rate::Step);
    builder.fetch("y", sum, Rate::Step);
    let mut session = session(builder)?;
    let feeds = || -> BTreeMap<String, HostTensor> {
        [("x".to_owned(), HostTensor::zeros(DType::F32, [4, 2]))].into()
    };
    const STEPS: usize = 5000;
    let begun = Instant::now();
    for _ in 1..STEPS {
        session.step(feeds())?;
    }
    session.step(feeds())?.wait()?;
    let piped = begun.elapsed().as_secs_f64() * 1e9 / STEPS as f64;
    let begun = Instant::now();
    for _ in 0..STEPS {
        session.step(feeds())?.wait()?;
    }
    Ok((piped, begun.elapsed().as_secs_f64() * 1e9 / STEPS as f64))
}

fn session(builder: Builder) -> Result<Session, RuntimeError> {
    Session::new(&builder.verified(), &BTreeMap::new(), SessionOptions::default())
}
