//! Interpolation: along each dim that changes its extent, one after the other.

use graphc_ir::op::Op;
use graphc_ir::ops::{Coordinates, Filter, Resize, Sampling};
use graphc_ir::scalar::Scalar;

use super::lower::{Lowering, Val};
use super::node::{Call, Res, axis, fail};

/// How one dim changes.
struct Change {
    axis: usize,
    extent: usize,
    /// Elements after for each before.
    scale: f64,
}

pub(super) fn resize(cx: &mut Lowering, call: Call<'_>) -> Res<Vec<Val>> {
    let policy = call.text("keep_aspect_ratio_policy", "stretch")?;
    if policy != "stretch" {
        return fail(format!(
            "keep_aspect_ratio_policy `{policy}` is not supported: only `stretch`"
        ));
    }
    // Before version 11 the scales were the second operand, and regions there were none.
    let (scales, sizes) = if call.opset < 11 { (1, 4) } else { (2, 3) };
    let how = How::of(call)?;
    resized(cx, call, [scales, sizes], how)
}

/// The op that was there before Resize.
pub(super) fn upsample(cx: &mut Lowering, call: Call<'_>) -> Res<Vec<Val>> {
    let filter = match call.text("mode", "nearest")? {
        "nearest" => Filter::Floor,
        "linear" => Filter::Linear,
        other => return fail(format!("there is no mode `{other}`")),
    };
    let coordinates = Coordinates::Asymmetric;
    resized(cx, call, [1, 4], How { filter, coordinates, smooth: false, inside: false })
}

/// What a node says beside extents.
#[derive(Clone, Copy)]
struct How {
    filter: Filter,
    coordinates: Coordinates,
    smooth: bool,
    inside: bool,
}

impl How {
    fn of(call: Call<'_>) -> Res<Self> {
        let smooth = call.int("antialias", 0)? != 0;
        let filter = match call.text("mode", "nearest")? {
            "nearest" => nearest(call)?,
            "linear" => Filter::Linear,
            "cubic" => Filter::Cubic(Scalar(call.float("cubic_coeff_a", -0.75)?)),
            other => return fail(format!("there is no mode `{other}`")),
        };
        let weighted = matches!(filter, Filter::Linear | Filter::Cubic(_));
        let inside = weighted && call.int("exclude_outside", 0)? != 0;
        Ok(Self { filter, coordinates: coordinates(call)?, smooth: smooth && weighted, inside })
    }
}

fn coordinates(call: Call<'_>) -> Res<Coordinates> {
    let usual = if call.opset < 11 { "asymmetric" } else { "half_pixel" };
    Ok(match call.text("coordinate_transformation_mode", usual)? {
        "asymmetric" => Coordinates::Asymmetric,
        "half_pixel" => Coordinates::HalfPixel,
        "pytorch_half_pixel" => Coordinates::HalfPixelOrFirst,
        "half_pixel_symmetric" => Coordinates::HalfPixelSymmetric,
        "align_corners" => Coordinates::AlignCorners,
        other => {
            return fail(format!(
                "the coordinate_transformation_mode `{other}` is not supported: only asymmetric, half_pixel, \
                 pytorch_half_pixel, half_pixel_symmetric and align_corners"
            ));
        }
    })
}

fn nearest(call: Call<'_>) -> Res<Filter> {
    let usual = if call.opset < 11 { "floor" } else { "round_prefer_floor" };
    Ok(match call.text("nearest_mode", usual)? {
        "floor" => Filter::Floor,
        "ceil" => Filter::Ceil,
        "round_prefer_floor" => Filter::NearestBefore,
        "round_prefer_ceil" => Filter::NearestBehind,
        other => return fail(format!("there is no nearest_mode `{other}`")),
    })
}

fn resized(cx: &mut Lowering, call: Call<'_>, at: [usize; 2], how: How) -> Res<Vec<Val>> {
    let mut x = cx.operand(call, 0)?;
    let How { filter, coordinates, smooth, inside } = how;
    for Change { axis, extent, scale } in changes(cx, call, &cx.shape(&x)?, at)? {
        let scale = Scalar(scale);
        let sampling =
            Sampling { filter, coordinates, scale, smooth: smooth && scale.0 < 1.0, inside };
        x = cx.apply(Op::Resize(Resize { axis, extent, sampling }), &[x])?;
    }
    Ok(vec![x])
}

/// The dims that change, those first that become smaller, by scales or by sizes.
fn changes(
    cx: &Lowering,
    call: Call<'_>,
    shape: &[usize],
    [scales, sizes]: [usize; 2],
) -> Res<Vec<Change>> {
    let dims: Vec<usize> = match call.ints("axes")? {
        Some(axes) => axes.iter().map(|&dim| axis(dim, shape.len())).collect::<Res<_>>()?,
        None => (0..shape.len()).collect(),
    };
    let changes = match (numbers(cx, call, scales)?, numbers(cx, call, sizes)?) {
        (Some(scales), None) => by(&dims, &scales, |dim, scale| {
            (f64::from((shape[dim] as f64 * scale) as f32).floor(), scale)
        }),
        (None, Some(sizes)) => by(&dims, &sizes, |dim, size| (size, size / shape[dim] as f64)),
        _ => return fail("it needs scales or sizes, and not both"),
    };
    let Some(mut changes) = changes else {
        return fail(format!(
            "it has {} scales or sizes that do not all fit {shape:?}",
            dims.len()
        ));
    };
    changes.retain(|change| change.extent != shape[change.axis] || change.scale != 1.0);
    changes.sort_by(|a, b| a.scale.total_cmp(&b.scale));
    Ok(changes)
}

/// A list of scales or sizes, where it is given.
fn numbers(cx: &Lowering, call: Call<'_>, position: usize) -> Res<Option<Vec<f64>>> {
    let Some(list) = cx.optional(call, position)? else { return Ok(None) };
    let numbers = cx.known(&list, "what a dim is resized to")?.elements();
    Ok(Some(numbers).filter(|numbers| !numbers.is_empty()))
}

/// A change of each dim by its number; `None` where there are not as many, or an extent is none.
fn by(
    dims: &[usize],
    numbers: &[f64],
    change: impl Fn(usize, f64) -> (f64, f64),
) -> Option<Vec<Change>> {
    let of = |(&axis, &number): (&usize, &f64)| {
        let (extent, scale) = change(axis, number);
        let usable = (1.0..=f64::from(1 << 24)).contains(&extent) && scale.is_finite();
        usable.then_some(Change { axis, extent: extent as usize, scale })
    };
    if dims.len() != numbers.len() {
        return None;
    }
    dims.iter().zip(numbers).map(of).collect()
}
