//! Texts of graphs whose batch is a symbol, for builders that know numbers alone.

use super::print_graph;
use crate::graph::Graph;

/// Batches that a graph is built for: coprime and large, so that a number that grows with the batch is seen to.
const BATCHES: [usize; 2] = [1009, 2003];

/// The text of what `build` makes of any batch, with `symbol` for it; `None` where a number of the graph is neither fixed
/// nor a multiple of the batch.
///
/// ```
/// use graphc_ir::builder::GraphBuilder;
/// use graphc_ir::text::print_for_any_batch;
/// use graphc_ir::types::DType;
///
/// let text = print_for_any_batch("batch", |batch| {
///     let g = GraphBuilder::new("example");
///     g.output("y", &g.input("x", DType::F32, [batch, 3, 4]).reshape(&[3 * batch, 4]));
///     g.finish()
/// })?;
/// assert!(text.expect("numbers are multiples").contains("reshape %x {shape=[3*batch, 4]} : f32[3*batch, 4]"));
/// # Ok::<(), graphc_ir::builder::BuildErrors>(())
/// ```
///
/// # Errors
/// Those of `build`.
pub fn print_for_any_batch<E>(
    symbol: &str,
    build: impl Fn(usize) -> Result<Graph, E>,
) -> Result<Option<String>, E> {
    let [first, second] = [print_graph(&build(BATCHES[0])?), print_graph(&build(BATCHES[1])?)];
    let (first, second) = (split_digits(&first), split_digits(&second));
    if first.len() != second.len() {
        return Ok(None);
    }
    let pairs = first.into_iter().zip(second);
    Ok(pairs.map(|(first, second)| generalize_piece(symbol, first, second)).collect())
}

/// Returns the text that stands for a piece of text in both graphs: `symbol`, times a factor, if both are multiples of the batch.
fn generalize_piece(symbol: &str, first: &str, second: &str) -> Option<String> {
    if first == second {
        return Some(first.into());
    }
    let [first, second]: [usize; 2] = [first.parse().ok()?, second.parse().ok()?];
    let factor = first / BATCHES[0];
    let holds = first == factor * BATCHES[0] && second == factor * BATCHES[1];
    holds.then(|| if factor == 1 { symbol.into() } else { format!("{factor}*{symbol}") })
}

/// Digits, and what is between them.
fn split_digits(text: &str) -> Vec<&str> {
    text.as_bytes()
        .chunk_by(|a, b| a.is_ascii_digit() == b.is_ascii_digit())
        .scan(0, |start, piece| {
            let range = *start..*start + piece.len();
            *start = range.end;
            Some(&text[range])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::{BuildErrors, GraphBuilder};
    use crate::types::DType;

    #[test]
    fn a_number_that_is_no_multiple_of_the_batch_cannot_be_said() {
        let text = print_for_any_batch("n", |batch| {
            let g = GraphBuilder::new("mean");
            let x = g.input("x", DType::F32, [batch, 4]);
            g.output("y", &x.scale(1.0 / batch as f64));
            g.finish()
        });
        assert_eq!(text, Ok::<_, BuildErrors>(None));
    }
}
