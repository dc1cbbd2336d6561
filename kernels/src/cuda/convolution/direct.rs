//! A thread for each element of the result, or for as many channels as lie in 16 bytes where each is a group of its own.

use super::{Argument, BUSY, Call, ConvolutionKind, ConvolutionWork, Join, Launch, THREADS};

/// Places that a thread adds up at least before more threads are worth a second pass.
const EACH: usize = 32;

pub(super) fn prepare_direct(work: &ConvolutionWork) -> Call {
    match work.kind {
        ConvolutionKind::KernelGrad => prepare_sums(work),
        ConvolutionKind::Forward | ConvolutionKind::InputGrad => prepare_images(work),
    }
}

fn prepare_images(work: &ConvolutionWork) -> Call {
    let width = channels_per_thread(work);
    let source = work
        .build_source(include_str!("../cu/convolution_direct.cu"))
        .define("ELEMENTS", work.result)
        .define("WIDTH", width)
        .define("TAKES_PART", u8::from(work.takes_part()));
    let mut arguments = vec![Argument::operand(0), Argument::operand(1), Argument::result(0)];
    work.first_channel(&mut arguments);
    let blocks = work.result.div_ceil(THREADS * width);
    Call::from_launches(vec![Launch::kernel(
        source,
        "convolution_direct",
        blocks,
        THREADS,
        arguments,
    )])
}

/// Returns the number of channels that a thread computes at once.
fn channels_per_thread(work: &ConvolutionWork) -> usize {
    let most = 16 / work.dtype.size();
    let channels = work.space.input_channels();
    match work.channels_last && work.space.is_depthwise() {
        true => (0..=3).map(|at| most >> at).find(|&w| channels.is_multiple_of(w)).unwrap_or(1),
        false => 1,
    }
}

fn prepare_sums(work: &ConvolutionWork) -> Call {
    let elements = work.kernel_elements();
    let count = work.space.batch * work.space.output_places();
    let chunks = (BUSY / elements).clamp(1, count.div_ceil(EACH)).min(u16::MAX.into());
    let chunk = count.div_ceil(chunks);
    let chunks = count.div_ceil(chunk);
    let source = work
        .build_source(include_str!("../cu/convolution_sums.cu"))
        .define("ELEMENTS", elements)
        .define("COUNT", count)
        .define("CHUNK", chunk);
    let arguments = vec![Argument::operand(0), Argument::operand(1), Argument::scratch(0)];
    let blocks = elements.div_ceil(THREADS);
    let first =
        Launch::kernel(source, "convolution_sums", blocks, THREADS, arguments).with_rows(chunks);
    let partial = "(((INDEX)(tap) * INPUTS + (c)) * (GROUPS * OUTPUTS) + (o))";
    let join = work.launch_join(&Join { partial, chunks, ..work.whole_join(0) });
    let mut call = Call::from_launches(vec![first, join]);
    call.scratch = chunks * elements * size_of::<f32>();
    call
}
