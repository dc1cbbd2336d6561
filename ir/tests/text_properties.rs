//! Properties of the text format: what is printed is read back as the same graph, and no text makes the parser panic.

use graphc_ir::builder::{GraphBuilder, Tensor};
use graphc_ir::graph::{Graph, Part};
use graphc_ir::ids::StageId;
use graphc_ir::mesh::{DeviceKind, Placement};
use graphc_ir::ops::{BinaryFunction, Distribution, Init, UnaryFunction};
use graphc_ir::sbp::{NdSbp, ReduceKind, Sbp};
use graphc_ir::text::{Unresolved, parse_graph, parse_with, print_graph};
use graphc_ir::types::DType;
use graphc_ir::verify::verify_graph;
use proptest::prelude::*;

/// A choice of the generator: which op, on which values, with which numbers.
#[derive(Clone, Debug)]
struct Step {
    kind: usize,
    operands: (prop::sample::Index, prop::sample::Index),
    number: f64,
    name: Option<String>,
    stage: bool,
    placed: bool,
    autocast: bool,
    pin: Option<Sbp>,
}

fn number() -> impl Strategy<Value = f64> {
    let odd = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -0.0, 0.0, 1.0, 1e300, -2.5e-310, 0.1];
    prop_oneof![prop::sample::select(odd.to_vec()), any::<f64>()]
}

fn step() -> impl Strategy<Value = Step> {
    let pins = [Sbp::Broadcast, Sbp::Split(0), Sbp::PARTIAL, Sbp::Partial(ReduceKind::Max)];
    let name = prop_oneof![
        2 => Just(None),
        1 => "[a-z0-9_.]{1,6}".prop_map(Some),
        1 => "\\PC{0,6}".prop_map(Some),
        1 => prop::sample::select(vec!["12", "", "a b", "\"", "\\", "\n", "//", "%", "0.5"])
            .prop_map(|name| Some(name.to_string())),
    ];
    let operands = (any::<prop::sample::Index>(), any::<prop::sample::Index>());
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (
        0..14usize,
        operands,
        number(),
        name,
        flags,
        prop::option::of(prop::sample::select(pins.to_vec())),
    )
        .prop_map(|(kind, operands, number, name, (stage, placed, autocast), pin)| Step {
            kind,
            operands,
            number,
            name,
            stage,
            placed,
            autocast,
            pin,
        })
}

/// A graph of `[2, 4]` tensors.
fn graph(steps: &[Step], name: &str) -> Graph {
    let g = GraphBuilder::new(name);
    let pair = Placement { device: DeviceKind::Cuda, ranks: vec![3, 1], hierarchy: vec![2, 1] };
    g.declare_stage(1, Some(pair.clone()));
    let mut values = vec![g.input("x", DType::F32, [2, 4])];
    for (index, step) in steps.iter().enumerate() {
        let before = values.clone();
        let (a, b) = (step.operands.0.get(&before), step.operands.1.get(&before));
        values.extend(apply(&g, step, index, a, b));
    }
    g.output("out", &values[values.len() - 1]);
    g.output("a \"name\"", &values[0]);
    annotate(g.finish().expect("fits"), steps, &pair)
}

fn apply(g: &GraphBuilder, step: &Step, index: usize, a: &Tensor, b: &Tensor) -> Vec<Tensor> {
    let number = step.number;
    let fresh = format!("w{index}");
    match step.kind {
        0 => vec![a.add(b)],
        1 => vec![a.binary(BinaryFunction::Max, b)],
        2 => vec![a.scale(number)],
        3 => vec![a.unary(UnaryFunction::Clip { low: (-1.0).into(), high: number.into() })],
        4 => vec![a.relu()],
        5 => vec![g.full(DType::F32, [2, 4], number)],
        6 => vec![g.constant(DType::F32, [2, 4], &[number, 1.0, 2.0, 3.0, 0.5, -0.0, 6.0, number])],
        7 => vec![g.variable(&fresh, DType::F32, [2, 4], Init::Fill(number.into()))],
        8 => vec![g.variable(&fresh, DType::F32, [2, 4], Init::Weights)],
        9 => vec![g.input(&fresh, DType::F32, [2, 4])],
        10 => vec![a.transpose(&[1, 0]).transpose(&[1, 0])],
        11 => vec![a.softmax(1)],
        12 => {
            let parts = a.split(1, &[2, 2]);
            vec![g.concat(&[parts[1].clone(), parts[0].clone()], 1)]
        }
        _ => {
            let distribution = Distribution::Normal { mean: number.into(), std: 1.0.into() };
            vec![g.random(DType::F32, [2, 4], distribution)]
        }
    }
}

/// Names, stages, placements and pins as the steps say, where they do not clash.
fn annotate(mut graph: Graph, steps: &[Step], placement: &Placement) -> Graph {
    for (index, step) in steps.iter().enumerate() {
        let Some(node) = graph.nodes.get_mut(index) else { break };
        node.part = step.stage.then(|| Part::Stage(StageId::new(1)));
        node.placement = step.placed.then(|| placement.clone());
        node.autocast = step.autocast.then_some(DType::BF16);
        let results = node.results.clone();
        let value = results[results.len() - 1];
        graph.values[value.index()].pin = step.pin.map(|pin| NdSbp(vec![pin, Sbp::Broadcast]));
        if let Some(name) = step.name.as_ref().filter(|name| graph.find(name).is_none()) {
            graph.values[value.index()].name = Some(name.clone());
        }
    }
    graph
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn what_is_printed_is_read_back(steps in prop::collection::vec(step(), 0..12), name in "\\PC{0,8}") {
        let graph = graph(&steps, &name);
        prop_assert_eq!(verify_graph(&graph), Ok(()));
        let text = print_graph(&graph);
        match parse_graph(&text) {
            Ok(again) => prop_assert_eq!(&again, &graph, "{}", text),
            Err(errors) => prop_assert!(false, "{errors}\n{text}"),
        }
    }

    #[test]
    fn no_mutation_makes_the_parser_panic(
        steps in prop::collection::vec(step(), 0..8),
        mutations in prop::collection::vec((any::<prop::sample::Index>(), mutation()), 1..6),
    ) {
        let mut chars: Vec<char> = print_graph(&graph(&steps, "g")).chars().collect();
        for (place, mutation) in &mutations {
            let at = place.index(chars.len().max(1)).min(chars.len());
            match mutation {
                Mutation::Insert(text) => _ = chars.splice(at..at, text.chars()),
                Mutation::Remove(count) => _ = chars.drain(at..(at + count).min(chars.len())),
                Mutation::Digit(digit) => {
                    let digits = chars.iter().enumerate().skip(at).find(|(_, c)| c.is_ascii_digit());
                    if let Some((at, _)) = digits {
                        chars.splice(at..at + 1, digit.chars());
                    }
                }
            }
        }
        let text: String = chars.into_iter().collect();
        let _ = Unresolved::new(text.as_str()).symbols();
        if let Err(errors) = parse_graph(&text) {
            prop_assert!(!errors.errors.is_empty());
            let _ = errors.to_string();
        }
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "\\PC{0,60}") {
        let _ = parse_graph(&text).map_err(|errors| errors.to_string());
    }
}

#[derive(Clone, Debug)]
enum Mutation {
    Insert(String),
    Remove(usize),
    Digit(String),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let pieces = [
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        ",",
        "=",
        ":",
        "*",
        "\"",
        "%",
        "@",
        "\\",
        "\n",
        "-1",
        "axis=9",
        "graph @x {",
        "matmul",
        "split",
        "18446744073709551615",
        "1e400",
        " stage 9",
        " on cpu[0] as 1",
        " pin \"S(9)\"",
        "[]",
        "null",
        "true",
        "batch",
        "f32[0]",
        "0*",
        "\t",
        "é",
        "permutation=[5]",
    ];
    let numbers = ["0", "7", "99", "4294967296", "9223372036854775807", "-3", "0.5"];
    prop_oneof![
        prop::sample::select(pieces.to_vec()).prop_map(|piece| Mutation::Insert(piece.into())),
        (0..9usize).prop_map(Mutation::Remove),
        prop::sample::select(numbers.to_vec()).prop_map(|digit| Mutation::Digit(digit.into())),
    ]
}

#[test]
fn extents_may_be_names_and_products_wherever_they_stand() {
    let text = "graph @g {
  %x = input \"x\" : f32[batch, 2*heads, 3]
  %y = reshape %x {shape=[batch*heads, 6]}
  return \"out\" = %y
}
";
    assert_eq!(Unresolved::new(text).symbols(), ["batch", "heads"]);
    let dims = [("batch".to_string(), 5), ("heads".to_string(), 2)].into();
    let graph = parse_with(text, &dims).expect("fits");
    assert_eq!(graph.values[0].ty.shape, [5, 4, 3]);
    assert_eq!(graph.values[1].ty.shape, [10, 6]);
}

#[test]
fn numbers_of_unnamed_values_need_not_be_in_order() {
    let text = "graph @g { // comment\n %7 = input \"x\" : f32[2]\n %x = unary %7 {function=\"relu\"}\n \
                return \"out\" = %x // \"}\"\n}\n// end\n";
    let graph = parse_graph(text).expect("fits");
    assert_eq!(graph.values[0].name, None);
    assert_eq!(graph.values[1].name.as_deref(), Some("x"));
}
