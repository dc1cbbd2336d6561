//! Data parallelism by a group: the gradients that ranks with different samples, and different graphs, agree on.

use graphc::dist::{self, DataParallelError, Gradients};
use graphc::prelude::*;

fn parameter(g: &GraphBuilder, name: &str, value: f64, elements: usize) -> Tensor {
    g.variable(name, DType::F32, [elements], Init::Fill(value.into()))
}

/// Trains one step on two ranks; each rank's graph and x by its number.
fn step(
    graph: impl Fn(usize, &GraphBuilder, &Tensor) -> Tensor + Sync,
    xs: [&[f32]; 2],
    bucket_bytes: usize,
) -> Vec<Gradients> {
    let result = dist::spawn(2, |group| {
        let (me, g) = (group.rank(), GraphBuilder::new("ddp"));
        let x = g.input("x", DType::F32, [xs[me].len()]);
        g.output("loss", &graph(me, &g, &x).sum(&[0], false));
        let options = DataParallelOptions { bucket_bytes, ..DataParallelOptions::default() };
        let graph = g.finish().expect("a graph");
        let mut ddp = DataParallel::new(&group, graph, &BTreeMap::new(), &options)?;
        let x = HostTensor::from_f32([xs[me].len()], xs[me]).expect("as many");
        ddp.step(BTreeMap::from([("x".to_owned(), x)]))
    });
    result.expect("no rank fails")
}

fn gradient(step: &Gradients, name: &str) -> Vec<f32> {
    step.gradients[name].to_f32().expect("f32")
}

#[test]
fn gradients_are_averaged() {
    let steps = step(|_, g, x| x * &parameter(g, "w", 1.0, 2), [&[1.0, 1.0], &[2.0, 2.0]], 1 << 20);
    steps.iter().for_each(|step| assert_eq!(gradient(step, "w"), [1.5, 1.5]));
    let losses: Vec<_> = steps.iter().map(|step| step.outputs["loss"].to_f64()[0]).collect();
    assert_eq!(losses, [2.0, 4.0]);
}

#[test]
fn unused_parameters_take_part_with_zeros() {
    for bucket_bytes in [1, 1 << 20] {
        let steps = step(
            |rank, g, x| {
                let w = parameter(g, "w", 1.0, 1);
                let used_on_rank_0 = parameter(g, "used_on_rank_0", 2.0, 1);
                let _unused = parameter(g, "unused", 3.0, 1);
                let y = x * &w;
                if rank == 0 { y * &used_on_rank_0 } else { y }
            },
            [&[1.0], &[2.0]],
            bucket_bytes,
        );
        for step in &steps {
            assert_eq!(gradient(step, "w"), [2.0]);
            assert_eq!(gradient(step, "used_on_rank_0"), [0.5]);
            assert_eq!(gradient(step, "unused"), [0.0]);
        }
    }
}

#[test]
fn parameters_used_in_opposite_order_find_each_other() {
    for bucket_bytes in [1, 1 << 20] {
        let steps = step(
            |rank, g, x| {
                // Declared in opposite order too, and of different sizes.
                let order = if rank == 0 { ["a", "b"] } else { ["b", "a"] };
                let made = order.map(|name| {
                    parameter(
                        g,
                        name,
                        if name == "a" { 2.0 } else { 3.0 },
                        1 + (name == "b") as usize,
                    )
                });
                made.iter().fold(x.clone(), |y, w| y * w)
            },
            [&[1.0, 2.0], &[3.0, 4.0]],
            bucket_bytes,
        );
        for step in &steps {
            // d/da sum(x a b) = 3 (x0 + x1): 9 and 21; d/db = 2 x.
            assert_eq!(gradient(step, "a"), [15.0]);
            assert_eq!(gradient(step, "b"), [4.0, 6.0]);
        }
    }
}

#[test]
fn parameters_and_buffers_are_those_of_rank_0() {
    let values = dist::spawn(3, |group| {
        let g = GraphBuilder::new("ddp");
        let own = group.rank() as f64 + 5.0;
        let x = g.input("x", DType::F32, [1]);
        let w = parameter(&g, "w", own, 1);
        let unused = parameter(&g, "unused", own, 1);
        let buffer = g.variable_of("running", unused.ty(), Init::Fill((10.0 * own).into()), false);
        g.output("loss", &(x * &w + buffer).sum(&[0], false));
        let options = DataParallelOptions::default();
        let graph = g.finish().expect("a graph");
        let mut ddp = DataParallel::new(&group, graph, &BTreeMap::new(), &options)?;
        let begun = ["w", "unused", "running"].map(|name| ddp.variable(name).expect("there"));
        // Each rank changes its buffer; the next forward sees rank 0's.
        let other = HostTensor::from_f32([1], &[group.rank() as f32]).expect("one");
        ddp.set_variable("running", &other)?;
        let x = HostTensor::from_f32([1], &[1.0]).expect("one");
        let step = ddp.step(BTreeMap::from([("x".to_owned(), x)]))?;
        ddp.update(&step.gradients, |_, value, gradient| {
            let new = value.to_f64()[0] - 0.5 * gradient.to_f64()[0];
            *value = HostTensor::from_f64(DType::F32, [1], &[new]).expect("one");
        })?;
        let after = ["w", "unused"].map(|name| ddp.variable(name).expect("there").to_f64()[0]);
        let loss = step.outputs["loss"].to_f64()[0];
        Ok::<_, DataParallelError>((begun.map(|value| value.to_f64()[0]), loss, after))
    });
    for (begun, loss, after) in values.expect("no rank fails") {
        assert_eq!(begun, [5.0, 5.0, 50.0]);
        assert_eq!(loss, 5.0);
        assert_eq!(after, [4.5, 5.0]);
    }
}

#[test]
fn ranks_with_other_parameters_are_told_so() {
    let failed = dist::spawn(2, |group| {
        let g = GraphBuilder::new("ddp");
        let w = parameter(&g, "w", 1.0, 1 + group.rank());
        g.output("loss", &w.sum(&[0], false));
        let options = DataParallelOptions::default();
        let graph = g.finish().expect("a graph");
        DataParallel::new(&group, graph, &BTreeMap::new(), &options).map(|_| ())
    });
    let report = failed.expect_err("they differ").to_string();
    assert!(report.contains("it lacks parameter `w` (f32[1])"), "{report}");
}

#[test]
fn weights_are_taken_by_name_and_others_refused() {
    let with = |name: &'static str| {
        dist::spawn(2, move |group| {
            let g = GraphBuilder::new("ddp");
            let x = g.input("x", DType::F32, [1]);
            let _unused = parameter(&g, "unused", 3.0, 1);
            g.output("loss", &(&x * &parameter(&g, "w", 1.0, 1)).sum(&[0], false));
            let graph = g.finish().expect("a graph");
            let five = HostTensor::from_f32([1], &[5.0]).expect("one");
            let weights = BTreeMap::from([(name.to_owned(), five)]);
            let mut ddp =
                DataParallel::new(&group, graph, &weights, &DataParallelOptions::default())?;
            Ok::<_, DataParallelError>(
                [ddp.variable("w")?, ddp.variable("unused")?].map(|v| v.to_f64()[0]),
            )
        })
    };
    assert_eq!(with("w").expect("no rank fails"), [[5.0, 3.0]; 2]);
    assert_eq!(with("unused").expect("no rank fails"), [[1.0, 5.0]; 2]);
    let error = with("layer.w").expect_err("there is no such variable").to_string();
    assert!(error.contains("the graph has no variable `layer.w`"), "{error}");
}
