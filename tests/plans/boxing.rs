//! Every layout becomes every other, through compiled plans and the runtime: all pairs of {S(0), S(1), B, P} on one and
//! two axes, even, uneven and empty, on the same, disjoint and overlapping ranks and hierarchies, element by element.

use graphc::prelude::*;

const SHAPES: [[usize; 2]; 3] = [[5, 7], [25, 33], [8, 4]];

fn sbps(axes: usize) -> Vec<NdSbp> {
    let one = [Sbp::Split(0), Sbp::Split(1), Sbp::Broadcast, Sbp::PARTIAL];
    match axes {
        1 => one.map(|sbp| NdSbp(vec![sbp])).to_vec(),
        _ => one.iter().flat_map(|&a| one.map(|b| NdSbp(vec![a, b]))).collect(),
    }
}

/// A graph in which x goes through every pair of layouts of two placements, each pair an output.
fn check(shape: &[usize], from: &Placement, to: &Placement, world: usize) {
    let g = GraphBuilder::new("boxing");
    let x = g.on(from, || g.input("x", DType::F32, shape.to_vec()));
    let mut names = Vec::new();
    for a in sbps(from.hierarchy.len()) {
        let there = x.to_global(from, a.clone());
        for b in sbps(to.hierarchy.len()) {
            let name = format!("{a} -> {b}");
            g.output(&name, &there.to_global(to, b));
            names.push(name);
        }
    }
    let options = CompileOptions { mesh: vec![world], ..CompileOptions::default() };
    let graph = g.finish().expect("a graph");
    let cluster = preset("cpu").expect("a preset");
    let plan = compile(graph, &options, &cluster, None)
        .unwrap_or_else(|error| panic!("{shape:?} from {from} to {to}: {error}"))
        .plan;
    let mut session =
        Session::new(&plan, &BTreeMap::new(), SessionOptions::default()).expect("a session");
    let data: Vec<f32> = (0..shape.iter().product::<usize>()).map(|i| i as f32 - 3.0).collect();
    let feeds =
        BTreeMap::from([("x".to_string(), HostTensor::from_f32(shape, &data).expect("a tensor"))]);
    let outputs = session.step(feeds).expect("a step").wait().expect("outputs");
    for name in names {
        let found = outputs[&name].to_f32().expect("f32");
        assert_eq!(found, data, "{name} of {shape:?} from {from} to {to}");
    }
}

fn placement(ranks: &[u32], hierarchy: &[usize]) -> Placement {
    Placement::new(ranks.to_vec(), hierarchy.to_vec()).expect("a placement")
}

fn check_shapes(from: &Placement, to: &Placement, world: usize) {
    for shape in SHAPES {
        check(&shape, from, to, world);
    }
    check(&[8, 0, 4], from, to, world);
}

#[test]
fn on_the_same_ranks() {
    let line = placement(&[0, 1, 2, 3], &[4]);
    let square = placement(&[0, 1, 2, 3], &[2, 2]);
    check_shapes(&line, &line, 4);
    check_shapes(&square, &square, 4);
}

#[test]
fn between_hierarchies() {
    let line = placement(&[0, 1, 2, 3], &[4]);
    let square = placement(&[0, 1, 2, 3], &[2, 2]);
    let three = placement(&[0, 1, 2], &[3]);
    check_shapes(&line, &square, 4);
    check_shapes(&square, &line, 4);
    check_shapes(&line, &three, 4);
    check_shapes(&three, &square, 4);
}

#[test]
fn between_disjoint_and_overlapping_ranks() {
    let low = placement(&[0, 1], &[2]);
    let high = placement(&[2, 3], &[2]);
    let middle = placement(&[1, 2, 3], &[3]);
    let square = placement(&[3, 1, 2, 0], &[2, 2]);
    check_shapes(&low, &high, 4);
    check_shapes(&low, &middle, 4);
    check_shapes(&middle, &square, 4);
    check_shapes(&square, &high, 4);
}
