//! Slices along a dim in which samples lie behind each other, as far as no sample has to see another for them.
//!
//! A model may take the first rows of such a dim where all rows are alike: a class token before the patches of every frame. What is taken is then
//! computed of parameters alone, and so it is made of them. Or it takes every so many-th row, which is one of each sample.

use std::collections::BTreeMap;
use std::ops::Range;

use graphc_ir::graph::{Graph, Node};
use graphc_ir::ids::{NodeId, ValueId};
use graphc_ir::op::{Op, OpError};
use graphc_ir::ops::{Concat, Expand, Reshape, Slice, Transpose};
use graphc_plan::CompileOptions;

use crate::passes::joined::{NewValues, push_reshape, replace_nodes};
use crate::passes::pins::pin_of;

/// The most values through which a slice is followed.
const MOST_VISITS: usize = 64;

/// Makes slices anew that need not see several samples. It is `None` if there are none.
///
/// # Errors
/// Returns an error if an op does not take its operands.
pub(super) fn free_slices(old: &Graph, options: &CompileOptions) -> Result<Option<Graph>, OpError> {
    let fed = find_fed(old);
    let found: BTreeMap<NodeId, Piece> = old
        .iter()
        .filter_map(|(id, node)| {
            let Op::Slice(slice) = &node.op else { return None };
            let result = node.results[0];
            if !fed[result.index()] {
                return None;
            }
            let mut tracer = PieceTracer { graph: old, options, fed: &fed, visits: 0 };
            let piece = tracer.trace(result, &whole_of(old, result));
            Some((id, piece.or_else(|| row_of_each(old, node, slice))?))
        })
        .collect();
    if found.is_empty() {
        return Ok(None);
    }
    let roots = found.iter().map(|(&id, piece)| (id, piece.roots())).collect();
    let push = |graph: &mut Graph, id: NodeId, made: &NewValues<'_>| {
        push_piece(graph, &found[&id], made, old.node(id))
    };
    replace_nodes(old, &roots, &push).map(Some)
}

/// Tells of each value whether it is computed from an input.
fn find_fed(graph: &Graph) -> Vec<bool> {
    let mut fed = vec![false; graph.values.len()];
    for node in &graph.nodes {
        let is_fed = matches!(node.op, Op::Input(_))
            || node.operands.iter().any(|operand| fed[operand.index()]);
        node.results.iter().for_each(|result| fed[result.index()] = is_fed);
    }
    fed
}

/// A part of a value, made of other values.
enum Piece {
    /// A part of a value, within these bounds.
    Part(ValueId, Vec<Range<usize>>),
    /// An op on other parts.
    Made(Op, Vec<Piece>),
}

impl Piece {
    /// Returns the values of which it is made.
    fn roots(&self) -> Vec<ValueId> {
        match self {
            Self::Part(value, _) => vec![*value],
            Self::Made(_, operands) => operands.iter().flat_map(Self::roots).collect(),
        }
    }
}

/// Follows a part of a value to what depends on no input.
struct PieceTracer<'a> {
    graph: &'a Graph,
    options: &'a CompileOptions,
    fed: &'a [bool],
    visits: usize,
}

impl PieceTracer<'_> {
    /// Returns how a part of a value is made of values that depend on no input, if it is.
    fn trace(&mut self, value: ValueId, bounds: &[Range<usize>]) -> Option<Piece> {
        self.visits += 1;
        let node = self.graph.producer(value);
        if self.visits > MOST_VISITS || node.results.len() > 1 {
            return None;
        }
        if !self.fed[value.index()] {
            let whole = || Some(Piece::Part(value, bounds.to_vec()));
            return self.trace_repetition(node, bounds).or_else(whole);
        }
        if pin_of(self.graph, value, self.options).is_some() {
            // The user asks for a layout of what would then not be there.
            return None;
        }
        match &node.op {
            Op::Expand(_) | Op::Reshape(_) => self.trace_repetition(node, bounds),
            Op::Binary(_) | Op::Unary(_) | Op::Where(_) | Op::Cast(_) => {
                let operands = node.operands.iter();
                let operands = operands.map(|&operand| self.trace_repeated(operand, bounds));
                Some(Piece::Made(node.op.clone(), operands.collect::<Option<_>>()?))
            }
            Op::Transpose(Transpose { permutation }) => {
                let mut of_operand = bounds.to_vec();
                for (dim, &from) in permutation.iter().enumerate() {
                    of_operand[from] = bounds[dim].clone();
                }
                Some(Piece::Made(node.op.clone(), vec![self.trace(node.operands[0], &of_operand)?]))
            }
            Op::Slice(Slice { starts, steps, .. }) if steps.iter().all(|&step| step == 1) => {
                let shifted = bounds.iter().zip(starts);
                let shifted = shifted.map(|(range, start)| range.start + start..range.end + start);
                self.trace(node.operands[0], &shifted.collect::<Vec<_>>())
            }
            Op::Concat(Concat { axis }) => {
                let mut start = 0;
                for &operand in &node.operands {
                    let end = start + self.graph.value(operand).ty.shape[*axis];
                    if start <= bounds[*axis].start && bounds[*axis].end <= end {
                        let mut within = bounds.to_vec();
                        within[*axis] = bounds[*axis].start - start..bounds[*axis].end - start;
                        return self.trace(operand, &within);
                    }
                    start = end;
                }
                None
            }
            _ => None,
        }
    }

    /// Follows what is repeated, or only shaped otherwise.
    fn trace_repetition(&mut self, node: &Node, bounds: &[Range<usize>]) -> Option<Piece> {
        let shape = bounds.iter().map(|range| range.len()).collect();
        let operand = node.operands.first().copied();
        match &node.op {
            Op::Expand(_) => {
                let operand = self.trace_repeated(operand?, bounds)?;
                Some(Piece::Made(Op::Expand(Expand { shape }), vec![operand]))
            }
            Op::Reshape(_) => {
                let of_operand = self.bounds_before_reshape(node, bounds)?;
                let operand = self.trace(operand?, &of_operand)?;
                Some(Piece::Made(Op::Reshape(Reshape { shape }), vec![operand]))
            }
            _ => None,
        }
    }

    /// Follows an operand whose dims of extent 1 are repeated, and that may lack the first ones.
    fn trace_repeated(&mut self, operand: ValueId, bounds: &[Range<usize>]) -> Option<Piece> {
        let shape = &self.graph.value(operand).ty.shape;
        let last = bounds.get(bounds.len().checked_sub(shape.len())?..)?;
        let of_dim = |(&extent, range): (&usize, &Range<usize>)| match extent {
            1 => 0..1,
            _ => range.clone(),
        };
        let of_operand: Vec<Range<usize>> = shape.iter().zip(last).map(of_dim).collect();
        self.trace(operand, &of_operand)
    }

    /// Returns the bounds of a reshape's operand, if only dims of extent 1 are added or left out.
    fn bounds_before_reshape(
        &self,
        node: &Node,
        bounds: &[Range<usize>],
    ) -> Option<Vec<Range<usize>>> {
        let shape = |value: ValueId| &self.graph.value(value).ty.shape;
        let (before, after) = (shape(node.operands[0]), shape(node.results[0]));
        let wide = |shape: &[usize]| -> Vec<usize> {
            (0..shape.len()).filter(|&dim| shape[dim] != 1).collect()
        };
        let (from, to) = (wide(before), wide(after));
        let extents = |shape: &[usize], dims: &[usize]| -> Vec<usize> {
            dims.iter().map(|&dim| shape[dim]).collect()
        };
        let is_same = extents(before, &from) == extents(after, &to);
        let is_whole =
            after.iter().zip(bounds).all(|(&extent, range)| extent != 1 || *range == (0..1));
        if !is_same || !is_whole {
            return None;
        }
        let mut found = vec![0..1; before.len()];
        for (from, to) in from.into_iter().zip(to) {
            found[from] = bounds[to].clone();
        }
        Some(found)
    }
}

fn whole_of(graph: &Graph, value: ValueId) -> Vec<Range<usize>> {
    graph.value(value).ty.shape.iter().map(|&extent| 0..extent).collect()
}

/// Makes a slice of every so many-th row, from one of the first on, by a dim for them.
fn row_of_each(graph: &Graph, node: &Node, slice: &Slice) -> Option<Piece> {
    let operand = node.operands[0];
    let shape = &graph.value(operand).ty.shape;
    let (start, step) = (slice.starts[0], slice.steps[0]);
    let result = &graph.value(node.results[0]).ty.shape;
    let takes_each = step > 1
        && start < step
        && shape[0].is_multiple_of(step)
        && result[0] == shape[0] / step
        && result[1..] == shape[1..];
    if !takes_each {
        return None;
    }
    let apart = [&[result[0], step], &shape[1..]].concat();
    let mut of_step =
        Slice { starts: vec![0; apart.len()], steps: vec![1; apart.len()], ends: apart.clone() };
    (of_step.starts[1], of_step.ends[1]) = (start, start + 1);
    let whole = Piece::Part(operand, whole_of(graph, operand));
    let apart = Piece::Made(Op::Reshape(Reshape { shape: apart }), vec![whole]);
    let rows = Piece::Made(Op::Slice(of_step), vec![apart]);
    Some(Piece::Made(Op::Reshape(Reshape { shape: result.clone() }), vec![rows]))
}

/// Appends what makes a part of a value.
fn push_piece(
    graph: &mut Graph,
    piece: &Piece,
    made: &NewValues<'_>,
    like: &Node,
) -> Result<ValueId, OpError> {
    match piece {
        Piece::Part(value, bounds) => {
            let value = made(value);
            if whole_of(graph, value) == *bounds {
                return Ok(value);
            }
            let slice = Slice {
                starts: bounds.iter().map(|range| range.start).collect(),
                ends: bounds.iter().map(|range| range.end).collect(),
                steps: vec![1; bounds.len()],
            };
            Ok(graph.push_like(Op::Slice(slice), vec![value], like)?[0])
        }
        Piece::Made(op, operands) => {
            let operands = operands.iter().map(|operand| push_piece(graph, operand, made, like));
            let operands = operands.collect::<Result<Vec<_>, _>>()?;
            match op {
                Op::Reshape(Reshape { shape }) => push_reshape(graph, operands[0], shape, like),
                op => Ok(graph.push_like(op.clone(), operands, like)?[0]),
            }
        }
    }
}
