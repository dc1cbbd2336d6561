//! Kernels whose results lie in the memory of operands, as `Operation::in_place` says that they may.

use graphc_ir::op::{EvalContext, InPlace};
use graphc_kernels::{KernelContext, Scratch, View, ViewMut};

use super::{Case, Memory};

impl Case {
    /// Runs the kernel in each way in which its results may lie in operands' memory, which must give the bits that it gives
    /// apart. Counts the ways.
    pub fn check_in_place(&self) -> usize {
        let fits = |pair: &InPlace| {
            let (result, operand) = (&self.results[pair.result], &self.operands[pair.operand].0);
            let elements = result.rect.elements() == operand.rect.elements();
            let shards = result.rect == operand.rect && result.global == operand.global;
            result.dtype == operand.dtype && (shards || pair.same_bytes && elements)
        };
        let pairs: Vec<InPlace> = self.op.operation().in_place().into_iter().filter(fits).collect();
        if pairs.is_empty() {
            return 0;
        }
        let apart = bits(&self.kernel(&EvalContext::default(), None).unwrap());
        for pair in &pairs {
            assert!(bits(&run(self, &[*pair])) == apart, "{:?} {pair:?}", self.op);
        }
        if self.results.len() > 1 {
            assert!(bits(&run(self, &pairs)) == apart, "{:?}", self.op);
        }
        pairs.len()
    }
}

fn bits(results: &[Memory]) -> Vec<Vec<u64>> {
    results.iter().map(|memory| memory.values().into_iter().map(f64::to_bits).collect()).collect()
}

/// Runs a kernel with a result in the memory of an operand, and returns what that holds afterwards.
fn run(case: &Case, pairs: &[InPlace]) -> Vec<Memory> {
    let mut operands = case.operands.clone();
    let mut others: Vec<Memory> = case
        .results
        .iter()
        .map(|region| Memory::of(region.dtype, &vec![0.0; region.rect.elements()]))
        .collect();
    let mut addresses = Vec::new();
    for (_, memory) in &mut operands {
        addresses.push(match memory {
            Memory::F32(data) => data.as_mut_ptr().cast::<u8>(),
            Memory::F16(data) => data.as_mut_ptr().cast(),
            Memory::BF16(data) => data.as_mut_ptr().cast(),
            Memory::I64(data) => data.as_mut_ptr().cast(),
            Memory::I32(data) => data.as_mut_ptr().cast(),
            Memory::U8(data) | Memory::F8(_, data) => data.as_mut_ptr(),
        });
    }
    let views: Vec<View<'_>> = case
        .operands
        .iter()
        .zip(&addresses)
        .map(|((region, _), &data)| {
            let rect = &region.rect;
            // SAFETY: the memory of `operands`, which outlives the call.
            unsafe { View::new(region.dtype, &rect.extent, &region.global, &rect.origin, data) }
        })
        .collect();
    let mut results: Vec<ViewMut<'_>> = Vec::new();
    for ((index, region), other) in case.results.iter().enumerate().zip(&mut others) {
        match pairs.iter().find(|pair| pair.result == index) {
            Some(&InPlace { operand, .. }) => {
                let (rect, data) = (&region.rect, addresses[operand]);
                // SAFETY: as above; the op may overwrite this operand.
                results.push(unsafe {
                    ViewMut::new(region.dtype, &rect.extent, &region.global, &rect.origin, data)
                });
            }
            None => results.push(other.view_mut(region)),
        }
    }
    let mut scratch = Scratch::new();
    let mut context = KernelContext {
        seed: 0,
        step: 0,
        rate: None,
        threads: 1,
        pool: None,
        scratch: &mut scratch,
    };
    case.prepare().unwrap().launch(&views, &mut results, &mut context).unwrap();
    let place = |index: usize| match pairs.iter().find(|pair| pair.result == index) {
        Some(&InPlace { operand, .. }) => operands[operand].1.clone(),
        None => others[index].clone(),
    };
    (0..case.results.len()).map(place).collect()
}
