//! Chains whose loops stand for several steps give the bits of their steps.

use graphc_ir::ops::{Binary, BinaryFunction, Unary, UnaryFunction};

use super::*;

const COUNT: usize = 2500;

/// (a ∘ b) - c, or a ∘ b alone, of three operands of some of which the order is given.
fn chain(function: BinaryFunction, args: [usize; 3], is_long: bool) -> Chain {
    let step = |function, args| FusedStep { op: Op::Binary(Binary { function }), args };
    let [a, b, c] = args.map(FusedArg::Operand);
    let first = step(function, vec![a, b]);
    let second = step(BinaryFunction::Sub, vec![FusedArg::Step(0), c]);
    let steps = if is_long { vec![first, second] } else { vec![first] };
    let ty = TensorType::new(DType::F32, [COUNT]);
    let outputs = vec![steps.len() - 1];
    Chain::of(&FusedOp { steps, outputs }, &vec![ty.clone(); 3], &[ty]).expect("a chain")
}

/// Evaluates a chain whose result has the memory of operand 0. Returns the result and the overlap that was found.
fn in_place(chain: &Chain, numbers: &[Vec<f32>; 3]) -> (Vec<f32>, ResultOverlap) {
    let shape = [COUNT];
    let mut first = numbers[0].clone();
    let mut result = ViewMut::whole(DType::F32, &shape, &mut first);
    // SAFETY: the chain reads an element before it writes it.
    let (own, parts) = unsafe { result.shared_parts() };
    let others = [1, 2].map(|index: usize| View::whole(DType::F32, &shape, &numbers[index]));
    let operands = [own, others[0], others[1]];
    let meeting = chain.program.find_overlap(0, |operand| operand == 0);
    let following = chain.following(&operands, vec![parts]).expect("operands that fit");
    let mut words = vec![0; following.words()];
    for range in [0..1000, 1000..COUNT] {
        // SAFETY: there is one thread.
        unsafe { following.evaluate(range, &mut words) }.expect("numbers");
    }
    (first, meeting)
}

#[test]
fn an_argument_is_replaced_where_nothing_else_reads_it() {
    let numbers = [1, 2, 3].map(|salt| {
        (0..COUNT).map(|i| (i * salt % 97) as f32 / 7.0 - salt as f32).collect::<Vec<_>>()
    });
    let shape = [COUNT];
    for function in [BinaryFunction::Add, BinaryFunction::Sub, BinaryFunction::Mul] {
        for args in [[0, 1, 2], [1, 0, 2], [1, 2, 0], [0, 0, 1], [0, 1, 0]] {
            for is_long in [true, false] {
                let chain = chain(function, args, is_long);
                let operands = numbers.each_ref().map(|x| View::whole(DType::F32, &shape, x));
                let mut apart = vec![0.0; COUNT];
                let to = OutputParts::from_slice(DType::F32, &mut apart[..]);
                let following = chain.following(&operands, vec![to]).expect("a chain");
                let mut words = vec![0; following.words()];
                // SAFETY: there is one thread.
                unsafe { following.evaluate(0..COUNT, &mut words) }.expect("numbers");
                let (found, meeting) = in_place(&chain, &numbers);
                assert_eq!(found, apart, "{function:?} {args:?} {is_long}");
                let expected = match (is_long, args) {
                    (true, [0, 1, 2]) => ResultOverlap::Replaced(0),
                    (true, [1, 0, 2]) => ResultOverlap::Replaced(1),
                    (false, [1, 2, 0]) => ResultOverlap::Apart,
                    _ => ResultOverlap::Late,
                };
                assert_eq!(meeting, expected, "{function:?} {args:?} {is_long}");
            }
        }
    }
}

/// Applies functions one after the other to numbers, as one chain. Returns the results and the number of the chain's loops.
fn through(functions: &[UnaryFunction], numbers: &[f32]) -> (Vec<f32>, usize) {
    let step = |(index, &function): (usize, &UnaryFunction)| FusedStep {
        op: Op::Unary(Unary { function }),
        args: vec![match index.checked_sub(1) {
            Some(before) => FusedArg::Step(before),
            None => FusedArg::Operand(0),
        }],
    };
    let steps: Vec<FusedStep> = functions.iter().enumerate().map(step).collect();
    let ty = TensorType::new(DType::F32, [numbers.len()]);
    let outputs = vec![steps.len() - 1];
    let types = std::slice::from_ref(&ty);
    let chain = Chain::of(&FusedOp { steps, outputs }, types, types).expect("a chain");
    let shape = [numbers.len()];
    let operands = [View::whole(DType::F32, &shape, numbers)];
    let mut found = vec![0.0; numbers.len()];
    let to = OutputParts::from_slice(DType::F32, &mut found[..]);
    let following = chain.following(&operands, vec![to]).expect("operands that fit");
    let mut words = vec![0; following.words()];
    // SAFETY: there is one thread.
    unsafe { following.evaluate(0..numbers.len(), &mut words) }.expect("numbers");
    (found, chain.program.steps.len())
}

#[test]
fn functions_in_frames_give_the_bits_of_their_steps() {
    use UnaryFunction::{Erf, Exp, Offset, Scale};
    let [scale, offset] = [0.3, -1.7].map(graphc_ir::scalar::Scalar);
    let special = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-40, -90.0];
    let numbers: Vec<f32> =
        special.into_iter().chain((0..COUNT).map(|i| i as f32 / 200.0 - 6.0)).collect();
    for (functions, loops) in [
        (vec![Scale(scale), Erf, Offset(offset), Scale(scale)], 1),
        (vec![Scale(scale), Exp, Scale(scale)], 1),
        (vec![Erf, Scale(scale), Offset(offset)], 2),
        (vec![Offset(offset), Exp, Offset(offset), Offset(offset)], 3),
        (vec![Scale(scale), Scale(scale), Exp, Erf], 3),
    ] {
        let (found, count) = through(&functions, &numbers);
        let one = |numbers: Vec<f32>, &function: &_| through(&[function], &numbers).0;
        let expected = functions.iter().fold(numbers.clone(), one);
        let bits = |all: Vec<f32>| all.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        assert_eq!((bits(found), count), (bits(expected), loops), "{functions:?}");
    }
}
