//! Single calls of kernels, executed on a card on contents that are given. It is for programs that hold what a card computes
//! against something else, and public as `cards::Workbench`.
//!
//! A call takes the way that an actor of a plan takes: the same code compiles, describes and launches it, and waits for it. A
//! workbench also finds what a kernel writes beside its results. `benchmarks/card/kernels` holds every kernel against its op by
//! it.

use std::sync::Arc;

use graphc_comm::memory::ArenaRange;
use graphc_ir::op::{EvalContext, InPlace, Region};
use graphc_kernels::cuda::Call;

use super::super::call::Unprepared;
use super::super::port::{Port, Turn};
use super::Cuda;
use super::driver::{CardBuffer, Trouble};
use super::joint::upload_table;
use super::kernels::load_kernels;
use super::launch::CardLaunch;
use super::memory::CardMemory;
use crate::error::{Cause, RuntimeError};

/// Bytes between registers, and the multiple at which they begin.
const GAP: usize = 256;
/// The byte of memory that nobody has written: in floats of all sizes a number that no kernel makes by itself.
const UNWRITTEN: u8 = 0xA5;

/// The first card of this machine, on which single calls are executed.
#[derive(Debug)]
pub struct Workbench(Cuda);

/// A register of a call and its content: the elements of the shard, row-major, in the byte order of the machine.
pub type Content<'a> = (&'a Region, &'a [u8]);

/// Why a call has no results.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkbenchError {
    /// There is no card, or its driver does not do what it is asked for.
    #[error(transparent)]
    Card(#[from] RuntimeError),
    /// A kernel or a product is not taken by the compiler, the driver or cuBLASLt.
    #[error("it cannot be prepared: {0}")]
    Unprepared(String),
    /// A launch failed, or a kernel found something wrong.
    #[error("it failed: {0}")]
    Failed(#[from] Cause),
    /// A kernel has written where it must not: `place` is `operand 1` or `behind result 0`.
    #[error("it has written to {place}, at byte {byte}")]
    Overwritten {
        /// The register whose memory it is.
        place: String,
        /// The offset in bytes from the beginning of that register.
        byte: usize,
    },
}

impl Workbench {
    /// Opens the card.
    ///
    /// # Errors
    /// Where there is none.
    pub fn open() -> Result<Self, WorkbenchError> {
        Ok(Self(Cuda::open(0, 0, false)?))
    }

    /// Executes a call of this name and returns the bytes of each result, of which `pairs` lie in the memory of
    /// operands.
    ///
    /// # Errors
    /// Where the card does not execute it, or it writes to anything but its results.
    pub fn execute(
        &self,
        name: &str,
        call: Call,
        operands: &[Content<'_>],
        results: &[&Region],
        pairs: &[InPlace],
        cx: &EvalContext,
    ) -> Result<Vec<Vec<u8>>, WorkbenchError> {
        let set = WorkbenchRegisters::lay_out(operands, results, pairs);
        let memory = self.0.allocate(set.image.len() as u64, None)?;
        self.as_device_error(memory.buffer.write(0, &set.image))?;
        self.launch_call(name, call, &set, &memory, cx)?;
        let mut found = vec![0; set.image.len()];
        self.as_device_error(memory.buffer.read(0, &mut found))?;
        set.check_unchanged(&found)?;
        let bytes = |port: &Port| {
            let ArenaRange { offset, bytes } = port.content_range(FIRST);
            found[offset..offset + bytes].to_vec()
        };
        Ok(set.results.iter().map(bytes).collect())
    }

    fn launch_call(
        &self,
        name: &str,
        mut call: Call,
        set: &WorkbenchRegisters,
        memory: &CardMemory,
        cx: &EvalContext,
    ) -> Result<(), WorkbenchError> {
        let refused = |error: Unprepared| WorkbenchError::Unprepared(error.to_string());
        let table = self.take_table(&mut call, set)?;
        let ports = [set.operands.clone(), set.results.clone()];
        let launch = CardLaunch::of_one(&self.0, name, call, table, ports).map_err(refused)?;
        load_kernels(&[&self.0])?;
        let mut stream = self.0.new_stream(cx.seed, Arc::new(|| false))?;
        stream.begin_step(cx.step, None);
        launch.run(&mut stream, memory, FIRST)?;
        Ok(stream.synchronize()?)
    }

    fn take_table(
        &self,
        call: &mut Call,
        set: &WorkbenchRegisters,
    ) -> Result<Option<CardBuffer>, WorkbenchError> {
        let table = std::mem::take(&mut call.table);
        if table.is_empty() {
            return Ok(None);
        }
        self.as_device_error(upload_table(&self.0, &table, [&set.operands, &set.results])).map(Some)
    }

    fn as_device_error<T>(&self, result: Result<T, Trouble>) -> Result<T, WorkbenchError> {
        let device = |trouble: Trouble| RuntimeError::Device {
            rank: self.0.rank,
            reason: trouble.to_string(),
        };
        Ok(result.map_err(device)?)
    }
}

/// The only turn.
const FIRST: Turn = Turn { step: 0, microbatch: 0, microbatches: 1 };

/// Registers with gaps between them, and what memory holds before the call.
struct WorkbenchRegisters {
    operands: Vec<Port>,
    results: Vec<Port>,
    image: Vec<u8>,
    /// Results in the memory of operands.
    shared: Vec<InPlace>,
}

impl WorkbenchRegisters {
    fn lay_out(operands: &[Content<'_>], results: &[&Region], pairs: &[InPlace]) -> Self {
        let mut image = vec![UNWRITTEN; GAP];
        let mut place = |region: &Region| {
            let port = Port::of_region(region, image.len());
            let end = (image.len() + port.content_range(FIRST).bytes).next_multiple_of(GAP) + GAP;
            image.resize(end, UNWRITTEN);
            port
        };
        let given: Vec<Port> = operands.iter().map(|(region, _)| place(region)).collect();
        let result = |(index, region): (usize, &&Region)| {
            let pair = pairs.iter().find(|pair| pair.result == index);
            match pair {
                Some(pair) => {
                    Port::of_region(region, given[pair.operand].content_range(FIRST).offset)
                }
                None => place(region),
            }
        };
        let results = results.iter().enumerate().map(result).collect();
        for (port, (_, bytes)) in given.iter().zip(operands) {
            let offset = port.content_range(FIRST).offset;
            image[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
        Self { operands: given, results, image, shared: pairs.to_vec() }
    }

    /// Checks that nothing has changed but results.
    fn check_unchanged(&self, found: &[u8]) -> Result<(), WorkbenchError> {
        let named = |what: &'static str, ports: &[Port]| {
            let name = |(index, port): (usize, &Port)| {
                (format!("{what} {index}"), port.content_range(FIRST))
            };
            ports.iter().enumerate().map(name).collect::<Vec<_>>()
        };
        let operands = named("operand", &self.operands);
        let kept = operands
            .iter()
            .enumerate()
            .filter(|(index, _)| self.shared.iter().all(|pair| pair.operand != *index));
        for (_, (name, place)) in kept {
            self.compare_range(found, name.clone(), *place, 0)?;
        }
        // A result in the memory of an operand may be shorter, but not longer than it.
        for (name, ArenaRange { offset, bytes }) in
            [operands, named("result", &self.results)].concat()
        {
            let end = (offset + bytes).next_multiple_of(GAP) + GAP;
            let gap = ArenaRange { offset: offset + bytes, bytes: end - offset - bytes };
            self.compare_range(found, format!("what lies behind {name}"), gap, bytes)?;
        }
        self.compare_range(
            found,
            "what lies before all".into(),
            ArenaRange { offset: 0, bytes: GAP },
            0,
        )
    }

    fn compare_range(
        &self,
        found: &[u8],
        place: String,
        ArenaRange { offset, bytes }: ArenaRange,
        from: usize,
    ) -> Result<(), WorkbenchError> {
        let range = offset..offset + bytes;
        if found[range.clone()] == self.image[range.clone()] {
            return Ok(());
        }
        let differs = |at: &usize| found[*at] != self.image[*at];
        let byte = range.clone().find(differs).unwrap_or(range.start) - offset + from;
        Err(WorkbenchError::Overwritten { place, byte })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use graphc_ir::types::{DType, TensorType};

    fn bytes(elements: usize) -> (Region, Vec<u8>) {
        (Region::whole(&TensorType::new(DType::U8, [elements])), vec![7; elements])
    }

    fn found(error: Result<(), WorkbenchError>) -> String {
        error.expect_err("a write that must not be").to_string()
    }

    #[test]
    fn writes_beside_results_are_found() {
        let [(a, of_a), (b, of_b)] = [bytes(5), bytes(300)];
        let set = WorkbenchRegisters::lay_out(
            &[(&a, &of_a), (&b, &of_b)],
            &[&b, &a],
            &[InPlace::new(0, 1)],
        );
        let place = |port: &Port| port.content_range(FIRST).offset;
        assert_eq!(place(&set.results[0]), place(&set.operands[1]));
        let after = |at: usize| {
            let mut image = set.image.clone();
            image[at] = 1;
            set.check_unchanged(&image)
        };
        // A result, and the operand in whose memory one lies.
        assert!(
            after(place(&set.results[1])).is_ok() && after(place(&set.operands[1]) + 299).is_ok()
        );
        assert_eq!(
            found(after(place(&set.operands[0]) + 3)),
            "it has written to operand 0, at byte 3"
        );
        let behind = found(after(place(&set.results[1]) + 6));
        assert_eq!(behind, "it has written to what lies behind result 1, at byte 6");
        assert!(found(after(0)).contains("before all"));
    }
}
