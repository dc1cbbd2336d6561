//! The heuristic, which chooses the algorithm of a product and says what it asks for.
//!
//! The double hands out two algorithms: one that wants a workspace, where the preference allows any, and one that wants
//! none; or as many as a test asks for ([`super::offer`]). Each adds up in an order of its own, so another algorithm may
//! give other bits. Each holds to what was told when it was chosen: the problem, how pointers are aligned, how large the
//! workspace is.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::descriptors::{MatmulDescriptor, Preference};
use super::offer::Offer;
use super::problem::Problem;
use super::types::{Refusal, invalid, unsupported};

/// `cublasLtMatmulAlgo_t`: 64 bytes that the caller keeps and hands back.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Algorithm {
    magic: u64,
    problem: u64,
    workspace: u64,
    /// The alignments in bytes of A, B, C, D, the bias and the aux buffer, each a power of two.
    alignments: [u32; 6],
    /// The number of the algorithm among those that were handed out, from 0.
    number: u64,
    reserved: u64,
}

/// `cublasLtMatmulHeuristicResult_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Choice {
    /// The algorithm that is handed back to compute the product.
    pub algorithm: Algorithm,
    /// Bytes of workspace that it wants.
    pub workspace: usize,
    /// 0: the choice can be used.
    pub state: i32,
    /// The number of times that the device is filled.
    pub waves: f32,
    reserved: [i32; 4],
}

const MAGIC: u64 = 0x616c_676f_7269_7468;

/// Pointers of a product, in the device's memory; 0 where there is none.
#[derive(Clone, Copy, Debug)]
pub struct Pointers {
    /// A, B, C, D, the vector at the bias pointer, and the aux buffer.
    pub operands: [u64; 6],
    /// Memory that an algorithm may write while it computes.
    pub workspace: u64,
    /// Its bytes.
    pub workspace_bytes: usize,
}

/// Algorithms for a product under a preference, the best first.
pub fn choose(
    problem: &Problem,
    descriptor: &MatmulDescriptor,
    preference: &Preference,
) -> Result<Vec<Choice>, Refusal> {
    if preference.search_mode != 0 {
        let mode = preference.search_mode;
        return Err(unsupported(format!("a search of mode {mode}; 0 is the best fit")));
    }
    let elements = [&problem.a, &problem.b, &problem.c, &problem.d].map(|matrix| matrix.element);
    for (alignment, element) in preference.alignments.iter().zip(elements) {
        if !alignment.is_power_of_two() || (*alignment as usize) < element.bytes() {
            return Err(unsupported(format!("{element:?} aligned to {alignment} bytes")));
        }
    }
    let [a, b, c, d] = preference.alignments;
    let alignments =
        [a, b, c, d, alignment(descriptor.bias_pointer), alignment(descriptor.aux_pointer)];
    let wish = wish(problem, preference.max_workspace);
    let count = Offer::get().algorithms.unwrap_or(if wish > 0 { 2 } else { 1 });
    // Every other wants a workspace.
    let workspace = |number| if number % 2 == 0 { wish } else { 0 };
    let choices = (0..count as u64).map(|n| choice(problem, alignments, workspace(n), n));
    Ok(choices.collect())
}

/// The algorithm for a product whose caller did not ask for one: what the pointers and the workspace allow.
pub fn choose_for(problem: &Problem, pointers: &Pointers) -> Algorithm {
    let wish = wish(problem, pointers.workspace_bytes as u64);
    choice(problem, pointers.operands.map(alignment), wish, 0).algorithm
}

/// Sums of D in f32, as a split of k wants them, in whole units of 256 bytes, as far as allowed.
fn wish(problem: &Problem, most: u64) -> u64 {
    let sums = (problem.batch * problem.m * problem.n * 4) as u64;
    sums.next_multiple_of(256).min(most / 256 * 256)
}

fn choice(problem: &Problem, alignments: [u32; 6], workspace: u64, number: u64) -> Choice {
    let (magic, problem_hash) = (MAGIC, hash(problem));
    let algorithm =
        Algorithm { magic, problem: problem_hash, workspace, alignments, number, reserved: 0 };
    let waves = (problem.batch * problem.m.div_ceil(128) * problem.n.div_ceil(128)) as f32 / 132.0;
    Choice { algorithm, workspace: workspace as usize, state: 0, waves, reserved: [0; 4] }
}

/// The largest power of two, up to 256, that divides an address.
fn alignment(address: u64) -> u32 {
    1 << address.trailing_zeros().min(8)
}

fn hash(problem: &Problem) -> u64 {
    let mut hasher = DefaultHasher::new();
    problem.hash(&mut hasher);
    hasher.finish()
}

impl Algorithm {
    /// Returns its number among those that were handed out, from 0.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether this algorithm computes a product at these pointers; gives the bytes of workspace it will write.
    pub fn check(&self, problem: &Problem, pointers: &Pointers) -> Result<usize, Refusal> {
        if self.magic != MAGIC {
            return Err(invalid("an algorithm that no heuristic gave"));
        }
        if self.problem != hash(problem) {
            return Err(unsupported("an algorithm that was chosen for another problem"));
        }
        self.check_alignments(pointers)?;
        let workspace = self.workspace as usize;
        if workspace == 0 {
            return Ok(0);
        }
        if pointers.workspace == 0 || pointers.workspace_bytes < workspace {
            let given = if pointers.workspace == 0 { 0 } else { pointers.workspace_bytes };
            return Err(invalid(format!(
                "a workspace of {given} bytes where {workspace} are needed"
            )));
        }
        if !pointers.workspace.is_multiple_of(256) {
            return Err(invalid(format!(
                "a workspace at {:#x}, not at 256 bytes",
                pointers.workspace
            )));
        }
        Ok(workspace)
    }

    fn check_alignments(&self, pointers: &Pointers) -> Result<(), Refusal> {
        let names = ["A", "B", "C", "D", "the bias", "the aux buffer"];
        for ((name, address), needed) in names.iter().zip(pointers.operands).zip(self.alignments) {
            if !address.is_multiple_of(u64::from(needed)) {
                return Err(unsupported(format!(
                    "{name} is at {address:#x}, but the heuristic was told of {needed} bytes"
                )));
            }
        }
        Ok(())
    }
}
