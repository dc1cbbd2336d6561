//! Measures the host's work for an action on a card. The double of NVIDIA's libraries executes nothing, and the time inside of it is
//! subtracted, so what is left is graphc's own.
//!
//!     cargo run --release --example bench_card_host
//!
//! NVRTC must be installed, as for the tests of cards.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Instant;

use graphc::ir::mesh::DeviceKind;
use graphc::nn::Module;
use graphc::prelude::*;

/// Layers of the model.
const LAYERS: usize = 12;
/// Steps that are under way at a time.
const STEPS: usize = 50;
/// Rounds, of which the fastest counts: other programs share the machine.
const ROUNDS: usize = 20;
/// Says that this process was started with the double.
const STARTED: &str = "GPU_DOUBLE_EMPTY";

fn main() {
    if std::env::var_os(STARTED).is_none() {
        return start();
    }
    let plan = plan();
    println!("host time of an action of a training of GPT with {LAYERS} layers on one card");
    for (name, replay) in [("launched one by one", false), ("replayed", true)] {
        let measured = measure(&plan, replay);
        println!(
            "{name}: {:.3} us ({} actions and {:.0} calls that give streams something a step; {:.0} calls in all, {:.3} us each \
             inside the double, which is subtracted)",
            measured.host / measured.actions as f64 * 1e6,
            measured.actions,
            measured.given,
            measured.calls,
            measured.inside / measured.calls * 1e6,
        );
    }
}

/// Starts this program again, with the double in place of NVIDIA's libraries.
fn start() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let Some(env) = gpu_double::install(folder.path()) else { return };
    let program = std::env::current_exe().expect("this program has a path");
    let status = Command::new(program).envs(env.variables).env(STARTED, "1").status();
    assert!(status.expect("it starts again").success(), "it has failed");
}

fn plan() -> VerifiedPlan {
    let g = GraphBuilder::new("gpt");
    let config =
        nn::GptConfig { layers: LAYERS, width: 64, heads: 4, sequence: 32, vocabulary: 83 };
    let ids = g.input("ids", DType::I64, [4, 32]);
    let logits = nn::Gpt::new(&g, &config).forward(&ids);
    g.output("loss", &logits.cross_entropy(&g.input("labels", DType::I64, [4, 32])));
    let adam = AdamOptions { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 };
    let options =
        CompileOptions { optimizer: Some(Optimizer::AdamW(adam)), ..CompileOptions::default() };
    let cluster = preset("dgx-h100").expect("a preset");
    compile(g.finish().expect("a graph"), &options, &cluster, None).expect("a plan").plan
}

/// The measurements of a step, in the mean over a round.
struct Measured {
    actions: u64,
    calls: f64,
    given: f64,
    /// Seconds inside the double.
    inside: f64,
    /// Seconds outside of it.
    host: f64,
}

fn measure(plan: &VerifiedPlan, replay: bool) -> Measured {
    let device = Some(DeviceKind::Cuda);
    let options = SessionOptions { device, replay, ..SessionOptions::default() };
    let mut session = Session::new(plan, &BTreeMap::new(), options).expect("a session");
    let ids = HostTensor::from_i64([4, 32], &[1; 128]).expect("a tensor");
    let feeds = BTreeMap::from([("ids".to_owned(), ids.clone()), ("labels".to_owned(), ids)]);
    let mut rounds: Vec<Measured> = (0..ROUNDS).map(|_| round(&mut session, &feeds)).collect();
    let statistics = session.statistics().expect("a session that runs");
    let actions = statistics.ranks[0].actions / statistics.steps;
    rounds.iter_mut().for_each(|round| round.actions = actions);
    rounds.into_iter().min_by(|a, b| a.host.total_cmp(&b.host)).expect("rounds")
}

fn round(session: &mut Session, feeds: &BTreeMap<String, HostTensor>) -> Measured {
    let (before, begun) = (account(), Instant::now());
    let steps: Vec<_> = (0..STEPS).map(|_| session.step(feeds.clone()).expect("a step")).collect();
    steps.into_iter().for_each(|step| drop(step.wait().expect("outputs")));
    let (seconds, after) = (begun.elapsed().as_secs_f64(), account());
    let [calls, given, inside] =
        std::array::from_fn(|at| (after[at] - before[at]) as f64 / STEPS as f64);
    let (inside, all) = (inside / 1e9, seconds / STEPS as f64);
    Measured { actions: 0, calls, given, inside, host: all - inside }
}

/// Calls of the double, those that gave streams something, and nanoseconds inside of it.
fn account() -> [u64; 3] {
    let mut numbers = [0; 3];
    // SAFETY: the double is open already, under this name, and the function takes a place for three numbers.
    unsafe {
        let double = libloading::Library::new("libcuda.so.1").expect("the double");
        let account: libloading::Symbol<'_, unsafe extern "C" fn(*mut u64)> =
            double.get(b"gpuDoubleAccount").expect("it keeps an account");
        account(numbers.as_mut_ptr());
    }
    numbers
}
