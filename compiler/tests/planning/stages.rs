//! `--stages auto` and `--microbatches auto`: choices that hold, fit, and are as good as what the planner says of them.

use graphc_compiler::check::verify_plan;
use graphc_compiler::cluster::preset;
use graphc_compiler::compile::prepare_again;
use graphc_compiler::compile::stages::{apply_choice, choose_stages};
use graphc_compiler::compile::{Compiled, compile};
use graphc_compiler::pipeline::prepare_graph;
use graphc_compiler::planner::{PriorKnowledge, Purpose, plan_below, plan_signatures};
use graphc_ir::builder::GraphBuilder;
use graphc_ir::graph::Graph;
use graphc_ir::types::DType;
use graphc_nn::{Gpt, GptConfig, Module};
use graphc_plan::{
    AdamOptions, Cluster, CompileOptions, Loss, Optimizer, PipelineReport, Recompute, Schedule,
    Strategy,
};

const ADAM: AdamOptions =
    AdamOptions { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 };

fn options(mesh: &[usize]) -> CompileOptions {
    CompileOptions {
        mesh: mesh.to_vec(),
        auto_stages: true,
        auto_microbatches: true,
        loss: Some(Loss::CrossEntropy),
        optimizer: Some(Optimizer::AdamW(ADAM)),
        ..CompileOptions::default()
    }
}

fn gpt(layers: usize) -> Graph {
    gpt_of(16, GptConfig { layers, width: 128, heads: 4, sequence: 32, vocabulary: 256 })
}

/// Two layers, of which most is weights.
fn wide_gpt() -> Graph {
    gpt_of(1024, GptConfig { layers: 2, width: 2048, heads: 16, sequence: 128, vocabulary: 4096 })
}

fn gpt_of(batch: usize, config: GptConfig) -> Graph {
    let g = GraphBuilder::new("gpt");
    let tokens = g.input("tokens", DType::I64, [batch, config.sequence]);
    g.output("logits", &Gpt::new(&g, &config).forward(&tokens));
    g.finish().expect("fits")
}

/// A cluster whose ranks reach each other slowly, so that stages pay.
fn slow_links() -> Cluster {
    let mut cluster = preset("cpu").expect("a preset");
    for level in &mut cluster.levels {
        level.bandwidth /= 50.0;
    }
    cluster
}

fn compiled(graph: Graph, options: &CompileOptions, cluster: &Cluster) -> Compiled {
    compile(graph, options, cluster, None).unwrap_or_else(|error| panic!("{options:?}: {error}"))
}

#[test]
fn stages_are_chosen_where_they_pay_and_the_plan_is_made_of_the_choice() {
    let (cluster, options) = (slow_links(), options(&[4]));
    let plan = compiled(gpt(6), &options, &cluster).plan;
    let choice = plan.pipeline.clone().expect("a choice");
    assert!(choice.stages > 1, "{choice:?}");
    assert_eq!((plan.stages, plan.microbatches), (choice.stages, choice.microbatches));
    // Embedding, six blocks, the head.
    assert_eq!(choice.layers.iter().sum::<usize>(), 8);
    assert!(choice.bound_seconds <= choice.seconds && choice.bound_seconds > 0.0);
    verify_plan(&plan).expect("it compiles to itself again");
    let decisions = prepare_again(&plan).expect("it was prepared before");
    assert_eq!(decisions.staging.stages, choice.stages);
    // The weights of a block lie on one stage.
    for block in 0..6 {
        let own = |name: &str| name.starts_with(&format!("blocks.{block}."));
        let tensors = plan.tensors.iter().filter(|tensor| own(&tensor.name));
        let mut stages: Vec<usize> = tensors.map(|tensor| tensor.stage).collect();
        stages.dedup();
        assert_eq!(stages.len(), 1, "block {block}");
    }
}

#[test]
fn the_price_of_one_stage_is_the_planners_objective() {
    let cluster = preset("cpu").expect("a preset");
    // Two blocks: no layer stands for another.
    let one = CompileOptions { auto_stages: false, stages: 1, ..options(&[2]) };
    let compiled = compiled(gpt(2), &one, &cluster);
    let choice = compiled.plan.pipeline.as_ref().expect("a choice");
    let objective = compiled.plan.planner.objective_seconds;
    assert!((choice.seconds / objective - 1.0).abs() < 0.02, "{choice:?} {objective}");
    // Of more equal blocks two are priced.
    let many = compile(gpt(6), &one, &cluster, None).expect("it fits").plan;
    let (choice, objective) =
        (many.pipeline.as_ref().expect("a choice"), many.planner.objective_seconds);
    assert!((choice.seconds / objective - 1.0).abs() < 0.05, "{choice:?} {objective}");
}

#[test]
fn the_best_choice_is_the_first_of_all() {
    let cluster = slow_links();
    let choices = choose_stages(&gpt(6), &options(&[4]), &cluster).expect("there are some").ranked;
    assert!(choices.windows(2).all(|pair| pair[0].seconds <= pair[1].seconds), "{choices:?}");
    let mut stages: Vec<usize> = choices.iter().map(|choice| choice.stages).collect();
    stages.sort_unstable();
    stages.dedup();
    assert_eq!(stages, [1, 2, 4]);
    let simulated = |choice: &graphc_plan::PipelineReport| {
        let given = CompileOptions {
            auto_stages: false,
            auto_microbatches: false,
            stages: choice.stages,
            microbatches: choice.microbatches,
            ..options(&[4])
        };
        compiled(gpt(6), &given, &cluster).plan.predicted.step_seconds
    };
    let (first, last) = (&choices[0], &choices[choices.len() - 1]);
    assert!(simulated(first) < simulated(last), "{first:?} {last:?}");
}

#[test]
fn choices_of_a_small_graph_that_are_far_behind_are_given_up() {
    let cluster = preset("cpu").expect("a preset");
    let choices = choose_stages(&gpt(6), &options(&[4]), &cluster).expect("there are some").ranked;
    // Parts of a batch that fits the memory as a whole are not priced in one stage.
    let alone: Vec<usize> =
        choices.iter().filter(|of| of.stages == 1).map(|of| of.microbatches).collect();
    assert_eq!(alone, [1]);
    let one = choices.iter().find(|choice| choice.stages == 1).expect("one stage");
    assert!(choices.iter().all(|choice| choice.seconds < 1.5 * one.seconds), "{choices:?}");
    // What was left out is: four stages without microbatches wait for each other all the time.
    assert!(choices.iter().all(|choice| (choice.stages, choice.microbatches) != (4, 1)));
}

#[test]
fn memory_decides_too() {
    let cluster = slow_links();
    let data = CompileOptions { strategy: Strategy::Data, ..options(&[4]) };
    let free = compiled(gpt(6), &data, &cluster).plan;
    let peak = |plan: &graphc_plan::Plan| {
        plan.predicted.peak_memory_bytes.iter().copied().max().expect("a program")
    };
    let tight = CompileOptions { memory: Some(peak(&free) * 9 / 10), ..data.clone() };
    if let Ok(compiled) = compile(gpt(6), &tight, &cluster, None) {
        assert!(peak(&compiled.plan) <= peak(&free) * 9 / 10);
        assert_ne!(compiled.plan.pipeline, free.pipeline);
    }
    let none = CompileOptions { memory: Some(4096), ..data };
    let error = compile(gpt(6), &none, &cluster, None).expect_err("4 KiB").to_string();
    assert!(error.contains("cut of the 8 layers that fits the memory"), "{error}");
}

#[test]
fn one_stage_of_a_large_graph_is_tried_where_it_may_be_better_but_its_layers_do_not_fit() {
    let cluster = preset("dgx-h100").expect("a preset");
    let short = CompileOptions { memory: Some(256 << 20), ..options(&[1024]) };
    let choices = choose_stages(&wide_gpt(), &short, &cluster).expect("it can be cut");
    let staged = &choices.ranked[0];
    let numbers = |choice: &PipelineReport| (choice.stages, choice.microbatches);
    assert_eq!(choices.unfit.iter().map(numbers).collect::<Vec<_>>(), [(1, 1)]);
    assert!(staged.stages > 1 && staged.seconds > 1.5 * choices.unfit[0].seconds, "{choices:?}");
    // Where they fit nothing else is.
    let ample = choose_stages(&wide_gpt(), &options(&[1024]), &cluster).expect("it can be cut");
    assert_eq!((numbers(&ample.ranked[0]), ample.unfit.len()), ((1, 1), 0));
}

#[test]
fn memory_that_both_streams_touch_is_taken_again_when_both_are_done_with_it() {
    // A gradient is reduced and then sliced in its place on the second stream, while the first one makes the next microbatch's.
    let cluster = preset("dgx-h100").expect("a preset");
    let streams = |mib: u64| {
        let given = CompileOptions {
            auto_stages: false,
            auto_microbatches: false,
            stages: 2,
            microbatches: 2,
            memory: Some(mib << 20),
            ..options(&[1024])
        };
        compiled(wide_gpt(), &given, &cluster).plan.programs[0].streams.len()
    };
    // The memory for both streams is more than it would be if the first one waited.
    assert_eq!([600, 1024].map(streams), [1, 2]);
}

#[test]
fn schedules_and_recomputation_go_with_it() {
    let cluster = slow_links();
    let chunked = CompileOptions {
        schedule: Schedule::Interleaved { chunks: 2 },
        recompute: Recompute::Full,
        ..options(&[2, 2])
    };
    let plan = compiled(gpt(6), &chunked, &cluster).plan;
    let choice = plan.pipeline.clone().expect("a choice");
    assert_eq!((choice.stages, choice.layers.len()), (2, 4));
    assert!(choice.microbatches.is_multiple_of(2));
    verify_plan(&plan).expect("it compiles to itself again");
}

#[test]
fn of_the_best_choices_the_one_is_taken_that_the_null_device_finds_fastest() {
    let mut differs = 0;
    for (layers, mesh) in [(4, &[4][..]), (6, &[4]), (4, &[2, 2]), (3, &[2])] {
        let (cluster, options) = (slow_links(), options(mesh));
        let taken = compiled(gpt(layers), &options, &cluster).plan;
        let choices =
            choose_stages(&gpt(layers), &options, &cluster).expect("it can be cut").ranked;
        for choice in choices.iter().take(3) {
            let (staged, resolved) =
                apply_choice(&gpt(layers), &options, choice).expect("it is one");
            let plan = compiled(staged, &resolved, &cluster).plan;
            let [least, other] = [&taken, &plan].map(|plan| plan.predicted.step_seconds);
            assert!(least <= other, "{layers} layers on {mesh:?}: {choice:?} takes {other}");
        }
        differs += usize::from(taken.pipeline.as_ref() != choices.first());
    }
    assert!(differs > 0, "the prices of layers are in the order of steps everywhere");
}

#[test]
fn a_model_of_which_no_layer_is_left_out_is_priced_by_the_plan_of_one_stage() {
    let cluster = preset("cpu").expect("a preset");
    // Of two blocks both are priced, and of six two.
    for (blocks, is_whole) in [(2, true), (6, false)] {
        let compiled = compiled(gpt(blocks), &options(&[2]), &cluster);
        let choice = compiled.plan.pipeline.as_ref().expect("a choice");
        assert_eq!((choice.stages, choice.microbatches), (1, 1), "{choice:?}");
        let objective = compiled.plan.planner.objective_seconds;
        assert_eq!(choice.seconds == objective, is_whole, "{choice:?} {objective}");
        let prices = choose_stages(&gpt(blocks), &options(&[2]), &cluster).expect("it can be cut");
        let priced = &prices.ranked[0];
        assert_eq!((priced.stages, &priced.layers), (1, &choice.layers));
        assert!((priced.seconds / choice.seconds - 1.0).abs() < 0.02, "{priced:?} {choice:?}");
    }
}

#[test]
fn prices_of_layers_take_less_work_than_a_plan_and_cost_as_much() {
    let open = options(&[4]);
    let whole = CompileOptions { auto_stages: false, auto_microbatches: false, ..open };
    let cluster = preset("cpu").expect("a preset");
    let decisions = prepare_graph(gpt(2), &whole).expect("fits");
    let peak = plan_signatures(&decisions, &whole, &cluster).expect("fits").memory[0];
    let mut work = [0; 2];
    for percent in [95, 90, 85] {
        let less = CompileOptions { memory: Some(peak * percent / 100), ..whole.clone() };
        let [careful, rough] = [Purpose::Plan, Purpose::Prices].map(|purpose| {
            plan_below(&decisions, &less, &cluster, PriorKnowledge::NOTHING, purpose).expect("fits")
        });
        work = [work[0] + careful.work, work[1] + rough.work];
        let (rough, careful) = (rough.report, careful.report);
        let near = 1.01 * careful.objective_seconds;
        assert!(rough.objective_seconds <= near, "{percent} %: {rough:?} {careful:?}");
    }
    assert!(work[1] < work[0], "{work:?}");
}

#[test]
fn what_is_dearer_than_the_next_graph_in_a_row_is_not_looked_for() {
    let open = options(&[4]);
    let whole = CompileOptions { auto_stages: false, auto_microbatches: false, ..open };
    let cluster = preset("cpu").expect("a preset");
    let decisions = prepare_graph(gpt(2), &whole).expect("fits");
    let limit = plan_signatures(&decisions, &whole, &cluster).expect("fits").memory[0] * 85 / 100;
    let less = CompileOptions { memory: Some(limit), ..whole };
    let planned = |purpose| {
        plan_below(&decisions, &less, &cluster, PriorKnowledge::NOTHING, purpose)
            .expect("fits the memory")
    };
    let careful = planned(Purpose::Plan);
    assert!(careful.relaxed < careful.report.objective_seconds, "memory costs something");
    let far = planned(Purpose::Against { seconds: f64::INFINITY, steps: 2 });
    assert_eq!((far.report, far.work), (careful.report, careful.work));
    let dear = planned(Purpose::Against { seconds: careful.relaxed, steps: 1 });
    assert!(dear.memory[0] <= limit && dear.work < careful.work, "{} {}", dear.work, careful.work);
}
