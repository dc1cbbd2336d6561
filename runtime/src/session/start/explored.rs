//! Workers of two ranks with two streams each under many schedules.

use std::sync::Arc;
use std::time::Duration;

use super::common::{Builder, by_rows, layout};
use graphc_comm::explore::explore;
use graphc_comm::transport::Patience;
use graphc_comm::transport::in_process::Hub;
use graphc_ir::mesh::DeviceKind;
use graphc_ir::types::DType;
use graphc_plan::{BoxingKind, Layout, Plan, Rate};

use super::*;
use crate::worker::StepState;

const STEPS: u64 = 2;

/// x goes around: to another layout by a collective and to the other rank by channels, in registers that a step fills
/// twice, with all communication in a stream of its own.
fn circular_plan() -> VerifiedPlan {
    let on = |ranks: &[u32], sbp: &str| -> Layout {
        by_rows(layout(&[4, 2], DType::F32, ranks, &[ranks.len()], sbp))
    };
    let mut builder = Builder::new(2, 2);
    let layouts = [on(&[0, 1], "S(1)"), on(&[0, 1], "B"), on(&[1], "B"), on(&[0], "B")];
    let tensors: Vec<_> =
        layouts.iter().map(|layout| builder.tensor(layout, Rate::Microbatch, 2)).collect();
    builder.feed("x", tensors[0], Rate::Microbatch);
    builder.collective(BoxingKind::AllGather, 0, &tensors[..1], &tensors[1..2], Rate::Microbatch);
    builder.channel(tensors[1], tensors[2], Rate::Microbatch, 2);
    builder.channel(tensors[2], tensors[3], Rate::Microbatch, 2);
    builder.fetch("y", tensors[3], Rate::Microbatch);
    builder.communicate_apart();
    builder.verified()
}

/// Runs the steps with each worker a thread of shuttle.
fn run_explored(plan: &Plan) {
    let patience = Patience { timeout: Duration::from_secs(1000), spin: Duration::ZERO };
    let hub = Hub::new(patience);
    let settings = WorkerSettings {
        seed: 0,
        timeout: Duration::from_secs(1000),
        shuffle_delays: None,
        replay: true,
    };
    let sockets = Sockets::from_plan(plan, &[0, 1]);
    let edges = sockets.edges(None);
    let mut variables = Variables::from_plan(plan).expect("there are none");
    let mut workers = Vec::new();
    for rank in 0..2 {
        let device = Device::open(
            DeviceKind::Cpu,
            crate::device::Site::on_host(rank),
            Threads::ONE,
            &Default::default(),
        )
        .expect("a processor");
        let rank = Resolved::new(plan, device, hub.new_transport(rank), &edges);
        let rank = rank.and_then(|rank| rank.load(plan, &mut variables));
        let rank = rank.expect("the plan fits");
        workers.extend(rank.build_workers(plan, settings, 8).expect("a machine each"));
    }
    let x: Vec<f32> = (0..8).map(|i| i as f32).collect();
    let x = HostTensor::from_f32([4, 2], &x).expect("eight");
    let nothing = || HostTensor::zeros(DType::F32, [4, 2]);
    let step = |index| {
        StepState::new(
            (index, index),
            vec![x.clone()],
            (vec![nothing()], [true].into()),
            workers.len(),
        )
    };
    let steps: Vec<Arc<StepState>> = (0..STEPS).map(|index| Arc::new(step(index))).collect();
    let mut threads = Vec::new();
    for (worker, requests) in workers {
        for step in &steps {
            requests.send(WorkerRequest::Step(Arc::clone(step))).expect("room for all steps");
        }
        drop(requests); // so that the worker ends after the last step
        threads.push(shuttle::thread::spawn(move || worker.run()));
    }
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    for step in steps {
        assert!(step.is_done());
        let y = step.outputs[0].lock().expect("nobody panics");
        assert_eq!(y.to_f32().expect("f32"), x.to_f32().expect("f32"));
    }
}

#[test]
fn two_ranks_of_two_streams_end_under_every_schedule() {
    let plan = circular_plan();
    explore(4_000, move || run_explored(&plan));
}
