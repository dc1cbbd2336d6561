//! Brings queries, keys and values to the form that the op takes, `[batch, time, heads, width]`, from what models move to where products need it.

use graphc_ir::graph::{Graph, Node};
use graphc_ir::ids::ValueId;
use graphc_ir::op::{Op, OpError};
use graphc_ir::ops::Transpose;

use crate::passes::joined::push_reshape;
use crate::passes::views::{BaseView, is_ascending, reshape_view};

/// The way from an earlier value to an operand of a product: a reshape, a permutation of dims, and another reshape. Heads that are repeated are there
/// once.
#[derive(Clone, Debug)]
pub(super) struct Heads {
    /// The earlier value.
    pub root: ValueId,
    /// The earlier value's shape, with dims split so far that they move as a whole.
    cut: Vec<usize>,
    /// The order of these dims in the operand.
    order: Vec<usize>,
    /// The extents of batch, time, heads and width.
    pub shape: [usize; 4],
}

/// The form of an operand of a product of matrices: `[.., time, width]`, or transposed.
#[derive(Clone, Copy)]
pub(super) struct Matrices<'a> {
    /// The dims of the product before its matrices.
    pub batch: &'a [usize],
    /// Whether the width comes first.
    pub turned: bool,
}

/// A value whose dims are made of dims of a root, and of repetitions.
#[derive(Clone)]
struct MovedValue {
    /// The extents of the root's dims, split so far that they move as a whole, and behind them those of repetitions.
    shape: Vec<usize>,
    /// Whether each of these dims is a repetition.
    repeated: Vec<bool>,
    /// The value's dims in terms of these dims.
    view: BaseView,
}

impl Heads {
    /// Describes an operand of a product that transposes, reshapes and expansions make of a root, in this order. `None` if that is not possible, or
    /// if they repeat more than heads.
    pub(super) fn from_moves(
        graph: &Graph,
        root: ValueId,
        moves: &[&Node],
        matrices: Matrices<'_>,
    ) -> Option<Self> {
        let mut moved = MovedValue::from_root(root, &graph.value(root).ty.shape);
        for node in moves {
            let shape = |value: ValueId| &graph.value(value).ty.shape;
            moved.apply_op(&node.op, shape(node.operands[0]), shape(node.results[0]))?;
        }
        let last = moves.last().map_or(root, |node| node.results[0]);
        moved.gather_heads(&graph.value(last).ty.shape, matrices)
    }

    /// Appends the ops that make the op's operand from the root.
    pub(super) fn push_operand(
        &self,
        graph: &mut Graph,
        root: ValueId,
        like: &Node,
    ) -> Result<ValueId, OpError> {
        if is_ascending(&self.order, &self.cut) {
            return push_reshape(graph, root, &self.shape, like);
        }
        let cut = push_reshape(graph, root, &self.cut, like)?;
        let moved = push_transpose(graph, cut, &self.order, like)?;
        push_reshape(graph, moved, &self.shape, like)
    }
}

impl MovedValue {
    fn from_root(root: ValueId, shape: &[usize]) -> Self {
        let view = BaseView::whole(root, shape.len());
        Self { shape: shape.to_vec(), repeated: vec![false; shape.len()], view }
    }

    /// Applies an op to the value; `None` if the result is not made of whole dims.
    fn apply_op(&mut self, op: &Op, from: &[usize], to: &[usize]) -> Option<()> {
        match op {
            Op::Transpose(Transpose { permutation }) => {
                self.view = self.view.transposed(permutation);
            }
            Op::Reshape(_) => self.reshape(to)?,
            Op::Expand(_) => self.expand(from, to)?,
            _ => return None,
        }
        Some(())
    }

    fn reshape(&mut self, to: &[usize]) -> Option<()> {
        let found = reshape_view(&self.view, &self.shape, to)?;
        let mut parts = found.shape.iter();
        let mut repeated = Vec::new();
        for (&extent, &mark) in self.shape.iter().zip(&self.repeated) {
            let mut left = extent;
            while left > 1 {
                left /= parts.next()?;
                repeated.push(mark);
            }
        }
        (self.shape, self.repeated, self.view) = (found.shape, repeated, found.view);
        Some(())
    }

    fn expand(&mut self, from: &[usize], to: &[usize]) -> Option<()> {
        let missing = to.len().checked_sub(from.len())?;
        let mut dims = vec![Vec::new(); missing];
        dims.append(&mut self.view.dims);
        for (dim, &extent) in to.iter().enumerate() {
            let before = dim.checked_sub(missing).map_or(1, |dim| from[dim]);
            if before != extent {
                dims[dim].push(self.shape.len());
                self.shape.push(extent);
                self.repeated.push(true);
            }
        }
        self.view.dims = dims;
        Some(())
    }

    /// Arranges the dims of matrices `[.., time, width]`, or transposed ones, as the op takes them.
    fn gather_heads(mut self, shape: &[usize], matrices: Matrices<'_>) -> Option<Heads> {
        let Matrices { batch, turned } = matrices;
        let [.., rows, columns] = *shape else { return None };
        let (outer, inner) = batch.split_first()?;
        let whole = [batch, &[rows, columns]].concat();
        let is_cut = whole.iter().product::<usize>() == shape.iter().product::<usize>();
        match is_cut && whole != shape {
            true => self.reshape(&whole)?,
            false => self.expand(shape, &whole)?,
        }
        let (time, width) = if turned { (1, 0) } else { (0, 1) };
        let rank = batch.len();
        let order: Vec<usize> =
            [0, rank + time].into_iter().chain(1..rank).chain([rank + width]).collect();
        self.view = self.view.transposed(&order);
        let extents = [rows, columns];
        let heads: usize = inner.iter().product();
        self.reshape(&[*outer, extents[time], heads, extents[width]])?;
        self.without_repetitions([*outer, extents[time], extents[width]])
    }

    /// Removes repetitions of heads; `None` if anything else is repeated, or repetitions do not vary fastest among heads.
    fn without_repetitions(self, [batch, time, width]: [usize; 3]) -> Option<Heads> {
        let is_repeated = |dim: &usize| self.repeated[*dim];
        let own = self.repeated.iter().position(|&repeated| repeated);
        let own = own.unwrap_or(self.shape.len());
        for (group, dims) in self.view.dims.iter().enumerate() {
            let repeats = dims.iter().any(is_repeated);
            if repeats && (group != 2 || !dims.is_sorted_by_key(is_repeated)) {
                return None;
            }
        }
        let order: Vec<usize> =
            self.view.seen_order().into_iter().filter(|dim| !is_repeated(dim)).collect();
        let heads = self.view.dims[2].iter().filter(|dim| !is_repeated(dim));
        let heads = heads.map(|&dim| self.shape[dim]).product();
        let shape = [batch, time, heads, width];
        Some(Heads { root: self.view.base, cut: self.shape[..own].to_vec(), order, shape })
    }
}

/// Appends a permutation of a value's dims.
pub(super) fn push_transpose(
    graph: &mut Graph,
    value: ValueId,
    order: &[usize],
    like: &Node,
) -> Result<ValueId, OpError> {
    if order.is_sorted() {
        return Ok(value);
    }
    let op = Op::Transpose(Transpose { permutation: order.to_vec() });
    Ok(graph.push_like(op, vec![value], like)?[0])
}
