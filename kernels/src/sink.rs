//! The memory that a convolution writes its result to, and what is done with each part once it is there.

use std::ops::Range;

use graphc_ir::shard::split_range;

use crate::context::KernelContext;
use crate::elementwise::Following;
use crate::error::KernelError;
use crate::parallel::{self, with_rooms};
use crate::threads::ThreadPool;
use crate::view::{Element, OutputParts};

/// A kernel's result, which is written part by part, and the chain of ops that follows each part when it has been written.
#[derive(Clone, Copy)]
pub(crate) struct ResultSink<'a> {
    parts: OutputParts<'a>,
    chain: Option<&'a Following<'a>>,
}

impl<'a> ResultSink<'a> {
    /// A result that nothing follows.
    pub(crate) fn from_parts(parts: OutputParts<'a>) -> Self {
        Self { parts, chain: None }
    }

    /// A result whose parts go through a chain.
    pub(crate) fn followed_by(parts: OutputParts<'a>, chain: &'a Following<'a>) -> Self {
        Self { parts, chain: Some(chain) }
    }

    /// Returns the same result without the chain that follows.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn without_followers(self) -> Self {
        Self { chain: None, ..self }
    }

    /// Whether something is done with its parts.
    pub(crate) fn is_followed(&self) -> bool {
        self.chain.is_some()
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.parts.len()
    }

    /// The address of the first element.
    ///
    /// # Errors
    /// Returns an error if the element type is another.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn ptr<T: Element>(&self) -> Result<*mut T, KernelError> {
        self.parts.ptr()
    }

    /// Elements to be written.
    ///
    /// # Safety
    /// Nobody else reaches them while they are borrowed.
    pub(crate) unsafe fn part<T: Element>(
        &self,
        range: Range<usize>,
    ) -> Result<&'a mut [T], KernelError> {
        // SAFETY: as the caller says.
        unsafe { self.parts.part(range) }.into_slice()
    }

    /// Returns the number of words of memory that [`ResultSink::follow_part`] works in.
    pub(crate) fn scratch_words(&self) -> usize {
        self.chain.map_or(0, Following::words)
    }

    /// Does with a part, which is there, what is to be done.
    ///
    /// # Safety
    /// Applies the chain to a part of the result that has been written.
    pub(crate) unsafe fn follow_part(
        &self,
        range: Range<usize>,
        words: &mut [i64],
    ) -> Result<(), KernelError> {
        // SAFETY: as the caller says.
        self.chain.map_or(Ok(()), |chain| unsafe { chain.evaluate(range, words) })
    }

    /// Applies the chain to all elements, when they have all been written.
    pub(crate) fn finish(self, cx: &mut KernelContext<'_>) -> Result<(), KernelError> {
        let parts = parallel::count_parts(cx, self.len());
        self.finish_in((cx.pool, parts), cx.scratch.take::<i64>(parts * self.scratch_words()))
    }

    /// Like [`ResultSink::finish`], on `parts` threads. `words` holds [`ResultSink::scratch_words`] for each of them.
    pub(crate) fn finish_in(
        self,
        (pool, parts): (Option<&ThreadPool>, usize),
        words: &mut [i64],
    ) -> Result<(), KernelError> {
        if !self.is_followed() {
            return Ok(());
        }
        let ranges = (0..parts).map(|part| split_range(self.len(), parts, part));
        let pieces = with_rooms(ranges, words, self.scratch_words());
        // SAFETY: the ranges do not overlap, and who wrote the elements is done.
        parallel::run_parts(pool, pieces, &|(range, words)| unsafe {
            self.follow_part(range, words)
        })
    }
}
