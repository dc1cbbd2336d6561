//! Trials of the library's algorithms for a product: each is called a few times in a row, with the kernels that its result needs, on
//! memory of its own, between two events.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use graphc_kernels::cuda::{Argument, LaunchMemory, Matrix, MatrixProduct, Operands, Summed};

use super::driver::{CardBuffer, CardContext, Loaded, Queue, Trouble};
use super::mark::Mark;
use super::product::{Described, Multiplier, ProductAddresses};

/// The calls of an algorithm between two events, of products so small that events tell their time badly.
const CALLS: u32 = 5;
/// The FLOPs between two events at most, where more than one call would have more: a card takes a fraction of a millisecond for them.
const FLOPS: f64 = 1e11;
/// The number of such trials; the least time counts.
const TRIALS: usize = 3;
/// An algorithm goes before those that the library takes for faster where it takes at most so much of their time: less of a difference
/// is not worth another order of sums.
const GAIN: f64 = 0.98;
/// A byte of which elements of every type are numbers near one another, neither great nor 0.
const FILLING: u8 = 0x34;
/// The alignment of matrices, in bytes.
const ALIGNED: usize = 256;

/// Memory for a product, and a stream to make it on.
pub(super) struct Trial {
    queue: Queue,
    workspace: CardBuffer,
    /// The matrices, which the addresses below lead into.
    _memory: CardBuffer,
    places: ProductAddresses,
    /// The memory that kernels behind the product read and write.
    named: Vec<(LaunchMemory, u64)>,
    calls: u32,
}

impl Trial {
    /// Allocates a trial of a product; `None` where the card has not so much memory.
    ///
    /// # Errors
    /// Where the card has failed.
    pub(super) fn new(
        context: &Arc<CardContext>,
        product: &MatrixProduct,
    ) -> Result<Option<Self>, Trouble> {
        let queue = Queue::new(context)?;
        let bytes = product_bytes(product).map(|bytes| bytes.next_multiple_of(ALIGNED));
        let memory = CardBuffer::new(context, bytes.iter().sum());
        let (Ok(workspace), Ok(memory)) = (Multiplier::allocate_workspace(context), memory) else {
            return Ok(None);
        };
        queue.fill(memory.address(0, 0), FILLING, memory.bytes())?;
        let at = |part: usize| memory.address(bytes[..part].iter().sum(), 0);
        let epilogue = &product.epilogue;
        let places = ProductAddresses {
            a: at(0),
            b: at(1),
            out: at(2),
            added: epilogue.added.map(|_| at(2)),
            vector: epilogue.vector().map(|_| at(3)),
            kept: epilogue.kept.map(|_| at(4)),
        };
        let Operands { a, b, out, .. } = product.operands;
        let parts = [Some(a), Some(b), Some(out), epilogue.vector(), epilogue.kept];
        let named = (0..).zip(parts).filter_map(|(part, place)| Some((place?, at(part)))).collect();
        let calls = ((FLOPS / product_flops(product)) as u32).clamp(1, CALLS);
        Ok(Some(Self { queue, workspace, _memory: memory, places, named, calls }))
    }

    /// Times a call of an algorithm and of the kernels behind it; `None` where it is refused.
    ///
    /// # Errors
    /// Where the card has failed.
    pub(super) fn time_algorithm(
        &self,
        multiplier: &Multiplier,
        way: (&Described, usize),
        behind: &[(Loaded, Vec<Argument>)],
    ) -> Result<Option<Duration>, Trouble> {
        // The first calls load the kernel.
        let mut least = self.time_calls(multiplier, way, behind)?;
        for _ in 0..TRIALS {
            least = match (least, self.time_calls(multiplier, way, behind)?) {
                (Some(least), Some(time)) => Some(time.min(least)),
                _ => return Ok(None),
            };
        }
        Ok(least)
    }

    fn time_calls(
        &self,
        multiplier: &Multiplier,
        way: (&Described, usize),
        behind: &[(Loaded, Vec<Argument>)],
    ) -> Result<Option<Duration>, Trouble> {
        let context = self.queue.context();
        let [begin, end] = [Mark::new_timed(context)?, Mark::new_timed(context)?];
        self.queue.record_event(begin.raw())?;
        let mut refused = false;
        for _ in 0..self.calls {
            let called = multiplier.multiply(way, self.places, &self.queue, &self.workspace);
            refused |= called.is_err();
            behind
                .iter()
                .try_for_each(|(kernel, arguments)| self.launch_kernel(*kernel, arguments))?;
        }
        self.queue.record_event(end.raw())?;
        self.queue.finish()?;
        match refused {
            true => Ok(None),
            false => Ok(Some(begin.elapsed_until(&end)? / self.calls)),
        }
    }

    /// Launches a kernel behind the product, all of whose arguments are places of that.
    fn launch_kernel(&self, kernel: Loaded, arguments: &[Argument]) -> Result<(), Trouble> {
        let address = |argument: &Argument| {
            let known = |&&(place, _): &&(LaunchMemory, u64)| *argument == Argument::Address(place);
            self.named.iter().find(known).map(|&(_, address)| address)
        };
        let values: Option<Vec<u64>> = arguments.iter().map(address).collect();
        let unknown = || Trouble::from_text("a kernel behind a product has other memory".into());
        let mut values = values.ok_or_else(unknown)?;
        let mut pointers: Vec<*mut c_void> =
            values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
        self.queue.launch(kernel, &mut pointers)
    }
}

/// Returns the FLOPs of all products of all rows.
fn product_flops(product: &MatrixProduct) -> f64 {
    let MatrixProduct { rows, inner, columns, batch, ref starts, .. } = *product;
    let extents = [rows, inner, columns, batch, starts.len()];
    2.0 * extents.map(|extent| extent as f64).iter().product::<f64>()
}

/// Finds the number of the fastest.
pub(super) fn find_fastest(times: &[Option<Duration>]) -> Option<usize> {
    let timed = times.iter().enumerate().filter_map(|(number, time)| Some((number, (*time)?)));
    let timed = timed.map(|(number, time): (usize, Duration)| (number, time.as_secs_f64()));
    let faster = |best: (usize, f64), next: (usize, f64)| {
        if next.1 < best.1 * GAIN { next } else { best }
    };
    timed.reduce(faster).map(|(number, _)| number)
}

/// Formats the times in microseconds, for a message.
pub(super) fn format_times(times: &[Option<Duration>]) -> String {
    let told = |time: &Option<Duration>| match time {
        Some(time) => format!("{:.1}", time.as_secs_f64() * 1e6),
        None => "refused".to_owned(),
    };
    times.iter().map(told).collect::<Vec<_>>().join(", ")
}

/// Returns the bytes of both factors, of the result, of a vector for its columns or rows, and of what is kept.
fn product_bytes(product: &MatrixProduct) -> [usize; 5] {
    let MatrixProduct { rows, inner, columns, batch, ref starts, ref epilogue, .. } = *product;
    let [factor, made] = [product.operands.dtype, product.operands.made].map(|dtype| dtype.size());
    let extent = |part: usize, matrix: &Matrix, [rows, columns]: [usize; 2]| {
        let lines = if matrix.by_columns { columns } else { rows };
        let last = starts.iter().map(|start| start[part]).max().unwrap_or(0);
        last + (batch - 1) * matrix.stride + lines * matrix.leading
    };
    let vector = match epilogue.sums {
        Some((Summed::First, _)) => rows,
        Some((Summed::Second | Summed::Result, _)) | None => columns,
    };
    let kept = if epilogue.kept.is_some() { rows * columns } else { 0 };
    [
        extent(0, &product.a, [rows, inner]) * factor,
        extent(1, &product.b, [inner, columns]) * factor,
        extent(2, &product.out, [rows, columns]) * made,
        vector * made,
        kept * made,
    ]
}

#[cfg(test)]
mod tests {
    use graphc_ir::types::DType;
    use graphc_kernels::cuda::{CallRegister, Epilogue};

    use super::*;

    #[test]
    fn all_rows_of_products_count() {
        let matrix = Matrix { by_columns: false, leading: 100, stride: 0 };
        let place = LaunchMemory::Slot(CallRegister::Operand(0));
        let operands =
            Operands { dtype: DType::F32, made: DType::F32, a: place, b: place, out: place };
        let product = MatrixProduct {
            rows: 100,
            inner: 100,
            columns: 100,
            a: matrix,
            b: matrix,
            out: matrix,
            batch: 2,
            starts: vec![[0; 3]; 3],
            operands,
            epilogue: Epilogue::default(),
            instead: Vec::new(),
        };
        assert_eq!(product_flops(&product), 12e6);
    }

    #[test]
    fn the_first_is_taken_unless_another_is_clearly_faster() {
        let fastest = |times: &[u64]| {
            let time = |&us: &u64| (us > 0).then(|| Duration::from_micros(us));
            super::find_fastest(&times.iter().map(time).collect::<Vec<_>>())
        };
        assert_eq!(fastest(&[100, 99, 120]), Some(0));
        assert_eq!(fastest(&[100, 90, 89]), Some(1));
        assert_eq!(fastest(&[0, 300, 200]), Some(2), "what is refused has no time");
        assert_eq!(fastest(&[0, 0]), None);
    }
}
