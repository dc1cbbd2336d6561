//! Images at computed places: GridSample, the grids of AffineGrid, and columns of blocks put back (Col2Im).

use graphc_ir::op::Op;
use graphc_ir::ops::{BinaryFunction, Gather, ScatterSum, UnaryFunction, Where};
use graphc_ir::scalar::Scalar;
use graphc_ir::types::{DType, TensorType};

use super::known::{KnownValue, MOST_FOLDED};
use super::lower::{Lowering, Val};
use super::node::{NodeCall, Res, fail_with};

/// The most elements of a sample's columns, whose places are in a table.
const MOST_COLUMNS: usize = 1 << 24;

/// The values that stand for elements outside of an image.
#[derive(Clone, Copy, PartialEq)]
enum GridPadding {
    Zeros,
    /// The nearest element of the image.
    Border,
    /// The image, mirrored at its border.
    Reflection,
}

/// Lowers the sampling of images `[n, channels, h, w]` at places `[n, h', w', 2]` from -1 to 1, with x before y, and of volumes in the same
/// way.
pub(super) fn lower_grid_sample(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let (x, grid) = (cx.operand(call, 0)?, cx.operand(call, 1)?);
    let (of_image, of_grid) = (cx.shape(&x)?, cx.shape(&grid)?);
    let (&[n, c, ref extents @ ..], [_, rows @ .., coordinates]) = (&of_image[..], &of_grid[..])
    else {
        return fail_with("images have samples and channels, and places have coordinates");
    };
    let dims = extents.len();
    if !(2..=3).contains(&dims) || rows.len() != dims {
        return fail_with(format!(
            "only images of four dims and volumes of five are supported, with as many of places, not {} with {}",
            cx.ty(&x)?,
            cx.ty(&grid)?
        ));
    }
    if *coordinates != dims {
        return fail_with(format!("its places have {dims} coordinates, not {}", cx.ty(&grid)?));
    }
    if extents.contains(&0) {
        return fail_with("its images have no elements");
    }
    let outside = match call.text("padding_mode", "zeros")? {
        "zeros" => GridPadding::Zeros,
        "border" => GridPadding::Border,
        "reflection" => GridPadding::Reflection,
        other => return fail_with(format!("there is no padding_mode `{other}`")),
    };
    let mode = match call.text("mode", "linear")? {
        "nearest" => GridMode::Nearest,
        "linear" | "bilinear" => GridMode::Linear,
        "cubic" | "bicubic" if dims == 2 => GridMode::Cubic,
        "cubic" | "bicubic" => {
            return fail_with("volumes are sampled linear or nearest, not cubic");
        }
        other => {
            return fail_with(format!(
                "the mode `{other}` is not supported: only linear, nearest and cubic"
            ));
        }
    };
    let aligned = call.int("align_corners", 0)? != 0;
    let count = rows.iter().product();
    let mut places = Vec::new();
    for (dim, &extent) in extents.iter().enumerate() {
        let at = dims - 1 - dim;
        let place = cx.slice(&grid, dims + 1, at, at + 1, 1)?;
        let place = cx.reshape(&place, &[n, count])?;
        let mut place = scale_coordinate(cx, &place, extent, aligned)?;
        if mode != GridMode::Cubic {
            place = pad_coordinate(cx, &place, extent, aligned, outside)?;
        }
        places.push(place);
    }
    let image = cx.reshape(&x, &[n, c, extents.iter().product()])?;
    let image = cx.transpose(&image, vec![0, 2, 1])?;
    let of = Sampled { image, extents: extents.to_vec(), outside, aligned, mode };
    let y = of.sample_places(cx, &places)?;
    let y = cx.transpose(&y, vec![0, 2, 1])?;
    Ok(vec![cx.reshape(&y, &[&[n, c], rows].concat())?])
}

/// The way in which elements about a place make the one there.
#[derive(Clone, Copy, PartialEq)]
enum GridMode {
    Nearest,
    Linear,
    /// By cubic convolution (Keys 1981) of the four nearest of each dim.
    Cubic,
}

/// A place from -1 to 1 as one in elements.
fn scale_coordinate(cx: &mut Lowering, place: &Val, extent: usize, aligned: bool) -> Res<Val> {
    let extent = extent as f64;
    let (factor, shift) = match aligned {
        true => ((extent - 1.0) / 2.0, (extent - 1.0) / 2.0),
        false => (extent / 2.0, (extent - 1.0) / 2.0),
    };
    let place = cx.apply_unary(UnaryFunction::Scale(Scalar(factor)), place)?;
    cx.apply_unary(UnaryFunction::Offset(Scalar(shift)), &place)
}

/// A place in elements, brought into the image where what is outside is not zero.
fn pad_coordinate(
    cx: &mut Lowering,
    place: &Val,
    extent: usize,
    aligned: bool,
    outside: GridPadding,
) -> Res<Val> {
    let (extent, mut place) = (extent as f64, place.clone());
    if outside == GridPadding::Reflection {
        let (first, span) = if aligned { (0.0, extent - 1.0) } else { (-0.5, extent) };
        place = cx.reflect_place(&place, first, span)?;
    }
    if outside == GridPadding::Zeros {
        return Ok(place);
    }
    let (low, high) = (Scalar(0.0), Scalar(extent - 1.0));
    cx.apply_unary(UnaryFunction::Clip { low, high }, &place)
}

/// The image that is sampled, with elements `[n, h w, channels]`.
struct Sampled {
    image: Val,
    extents: Vec<usize>,
    outside: GridPadding,
    aligned: bool,
    mode: GridMode,
}

/// The elements of a dim about a place: the weight of each, and how far the first is from the place's whole part.
struct GridTaps {
    whole: Val,
    first: f64,
    weights: Vec<Val>,
}

impl Sampled {
    /// Returns what the image has at places `[n, m]`, one for each dim.
    fn sample_places(&self, cx: &mut Lowering, places: &[Val]) -> Res<Val> {
        if self.mode == GridMode::Nearest {
            let round = |place| cx.apply_unary(UnaryFunction::Round, place);
            let rounded = places.iter().map(round).collect::<Res<Vec<_>>>()?;
            return self.elements_at(cx, &rounded);
        }
        let taps = places.iter().map(|place| self.taps_of(cx, place)).collect::<Res<Vec<_>>>()?;
        let sum = self.add_taps(cx, &taps, (&[], &[]), None)?;
        sum.map_or_else(|| fail_with("an image has no elements"), Ok)
    }

    fn taps_of(&self, cx: &mut Lowering, place: &Val) -> Res<GridTaps> {
        let (whole, [own, next]) = cx.split_place(place)?;
        if self.mode == GridMode::Linear {
            return Ok(GridTaps { whole, first: 0.0, weights: vec![own, next] });
        }
        let weights = [(1.0, 1.0), (0.0, 1.0), (1.0, -1.0), (2.0, -1.0)]
            .map(|(from, sign)| cx.cubic_weight(&next, from, sign))
            .into_iter()
            .collect::<Res<Vec<_>>>()?;
        Ok(GridTaps { whole, first: -1.0, weights })
    }

    /// Adds the elements of all taps to a sum, each times its weights. `chosen` are the places and weights in the dims before these.
    fn add_taps(
        &self,
        cx: &mut Lowering,
        taps: &[GridTaps],
        (places, weights): (&[Val], &[Val]),
        mut sum: Option<Val>,
    ) -> Res<Option<Val>> {
        let Some((of_dim, others)) = taps.split_first() else {
            let found = self.elements_at(cx, places)?;
            let mut weight = weights[0].clone();
            for other in &weights[1..] {
                weight = cx.apply_binary(BinaryFunction::Mul, &weight, other)?;
            }
            let weight = cx.append_dim(&weight)?;
            let part = cx.apply_binary(BinaryFunction::Mul, &found, &weight)?;
            return Ok(Some(match sum {
                Some(sum) => cx.apply_binary(BinaryFunction::Add, &sum, &part)?,
                None => part,
            }));
        };
        let extent = self.extents[places.len()];
        for (at, weight) in of_dim.weights.iter().enumerate() {
            let step = Scalar(of_dim.first + at as f64);
            let mut place = cx.apply_unary(UnaryFunction::Offset(step), &of_dim.whole)?;
            if self.mode == GridMode::Cubic {
                place = pad_coordinate(cx, &place, extent, self.aligned, self.outside)?;
            }
            let weights = [weights, std::slice::from_ref(weight)].concat();
            let places = [places, &[place]].concat();
            sum = self.add_taps(cx, others, (&places, &weights), sum)?;
        }
        Ok(sum)
    }

    /// Returns the elements at whole places `[n, m]`, and 0 for those outside.
    fn elements_at(&self, cx: &mut Lowering, places: &[Val]) -> Res<Val> {
        let mut within = Vec::new();
        let mut bounded = Vec::new();
        for (place, &extent) in places.iter().zip(&self.extents) {
            let (low, high) = (Scalar(0.0), Scalar(extent as f64 - 1.0));
            let inside = cx.apply_unary(UnaryFunction::Clip { low, high }, place)?;
            within.push(cx.apply_binary(BinaryFunction::Equal, &inside, place)?);
            bounded.push(cx.cast(&inside, DType::I64)?);
        }
        let mut index = bounded[0].clone();
        for (place, &extent) in bounded.iter().zip(&self.extents).skip(1) {
            let extent = cx.number_like(&index, extent as f64)?;
            let row = cx.apply_binary(BinaryFunction::Mul, &index, &extent)?;
            index = cx.apply_binary(BinaryFunction::Add, &row, place)?;
        }
        let found = cx.apply(Op::Gather(Gather {}), &[self.image.clone(), index])?;
        if self.outside != GridPadding::Zeros {
            return Ok(found);
        }
        let mut all = within[0].clone();
        for other in &within[1..] {
            all = cx.apply_binary(BinaryFunction::And, &all, other)?;
        }
        let within = cx.append_dim(&all)?;
        let zero = cx.number_like(&found, 0.0)?;
        cx.apply(Op::Where(Where {}), &[within, found, zero])
    }
}

/// The number of the cubic convolution that PyTorch and ONNX take.
const CUBIC: f64 = -0.75;

impl Lowering {
    /// The whole part of a place, and the weights of the element there and of the next one.
    fn split_place(&mut self, place: &Val) -> Res<(Val, [Val; 2])> {
        let whole = self.apply_unary(UnaryFunction::Floor, place)?;
        let next = self.apply_binary(BinaryFunction::Sub, place, &whole)?;
        let own = self.apply_unary(UnaryFunction::Neg, &next)?;
        let own = self.apply_unary(UnaryFunction::Offset(Scalar(1.0)), &own)?;
        Ok((whole, [own, next]))
    }

    /// The weight by cubic convolution of an element at a distance of `from + sign part` from a place.
    fn cubic_weight(&mut self, part: &Val, from: f64, sign: f64) -> Res<Val> {
        let distance = self.apply_unary(UnaryFunction::Scale(Scalar(sign)), part)?;
        let distance = self.apply_unary(UnaryFunction::Offset(Scalar(from)), &distance)?;
        let is_near = (from == 0.0) || (from == 1.0 && sign < 0.0);
        let factors = match is_near {
            true => [CUBIC + 2.0, -(CUBIC + 3.0), 0.0, 1.0],
            false => [CUBIC, -5.0 * CUBIC, 8.0 * CUBIC, -4.0 * CUBIC],
        };
        let mut sum = self.apply_unary(UnaryFunction::Scale(Scalar(factors[0])), &distance)?;
        for (place, &factor) in factors[1..].iter().enumerate() {
            sum = self.apply_unary(UnaryFunction::Offset(Scalar(factor)), &sum)?;
            if place < 2 {
                sum = self.apply_binary(BinaryFunction::Mul, &sum, &distance)?;
            }
        }
        Ok(sum)
    }

    /// `[n, m]` as `[n, m, 1]`.
    fn append_dim(&mut self, x: &Val) -> Res<Val> {
        let shape = self.shape(x)?;
        self.reshape(x, &[&shape[..], &[1]].concat())
    }

    /// A place mirrored at both ends of a span until it is within.
    fn reflect_place(&mut self, place: &Val, first: f64, span: f64) -> Res<Val> {
        if span == 0.0 {
            return self.apply_unary(UnaryFunction::Scale(Scalar(0.0)), place);
        }
        let shifted = self.apply_unary(UnaryFunction::Offset(Scalar(-first)), place)?;
        let size = self.apply_unary(UnaryFunction::Abs, &shifted)?;
        // The distance from the next even multiple of the span.
        let turns = self.apply_unary(UnaryFunction::Scale(Scalar(0.5 / span)), &size)?;
        let turns = self.apply_unary(UnaryFunction::Offset(Scalar(0.5)), &turns)?;
        let turns = self.apply_unary(UnaryFunction::Floor, &turns)?;
        let even = self.apply_unary(UnaryFunction::Scale(Scalar(2.0 * span)), &turns)?;
        let rest = self.apply_binary(BinaryFunction::Sub, &size, &even)?;
        let rest = self.apply_unary(UnaryFunction::Abs, &rest)?;
        self.apply_unary(UnaryFunction::Offset(Scalar(first)), &rest)
    }
}

/// Grids of places from -1 to 1 under maps `[n, 2, 3]`.
pub(super) fn lower_affine_grid(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let (maps, size) = (cx.operand(call, 0)?, cx.operand(call, 1)?);
    let size = cx.known_integers(&size, "the size")?;
    let size: Vec<usize> = size.iter().filter_map(|&e| usize::try_from(e).ok()).collect();
    let [n, _, h, w] = size[..] else { return fail_with("only grids of images are supported") };
    if h.checked_mul(w).is_none_or(|places| places > MOST_FOLDED) {
        return fail_with(format!("a grid of {h} x {w} has more than {MOST_FOLDED} places"));
    }
    let aligned = call.int("align_corners", 0)? != 0;
    let line = |extent: usize| -> Vec<f64> {
        let (count, first) = match aligned {
            true => ((extent.max(2) - 1) as f64, -1.0),
            false => (extent as f64, 1.0 / extent as f64 - 1.0),
        };
        (0..extent).map(|at| first + 2.0 * at as f64 / count).collect()
    };
    let (rows, columns) = (line(h), line(w));
    let points =
        rows.iter().flat_map(|&y| columns.iter().flat_map(move |&x| [x, y, 1.0])).collect();
    let ty = TensorType::new(cx.ty(&maps)?.dtype, [1, h * w, 3]);
    let points = Val::Known(KnownValue::new(ty, points));
    let places = cx.matmul(&points, &maps, false, true)?;
    Ok(vec![cx.reshape(&places, &[n, h, w, 2])?])
}

/// Extents, steps and borders, none of them negative or huge.
fn check_numbers(given: &[i64]) -> Res<Vec<usize>> {
    let number = |&value: &i64| usize::try_from(value).ok().filter(|&value| value < 1 << 20);
    let numbers: Option<Vec<usize>> = given.iter().map(number).collect();
    match numbers {
        Some(numbers) => Ok(numbers),
        None => fail_with(format!("{given:?} must be numbers below 2^20, none negative")),
    }
}

/// Columns of blocks `[n, channels * kernel, blocks]`, each added where its block lies in the image.
pub(super) fn lower_columns_to_image(cx: &mut Lowering, call: NodeCall<'_>) -> Res<Vec<Val>> {
    let x = cx.operand(call, 0)?;
    let list = |cx: &Lowering, at: usize, what: &str| -> Res<Vec<usize>> {
        let list = cx.known_integers(&cx.operand(call, at)?, what)?;
        check_numbers(&list)
    };
    let (image, kernel) = (list(cx, 1, "the image")?, list(cx, 2, "the block")?);
    let (&[h, w], &[kh, kw]) = (&image[..], &kernel[..]) else {
        return fail_with("only blocks of images are supported, of height and width");
    };
    let numbers = |name: &str, default: i64| -> Res<Vec<usize>> {
        let given = call.ints(name)?.map_or_else(|| vec![default; 2], <[i64]>::to_vec);
        check_numbers(&given)
    };
    let (strides, dilations) = (numbers("strides", 1)?, numbers("dilations", 1)?);
    let pads = check_numbers(call.ints("pads")?.unwrap_or(&[0; 4]))?;
    let [top, left, bottom, right] = pads[..] else {
        return fail_with("its `pads` must be 4 numbers");
    };
    let [n, width, blocks] = cx.shape(&x)?[..] else { return fail_with("columns have three dims") };
    let steps = |dim: usize, extent: usize, kernel: usize| {
        let (stride, dilation) = (*strides.get(dim)?, *dilations.get(dim)?);
        let reach = dilation * (kernel.checked_sub(1)?) + 1;
        Some((extent.checked_sub(reach)?.checked_div(stride)? + 1, stride, dilation))
    };
    let (high, wide) = (h + top + bottom, w + left + right);
    let (Some(down), Some(across)) = (steps(0, high, kh), steps(1, wide, kw)) else {
        return fail_with(format!("blocks of {kh} x {kw} do not fit an image of {high} x {wide}"));
    };
    if down.0 * across.0 != blocks || !width.is_multiple_of(kh * kw) {
        return fail_with(format!(
            "{} blocks of {kh} x {kw} fit, not {:?}",
            down.0 * across.0,
            [width, blocks]
        ));
    }
    let channels = width / (kh * kw);
    let place = |at: usize| {
        let (inner, block) = (at / blocks, at % blocks);
        let row = block / across.0 * down.1 + inner / kw * down.2;
        let column = block % across.0 * across.1 + inner % kw * across.2;
        (row * wide + column) as f64
    };
    let count = kh.saturating_mul(kw).saturating_mul(blocks);
    if count > MOST_COLUMNS {
        return fail_with(format!(
            "{count} elements are in its columns, and {MOST_COLUMNS} are the most"
        ));
    }
    let places =
        KnownValue::new(TensorType::new(DType::I64, [1, count]), (0..count).map(place).collect());
    let places = cx.expand(&Val::Known(places), &[n, count])?;
    let values = cx.reshape(&x, &[n, channels, count])?;
    let values = cx.transpose(&values, vec![0, 2, 1])?;
    let sums = cx.apply(Op::ScatterSum(ScatterSum { places: high * wide }), &[places, values])?;
    let y = cx.transpose(&sums, vec![0, 2, 1])?;
    let y = cx.reshape(&y, &[n, channels, high, wide])?;
    let y = cx.slice(&y, 2, top, top + h, 1)?;
    Ok(vec![cx.slice(&y, 3, left, left + w, 1)?])
}
