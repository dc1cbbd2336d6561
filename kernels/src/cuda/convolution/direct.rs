//! A thread for each element of the result, or for as many channels as lie in 16 bytes where each is a group of its own.

use super::{Argument, BUSY, Call, Kind, Launch, THREADS, Work};

/// Places that a thread adds up at least before more threads are worth a second pass.
const EACH: usize = 32;

pub(super) fn call(work: &Work) -> Call {
    match work.kind {
        Kind::KernelGrad => sums(work),
        Kind::Forward | Kind::InputGrad => images(work),
    }
}

fn images(work: &Work) -> Call {
    let width = width(work);
    let source = work
        .source(include_str!("../cu/convolution_direct.cu"))
        .define("ELEMENTS", work.result)
        .define("WIDTH", width)
        .define("TAKES_PART", u8::from(work.takes_part()));
    let mut arguments = vec![Argument::operand(0), Argument::operand(1), Argument::result(0)];
    work.first_channel(&mut arguments);
    let blocks = work.result.div_ceil(THREADS * width);
    Call::of(vec![Launch::kernel(source, "convolution_direct", blocks, THREADS, arguments)])
}

/// How many channels a thread computes at once.
fn width(work: &Work) -> usize {
    let most = 16 / work.dtype.size();
    let channels = work.space.channels();
    match work.channels_last && work.space.is_depthwise() {
        true => (0..=3).map(|at| most >> at).find(|&w| channels.is_multiple_of(w)).unwrap_or(1),
        false => 1,
    }
}

fn sums(work: &Work) -> Call {
    let elements = work.kernel_elements();
    let count = work.space.batch * work.space.places();
    let chunks = (BUSY / elements).clamp(1, count.div_ceil(EACH)).min(u16::MAX.into());
    let chunk = count.div_ceil(chunks);
    let chunks = count.div_ceil(chunk);
    let source = work
        .source(include_str!("../cu/convolution_sums.cu"))
        .define("ELEMENTS", elements)
        .define("COUNT", count)
        .define("CHUNK", chunk);
    let arguments = vec![Argument::operand(0), Argument::operand(1), Argument::scratch(0)];
    let blocks = elements.div_ceil(THREADS);
    let first = Launch::kernel(source, "convolution_sums", blocks, THREADS, arguments).rows(chunks);
    let partial = "(((INDEX)(tap) * INPUTS + (c)) * (GROUPS * OUTPUTS) + (o))";
    let mut call = Call::of(vec![first, work.join(partial, chunks, 0)]);
    call.scratch = chunks * elements * size_of::<f32>();
    call
}
