//! The resources that kernels need of a multiprocessor, as NVIDIA's assembler says it.

use super::{CompiledText, compile_as};

/// The resources that a kernel needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// The kernel's name.
    pub entry: String,
    /// Registers of a thread.
    pub registers: usize,
    /// Bytes of a block's shared memory that the source declares.
    pub shared: usize,
    /// Bytes of registers that had to be kept in memory, written and read.
    pub spills: usize,
}

/// Compiles CUDA C++ to machine code for an architecture such as `sm_90`, which nothing here executes: what each kernel
/// of it needs.
///
/// # Errors
/// The compiler's log, or that there is no compiler.
pub fn resources(
    source: &str,
    architecture: &str,
    options: &[&str],
) -> Result<Vec<Resources>, String> {
    let mut all = options.to_vec();
    all.push("--ptxas-options=-v");
    compile_as(source, architecture, &all, CompiledText::Log).map(|log| parse_resources(&log))
}

/// Reads the assembler's account, of which each kernel has some lines.
pub fn parse_resources(log: &str) -> Vec<Resources> {
    let mut all: Vec<Resources> = Vec::new();
    for line in log.lines() {
        if let Some(name) = line.split("entry function '").nth(1) {
            let entry = name.split('\'').next().unwrap_or_default().to_owned();
            all.push(Resources { entry, ..Resources::default() });
        } else if let Some(last) = all.last_mut() {
            last.registers = number(line, " registers").unwrap_or(last.registers);
            last.shared = number(line, " bytes smem").unwrap_or(last.shared);
            let spills = [" bytes spill stores", " bytes spill loads"];
            last.spills += spills.iter().filter_map(|word| number(line, word)).sum::<usize>();
        }
    }
    all
}

/// The number before a word.
fn number(line: &str, word: &str) -> Option<usize> {
    let (before, _) = line.split_once(word)?;
    before.rsplit([' ', ',']).next()?.parse().ok()
}
