//! Interpolation: along each dim that changes its extent, one after the other.

use graphc_ir::op::Op;
use graphc_ir::ops::{Coordinates, Filter, Resize, Sampling};
use graphc_ir::scalar::Scalar;

use super::lower::{Lowering, Val};
use super::node::{NodeCall, Res, fail_with, resolve_axis};

/// The change of one dim's extent.
struct DimResize {
    axis: usize,
    extent: usize,
    /// The number of elements after for each element before.
    scale: f64,
}

pub(super) fn lower_resize(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let policy = call.text("keep_aspect_ratio_policy", "stretch")?;
    if policy != "stretch" {
        return fail_with(format!(
            "keep_aspect_ratio_policy `{policy}` is not supported: only `stretch`"
        ));
    }
    // Before version 11 the scales were the second operand, and regions there were none.
    let (scales, sizes) = if call.opset < 11 { (1, 4) } else { (2, 3) };
    let how = ResizeOptions::from_call(call)?;
    resize_dims(cx, call, [scales, sizes], how)
}

/// Lowers Upsample, the op that came before Resize.
pub(super) fn lower_upsample(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let filter = match call.text("mode", "nearest")? {
        "nearest" => Filter::Floor,
        "linear" => Filter::Linear,
        other => return fail_with(format!("there is no mode `{other}`")),
    };
    let coordinates = Coordinates::Asymmetric;
    resize_dims(
        cx,
        call,
        [1, 4],
        ResizeOptions { filter, coordinates, smooth: false, inside: false },
    )
}

/// The choices of a node besides the extents.
#[derive(Clone, Copy)]
struct ResizeOptions {
    filter: Filter,
    coordinates: Coordinates,
    smooth: bool,
    inside: bool,
}

impl ResizeOptions {
    fn from_call(call: NodeCall<'_>) -> Res<Self> {
        let smooth = call.int("antialias", 0)? != 0;
        let filter = match call.text("mode", "nearest")? {
            "nearest" => read_nearest_filter(call)?,
            "linear" => Filter::Linear,
            "cubic" => Filter::Cubic(Scalar(call.float("cubic_coeff_a", -0.75)?)),
            other => return fail_with(format!("there is no mode `{other}`")),
        };
        let weighted = matches!(filter, Filter::Linear | Filter::Cubic(_));
        let inside = weighted && call.int("exclude_outside", 0)? != 0;
        Ok(Self {
            filter,
            coordinates: read_coordinates(call)?,
            smooth: smooth && weighted,
            inside,
        })
    }
}

fn read_coordinates(call: NodeCall<'_>) -> Res<Coordinates> {
    let usual = if call.opset < 11 { "asymmetric" } else { "half_pixel" };
    Ok(match call.text("coordinate_transformation_mode", usual)? {
        "asymmetric" => Coordinates::Asymmetric,
        "half_pixel" => Coordinates::HalfPixel,
        "pytorch_half_pixel" => Coordinates::HalfPixelOrFirst,
        "half_pixel_symmetric" => Coordinates::HalfPixelSymmetric,
        "align_corners" => Coordinates::AlignCorners,
        other => {
            return fail_with(format!(
                "the coordinate_transformation_mode `{other}` is not supported: only asymmetric, half_pixel, \
                 pytorch_half_pixel, half_pixel_symmetric and align_corners"
            ));
        }
    })
}

fn read_nearest_filter(call: NodeCall<'_>) -> Res<Filter> {
    let usual = if call.opset < 11 { "floor" } else { "round_prefer_floor" };
    Ok(match call.text("nearest_mode", usual)? {
        "floor" => Filter::Floor,
        "ceil" => Filter::Ceil,
        "round_prefer_floor" => Filter::NearestBefore,
        "round_prefer_ceil" => Filter::NearestBehind,
        other => return fail_with(format!("there is no nearest_mode `{other}`")),
    })
}

fn resize_dims(
    cx: &mut Lowering,
    call: NodeCall<'_>,
    at: [usize; 2],
    how: ResizeOptions,
) -> Res<Vec<Val>> {
    let mut x = cx.operand(call, 0)?;
    let ResizeOptions { filter, coordinates, smooth, inside } = how;
    for DimResize { axis, extent, scale } in list_changes(cx, call, &cx.shape(&x)?, at)? {
        let scale = Scalar(scale);
        let sampling =
            Sampling { filter, coordinates, scale, smooth: smooth && scale.0 < 1.0, inside };
        x = cx.apply(Op::Resize(Resize { axis, extent, sampling }), &[x])?;
    }
    Ok(vec![x])
}

/// Lists the dims that change, by scales or by sizes. Those that shrink most come first.
fn list_changes(
    cx: &Lowering,
    call: NodeCall<'_>,
    shape: &[usize],
    [scales, sizes]: [usize; 2],
) -> Res<Vec<DimResize>> {
    let dims: Vec<usize> = match call.ints("axes")? {
        Some(axes) => axes.iter().map(|&dim| resolve_axis(dim, shape.len())).collect::<Res<_>>()?,
        None => (0..shape.len()).collect(),
    };
    let changes = match (read_numbers(cx, call, scales)?, read_numbers(cx, call, sizes)?) {
        (Some(scales), None) => change_dims(&dims, &scales, |dim, scale| {
            (f64::from((shape[dim] as f64 * scale) as f32).floor(), scale)
        }),
        (None, Some(sizes)) => {
            change_dims(&dims, &sizes, |dim, size| (size, size / shape[dim] as f64))
        }
        _ => return fail_with("it needs scales or sizes, and not both"),
    };
    let Some(mut changes) = changes else {
        return fail_with(format!(
            "it has {} scales or sizes that do not all fit {shape:?}",
            dims.len()
        ));
    };
    changes.retain(|change| change.extent != shape[change.axis] || change.scale != 1.0);
    changes.sort_by(|a, b| a.scale.total_cmp(&b.scale));
    Ok(changes)
}

/// Reads a list of scales or sizes; `None` if it is not given or empty.
fn read_numbers(cx: &Lowering, call: NodeCall<'_>, position: usize) -> Res<Option<Vec<f64>>> {
    let Some(list) = cx.optional_operand(call, position)? else { return Ok(None) };
    let numbers = cx.require_known(&list, "what a dim is resized to")?.elements();
    Ok(Some(numbers).filter(|numbers| !numbers.is_empty()))
}

/// Returns the change of each dim by its number; `None` if there are not as many numbers as dims, or an extent is not valid.
fn change_dims(
    dims: &[usize],
    numbers: &[f64],
    change: impl Fn(usize, f64) -> (f64, f64),
) -> Option<Vec<DimResize>> {
    let of = |(&axis, &number): (&usize, &f64)| {
        let (extent, scale) = change(axis, number);
        let usable = (1.0..=f64::from(1 << 24)).contains(&extent) && scale.is_finite();
        usable.then_some(DimResize { axis, extent: extent as usize, scale })
    };
    if dims.len() != numbers.len() {
        return None;
    }
    dims.iter().zip(numbers).map(of).collect()
}
