//! A rank that does not come. No plan that is verified has one; a machine may.

use std::sync::Arc;
use std::time::Duration;

use super::common::{f32s, tour};
use graphc_ir::mesh::DeviceKind;
use graphc_ir::types::DType;
use graphc_plan::{Action, BoxingKind, Plan};

use super::*;
use crate::error::Cause;
use crate::worker::StepState;

/// Rank 1 forgets its part of the collective.
fn forgetful_plan() -> Plan {
    let layouts = [f32s(&[6], &[0, 1], "S(0)"), f32s(&[6], &[0, 1], "B")];
    let mut plan = tour(&layouts, &[BoxingKind::AllGather]).plan;
    let program = &mut plan.programs[1];
    let (actors, stream) = (&program.actors, &mut program.streams[0]);
    stream.order.retain(|item| {
        let actor = stream.blocks[item.block as usize][0];
        matches!(actors[actor.index()].action, Action::Feed { .. })
    });
    plan
}

#[test]
fn a_peer_that_never_answers_is_named() {
    let (plan, timeout) = (forgetful_plan(), Duration::from_millis(200));
    let hub = Hub::new(Patience { timeout, spin: Duration::ZERO });
    let settings = WorkerSettings { seed: 0, timeout, shuffle_delays: None, replay: true };
    let edges = Sockets::from_plan(&plan, &[0, 1]).edges(None);
    let mut variables = Variables::from_plan(&plan).expect("there are none");
    let x = HostTensor::zeros(DType::F32, [6]);
    let step = Arc::new(StepState::new((0, 0), vec![x.clone()], (vec![x], [true].into()), 2));
    let mut threads = Vec::new();
    for rank in 0..2 {
        let device = Device::open(
            DeviceKind::Cpu,
            crate::device::Site::on_host(rank),
            Threads::ONE,
            &Default::default(),
        )
        .expect("a processor");
        let rank = Resolved::new(&plan, device, hub.new_transport(rank), &edges);
        let rank = rank.and_then(|rank| rank.load(&plan, &mut variables));
        let workers = rank.expect("the plan fits").build_workers(&plan, settings, 1);
        for (worker, requests) in workers.expect("a machine each") {
            requests.send(WorkerRequest::Step(Arc::clone(&step))).expect("room for the step");
            threads.push(std::thread::spawn(move || worker.run()));
        }
    }
    let error = step.wait().expect_err("rank 1 does not come");
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    let RuntimeError::Failed(failure) = &error else { panic!("{error}") };
    assert!(matches!(failure.cause, Cause::Transport(_)));
    let text = error.to_string();
    assert!(text.starts_with("rank 0, step 0, collective: rank 0 has waited "), "{text}");
    assert!(text.ends_with("s for rank 1 to join collective 0"), "{text}");
}
