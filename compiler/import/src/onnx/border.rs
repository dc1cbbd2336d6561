//! Borders of a tensor's own elements, and blocks of images as channels.

use graphc_ir::op::Op;
use graphc_ir::ops::Concat;

use super::lower::{Lowering, Val};
use super::node::{NodeCall, Res, fail_with};

/// The most elements of a border that are taken one by one.
const MOST_MIRRORED: usize = 1 << 8;

/// The content of a border around a tensor.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Border {
    /// The elements next to the first or last one, which is not repeated.
    Reflect,
    /// The first or last element.
    Edge,
    /// The elements at the other end.
    Wrap,
}

impl Border {
    /// Returns the mode of this name.
    pub(super) fn from_name(name: &str) -> Res<Self> {
        match name {
            "reflect" => Ok(Self::Reflect),
            "edge" => Ok(Self::Edge),
            "wrap" => Ok(Self::Wrap),
            other => fail_with(format!("there is no mode `{other}`")),
        }
    }

    /// The ranges of a dim of this extent that stand before and behind it, in order; a border of `low` and `high` elements.
    fn ranges(self, extent: usize, [low, high]: [usize; 2]) -> [Vec<(usize, usize)>; 2] {
        let each = |places: Vec<usize>| places.into_iter().map(|at| (at, at + 1)).collect();
        let last = extent - 1;
        match self {
            Self::Reflect => {
                let before = (1..=low).rev().collect();
                [each(before), each((1..=high).map(|step| last - step).collect())]
            }
            Self::Edge => [each(vec![0; low]), each(vec![last; high])],
            Self::Wrap => {
                let whole = |count: usize, range| if count == 0 { vec![] } else { vec![range] };
                [whole(low, (extent - low, extent)), whole(high, (0, high))]
            }
        }
    }
}

impl Lowering {
    /// The tensor with a border along a dim.
    pub(super) fn add_border(
        &mut self,
        x: &Val,
        dim: usize,
        widths: [usize; 2],
        border: Border,
    ) -> Res<Val> {
        let extent = self.shape(x)?[dim];
        let most = match border {
            Border::Reflect => extent.saturating_sub(1),
            Border::Edge => {
                if extent == 0 {
                    0
                } else {
                    MOST_MIRRORED
                }
            }
            Border::Wrap => extent,
        };
        if widths == [0, 0] {
            return Ok(x.clone());
        }
        let [low, high] = widths;
        if low.max(high) > most || border != Border::Wrap && low.max(high) > MOST_MIRRORED {
            return fail_with(format!(
                "borders of {low} and {high} do not fit an extent of {extent}"
            ));
        }
        let [before, behind] = border.ranges(extent, widths);
        let mut parts = Vec::new();
        for (start, end) in before.into_iter().chain([(0, extent)]).chain(behind) {
            parts.push(self.slice(x, dim, start, end, 1)?);
        }
        self.apply(Op::Concat(Concat { axis: dim }), &parts)
    }
}

/// Channels as blocks of places: [n, c b b, h, w] to [n, c, h b, w b].
pub(super) fn lower_depth_to_space(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let (x, [n, c, h, w], block) = read_image_blocks(cx, call)?;
    if !c.is_multiple_of(block * block) {
        return fail_with(format!("{c} channels are no blocks of {block} x {block}"));
    }
    let channels = c / (block * block);
    let (apart, order) = match call.text("mode", "DCR")? {
        "DCR" => ([n, block, block, channels, h, w], vec![0, 3, 4, 1, 5, 2]),
        "CRD" => ([n, channels, block, block, h, w], vec![0, 1, 4, 2, 5, 3]),
        other => return fail_with(format!("there is no mode `{other}`")),
    };
    let x = cx.reshape(&x, &apart)?;
    let x = cx.transpose(&x, order)?;
    Ok(vec![cx.reshape(&x, &[n, channels, h * block, w * block])?])
}

/// Blocks of places as channels: [n, c, h b, w b] to [n, b b c, h, w].
pub(super) fn lower_space_to_depth(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let (x, [n, c, h, w], block) = read_image_blocks(cx, call)?;
    if !h.is_multiple_of(block) || !w.is_multiple_of(block) {
        return fail_with(format!("an image of {h} x {w} is no blocks of {block} x {block}"));
    }
    let (h, w) = (h / block, w / block);
    let x = cx.reshape(&x, &[n, c, h, block, w, block])?;
    let x = cx.transpose(&x, vec![0, 3, 5, 1, 2, 4])?;
    Ok(vec![cx.reshape(&x, &[n, block * block * c, h, w])?])
}

/// An image, its shape, and the width of blocks.
fn read_image_blocks(cx: &Lowering, call: NodeCall<'_>) -> Res<(Val, [usize; 4], usize)> {
    let x = cx.operand(call, 0)?;
    let shape = cx.shape(&x)?;
    let Ok(extents) = <[usize; 4]>::try_from(&shape[..]) else {
        return fail_with(format!("an image needs four dims, not {shape:?}"));
    };
    match usize::try_from(call.int("blocksize", 0)?) {
        Ok(block @ 1..=65536) => Ok((x, extents, block)),
        _ => fail_with("the attribute `blocksize` must be 1 or more, and not huge"),
    }
}
