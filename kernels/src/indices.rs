//! Labels and rows: indices that come with the data, checked one by one.

use graphc_ir::mesh::unravel_position;

use crate::error::KernelError;
use crate::view::View;

/// A tensor of indices into `0..range`.
pub(crate) struct IndexView<'a> {
    what: &'static str,
    view: View<'a>,
    values: &'a [i64],
    range: usize,
    ignored: Option<i64>,
}

impl<'a> IndexView<'a> {
    pub(crate) fn new(
        what: &'static str,
        view: &View<'a>,
        range: usize,
        ignored: Option<i64>,
    ) -> Result<Self, KernelError> {
        Ok(Self { what, view: *view, values: view.as_slice()?, range, ignored })
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// The index at a position of the shard; `None` where it is ignored.
    pub(crate) fn index_at(&self, position: usize) -> Result<Option<usize>, KernelError> {
        let index = self.values[position];
        match usize::try_from(index) {
            Ok(index) if index < self.range => Ok(Some(index)),
            _ if self.ignored == Some(index) => Ok(None),
            _ => {
                let local = unravel_position(position, self.view.shape);
                let position = local.iter().zip(self.view.origin).map(|(i, o)| i + o).collect();
                Err(KernelError::Index { what: self.what, index, range: self.range, position })
            }
        }
    }
}
