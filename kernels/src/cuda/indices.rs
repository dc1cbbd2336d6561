//! Labels, rows, experts and other indices that come with the data and are checked by the kernels that read them.

use super::Shard;
use super::call::{Argument, Call, Checked, Launch};
use super::source::KernelSource;

/// Threads of a block.
const THREADS: usize = 256;

/// An operand of indices.
#[derive(Clone, Debug)]
pub(super) struct IndexShard {
    what: &'static str,
    operand: usize,
    count: usize,
    range: usize,
    ignored: Option<i64>,
}

impl IndexShard {
    /// Indices into `0..range`, of which each is called `what`.
    pub(super) fn new(
        what: &'static str,
        operands: &[Shard],
        operand: usize,
        range: usize,
        ignored: Option<i64>,
    ) -> Self {
        Self { what, operand, count: operands[operand].elements(), range, ignored }
    }

    /// Kernels in `text` that read them, which stands behind `cu/indices.cuh`; their last two arguments are [`IndexShard::fault_arguments`].
    pub(super) fn build_source(&self, text: &str) -> KernelSource {
        let source = KernelSource::new(format!("{}\n{text}", include_str!("cu/indices.cuh")));
        self.define(source)
    }

    /// The macros alone.
    pub(super) fn define(&self, source: KernelSource) -> KernelSource {
        let source = source.define("RANGE", format!("{}ll", self.range));
        match self.ignored {
            Some(ignored) => source.define("IGNORED", format!("{ignored}ll")),
            None => source,
        }
    }

    /// Returns the arguments with which a kernel reports an index that is out of range.
    pub(super) fn fault_arguments() -> [Argument; 2] {
        [Argument::Fault, Argument::Call]
    }

    /// A call whose kernels check the indices.
    pub(super) fn prepare_call(self, launches: Vec<Launch>) -> Call {
        let mut call = Call::from_launches(launches);
        let Self { what, operand, range, .. } = self;
        call.checked = Some(Checked { what, operand, range });
        call
    }

    /// A call that checks the indices and does nothing else.
    pub(super) fn prepare_check(self) -> Call {
        if self.count == 0 {
            return Call::empty();
        }
        let source = self.build_source(include_str!("cu/check.cu")).define("COUNT", self.count);
        let mut arguments = vec![Argument::operand(self.operand)];
        arguments.extend(Self::fault_arguments());
        let blocks = self.count.div_ceil(THREADS);
        let launch = Launch::kernel(source, "check", blocks, THREADS, arguments);
        self.prepare_call(vec![launch])
    }
}
