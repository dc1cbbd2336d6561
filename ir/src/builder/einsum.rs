//! Sums of products by the names of dims, as matrix products: for [`Tensor`]s and for what importers know.

use super::{GraphBuilder, Tensor};
use crate::op::Op;
use crate::ops::Slice;

/// Tensors of which sums of products are made.
pub trait Products {
    /// A tensor.
    type Tensor;
    /// The error that an operation returns.
    type Error: From<String>;

    /// The extents of a tensor.
    ///
    /// # Errors
    /// Returns an error if the extents are not known.
    fn shape(&mut self, x: &Self::Tensor) -> Result<Vec<usize>, Self::Error>;

    /// The sum over dims, which are gone then.
    ///
    /// # Errors
    /// Returns an error if there is no such sum.
    fn sum(&mut self, x: &Self::Tensor, dims: &[usize]) -> Result<Self::Tensor, Self::Error>;

    /// Dims in another order.
    ///
    /// # Errors
    /// Returns an error if `order` is no order of the dims.
    fn transpose(
        &mut self,
        x: &Self::Tensor,
        order: Vec<usize>,
    ) -> Result<Self::Tensor, Self::Error>;

    /// Reshapes a tensor.
    ///
    /// # Errors
    /// Returns an error if the elements do not fit the shape.
    fn reshape(&mut self, x: &Self::Tensor, shape: &[usize]) -> Result<Self::Tensor, Self::Error>;

    /// The product of elements, broadcast.
    ///
    /// # Errors
    /// Returns an error if the shapes do not fit.
    fn multiply(&mut self, a: &Self::Tensor, b: &Self::Tensor)
    -> Result<Self::Tensor, Self::Error>;

    /// The first of every so many elements of the last dim.
    ///
    /// # Errors
    /// Returns an error if there is no such element.
    fn take_every(&mut self, x: &Self::Tensor, step: usize) -> Result<Self::Tensor, Self::Error>;

    /// Matrix products of the last two dims; those before broadcast.
    ///
    /// # Errors
    /// Returns an error if the shapes do not fit.
    fn matmul(&mut self, a: &Self::Tensor, b: &Self::Tensor) -> Result<Self::Tensor, Self::Error>;
}

/// A tensor with a name for each dim.
struct NamedTensor<T> {
    value: T,
    dims: Vec<char>,
}

/// Computes an equation of Einstein summation such as `bij,bjk->bik`. Operands are multiplied from the left to the right. A name that is in
/// no later operand and not in the result is summed as soon as it can be. `...` stands for dims without a name. Without `->` the result has
/// the names that occur once, in alphabetical order. A name that an operand has twice stands for a diagonal.
///
/// # Errors
/// Returns an error if `equation` is no such equation, or operands do not fit.
pub fn apply_einsum<P: Products>(
    cx: &mut P,
    equation: &str,
    operands: Vec<P::Tensor>,
) -> Result<P::Tensor, P::Error> {
    let ranks = operands
        .iter()
        .map(|x| Ok(cx.shape(x)?.len()))
        .collect::<Result<Vec<usize>, P::Error>>()?;
    let (names, result) = parse_equation(equation, &ranks)?;
    let mut rest: Vec<NamedTensor<P::Tensor>> = Vec::new();
    for (value, dims) in operands.into_iter().zip(names) {
        rest.push(on_diagonals(cx, NamedTensor { value, dims })?);
    }
    rest.reverse();
    let Some(mut product) = rest.pop() else {
        return Err("there is no operand".to_owned().into());
    };
    while let Some(next) = rest.pop() {
        let kept = |dim: &char| result.contains(dim) || rest.iter().any(|x| x.dims.contains(dim));
        product = multiply_named(cx, product, next, kept)?;
    }
    let product = sum_dims(cx, product, |dim| result.contains(dim))?;
    Ok(order_dims(cx, product, &result)?.value)
}

/// Names of the dims of each operand and of the result.
fn parse_equation(equation: &str, ranks: &[usize]) -> Result<(Vec<Vec<char>>, Vec<char>), String> {
    let text: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let (inputs, output) = match text.split_once("->") {
        Some((inputs, output)) => (inputs, Some(output)),
        None => (text.as_str(), None),
    };
    let terms: Vec<&str> = inputs.split(',').collect();
    if terms.len() != ranks.len() {
        return Err(format!("`{equation}` has {} terms for {} operands", terms.len(), ranks.len()));
    }
    let mut names = Vec::new();
    let mut unnamed = 0;
    for (term, &rank) in terms.iter().zip(ranks) {
        let named = term.replacen("...", "", 1);
        let Some(missing) = rank.checked_sub(named.len()).filter(|&n| n == 0 || named != *term)
        else {
            return Err(format!("`{term}` does not name the dims of an operand of rank {rank}"));
        };
        unnamed = unnamed.max(missing);
        names.push(name_term_dims(term, missing, equation)?);
    }
    let result = match output {
        Some(output) => name_term_dims(output, unnamed, equation)?,
        None => implied_result_dims(&names, unnamed),
    };
    let known = |dim: &char| names.iter().any(|dims| dims.contains(dim));
    if let Some(dim) = result.iter().find(|dim| !known(dim)) {
        return Err(format!("`{dim}` of the result of `{equation}` is in no operand"));
    }
    match find_repeated_dim(&result) {
        Some((_, at)) => {
            Err(format!("`{}` names two dims of the result of `{equation}`", result[at]))
        }
        None => Ok((names, result)),
    }
}

/// The first two dims that have one name.
fn find_repeated_dim(dims: &[char]) -> Option<(usize, usize)> {
    let before = |at: usize| dims[..at].iter().position(|dim| *dim == dims[at]);
    (0..dims.len()).find_map(|at| Some((before(at)?, at)))
}

/// A tensor in which every name stands for one dim: two of one name are the last, and of these the diagonal is left.
fn on_diagonals<P: Products>(
    cx: &mut P,
    x: NamedTensor<P::Tensor>,
) -> Result<NamedTensor<P::Tensor>, P::Error> {
    let NamedTensor { value, dims } = x;
    let Some((first, second)) = find_repeated_dim(&dims) else {
        return Ok(NamedTensor { value, dims });
    };
    let shape = cx.shape(&value)?;
    let extent = shape[first];
    if shape[second] != extent {
        let (name, other) = (dims[first], shape[second]);
        return Err(format!("`{name}` is {extent} and {other} in one operand").into());
    }
    let mut order: Vec<usize> = (0..dims.len()).filter(|&at| at != first && at != second).collect();
    let mut kept: Vec<usize> = order.iter().map(|&at| shape[at]).collect();
    let mut left: Vec<char> = order.iter().map(|&at| dims[at]).collect();
    left.push(dims[first]);
    order.extend([first, second]);
    kept.push(extent * extent);
    let value = cx.transpose(&value, order)?;
    let value = cx.reshape(&value, &kept)?;
    let value = cx.take_every(&value, extent + 1)?;
    on_diagonals(cx, NamedTensor { value, dims: left })
}

/// The names in a term; the last `unnamed` dims that an ellipsis stands for are digits, the last one 0.
fn name_term_dims(term: &str, unnamed: usize, equation: &str) -> Result<Vec<char>, String> {
    let digits: String =
        (0..unnamed).rev().filter_map(|n| char::from_digit(n as u32, 36)).collect();
    let spelled = term.replacen("...", &digits.to_uppercase(), 1);
    let letters = term.replacen("...", "", 1);
    if unnamed > 10 || !letters.chars().all(|c| c.is_ascii_alphabetic()) {
        return Err(format!("`{equation}` is no equation of letters, commas, `...` and `->`"));
    }
    Ok(spelled.chars().collect())
}

/// The result of an equation that gives none: what an ellipsis stands for, then the letters that occur once, by alphabet.
fn implied_result_dims(names: &[Vec<char>], unnamed: usize) -> Vec<char> {
    let all: Vec<char> = names.concat();
    let mut letters: Vec<char> = all.iter().copied().filter(char::is_ascii_alphabetic).collect();
    letters.retain(|letter| all.iter().filter(|other| *other == letter).count() == 1);
    letters.sort_unstable();
    let digits = (0..unnamed).rev().filter_map(|n| char::from_digit(n as u32, 10));
    digits.chain(letters).collect()
}

/// Refuses names that stand for different extents.
fn check_extents(names: &[char], of_a: &[usize], of_b: &[usize]) -> Result<(), String> {
    let extents = of_a.iter().zip(of_b);
    match names.iter().zip(extents).find(|(_, (a, b))| a != b) {
        Some((name, (a, b))) => Err(format!("`{name}` is {a} in one operand and {b} in another")),
        None => Ok(()),
    }
}

/// A tensor without the dims that are not kept.
fn sum_dims<P: Products>(
    cx: &mut P,
    x: NamedTensor<P::Tensor>,
    kept: impl Fn(&char) -> bool,
) -> Result<NamedTensor<P::Tensor>, P::Error> {
    let gone: Vec<usize> = (0..x.dims.len()).filter(|&dim| !kept(&x.dims[dim])).collect();
    if gone.is_empty() {
        return Ok(x);
    }
    let value = cx.sum(&x.value, &gone)?;
    Ok(NamedTensor { value, dims: x.dims.into_iter().filter(kept).collect() })
}

/// A tensor with its dims in another order.
fn order_dims<P: Products>(
    cx: &mut P,
    x: NamedTensor<P::Tensor>,
    dims: &[char],
) -> Result<NamedTensor<P::Tensor>, P::Error> {
    let at = |dim: &char| x.dims.iter().position(|other| other == dim);
    let order: Vec<usize> = dims.iter().filter_map(at).collect();
    if order.len() != x.dims.len() {
        return Err("the result of an equation has other dims than its operands".to_owned().into());
    }
    let moves = !order.iter().copied().eq(0..order.len());
    let value = if moves { cx.transpose(&x.value, order)? } else { x.value };
    Ok(NamedTensor { value, dims: dims.to_vec() })
}

/// The product of two tensors over the dims that both have and that are not kept.
fn multiply_named<P: Products>(
    cx: &mut P,
    a: NamedTensor<P::Tensor>,
    b: NamedTensor<P::Tensor>,
    kept: impl Fn(&char) -> bool,
) -> Result<NamedTensor<P::Tensor>, P::Error> {
    let (of_a, of_b) = (a.dims.clone(), b.dims.clone());
    let a = sum_dims(cx, a, |dim| of_b.contains(dim) || kept(dim))?;
    let b = sum_dims(cx, b, |dim| of_a.contains(dim) || kept(dim))?;
    let both = |dim: &&char| of_a.contains(dim) && of_b.contains(dim);
    let shared: Vec<char> = a.dims.iter().filter(both).filter(|dim| kept(dim)).copied().collect();
    let inner: Vec<char> = a.dims.iter().filter(both).filter(|dim| !kept(dim)).copied().collect();
    let rows: Vec<char> = a.dims.iter().filter(|dim| !of_b.contains(dim)).copied().collect();
    let columns: Vec<char> = b.dims.iter().filter(|dim| !of_a.contains(dim)).copied().collect();
    let dims = [&shared[..], &rows, &columns].concat();
    let a = order_dims(cx, a, &[&shared[..], &rows, &inner].concat())?;
    let b = order_dims(cx, b, &[&shared[..], &inner, &columns].concat())?;
    let (of_a, of_b) = (cx.shape(&a.value)?, cx.shape(&b.value)?);
    let (s, r, i) = (shared.len(), rows.len(), inner.len());
    check_extents(&inner, &of_a[s + r..], &of_b[s..s + i])?;
    let broadcast = |(&a, &b): (&usize, &usize)| if a == 1 { b } else { a };
    let batch: Vec<usize> = of_a[..s].iter().zip(&of_b[..s]).map(broadcast).collect();
    let shape = [&batch[..], &of_a[s..s + r], &of_b[s + i..]].concat();
    let value = if inner.is_empty() {
        let ones = vec![1; columns.len()];
        let a = cx.reshape(&a.value, &[&of_a[..], &ones].concat())?;
        let ones = vec![1; rows.len()];
        let b = cx.reshape(&b.value, &[&of_b[..s], &ones, &of_b[s..]].concat())?;
        cx.multiply(&a, &b)?
    } else {
        let product = |extents: &[usize]| extents.iter().product::<usize>();
        let matrix = [product(&of_a[s..s + r]), product(&of_a[s + r..])];
        let a = cx.reshape(&a.value, &[&of_a[..s], &matrix].concat())?;
        let matrix = [product(&of_b[s..s + i]), product(&of_b[s + i..])];
        let b = cx.reshape(&b.value, &[&of_b[..s], &matrix].concat())?;
        let y = cx.matmul(&a, &b)?;
        cx.reshape(&y, &shape)?
    };
    Ok(NamedTensor { value, dims })
}

/// Makes the products of tensors under construction.
struct Nodes;

/// The error where there is no tensor; `None` if the builder has recorded it already.
struct Unfit(Option<String>);

impl From<String> for Unfit {
    fn from(reason: String) -> Self {
        Self(Some(reason))
    }
}

impl Nodes {
    fn check_made(tensor: Tensor) -> Result<Tensor, Unfit> {
        if tensor.id.is_some() { Ok(tensor) } else { Err(Unfit(None)) }
    }
}

impl Products for Nodes {
    type Tensor = Tensor;
    type Error = Unfit;

    fn shape(&mut self, x: &Tensor) -> Result<Vec<usize>, Unfit> {
        Ok(Self::check_made(x.clone())?.shape())
    }

    fn sum(&mut self, x: &Tensor, dims: &[usize]) -> Result<Tensor, Unfit> {
        Self::check_made(x.sum(dims, false))
    }

    fn transpose(&mut self, x: &Tensor, order: Vec<usize>) -> Result<Tensor, Unfit> {
        Self::check_made(x.transpose(&order))
    }

    fn reshape(&mut self, x: &Tensor, shape: &[usize]) -> Result<Tensor, Unfit> {
        Self::check_made(x.reshape(shape))
    }

    fn multiply(&mut self, a: &Tensor, b: &Tensor) -> Result<Tensor, Unfit> {
        Self::check_made(a.mul(b))
    }

    fn take_every(&mut self, x: &Tensor, step: usize) -> Result<Tensor, Unfit> {
        Self::check_made(x.builder.apply(Op::Slice(Slice::stride_last_dim(&x.shape(), step)), &[x]))
    }

    fn matmul(&mut self, a: &Tensor, b: &Tensor) -> Result<Tensor, Unfit> {
        Self::check_made(a.matmul(b))
    }
}

impl GraphBuilder {
    /// A sum of products by the names of dims, as `torch.einsum` has it.
    ///
    /// ```
    /// use graphc_ir::builder::GraphBuilder;
    /// use graphc_ir::types::DType;
    ///
    /// let g = GraphBuilder::new("example");
    /// let [q, k] = ["q", "k"].map(|name| g.input(name, DType::F32, [2, 8, 4, 16]));
    /// assert_eq!(g.einsum("bthw,bshw->bhts", &[&q, &k]).shape(), [2, 4, 8, 8]);
    /// ```
    #[track_caller]
    pub fn einsum(&self, equation: &str, operands: &[&Tensor]) -> Tensor {
        self.with_location(|| {
            let operands = operands.iter().map(|&operand| operand.clone()).collect();
            match apply_einsum(&mut Nodes, equation, operands) {
                Ok(tensor) => tensor,
                Err(Unfit(Some(reason))) => self.fail(format!("einsum: {reason}")),
                Err(Unfit(None)) => self.inert_tensor(),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::array::Array;
    use crate::builder::GraphBuilder;
    use crate::evaluate::evaluate_outputs;
    use crate::types::DType;

    /// Evaluates an equation of a = `[[1, 2, 3], [4, 5, 6]]` and b = `[[1, 0], [0, 1], [1, 1]]`.
    fn of_matrices(equation: &str, operands: &[usize]) -> (Vec<usize>, Vec<f64>) {
        let g = GraphBuilder::new("einsum");
        let matrices = [g.input("a", DType::F32, [2, 3]), g.input("b", DType::F32, [3, 2])];
        let operands: Vec<_> = operands.iter().map(|&at| &matrices[at]).collect();
        g.output("y", &g.einsum(equation, &operands));
        let feeds = BTreeMap::from([
            ("a".to_owned(), Array::new([2, 3], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0])),
            ("b".to_owned(), Array::new([3, 2], vec![1.0, 0.0, 0.0, 1.0, 1.0, 1.0])),
        ]);
        let graph = g.finish().expect("all fits");
        let y = &evaluate_outputs(&graph, &feeds, &Default::default()).expect("all is fed")["y"];
        (y.shape.clone(), y.data.clone())
    }

    #[test]
    fn sums_of_products_are_those_of_their_names() {
        assert_eq!(of_matrices("ij,jk->ik", &[0, 1]), (vec![2, 2], vec![4.0, 5.0, 10.0, 11.0]));
        assert_eq!(of_matrices("ij,jk", &[0, 1]), (vec![2, 2], vec![4.0, 5.0, 10.0, 11.0]));
        assert_eq!(of_matrices("ij->j", &[0]), (vec![3], vec![5.0, 7.0, 9.0]));
        assert_eq!(of_matrices("...j->j...", &[0]).1, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
        assert_eq!(of_matrices("ij,ij->", &[0, 0]), (vec![], vec![91.0]));
        assert_eq!(of_matrices("ij,ji,ij->i", &[0, 1, 0]), (vec![2], vec![10.0, 61.0]));
        assert_eq!(of_matrices("ab,cd->ac", &[0, 1]).0, [2, 3]);
    }

    #[test]
    fn a_name_that_an_operand_has_twice_is_a_diagonal() {
        let g = GraphBuilder::new("einsum");
        let x = g.input("x", DType::F32, [2, 2, 2]);
        for equation in ["iji->ij", "iii->i", "iij,j->", "jii->j"] {
            g.output(
                equation,
                &match equation {
                    "iij,j->" => g.einsum(equation, &[&x, &x.sum(&[0, 1], false)]),
                    one => g.einsum(one, &[&x]),
                },
            );
        }
        let feeds = BTreeMap::from([(
            "x".to_owned(),
            Array::new([2, 2, 2], (1..9).map(f64::from).collect()),
        )]);
        let graph = g.finish().expect("all fits");
        let found = evaluate_outputs(&graph, &feeds, &Default::default()).expect("all is fed");
        assert_eq!(found["iji->ij"].data, [1.0, 3.0, 6.0, 8.0]);
        assert_eq!(found["iii->i"].data, [1.0, 8.0]);
        assert_eq!(found["jii->j"].data, [5.0, 13.0]);
        assert_eq!(found["iij,j->"].data, [(1.0 + 7.0) * 16.0 + (2.0 + 8.0) * 20.0]);
    }

    #[test]
    fn what_does_not_fit_is_reported_once_at_the_callers_line() {
        for (equation, said) in [
            ("ij,ij->ij", "has 2 terms for 1 operands"),
            ("ijk->i", "`ijk` does not name the dims of an operand of rank 2"),
            ("ij->k", "`k` of the result of `ij->k` is in no operand"),
            ("ij->ii", "`i` names two dims of the result of `ij->ii`"),
            ("ii->i", "`i` is 2 and 3 in one operand"),
        ] {
            let g = GraphBuilder::new("wrong");
            let _ = g.einsum(equation, &[&g.input("x", DType::F32, [2, 3])]).relu();
            let errors = g.finish().expect_err(said).to_string();
            assert!(errors.contains(said) && errors.contains("einsum.rs"), "{errors}");
            assert_eq!(errors.lines().count(), 1, "{errors}");
        }
        let g = GraphBuilder::new("wrong");
        let x = g.input("x", DType::F32, [2, 3]);
        let _ = g.einsum("ij,ji->i", &[&x, &x]);
        let errors = g.finish().expect_err("2 is not 3").to_string();
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
}
