use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use graphc_compiler::cluster::preset;
use graphc_compiler::compile::compile;
use graphc_ir::builder::GraphBuilder;
use graphc_ir::graph::Graph;
use graphc_ir::ops::Init;
use graphc_ir::types::{DType, TensorType};
use graphc_plan::{Action, CompileOptions, Plan};
use graphc_runtime::HostTensor;
use graphc_runtime::dist::{self, Group};

use crate::data_parallel::{DataParallel, DataParallelError, DataParallelOptions};

const LAYERS: usize = 4;

/// Layers `w0`, `w1`, ... one after the other.
fn model() -> Graph {
    layers(GraphBuilder::new("layers"))
}

/// Builds the same layers with a state that steps update, as running statistics are.
fn model_with_state() -> Graph {
    let g = GraphBuilder::new("layers");
    let state =
        g.variable_of("mean", TensorType::new(DType::F32, [8]), Init::Fill(0.0.into()), false);
    let y = g.input("y", DType::F32, [4, 8]);
    state.blend_after_step(0.9, 0.1, &y.mean(&[0], false));
    layers(g)
}

fn layers(g: GraphBuilder) -> Graph {
    let mut y = g.input("x", DType::F32, [4, 8]);
    for layer in 0..LAYERS {
        let init = Init::Normal { mean: 0.0.into(), std: 0.5.into() };
        y = y.matmul(&g.variable(&format!("w{layer}"), DType::F32, [8, 8], init)).relu();
    }
    g.output("loss", &y.sum(&[0, 1], false));
    g.finish().expect("a graph")
}

/// Makes data parallelism with each gradient in a bucket of its own, so that the first is that of the last layer.
fn ddp(group: &Group) -> Result<DataParallel, DataParallelError> {
    let options = DataParallelOptions { bucket_bytes: 1, ..DataParallelOptions::default() };
    DataParallel::new(group, model(), &BTreeMap::new(), &options)
}

fn feeds(rank: usize) -> BTreeMap<String, HostTensor> {
    let x: Vec<f32> = (0..32).map(|i| ((i * 7 + rank * 5) % 11) as f32 / 8.0).collect();
    BTreeMap::from([("x".to_owned(), HostTensor::from_f32([4, 8], &x).expect("as many"))])
}

/// The events of a rank in order: gradients that came, and the numbers of reductions that had begun and were done then.
type Events = Vec<(String, (usize, usize))>;

/// Trains one step in which each rank's worker, on the way to the first layer, does not go on before the last layer's gradient was reduced.
/// So where reductions only began after the backward pass, it would not end.
fn held_step(ddp: &mut DataParallel, rank: usize) -> (Events, Vec<HostTensor>) {
    let (reducer, events) = (Arc::new(ddp.reducer()), Arc::new(Mutex::new(Events::new())));
    let ready = {
        let (reducer, events) = (Arc::clone(&reducer), Arc::clone(&events));
        move |output: &str, value: &HostTensor| {
            let Some(name) = output.strip_prefix("grad.") else { return };
            reducer.put(name, value);
            let end = Instant::now() + Duration::from_secs(600);
            while name == "w1" && reducer.progress().1 == 0 {
                assert!(Instant::now() < end, "the last layer's is not reduced");
                std::thread::yield_now();
            }
            events.lock().expect("no panic").push((name.to_owned(), reducer.progress()));
        }
    };
    let step = ddp.session.step_watched(feeds(rank), ready).expect("it begins");
    step.wait().expect("no rank fails");
    let averages = reducer.finish().expect("no rank fails");
    let events = events.lock().expect("no panic").clone();
    (events, averages)
}

#[test]
fn buckets_are_reduced_while_the_backward_pass_goes_on() {
    let ranks = dist::spawn(2, |group| {
        let mut ddp = ddp(&group)?;
        let (events, averages) = held_step(&mut ddp, group.rank());
        // The same bits as a step whose worker nobody holds.
        ddp.step(feeds(group.rank()))?;
        assert_eq!(averages, ddp.buckets);
        Ok::<_, DataParallelError>(events)
    });
    for events in ranks.expect("no rank fails") {
        let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["w3", "w2", "w1", "w0"]);
        let begun: Vec<usize> = events.iter().map(|(_, (begun, _))| *begun).collect();
        assert_eq!(begun, [1, 2, 3, 4], "each begins with its last gradient");
        // When w1's gradient came, the first layer's was still to be computed.
        assert!(events[2].1.1 >= 1, "{events:?}");
    }
}

/// Returns the position of an actor in the order of the plan's one rank.
fn place(plan: &Plan, is_it: impl Fn(&graphc_plan::Actor) -> bool) -> usize {
    let (program, stream) = (&plan.programs[0], &plan.programs[0].streams[0]);
    let blocks = stream.order.iter().flat_map(|item| &stream.blocks[item.block as usize]);
    let mut actors = blocks.map(|id| &program.actors[id.index()]);
    actors.position(is_it).expect("the plan has it")
}

#[test]
fn gradients_are_fetched_before_those_of_earlier_layers_are_computed() {
    let options = CompileOptions { gradients: true, ..CompileOptions::default() };
    let cpu = preset("cpu").expect("one of graphc's own");
    for model in [model(), model_with_state()] {
        fetched_in_order(&compile(model, &options, &cpu, None).expect("it compiles").plan);
    }
}

fn fetched_in_order(plan: &Plan) {
    let fetch = |layer: usize| {
        let output = format!("grad.w{layer}");
        move |actor: &graphc_plan::Actor| matches!(&actor.action, Action::Fetch { output: name, .. } if *name == output)
    };
    for layer in 1..LAYERS {
        let earlier = fetch(layer - 1);
        let actors = &plan.programs[0].actors;
        let fetched = actors.iter().find(|actor| earlier(actor)).expect("there");
        let computed = place(plan, |actor| actor.outputs.contains(&fetched.inputs[0]));
        assert!(place(plan, fetch(layer)) < computed, "layer {layer}");
    }
}

#[test]
fn unused_parameters_and_other_orders_start_the_same_reductions() {
    let sums = dist::spawn(2, |group| {
        let mut ddp = ddp(&group)?;
        let reducer = ddp.reducer();
        let gradient = |value: f32| HostTensor::from_f32([8, 8], &[value; 64]).expect("as many");
        // Rank 0 comes to them in the order of the buckets, rank 1 the other way round.
        let order = if group.rank() == 0 { [3, 2, 1, 0] } else { [0, 1, 2, 3] };
        let mut begun = Vec::new();
        for layer in order {
            reducer.put(&format!("w{layer}"), &gradient(layer as f32 * (1 + group.rank()) as f32));
            begun.push(reducer.progress().0);
        }
        let expected = if group.rank() == 0 { [1, 2, 3, 4] } else { [0, 0, 0, 4] };
        assert_eq!(begun, expected);
        let averages = reducer.finish()?;
        Ok::<_, DataParallelError>(averages.iter().map(|t| t.to_f64()[0]).collect::<Vec<_>>())
    });
    sums.expect("no rank fails").iter().for_each(|sums| assert_eq!(sums[..], [4.5, 3.0, 1.5, 0.0]));
}
