//! Epilogues: the steps of a product between its sums and memory.

use super::problem::Problem;
use super::product::Outcome;
use super::types::{Element, Function, Vector};

/// Applies a problem's epilogue to alpha op(A) op(B) + beta C, columns of m elements. `bias` has a summand for
/// each row where there is a bias, `aux` the bytes of each column where the epilogue reads an aux buffer.
pub fn finish(problem: &Problem, sums: Vec<f32>, bias: Vec<f32>, aux: Vec<Vec<u8>>) -> Outcome {
    let epilogue = problem.epilogue;
    let mut outcome = Outcome { result: sums, vector: Vec::new(), aux: Vec::new() };
    for (column, values) in outcome.result.chunks_exact_mut(problem.m).enumerate() {
        values.iter_mut().zip(&bias).for_each(|(value, bias)| *value += bias);
        if epilogue.aux && !epilogue.reads_aux() {
            outcome.aux.push(kept(problem, values));
        }
        let aux = aux.get(column).map_or(&[][..], Vec::as_slice);
        apply(epilogue.function, values, aux, problem.d.element);
    }
    if epilogue.vector == Vector::RowSums {
        outcome.vector = vec![0.0; problem.m];
        for column in outcome.result.chunks_exact(problem.m) {
            outcome.vector.iter_mut().zip(column).for_each(|(sum, value)| *sum += value);
        }
    }
    outcome
}

fn apply(function: Function, values: &mut [f32], aux: &[u8], element: Element) {
    match function {
        Function::Identity => {}
        Function::Relu => values.iter_mut().for_each(|value| *value = value.max(0.0)),
        Function::Gelu => values.iter_mut().for_each(|value| *value = gelu(*value)),
        Function::ReluGradient => {
            for (row, value) in values.iter_mut().enumerate() {
                if aux[row / 8] >> (row % 8) & 1 == 0 {
                    *value = 0.0;
                }
            }
        }
        Function::GeluGradient => {
            for (value, bytes) in values.iter_mut().zip(aux.chunks_exact(element.bytes())) {
                *value *= gelu_derivative(element.read(bytes));
            }
        }
    }
}

/// The bits or elements that a forward function keeps of a column: a bit for each positive element, or the elements themselves.
fn kept(problem: &Problem, values: &[f32]) -> Vec<u8> {
    if problem.epilogue.masks() {
        let bits = |eight: &[f32]| {
            let each = eight.iter().enumerate();
            each.fold(0, |bits, (place, value)| bits | u8::from(*value > 0.0) << place)
        };
        return values.chunks(8).map(bits).collect();
    }
    let element = problem.d.element;
    let mut bytes = vec![0; values.len() * element.bytes()];
    for (value, bytes) in values.iter().zip(bytes.chunks_exact_mut(element.bytes())) {
        element.write(*value, bytes);
    }
    bytes
}

/// sqrt(2 / pi) and the cubic coefficient of gelu by tanh.
const GELU: (f32, f32) = (0.797_884_6, 0.044_715);

fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + (GELU.0 * (x + GELU.1 * x * x * x)).tanh())
}

fn gelu_derivative(x: f32) -> f32 {
    let tanh = (GELU.0 * (x + GELU.1 * x * x * x)).tanh();
    let inner = GELU.0 * (1.0 + 3.0 * GELU.1 * x * x);
    0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * inner
}
