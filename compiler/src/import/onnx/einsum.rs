//! Sums of products by the names of dims, as matrix products.

use graphc_ir::ops::{BinaryFunction, ReduceFunction};

use super::lower::{Lowering, Val};
use super::node::{Call, Res, fail};

/// A tensor with a name for each dim.
struct Named {
    value: Val,
    dims: Vec<char>,
}

/// Operands are multiplied from the left to the right; what is in no later operand and not in the result is summed as
/// soon as it can be.
pub(super) fn einsum(cx: &mut Lowering, call: Call<'_>) -> Res<Vec<Val>> {
    let equation = call.text("equation", "")?;
    let operands = cx.operands(call)?;
    let ranks = operands.iter().map(|x| Ok(cx.shape(x)?.len())).collect::<Res<Vec<_>>>()?;
    let (names, result) = parse(equation, &ranks)?;
    let mut rest: Vec<Named> = Vec::new();
    for (value, dims) in operands.into_iter().zip(names) {
        rest.push(Named { value, dims });
    }
    rest.reverse();
    let Some(mut product) = rest.pop() else { return fail("there is no operand") };
    while let Some(next) = rest.pop() {
        let kept = |dim: &char| result.contains(dim) || rest.iter().any(|x| x.dims.contains(dim));
        product = multiply(cx, product, next, kept)?;
    }
    let product = summed(cx, product, |dim| result.contains(dim))?;
    Ok(vec![ordered(cx, product, &result)?.value])
}

/// Names of the dims of each operand and of the result.
fn parse(equation: &str, ranks: &[usize]) -> Res<(Vec<Vec<char>>, Vec<char>)> {
    let text: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let (inputs, output) = match text.split_once("->") {
        Some((inputs, output)) => (inputs, Some(output)),
        None => (text.as_str(), None),
    };
    let terms: Vec<&str> = inputs.split(',').collect();
    if terms.len() != ranks.len() {
        return fail(format!(
            "`{equation}` has {} terms for {} operands",
            terms.len(),
            ranks.len()
        ));
    }
    let mut names = Vec::new();
    let mut unnamed = 0;
    for (term, &rank) in terms.iter().zip(ranks) {
        let named = term.replacen("...", "", 1);
        let Some(missing) = rank.checked_sub(named.len()).filter(|&n| n == 0 || named != *term)
        else {
            return fail(format!("`{term}` does not name the dims of an operand of rank {rank}"));
        };
        unnamed = unnamed.max(missing);
        names.push(spelled(term, missing, equation)?);
    }
    let result = match output {
        Some(output) => spelled(output, unnamed, equation)?,
        None => implied(&names, unnamed),
    };
    let known = |dim: &char| names.iter().any(|dims| dims.contains(dim));
    if let Some(dim) = result.iter().find(|dim| !known(dim)) {
        return fail(format!("`{dim}` of the result of `{equation}` is in no operand"));
    }
    for dims in names.iter().chain([&result]) {
        if let Some(twice) = dims.iter().enumerate().find(|(at, dim)| dims[..*at].contains(dim)) {
            return fail(format!("`{}` names two dims of one tensor in `{equation}`", twice.1));
        }
    }
    Ok((names, result))
}

/// The names in a term; the last `unnamed` dims that an ellipsis stands for are digits, the last one 0.
fn spelled(term: &str, unnamed: usize, equation: &str) -> Res<Vec<char>> {
    let digits: String =
        (0..unnamed).rev().filter_map(|n| char::from_digit(n as u32, 36)).collect();
    let spelled = term.replacen("...", &digits.to_uppercase(), 1);
    let letters = term.replacen("...", "", 1);
    if unnamed > 10 || !letters.chars().all(|c| c.is_ascii_alphabetic()) {
        return fail(format!("`{equation}` is no equation of letters, commas, `...` and `->`"));
    }
    Ok(spelled.chars().collect())
}

/// The result of an equation that gives none: what an ellipsis stands for, then the letters that occur once, by alphabet.
fn implied(names: &[Vec<char>], unnamed: usize) -> Vec<char> {
    let all: Vec<char> = names.concat();
    let mut letters: Vec<char> = all.iter().copied().filter(char::is_ascii_alphabetic).collect();
    letters.retain(|letter| all.iter().filter(|other| *other == letter).count() == 1);
    letters.sort_unstable();
    let digits = (0..unnamed).rev().filter_map(|n| char::from_digit(n as u32, 10));
    digits.chain(letters).collect()
}

/// A tensor without the dims that are not kept.
fn summed(cx: &mut Lowering, x: Named, kept: impl Fn(&char) -> bool) -> Res<Named> {
    let gone: Vec<usize> = (0..x.dims.len()).filter(|&dim| !kept(&x.dims[dim])).collect();
    if gone.is_empty() {
        return Ok(x);
    }
    let value = cx.reduce(ReduceFunction::Sum, &x.value, &gone, false)?;
    Ok(Named { value, dims: x.dims.into_iter().filter(kept).collect() })
}

/// A tensor with its dims in another order.
fn ordered(cx: &mut Lowering, x: Named, dims: &[char]) -> Res<Named> {
    let at = |dim: &char| x.dims.iter().position(|other| other == dim);
    let order: Vec<usize> = dims.iter().filter_map(at).collect();
    if order.len() != x.dims.len() {
        return fail("the result of an equation has other dims than its operands");
    }
    let moves = !order.iter().copied().eq(0..order.len());
    let value = if moves { cx.transpose(&x.value, order)? } else { x.value };
    Ok(Named { value, dims: dims.to_vec() })
}

/// The product of two tensors over the dims that both have and that are not kept.
fn multiply(cx: &mut Lowering, a: Named, b: Named, kept: impl Fn(&char) -> bool) -> Res<Named> {
    let (of_a, of_b) = (a.dims.clone(), b.dims.clone());
    let a = summed(cx, a, |dim| of_b.contains(dim) || kept(dim))?;
    let b = summed(cx, b, |dim| of_a.contains(dim) || kept(dim))?;
    let both = |dim: &&char| of_a.contains(dim) && of_b.contains(dim);
    let shared: Vec<char> = a.dims.iter().filter(both).filter(|dim| kept(dim)).copied().collect();
    let inner: Vec<char> = a.dims.iter().filter(both).filter(|dim| !kept(dim)).copied().collect();
    let rows: Vec<char> = a.dims.iter().filter(|dim| !of_b.contains(dim)).copied().collect();
    let columns: Vec<char> = b.dims.iter().filter(|dim| !of_a.contains(dim)).copied().collect();
    let dims = [&shared[..], &rows, &columns].concat();
    let a = ordered(cx, a, &[&shared[..], &rows, &inner].concat())?;
    let b = ordered(cx, b, &[&shared[..], &inner, &columns].concat())?;
    let (of_a, of_b) = (cx.shape(&a.value)?, cx.shape(&b.value)?);
    let (s, r, i) = (shared.len(), rows.len(), inner.len());
    let broadcast = |(&a, &b): (&usize, &usize)| if a == 1 { b } else { a };
    let batch: Vec<usize> = of_a[..s].iter().zip(&of_b[..s]).map(broadcast).collect();
    let shape = [&batch[..], &of_a[s..s + r], &of_b[s + i..]].concat();
    let value = if inner.is_empty() {
        let ones = vec![1; columns.len()];
        let a = cx.reshape(&a.value, &[&of_a[..], &ones].concat())?;
        let ones = vec![1; rows.len()];
        let b = cx.reshape(&b.value, &[&of_b[..s], &ones, &of_b[s..]].concat())?;
        cx.binary(BinaryFunction::Mul, &a, &b)?
    } else {
        let product = |extents: &[usize]| extents.iter().product::<usize>();
        let matrix = [product(&of_a[s..s + r]), product(&of_a[s + r..])];
        let a = cx.reshape(&a.value, &[&of_a[..s], &matrix].concat())?;
        let matrix = [product(&of_b[s..s + i]), product(&of_b[s + i..])];
        let b = cx.reshape(&b.value, &[&of_b[..s], &matrix].concat())?;
        let y = cx.matmul(&a, &b, false, false)?;
        cx.reshape(&y, &shape)?
    };
    Ok(Named { value, dims })
}
