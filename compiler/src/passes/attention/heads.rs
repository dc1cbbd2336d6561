//! Queries, keys and values as the op takes them, `[batch, time, heads, width]`, of what models move to where products need it.

use graphc_ir::graph::{Graph, Node};
use graphc_ir::ids::ValueId;
use graphc_ir::op::{Op, OpError};
use graphc_ir::ops::Transpose;

use crate::passes::joined::push_reshape;
use crate::passes::views::{BaseView, is_ascending, reshape_view};

/// How an operand of a product is had of an earlier value: reshaped, its dims moved, reshaped again; heads that are repeated are had
/// once.
#[derive(Clone, Debug)]
pub(super) struct Heads {
    /// The earlier value.
    pub root: ValueId,
    /// Its shape with dims cut so far that they are moved as a whole.
    cut: Vec<usize>,
    /// The order of these dims.
    order: Vec<usize>,
    /// Batch, time, heads and width.
    pub shape: [usize; 4],
}

/// What an operand of a product of matrices is: `[.., time, width]`, or turned.
#[derive(Clone, Copy)]
pub(super) struct Matrices<'a> {
    /// The dims of the product before its matrices.
    pub batch: &'a [usize],
    /// Whether the width comes first.
    pub turned: bool,
}

/// A value whose dims are dims of a root, of which some are repetitions.
#[derive(Clone)]
struct MovedValue {
    /// Extents of the root's dims, cut so far that they are moved as a whole, and behind them of repetitions.
    shape: Vec<usize>,
    /// Whether each is a repetition.
    repeated: Vec<bool>,
    /// The value's dims, made of these.
    view: BaseView,
}

impl Heads {
    /// How an operand of a product is had of a root by these ops, in order: transposes, reshapes and expansions. `None` where it is
    /// not, or where something but heads is repeated.
    pub fn from_moves(
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

    /// Appends what makes the operand of the op.
    pub fn push_operand(
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

    /// What an op makes of it; `None` where that is not made of whole dims.
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

    /// The operand of the op of matrices `[.., time, width]`, or turned.
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

    /// Heads that are repeated stand behind those that are not.
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

/// A value with its dims in another order.
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
