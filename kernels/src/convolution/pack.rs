//! Kernels `[outputs, inputs, taps]` brought to the order in which they are multiplied, and back.

use std::arch::x86_64::*;
use std::ops::Range;

use crate::panels::{Panel, load_first, load_rows, store_first};
use crate::product::transposed;
use crate::vectors::{LANES, VectorTarget, mask_first};

/// The kernels of one group, and which of their taps are multiplied.
#[derive(Clone, Copy)]
pub(super) struct Kernels<'a> {
    pub data: &'a [f32],
    pub outputs: usize,
    pub inputs: usize,
    /// The number of each tap among those that are used.
    pub slots: &'a [Option<usize>],
}

impl Kernels<'_> {
    /// Packs some inputs of a panel of outputs: `[slot][input][output]`.
    ///
    /// # Safety
    /// The processor has AVX-512 F, and nobody else reaches these inputs of the panel.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn by_outputs(
        &self,
        panel: Panel,
        inputs: Range<usize>,
        to: VectorTarget<'_>,
    ) {
        let taps = self.slots.len();
        let row = self.inputs * taps;
        let end = inputs.end * taps;
        for vector in 0..panel.vectors {
            let output = (panel.start + vector) * LANES;
            let outputs = LANES.min(self.outputs - output);
            let (mut input, mut tap) = (inputs.start, 0);
            for start in (inputs.start * taps..end).step_by(LANES) {
                let count = LANES.min(end - start);
                let columns =
                    transposed(load_rows(self.data, output * row + start, row, [outputs, count]));
                for &column in &columns[..count] {
                    if let Some(slot) = self.slots[tap] {
                        let at = ((slot * self.inputs + input) * panel.vectors + vector) * LANES;
                        // SAFETY: as the caller says.
                        unsafe { to.write(at, LANES, column) };
                    }
                    tap += 1;
                    if tap == taps {
                        (tap, input) = (0, input + 1);
                    }
                }
            }
        }
    }

    /// Packs some outputs of a panel of inputs: `[slot][output][input]`.
    ///
    /// # Safety
    /// The processor has AVX-512 F, and nobody else reaches these outputs of the panel.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn by_inputs(
        &self,
        panel: Panel,
        outputs: Range<usize>,
        to: VectorTarget<'_>,
    ) {
        let taps = self.slots.len();
        for output in outputs {
            for vector in 0..panel.vectors {
                let input = (panel.start + vector) * LANES;
                let inputs = LANES.min(self.inputs - input);
                if let [Some(_)] = self.slots {
                    let part = load_first(self.data, output * self.inputs + input, inputs);
                    // SAFETY: as the caller says.
                    unsafe { to.write((output * panel.vectors + vector) * LANES, LANES, part) };
                    continue;
                }
                let from = (output * self.inputs + input) * taps;
                for start in (0..taps).step_by(LANES) {
                    let count = LANES.min(taps - start);
                    let columns =
                        transposed(load_rows(self.data, from + start, taps, [inputs, count]));
                    for (&column, slot) in columns[..count].iter().zip(&self.slots[start..]) {
                        if let Some(slot) = slot {
                            let at =
                                ((slot * self.outputs + output) * panel.vectors + vector) * LANES;
                            // SAFETY: as the caller says.
                            unsafe { to.write(at, LANES, column) };
                        }
                    }
                }
            }
        }
    }
}

/// Kernels of one tap behind the other, `[slot][input]` for one output, as `[input][tap]`; taps that are not used become 0.
///
/// # Safety
/// The processor has AVX-512 F.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn interleave_taps(
    from: &[f32],
    stride: usize,
    slots: &[Option<usize>],
    to: &mut [f32],
) {
    let taps = slots.len();
    let inputs = to.len() / taps;
    for input in (0..inputs).step_by(LANES) {
        let count = LANES.min(inputs - input);
        for start in (0..taps).step_by(LANES) {
            let width = LANES.min(taps - start);
            let mut rows = [_mm512_setzero_ps(); LANES];
            for (row, slot) in rows.iter_mut().zip(&slots[start..start + width]) {
                if let Some(slot) = slot {
                    let part = &from[slot * stride + input..][..count];
                    // SAFETY: the mask keeps to the part.
                    *row = unsafe { _mm512_maskz_loadu_ps(mask_first(count), part.as_ptr()) };
                }
            }
            let columns = transposed(rows);
            for (index, &column) in columns[..count].iter().enumerate() {
                store_first(to, (input + index) * taps + start, width, column);
            }
        }
    }
}
