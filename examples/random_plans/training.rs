//! Plans that train: a small network with each optimizer, way of clipping, precision, strategy and order of microbatches.

use std::path::Path;

use graphc::plan::{
    AdamOptions, ComposedOptions, Loss, Metric, Optimizer, Plan, Recompute, RmspropOptions,
    Schedule, Strategy, TensorKind,
};
use graphc::prelude::*;
use graphc::runtime::data::save_safetensors;

/// The step at which training begins, and the number of steps.
const FIRST_STEP: u64 = 2;
const STEPS: u64 = 3;

/// Writes all of them, with numbers from `first` on.
pub fn write(folder: &str, first: usize) -> anyhow::Result<Vec<Plan>> {
    let mut plans = Vec::new();
    for (options, cluster) in settings() {
        let plan = compile(network()?, &options, &preset(cluster).expect("a preset"), None)?.plan;
        let path = Path::new(folder).join((first + plans.len()).to_string());
        std::fs::write(path.with_extension("json"), plan.write_sealed())?;
        save_safetensors(&path.with_extension("safetensors"), &trained(&plan)?)?;
        plans.push((*plan).clone());
    }
    Ok(plans)
}

/// Trains, and returns the feeds, the last loss and the trained parameters.
fn trained(
    plan: &graphc::plan::check::VerifiedPlan,
) -> anyhow::Result<BTreeMap<String, HostTensor>> {
    let device = Some(graphc::ir::mesh::DeviceKind::Cpu);
    let options =
        SessionOptions { seed: 11, first_step: FIRST_STEP, device, ..SessionOptions::default() };
    let mut session = Session::new(plan, &BTreeMap::new(), options)?;
    let feeds = feeds()?;
    let mut outputs = BTreeMap::new();
    for _ in 0..STEPS {
        outputs = session.step(feeds.clone())?.wait()?;
    }
    let named =
        |prefix: &str, (name, tensor): (String, HostTensor)| (format!("{prefix}.{name}"), tensor);
    let mut found: BTreeMap<_, _> = feeds.into_iter().map(|feed| named("in", feed)).collect();
    found.extend(outputs.remove("loss").map(|loss| named("out", ("loss".into(), loss))));
    let variables = session.variables();
    let trained = variables.iter().filter(|(_, (kind, _))| *kind == TensorKind::Parameter);
    for (name, _) in trained {
        found.extend([named("var", (name.clone(), session.variable(name)?))]);
    }
    Ok(found)
}

fn feeds() -> anyhow::Result<BTreeMap<String, HostTensor>> {
    let wave = |i: usize| (i as f64 * 0.7).sin();
    let x: Vec<f64> = (0..8 * 6).map(wave).collect();
    let labels: Vec<f64> = (0..8).map(|i| (i * 5 % 4) as f64).collect();
    let x = HostTensor::from_f64(DType::F32, [8, 6], &x)?;
    Ok([("x".into(), x), ("labels".into(), HostTensor::from_f64(DType::I64, [8], &labels)?)].into())
}

/// Builds two stages of a layer, with dropout between, and a state that steps update.
fn network() -> anyhow::Result<Graph> {
    let g = GraphBuilder::new("trained");
    let normal = |std: f64| Init::Normal { mean: 0.0.into(), std: std.into() };
    let uniform = Init::Uniform { low: (-0.5).into(), high: 0.5.into() };
    let x = g.input("x", DType::F32, [8, 6]);
    let first = g.variable("first", DType::F32, [6, 12], normal(0.4));
    let bias = g.variable("bias", DType::F32, [12], uniform);
    let gain = g.variable("gain", DType::F32, [12], Init::Fill(1.0.into()));
    let shift = g.variable("shift", DType::F32, [12], Init::Fill(0.0.into()));
    let second = g.variable("second", DType::F32, [12, 4], normal(0.3));
    let hidden = (x.matmul(&first) + &bias).gelu().layer_norm(&gain, &shift, 1e-5).dropout(0.25);
    g.output("scores", &hidden.matmul(&second));
    Ok(g.finish()?)
}

const ADAM: AdamOptions =
    AdamOptions { lr: 0.01, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.1 };

fn rmsprop(momentum: f64, centered: bool) -> Optimizer {
    let options =
        RmspropOptions { lr: 0.01, alpha: 0.9, eps: 1e-6, weight_decay: 0.01, momentum, centered };
    Optimizer::Rmsprop(options)
}

fn sgd(momentum: f64, nesterov: bool, weight_decay: f64) -> Optimizer {
    Optimizer::Sgd { lr: 0.1, momentum, nesterov, weight_decay }
}

fn with(optimizer: Optimizer) -> CompileOptions {
    CompileOptions {
        optimizer: Some(optimizer),
        loss: Some(Loss::CrossEntropy),
        ..CompileOptions::default()
    }
}

fn settings() -> Vec<(CompileOptions, &'static str)> {
    let on_cpu = |options: Vec<CompileOptions>| options.into_iter().map(|options| (options, "cpu"));
    on_cpu(optimizers()).chain(on_cpu(options())).chain(on_cpu(meshes())).chain(streams()).collect()
}

fn optimizers() -> Vec<CompileOptions> {
    let all = [
        sgd(0.0, false, 0.0),
        sgd(0.9, false, 0.0),
        sgd(0.9, true, 0.01),
        Optimizer::Adam(ADAM),
        Optimizer::AdamW(ADAM),
        Optimizer::Lamb(ADAM),
        rmsprop(0.0, false),
        rmsprop(0.9, true),
        Optimizer::muon(0.02),
        Optimizer::adagrad(0.05),
        Optimizer::adadelta(1.0),
        Optimizer::adamax(0.02),
        Optimizer::nadam(0.02),
        Optimizer::radam(0.02),
        Optimizer::lion(0.002),
        Optimizer::adafactor(0.02),
        Optimizer::Composed(ComposedOptions::damped(0.1, 0.9, 0.4)),
        Optimizer::Composed(ComposedOptions::amsgrad(0.02)),
    ];
    all.map(with).into()
}

fn options() -> Vec<CompileOptions> {
    let adam = || with(Optimizer::AdamW(ADAM));
    vec![
        CompileOptions { clip_norm: Some(0.05), ..adam() },
        CompileOptions {
            clip_norm: Some(0.05),
            clip_value: Some(0.04),
            skip_non_finite: true,
            ..with(Optimizer::muon(0.02))
        },
        CompileOptions { clip_value: Some(0.01), ema: Some(0.9), ..adam() },
        CompileOptions { maximize: true, own_counts: true, ..adam() },
        CompileOptions { skip_non_finite: true, own_counts: true, ..with(Optimizer::radam(0.02)) },
        CompileOptions { skip_non_finite: true, ema: Some(0.9), ..adam() },
        CompileOptions {
            label_smoothing: 0.1,
            metrics: vec![Metric::Top1, Metric::Top5],
            ..adam()
        },
        CompileOptions { lr_schedule: "warmup:3 cosine:20".parse().expect("a schedule"), ..adam() },
        CompileOptions { precision: Some(DType::BF16), ..adam() },
        CompileOptions { precision: Some(DType::F16), clip_norm: Some(0.5), ..adam() },
        CompileOptions { recompute: Recompute::Full, ..adam() },
    ]
}

fn meshes() -> Vec<CompileOptions> {
    let adam = |mesh: &[usize], strategy| CompileOptions {
        mesh: mesh.to_vec(),
        strategy,
        ..with(Optimizer::AdamW(ADAM))
    };
    let strategies =
        [Strategy::Data, Strategy::Zero1, Strategy::Zero2, Strategy::Zero3, Strategy::Megatron];
    let mut all: Vec<_> = strategies.into_iter().map(|strategy| adam(&[2], strategy)).collect();
    all.extend([&[3][..], &[4], &[2, 2]].map(|mesh| adam(mesh, Strategy::Auto)));
    all.extend([Strategy::Zero2, Strategy::Zero3].map(|strategy| CompileOptions {
        microbatches: 2,
        precision: Some(DType::BF16),
        ..adam(&[2, 2], strategy)
    }));
    all.extend([Schedule::OneForwardOneBackward, Schedule::Gpipe].map(|schedule| CompileOptions {
        stages: 2,
        microbatches: 4,
        schedule,
        ..adam(&[2], Strategy::Auto)
    }));
    all.push(CompileOptions {
        microbatches: 2,
        clip_norm: Some(0.1),
        ..adam(&[2], Strategy::Zero1)
    });
    all
}

/// Returns settings of machines whose communication has a stream of its own.
fn streams() -> Vec<(CompileOptions, &'static str)> {
    let strategies = [Strategy::Zero1, Strategy::Zero2, Strategy::Zero3];
    let of = |strategy| CompileOptions {
        mesh: vec![2],
        strategy,
        microbatches: 2,
        ..with(Optimizer::AdamW(ADAM))
    };
    strategies.map(|strategy| (of(strategy), "dgx-a100")).into()
}
