//! Pipelines: high-water marks of 1F1B, shuffled delays, many steps in flight, the simulated bubble, plans that hang.

use graphc::compiler::check;
use graphc::compiler::null_device::simulate;
use graphc::ir::graph::Part;
use graphc::ir::ids::StageId;
use graphc::ir::types::TensorType;
use graphc::plan::{Action, Channel, Rate, RegisterKind};
use graphc::prelude::*;

/// A stack of equal layers, one stage each, with the mean of squares as loss.
fn stack(stages: usize, batch: usize, width: usize, trained: bool) -> Graph {
    let g = GraphBuilder::new("stack");
    // Trained, so that every stage has the gradient of its input to compute.
    let mut x = g.in_stage(0, || {
        let scale = g.variable("scale", DType::F32, [width], Init::Fill(1.0.into()));
        g.input("x", DType::F32, [batch, width]) * scale
    });
    for stage in 0..stages {
        x = g.in_stage(stage, || {
            let init = Init::Normal { mean: 0.0.into(), std: 0.2.into() };
            let ty = TensorType::new(DType::F32, [width, width]);
            x.matmul(&g.variable_of(&format!("w{stage}"), ty, init, trained)).tanh()
        });
    }
    let loss = g.in_stage(stages - 1, || (&x * &x).mean(&[0, 1], false));
    g.output("loss", &loss);
    g.finish().expect("a graph")
}

fn options(stages: usize, microbatches: usize) -> CompileOptions {
    CompileOptions {
        mesh: vec![stages],
        stages,
        microbatches,
        optimizer: Some(Optimizer::Sgd {
            lr: 0.1,
            momentum: 0.9,
            nesterov: false,
            weight_decay: 0.0,
        }),
        ..CompileOptions::default()
    }
}

fn plan(stages: usize, microbatches: usize) -> VerifiedPlan {
    let cluster = preset("cpu").expect("a preset");
    let graph = stack(stages, 16, 8, true);
    compile(graph, &options(stages, microbatches), &cluster, None).expect("a plan").plan
}

fn feeds() -> BTreeMap<String, HostTensor> {
    let data: Vec<f32> = (0..128).map(|i| (i as f32 * 0.37).sin()).collect();
    BTreeMap::from([("x".into(), HostTensor::from_f32([16, 8], &data).expect("a tensor"))])
}

/// Losses of some steps, and for each stage the most contents of one microbatch-rate register at once.
fn run(plan: &VerifiedPlan, steps: usize, delays: Option<u64>) -> (Vec<u32>, Vec<u64>) {
    let options = SessionOptions { shuffle_delays: delays, ..SessionOptions::default() };
    let mut session = Session::new(plan, &BTreeMap::new(), options).expect("a session");
    let handles: Vec<_> =
        (0..steps).map(|_| session.step(feeds()).expect("a step under way")).collect();
    let loss = |handle: graphc::runtime::StepHandle| {
        handle.wait().expect("a step")["loss"].to_f32().expect("a loss")[0].to_bits()
    };
    let losses = handles.into_iter().map(loss).collect();
    let statistics = session.statistics().expect("statistics");
    let mut marks = vec![0; plan.stages];
    for (rank, entry) in statistics.ranks.iter().zip(&plan.ranks) {
        let program = &plan.programs[entry.program.index()];
        for (register, mark) in program.registers.iter().zip(&rank.registers) {
            if register.rate == Rate::Microbatch && register.kind == RegisterKind::Activation {
                marks[program.stage] = marks[program.stage].max(mark.high_water);
            }
        }
    }
    (losses, marks)
}

/// A layer for each stage between a look-up of tokens in a table and a product with the same table, whose classes are the tokens.
fn tied(stages: usize) -> Graph {
    let g = GraphBuilder::new("tied");
    let table = g.in_stage(0, || nn::Embedding::new(&g, "table", 12, 8));
    let [tokens, labels] = ["tokens", "labels"].map(|name| g.input(name, DType::I64, [16, 4]));
    let mut x = g.in_stage(0, || table.forward(&tokens));
    for stage in 0..stages {
        x = g.in_stage(stage, || {
            let init = Init::Normal { mean: 0.0.into(), std: 0.2.into() };
            x.matmul(&g.variable(&format!("w{stage}"), DType::F32, [8, 8], init)).tanh()
        });
    }
    let loss = g.in_stage(stages - 1, || {
        x.matmul_transposed(&table.weight, false, true).cross_entropy(&labels)
    });
    g.output("loss", &loss);
    g.finish().expect("a graph")
}

/// Losses of three steps of such a model.
fn tied_losses(plan: &VerifiedPlan) -> Vec<f32> {
    let options = SessionOptions::default();
    let mut session = Session::new(plan, &BTreeMap::new(), options).expect("a session");
    let numbers = |factor: i64| -> Vec<i64> { (0..64).map(|i| (i * factor) % 12).collect() };
    let tensor = |numbers: &[i64]| HostTensor::from_i64([16, 4], numbers).expect("a tensor");
    let (tokens, labels) = (tensor(&numbers(5)), tensor(&numbers(7)));
    let feeds = BTreeMap::from([("tokens".to_string(), tokens), ("labels".to_string(), labels)]);
    let mut step = || {
        let results = session.step(feeds.clone()).expect("a step under way").wait();
        results.expect("a step")["loss"].to_f32().expect("a loss")[0]
    };
    (0..3).map(|_| step()).collect()
}

#[test]
fn a_weight_of_two_stages_and_its_gradient_cross_once_a_step() {
    let cluster = preset("cpu").expect("a preset");
    let of = |stages: usize, mesh: usize| {
        let options = CompileOptions { mesh: vec![mesh], ..options(stages, 4) };
        // Of one stage: all on one rank.
        let options = CompileOptions { stages: mesh, ..options };
        let mut graph = tied(stages);
        if mesh == 1 {
            graph.stages.clear();
            graph.nodes.iter_mut().for_each(|node| node.part = None);
        }
        compile(graph, &options, &cluster, None).expect("a plan").plan
    };
    for stages in [2, 4] {
        let plan = of(stages, stages);
        let of_table = |channel: &&Channel| plan.layouts[channel.from.index()].shape == [12, 8];
        let rates: Vec<Rate> =
            plan.channels.iter().filter(of_table).map(|channel| channel.rate).collect();
        assert_eq!(rates, [Rate::Step; 2], "{stages} stages: the weight and its gradient");
        let losses = tied_losses(&plan);
        let bits = |losses: &[f32]| losses.iter().map(|loss| loss.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&losses), bits(&tied_losses(&plan)), "{stages} stages");
        let whole = tied_losses(&of(stages, 1));
        assert!(whole[2] < whole[0], "it learns: {whole:?}");
        for (loss, whole) in losses.iter().zip(&whole) {
            assert!((loss - whole).abs() < 1e-6, "{stages} stages: {losses:?}, one rank {whole}");
        }
    }
}

#[test]
fn one_forward_one_backward_stashes_at_most_stages_left() {
    for (stages, microbatches) in [(2, 2), (2, 4), (4, 4), (4, 8)] {
        let plan = plan(stages, microbatches);
        let (_, marks) = run(&plan, 3, None);
        for (stage, &mark) in marks.iter().enumerate() {
            assert!(
                mark <= (stages - stage) as u64,
                "stage {stage} of {stages}, {microbatches} microbatches: {mark} activations"
            );
        }
        assert_eq!(marks[0], stages as u64, "the first stage does stash: {marks:?}");
    }
}

#[test]
fn shuffled_delays_change_neither_losses_nor_marks() {
    let plan = plan(2, 4);
    let expected = run(&plan, 4, None);
    for seed in 0..5 {
        assert_eq!(run(&plan, 4, Some(seed)), expected, "seed {seed}");
    }
}

#[test]
fn five_hundred_steps_in_flight_neither_hang_nor_grow() {
    let plan = plan(2, 2);
    let mut session =
        Session::new(&plan, &BTreeMap::new(), SessionOptions::default()).expect("a session");
    let feeds = feeds();
    let mut sizes = Vec::new();
    for step in 0..500 {
        drop(session.step(feeds.clone()).expect("a step under way"));
        if step % 100 == 99 {
            sizes.push(resident_kib());
        }
    }
    session.step(feeds).expect("a step").wait().expect("the last step");
    let growth = sizes.last().expect("sizes").saturating_sub(sizes[0]);
    assert!(growth < 4096, "memory grew by {growth} KiB: {sizes:?}");
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find(|line| line.starts_with("VmRSS")).expect("VmRSS");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}

/// The bubble that the null device sees where communication is free and products dwarf all else.
fn bubble(stages: usize, microbatches: usize, trained: bool) -> f64 {
    let mut cluster = preset("cpu").expect("a preset");
    for level in &mut cluster.levels {
        (level.latency, level.bandwidth) = (0.0, 1e18);
    }
    let graph = stack(stages, 4096, 2048, trained);
    let plan = compile(graph, &options(stages, microbatches), &cluster, None).expect("a plan").plan;
    simulate(&plan).expect("it runs").bubble_fraction
}

#[test]
fn the_simulated_bubble_is_that_of_the_formula() {
    for (stages, microbatches) in [(2, 4), (2, 8), (4, 4), (4, 16)] {
        let formula = (stages - 1) as f64 / (microbatches + stages - 1) as f64;
        let case = format!("{stages} stages, {microbatches} microbatches, formula {formula:.3}");
        // With frozen weights a backward is one product, whose result goes to the stage before: the formula's case.
        let frozen = bubble(stages, microbatches, false);
        assert!((frozen - formula).abs() <= 0.02, "{case}: {frozen:.3}");
        // Gradients of weights are computed after the stage before has got its part: the bubble shrinks.
        let trained = bubble(stages, microbatches, true);
        assert!(trained <= formula + 0.005, "{case}: {trained:.3}");
    }
}

/// Losses of a stack of `layers` layers on two ranks.
fn stack_losses(layers: usize, microbatches: usize, schedule: Schedule) -> Vec<u32> {
    let options = CompileOptions { schedule, ..options(2, microbatches) };
    let cluster = preset("cpu").expect("a preset");
    let mut graph = stack(layers, 16, 8, true);
    // Chunks of as many layers as each stage has of them.
    let per_chunk = layers / (2 * schedule.chunks_per_stage());
    graph.stages.truncate(layers / per_chunk);
    for node in &mut graph.nodes {
        let chunk = |stage: StageId| StageId::new(stage.index() / per_chunk);
        node.part = node.stage().map(chunk).map(Part::Stage);
    }
    let plan = compile(graph, &options, &cluster, None).expect("a plan").plan;
    check::verify_plan(&plan).expect("it is valid");
    run(&plan, 4, None).0
}

#[test]
fn interleaved_schedules_compute_the_bits_of_1f1b() {
    let expected = stack_losses(8, 4, Schedule::OneForwardOneBackward);
    for chunks in [2, 4] {
        assert_eq!(
            stack_losses(8, 4, Schedule::Interleaved { chunks }),
            expected,
            "{chunks} chunks"
        );
    }
}

#[test]
fn chunks_divide_the_bubble() {
    let mut cluster = preset("cpu").expect("a preset");
    for level in &mut cluster.levels {
        (level.latency, level.bandwidth) = (0.0, 1e18);
    }
    for (stages, chunks, microbatches) in [(2, 2, 4), (4, 2, 4), (4, 2, 8), (4, 3, 8)] {
        let schedule = Schedule::Interleaved { chunks };
        let options = CompileOptions { schedule, ..options(stages, microbatches) };
        let graph = stack(stages * chunks, 4096, 2048, false);
        let plan = compile(graph, &options, &cluster, None).expect("a plan").plan;
        let bubble = simulate(&plan).expect("it runs").bubble_fraction;
        // Of the work (S-1) / (V M), of the whole step that much less.
        let work = (stages - 1) as f64 / (chunks * microbatches) as f64;
        let formula = work / (1.0 + work);
        let case = format!("{stages} stages of {chunks} chunks, {microbatches} microbatches");
        assert!((bubble - formula).abs() <= 0.02, "{case}: {bubble:.3}, formula {formula:.3}");
    }
}

#[test]
fn chunks_need_microbatches_in_groups_of_stages() {
    let cluster = preset("cpu").expect("a preset");
    let options = CompileOptions { schedule: Schedule::Interleaved { chunks: 2 }, ..options(2, 1) };
    let error = compile(stack(4, 16, 8, true), &options, &cluster, None).expect_err("one of two");
    let error = error.to_string();
    assert!(error.contains("interleaved:2") && error.contains("1 microbatches"), "{error}");
}

#[test]
fn a_plan_whose_ranks_wait_for_each_other_is_refused_with_the_actors_named() {
    let mut plan = plan(2, 2).into_plan();
    check::verify_plan(&plan).expect("the plan as compiled is valid");
    // Both stages now receive before they send.
    for program in &mut plan.programs {
        let actors = &program.actors;
        for block in program.streams.iter_mut().flat_map(|stream| &mut stream.blocks) {
            block.sort_by_key(|actor| match actors[actor.index()].action {
                Action::Receive { .. } => 0,
                _ => 1,
            });
        }
        for stream in &mut program.streams {
            stream.order.sort_by_key(|item| {
                let receives = |actor: &graphc::ir::ids::ActorId| {
                    matches!(actors[actor.index()].action, Action::Receive { .. })
                };
                !stream.blocks[item.block as usize].iter().any(receives)
            });
        }
    }
    let error = check::verify_plan(&plan).expect_err("it hangs").to_string();
    assert!(
        error.contains("hang") && error.contains("rank 0") && error.contains("rank 1"),
        "{error}"
    );
}
