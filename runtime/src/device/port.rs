//! A register as an actor uses it: where its contents lie in the memory of a device.

use graphc_comm::memory::{ALIGNMENT, ArenaRange};
use graphc_ir::op::Region;
use graphc_ir::shard::Rect;
use graphc_ir::types::DType;
use graphc_plan::{Layout, Plan, Rate, Register, RegisterKind};

use crate::error::RuntimeError;

use super::views::ShardShape;

/// The time of an action: its step and its microbatch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    /// The step, counted from the session's first.
    pub(crate) step: u64,
    pub(crate) microbatch: usize,
    pub(crate) microbatches: u64,
}

/// A register of one rank: where each of its contents lies in the arena and in the whole tensor.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    pub(crate) dtype: DType,
    global: Vec<usize>,
    /// One per microbatch, or one for all.
    rects: Vec<Rect>,
    offset: usize,
    slot_bytes: usize,
    slots: u64,
    bytes: usize,
    rate: Rate,
}

impl Port {
    /// Resolves the register as `rank` has it.
    ///
    /// # Errors
    /// Where it does not fit its layout or the arena.
    pub(crate) fn new(
        plan: &Plan,
        register: &Register,
        rank: u32,
        arena: u64,
    ) -> Result<Self, RuntimeError> {
        let fail = |reason: &str| {
            RuntimeError::invalid_plan(format!(
                "register `{}` of rank {rank} {reason}",
                register.name
            ))
        };
        let layout = plan.layouts.get(register.layout.index()).ok_or(fail("has no layout"))?;
        let rects = microbatch_rects(layout, rank, plan.microbatches)
            .ok_or(fail("is not of its layout"))?;
        if rects.iter().any(|rect| rect.extent != register.shape) {
            return Err(fail("has another shape than its layout"));
        }
        let bytes = register.shape.iter().product::<usize>() * layout.dtype.size();
        let slots = u64::from(register.slots.max(1));
        let aligned =
            [register.offset, register.slot_bytes].map(|n| n % ALIGNMENT as u64) == [0; 2];
        let end = (slots - 1)
            .checked_mul(register.slot_bytes)
            .and_then(|last| last.checked_add(register.offset))
            .and_then(|last| last.checked_add(bytes as u64));
        if !aligned
            || end.is_none_or(|end| end > arena)
            || slots > 1 && register.slot_bytes < bytes as u64
        {
            return Err(fail("does not fit into the arena"));
        }
        Ok(Self {
            dtype: layout.dtype,
            global: layout.shape.clone(),
            rects,
            offset: register.offset as usize,
            slot_bytes: register.slot_bytes as usize,
            slots: if matches!(register.kind, RegisterKind::Activation) { slots } else { 1 },
            bytes,
            rate: register.rate,
        })
    }

    /// Makes a register of one slot, for every step, that lies at this offset.
    pub(crate) fn of_region(region: &Region, offset: usize) -> Self {
        let bytes = region.rect.elements() * region.dtype.size();
        Self {
            dtype: region.dtype,
            global: region.global.clone(),
            rects: vec![region.rect.clone()],
            offset,
            slot_bytes: bytes,
            slots: 1,
            bytes,
            rate: Rate::Step,
        }
    }

    /// Returns the bytes of the arena with the content that an action reads or writes.
    #[inline]
    pub(crate) fn content_range(&self, turn: Turn) -> ArenaRange {
        if self.slots == 1 {
            return ArenaRange { offset: self.offset, bytes: self.bytes };
        }
        let content = match self.rate {
            Rate::Step => turn.step,
            Rate::Microbatch => turn.step * turn.microbatches + turn.microbatch as u64,
        };
        let slot = (content % self.slots) as usize;
        ArenaRange { offset: self.offset + slot * self.slot_bytes, bytes: self.bytes }
    }

    /// Returns the number of steps after which the slots of all of these come again.
    pub(crate) fn period_of<'p>(ports: impl Iterator<Item = &'p Port>, microbatches: u64) -> u64 {
        let period = |port: &Port| match port.rate {
            Rate::Step => port.slots,
            // Every step moves on by as many slots as there are microbatches.
            Rate::Microbatch => {
                least_common_multiple(port.slots, microbatches.max(1)) / microbatches.max(1)
            }
        };
        ports.map(period).fold(1, least_common_multiple)
    }

    /// Returns all bytes of the register, from its first slot to its last.
    pub(crate) fn span(&self) -> ArenaRange {
        let bytes = (self.slots as usize - 1) * self.slot_bytes + self.bytes;
        ArenaRange { offset: self.offset, bytes }
    }

    /// Returns the shard's rectangle in the whole tensor.
    #[inline]
    pub(crate) fn rect(&self, microbatch: usize) -> &Rect {
        &self.rects[if self.rects.len() == 1 { 0 } else { microbatch }]
    }

    /// Returns the number of different rectangles: one for each microbatch, or one for all.
    pub(crate) fn count_variants(&self) -> usize {
        self.rects.len()
    }

    /// Returns the shape of the shard as kernels take it.
    #[inline]
    pub(crate) fn shape(&self, microbatch: usize) -> ShardShape<'_> {
        let rect = self.rect(microbatch);
        ShardShape {
            dtype: self.dtype,
            extent: &rect.extent,
            global: &self.global,
            origin: &rect.origin,
        }
    }

    /// Returns the shape of the whole tensor.
    pub(crate) fn global_shape(&self) -> &[usize] {
        &self.global
    }
}

/// Returns the least common multiple; as large as it gets where it is larger.
pub(crate) fn least_common_multiple(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    (a / x.max(1)).saturating_mul(b)
}

/// Returns the rectangle of each microbatch, or one where all have the same.
fn microbatch_rects(layout: &Layout, rank: u32, microbatches: usize) -> Option<Vec<Rect>> {
    let variants = if layout.microbatch_dim.is_some() { microbatches.max(1) } else { 1 };
    (0..variants).map(|microbatch| layout.rect(rank, microbatch, microbatches.max(1))).collect()
}
