//! Data parallelism of a network with batch norms is what PyTorch's DistributedDataParallel makes of it: each rank normalizes by
//! its own samples, statistics are those of rank 0, gradients are averaged, then clipped.

use graphc::dist::{self, DataParallelError};
use graphc::prelude::*;

use super::running::network_of;
use super::{Feeds, formula, list, near, number, recorded};

const BATCH: usize = 12;
const SAMPLES: usize = 36;
const STEPS: usize = 12;

fn options() -> DataParallelOptions {
    let sgd = Optimizer::Sgd { lr: 0.05, momentum: 0.9, nesterov: false, weight_decay: 0.01 };
    let training = CompileOptions {
        loss: Some(Loss::CrossEntropy),
        optimizer: Some(sgd),
        lr_schedule: "step:5,0.5".parse().expect("a schedule"),
        clip_norm: Some(0.3),
        ..CompileOptions::default()
    };
    DataParallelOptions { training, ..DataParallelOptions::default() }
}

/// A rank's rows of a step's batch.
fn feeds(step: usize, rank: usize, ranks: usize) -> Feeds {
    let own = BATCH / ranks;
    let first = step * BATCH % SAMPLES + rank * own;
    let part = |all: &HostTensor| {
        let row = all.bytes().len() / SAMPLES;
        let bytes = all.bytes()[first * row..(first + own) * row].to_vec();
        let shape = [&[own], &all.shape()[1..]].concat();
        HostTensor::new(all.dtype(), shape, bytes).expect("whole rows")
    };
    let x = part(&formula::floats("x", &[SAMPLES, 3, 8, 8], 0.5));
    let labels = part(&formula::classes("labels", &[SAMPLES], 4));
    BTreeMap::from([("x".to_string(), x), ("labels".to_string(), labels)])
}

/// The losses and norms that a rank has seen, and its variables at the end.
#[derive(PartialEq, Debug)]
struct Trained {
    losses: Vec<f64>,
    norms: Vec<f64>,
    variables: Feeds,
}

fn train(group: &Group, names: &[String]) -> Result<Trained, DataParallelError> {
    let (rank, ranks) = (group.rank(), group.world_size());
    let graph = network_of(BATCH / ranks);
    let mut ddp = DataParallel::new(group, graph, &BTreeMap::new(), &options())?;
    for name in names {
        let shape = ddp.variable(name)?.shape().to_vec();
        ddp.set_variable(name, &formula::weight(name, &shape))?;
    }
    let mut trained = Trained { losses: vec![], norms: vec![], variables: Feeds::new() };
    for step in 0..STEPS {
        let outputs = ddp.train_step(feeds(step, rank, ranks))?;
        trained.losses.push(number(&outputs, "loss"));
        trained.norms.push(number(&outputs, "grad_norm"));
    }
    for name in names {
        trained.variables.insert(name.clone(), ddp.variable(name)?);
    }
    Ok(trained)
}

/// Returns the names of all variables of the network.
fn names() -> Vec<String> {
    let graph = network_of(1);
    let name = |node: &graphc::ir::graph::Node| match &node.op {
        graphc::ir::op::Op::Variable(variable) => Some(variable.name.clone()),
        _ => None,
    };
    graph.nodes.iter().filter_map(name).collect()
}

#[test]
fn batch_norms_learn_as_under_pytorchs_ddp() {
    for ranks in [2, 3] {
        let recorded = recorded("ddp")[ranks.to_string()].clone();
        let all = dist::spawn(ranks, |group| train(&group, &names())).expect("no rank fails");
        for (rank, trained) in all.iter().enumerate() {
            let what = format!("rank {rank} of {ranks}");
            near(&trained.losses, &list(&recorded["losses"][rank]), 1e-4, &what);
            near(&trained.norms, &list(&recorded["norms"]), 1e-3, &what);
        }
        let expected = recorded["variables"].as_object().expect("by name");
        assert_eq!(expected.len(), names().len() - 1, "one is left out as it is large");
        for (name, value) in expected {
            near(&all[0].variables[name].to_f64(), &list(value), 1e-3, name);
        }
        let again = dist::spawn(ranks, |group| train(&group, &names())).expect("no rank fails");
        assert!(again == all, "a second run gives the same bits");
    }
}
