//! The work on a stream that computes a product.
//!
//! Operands are read where they are when the work's turn comes, widened to f32, multiplied in blocks of k, and
//! everything is written once, at the end: only elements of D, of the aux buffer and of the vector, and the
//! workspace, which gets a pattern that no result may come from.

use super::epilogue::finish;
use super::offer::Offer;
use super::problem::{Matrix, Problem};
use super::types::{Element, Order, PointerMode, Vector};
use crate::work::{Access, Poll, Work};

/// A product at its operands.
#[derive(Clone, Debug)]
pub struct Product {
    /// The product to compute.
    pub problem: Problem,
    /// Addresses of A, B, C, D, the vector and the aux buffer.
    pub operands: [u64; 6],
    /// Alpha and beta.
    pub scalars: Scalars,
    /// Address and bytes of the workspace that the algorithm writes, and all bytes that it may.
    pub workspace: Workspace,
    /// The number of the algorithm among those that were handed out.
    pub algorithm: u64,
}

/// Alpha and beta, or where they are.
#[derive(Clone, Copy, Debug)]
pub enum Scalars {
    /// The numbers that the call gave.
    Values(f32, f32),
    /// Addresses in the device's memory, read when the product is computed.
    Addresses(u64, u64),
}

/// Memory that is written as an algorithm would.
#[derive(Clone, Copy, Debug)]
pub struct Workspace {
    /// The address.
    pub address: u64,
    /// Bytes that the algorithm uses.
    pub used: usize,
    /// Bytes that the caller said there are.
    pub given: usize,
}

impl Work for Product {
    fn name(&self) -> &str {
        "cublasLtMatmul"
    }

    fn accounted(&self) -> Option<String> {
        Some(self.problem.epilogue.name())
    }

    /// Returns the time of a card of 100 TFLOP/s, and a quarter more for each place between the algorithm and the fastest. Products that
    /// are slow take a hundred times as long.
    fn nanoseconds(&self) -> u64 {
        let Problem { m, n, k, batch, .. } = self.problem;
        let offer = Offer::get();
        let times = if offer.slow.has(&self.problem, self.algorithm) { 100 } else { 1 };
        let least = times * ((batch * m * n * k) as u64 / 50_000 + 1000);
        least + least * self.algorithm.abs_diff(offer.fastest as u64) / 4
    }

    fn poll(&mut self, memory: &mut Access<'_>) -> Poll {
        match self.run(memory) {
            Ok(()) => Poll::Done,
            Err(reason) => Poll::Failed(format!("{}: {reason}", self.describe())),
        }
    }

    fn again(&self) -> Box<dyn Work> {
        Box::new(self.clone())
    }
}

impl Product {
    fn describe(&self) -> String {
        let Problem { m, n, k, batch, .. } = self.problem;
        format!("cublasLtMatmul of {batch} x ({m}x{k} by {k}x{n})")
    }

    fn run(&self, memory: &mut Access<'_>) -> Result<(), String> {
        self.poison_workspace(memory)?;
        let (alpha, beta) = self.scalars(memory)?;
        let mut results = Vec::with_capacity(self.problem.batch);
        for index in 0..self.problem.batch {
            results.push(self.one(memory, index, alpha, beta)?);
        }
        for (index, result) in results.iter().enumerate() {
            self.store(memory, index, result)?;
        }
        Ok(())
    }

    fn poison_workspace(&self, memory: &mut Access<'_>) -> Result<(), String> {
        let Workspace { address, used, given } = self.workspace;
        if used == 0 {
            return Ok(());
        }
        let named = |reason: String| format!("workspace: {reason}");
        memory.write(address, used).map_err(named)?.fill(POISON);
        memory.write(address + given as u64 - 1, 1).map_err(named)?.fill(POISON);
        Ok(())
    }

    fn scalars(&self, memory: &mut Access<'_>) -> Result<(f32, f32), String> {
        match self.scalars {
            Scalars::Values(alpha, beta) => Ok((alpha, beta)),
            Scalars::Addresses(alpha, beta) => {
                Ok((scalar(memory, alpha, "alpha")?, scalar(memory, beta, "beta")?))
            }
        }
    }

    /// Computes the product of one of the batch.
    fn one(
        &self,
        memory: &mut Access<'_>,
        index: usize,
        alpha: f32,
        beta: f32,
    ) -> Result<Outcome, String> {
        let problem = &self.problem;
        let a = self.load(memory, 0, index, "A")?;
        let b = self.load(memory, 1, index, "B")?;
        let a = oriented(a, &problem.a, problem.transpose_a);
        let b = oriented(b, &problem.b, problem.transpose_b);
        let rounded = |values: &[f32]| -> Vec<f32> {
            values.iter().map(|&value| problem.compute.round(value)).collect()
        };
        let mut sums = multiply(&rounded(&a), &rounded(&b), problem, block(self.algorithm));
        sums.iter_mut().for_each(|sum| *sum *= alpha);
        if beta != 0.0 {
            let c = oriented(self.load(memory, 2, index, "C")?, &problem.c, false);
            sums.iter_mut().zip(c).for_each(|(sum, c)| *sum += beta * c);
        }
        let vector = self.load_vector(memory, index)?;
        let aux = self.load_aux(memory, index)?;
        let mut outcome = finish(problem, sums, vector, aux);
        match problem.epilogue.vector {
            Vector::SumsOfA => outcome.vector = row_sums(&a, problem.m),
            Vector::SumsOfB => outcome.vector = line_sums(&b, problem.k),
            _ => {}
        }
        Ok(outcome)
    }

    /// Elements of the n-th operand's matrix, lines one after another without what lies between them.
    fn load(
        &self,
        memory: &mut Access<'_>,
        operand: usize,
        index: usize,
        name: &str,
    ) -> Result<Vec<f32>, String> {
        let problem = &self.problem;
        let matrix = [&problem.a, &problem.b, &problem.c, &problem.d][operand];
        let mut values = Vec::with_capacity(matrix.rows * matrix.cols);
        for (address, count) in pieces(self.operands[operand], matrix, index) {
            let size = matrix.element.bytes();
            let bytes = memory
                .read(address, count * size)
                .map_err(|reason| format!("{name}, matrix {index}: {reason}"))?;
            values.extend(bytes.chunks_exact(size).map(|bytes| matrix.element.read(bytes)));
        }
        Ok(values)
    }

    fn load_vector(&self, memory: &mut Access<'_>, index: usize) -> Result<Vec<f32>, String> {
        if self.problem.epilogue.vector != Vector::Bias {
            return Ok(Vec::new());
        }
        let element = self.problem.d.element;
        let bytes = memory
            .read(self.vector_address(index), self.problem.m * element.bytes())
            .map_err(|reason| format!("bias, product {index}: {reason}"))?;
        Ok(bytes.chunks_exact(element.bytes()).map(|bytes| element.read(bytes)).collect())
    }

    fn vector_address(&self, index: usize) -> u64 {
        let element = self.problem.d.element;
        self.operands[4] + (index * self.problem.vector_stride * element.bytes()) as u64
    }

    /// Bytes of each column of the aux buffer, where the epilogue reads it.
    fn load_aux(&self, memory: &mut Access<'_>, index: usize) -> Result<Vec<Vec<u8>>, String> {
        if !self.problem.epilogue.reads_aux() {
            return Ok(Vec::new());
        }
        (0..self.problem.n)
            .map(|column| {
                let (address, bytes) = self.aux_column(index, column);
                let read = memory.read(address, bytes);
                read.map(<[u8]>::to_vec).map_err(|reason| format!("aux, product {index}: {reason}"))
            })
            .collect()
    }

    /// Address and bytes of a column of the aux buffer.
    fn aux_column(&self, index: usize, column: usize) -> (u64, usize) {
        let problem = &self.problem;
        let first = index * problem.aux_stride + column * problem.aux_ld;
        if problem.epilogue.masks() {
            (self.operands[5] + first as u64 / 8, problem.m.div_ceil(8))
        } else {
            let size = problem.d.element.bytes();
            (self.operands[5] + (first * size) as u64, problem.m * size)
        }
    }

    fn store(
        &self,
        memory: &mut Access<'_>,
        index: usize,
        outcome: &Outcome,
    ) -> Result<(), String> {
        let problem = &self.problem;
        let lines = match problem.d.order {
            Order::Column => &outcome.result,
            Order::Row => &transpose(&outcome.result, problem.m),
        };
        let mut from = 0;
        for (address, count) in pieces(self.operands[3], &problem.d, index) {
            store(memory, address, &lines[from..from + count], problem.d.element)
                .map_err(|reason| format!("D, matrix {index}: {reason}"))?;
            from += count;
        }
        if !outcome.vector.is_empty() {
            store(memory, self.vector_address(index), &outcome.vector, problem.d.element)
                .map_err(|reason| format!("gradient of the bias, product {index}: {reason}"))?;
        }
        for (column, bytes) in outcome.aux.iter().enumerate() {
            let (address, count) = self.aux_column(index, column);
            let target = memory.write(address, count);
            target
                .map_err(|reason| format!("aux, product {index}: {reason}"))?
                .copy_from_slice(bytes);
        }
        Ok(())
    }
}

/// The results of one product of a batch.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// D, columns of m elements one after another.
    pub result: Vec<f32>,
    /// The vector at the bias pointer; empty where it is not written.
    pub vector: Vec<f32>,
    /// Bytes of the columns of the aux buffer; empty where it is not written.
    pub aux: Vec<Vec<u8>>,
}

const POISON: u8 = 0xff;

fn scalar(memory: &mut Access<'_>, address: u64, name: &str) -> Result<f32, String> {
    let bytes = memory.read(address, 4).map_err(|reason| format!("{name}: {reason}"))?;
    Ok(Element::F32.read(bytes))
}

/// Address and elements of each piece of a matrix that lies together.
fn pieces(base: u64, matrix: &Matrix, index: usize) -> Vec<(u64, usize)> {
    let (lines, inner) = matrix.lines();
    let at = |line: usize| {
        base + ((index * matrix.stride + line * matrix.ld) * matrix.element.bytes()) as u64
    };
    if matrix.ld == inner {
        return vec![(at(0), lines * inner)];
    }
    (0..lines).map(|line| (at(line), inner)).collect()
}

fn store(
    memory: &mut Access<'_>,
    address: u64,
    values: &[f32],
    element: Element,
) -> Result<(), String> {
    let size = element.bytes();
    let target = memory.write(address, values.len() * size)?;
    for (value, bytes) in values.iter().zip(target.chunks_exact_mut(size)) {
        element.write(*value, bytes);
    }
    Ok(())
}

/// op(matrix) column by column.
fn oriented(lines: Vec<f32>, matrix: &Matrix, transposed: bool) -> Vec<f32> {
    let (_, inner) = matrix.lines();
    if (matrix.order == Order::Row) == transposed { lines } else { transpose(&lines, inner) }
}

/// Lines of `inner` elements become columns.
fn transpose(lines: &[f32], inner: usize) -> Vec<f32> {
    let count = lines.len() / inner;
    let mut turned = Vec::with_capacity(lines.len());
    for element in 0..inner {
        turned.extend((0..count).map(|line| lines[line * inner + element]));
    }
    turned
}

/// Sums of the rows of a matrix with columns of `rows` elements.
fn row_sums(columns: &[f32], rows: usize) -> Vec<f32> {
    let mut sums = vec![0.0; rows];
    for column in columns.chunks_exact(rows) {
        sums.iter_mut().zip(column).for_each(|(sum, value)| *sum += value);
    }
    sums
}

/// Sums of lines of `inner` elements.
fn line_sums(lines: &[f32], inner: usize) -> Vec<f32> {
    lines.chunks_exact(inner).map(|line| line.iter().sum()).collect()
}

/// Terms of k that an algorithm sums before they are added to what other terms gave.
fn block(algorithm: u64) -> usize {
    if algorithm == 0 { 256 } else { 32 >> algorithm.min(4) }
}

/// Products of the columns of op(A), of m elements, with op(B)'s, of k: columns of m sums.
fn multiply(a: &[f32], b: &[f32], problem: &Problem, block: usize) -> Vec<f32> {
    let (m, k) = (problem.m, problem.k);
    let mut sums = vec![0.0; m * problem.n];
    let mut part = vec![0.0; m];
    for first in (0..k).step_by(block) {
        let terms = first..k.min(first + block);
        let a = &a[terms.start * m..terms.end * m];
        for (column, b) in sums.chunks_exact_mut(m).zip(b.chunks_exact(k)) {
            part.fill(0.0);
            accumulate(a, &b[terms.clone()], &mut part);
            column.iter_mut().zip(&part).for_each(|(sum, part)| *sum += part);
        }
    }
    sums
}

/// Adds columns of A, each times its factor; four at a time, so that sums stay in registers longer.
fn accumulate(a: &[f32], factors: &[f32], sums: &mut [f32]) {
    let m = sums.len();
    let mut columns = a.chunks_exact(4 * m);
    let mut fours = factors.chunks_exact(4);
    for (a, f) in columns.by_ref().zip(fours.by_ref()) {
        let (a0, rest) = a.split_at(m);
        let (a1, rest) = rest.split_at(m);
        let (a2, a3) = rest.split_at(m);
        for (i, sum) in sums.iter_mut().enumerate() {
            *sum = *sum + a0[i] * f[0] + a1[i] * f[1] + a2[i] * f[2] + a3[i] * f[3];
        }
    }
    for (a, f) in columns.remainder().chunks_exact(m).zip(fours.remainder()) {
        sums.iter_mut().zip(a).for_each(|(sum, a)| *sum += a * f);
    }
}

impl Scalars {
    /// Alpha and beta at the addresses that a call gives.
    ///
    /// # Safety
    /// Of the mode `Host`, both point to an f32.
    pub unsafe fn of(mode: PointerMode, alpha: *const f32, beta: *const f32) -> Scalars {
        match mode {
            // SAFETY: the caller's promise.
            PointerMode::Host => unsafe { Scalars::Values(*alpha, *beta) },
            PointerMode::Device => Scalars::Addresses(alpha as u64, beta as u64),
        }
    }
}
