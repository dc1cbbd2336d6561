//! Trials of calls that are no op: rectangles of boxing, accumulators, identities, and chains that begin with a convolution.

use graphc_ir::sbp::ReduceKind;
use graphc_ir::types::{DType, TensorType};

use crate::calls::{self, Executed, IDENTITIES, accumulations, filling, headed};
use crate::groups::Made;
use crate::rectangles::{ODD, Part, WIDE};
use crate::trial::Trial;

/// The element types that boxing moves and joins.
pub const MOVED: [DType; 7] =
    [DType::F32, DType::BF16, DType::F16, DType::I64, DType::I32, DType::U8, DType::Bool];

/// A trial of a call that is made when it is its turn.
fn made(name: String, make: impl FnOnce() -> Executed + 'static) -> Made {
    Box::new(move |_| Trial::of_call(name, make()))
}

/// Rectangles as boxing moves and joins them.
pub fn rectangles() -> Vec<Made> {
    let both = [WIDE, ODD].into_iter();
    both.flat_map(|(parts, extent)| {
        MOVED.into_iter().flat_map(move |dtype| rectangles_of(dtype, parts, extent))
    })
    .collect()
}

/// Makes trials of rectangles at the sizes of layers.
pub fn real_rectangles(dtype: DType) -> Vec<Made> {
    let parts = [([64, 512, 768], [3, 128, 256]), ([60, 200, 300], [1, 40, 44])];
    rectangles_of(dtype, parts, [50, 150, 256]).into()
}

fn rectangles_of(dtype: DType, parts: [Part; 2], extent: [usize; 3]) -> [Made; 4] {
    let kinds = [None, Some(ReduceKind::Sum), Some(ReduceKind::Max), Some(ReduceKind::Min)];
    kinds.map(|kind| {
        let how = kind.map_or("copied".to_owned(), |kind| format!("joined by {kind:?}"));
        let name = format!("rectangle of {dtype} {extent:?} {how}");
        made(name, move || calls::rectangle(dtype, parts, extent, kind))
    })
}

/// Accumulators of microbatches.
pub fn accumulators() -> Vec<Made> {
    let types = [DType::F32, DType::BF16, DType::F16, DType::I64, DType::I32];
    types.into_iter().flat_map(|dtype| accumulators_of(TensorType::new(dtype, [3, 37]))).collect()
}

fn accumulators_of(of: TensorType) -> [Made; 2] {
    [0, 1].map(|which: usize| {
        let (of, how) = (of.clone(), ["overwritten", "added to"][which]);
        let name = format!("accumulator of {} {:?} {how}", of.dtype, of.shape);
        made(name, move || {
            let [first, later] = accumulations(&of);
            if which == 0 { first } else { later }
        })
    })
}

/// Memory that is filled before something is joined with it.
pub fn identities() -> Vec<Made> {
    let types = [DType::F32, DType::BF16, DType::F16, DType::I64, DType::I32, DType::U8];
    let all = types.into_iter().flat_map(|dtype| IDENTITIES.map(|value| (dtype, value)));
    all.map(|(dtype, value)| {
        made(format!("{dtype} filled with {value:e}"), move || filling(dtype, 1003, value))
    })
    .collect()
}

/// Chains that begin with a convolution.
pub fn headed_chains() -> Vec<Made> {
    let forms = [(DType::F32, false), (DType::F32, true), (DType::BF16, false), (DType::F16, true)];
    let all = forms.into_iter().flat_map(|form| [3, 1].map(|extent| (form, extent)));
    all.map(|(form, extent)| headed_chain(form, [2, 7, 6, 5], [12, 2, extent])).collect()
}

fn headed_chain((dtype, is_kept): (DType, bool), image: [usize; 4], kernels: [usize; 3]) -> Made {
    let near = match dtype {
        DType::F32 => 2e-5,
        DType::F16 => 4e-3,
        _ => 2e-2,
    };
    Box::new(move |threads| Trial::of_headed(headed(dtype, image, kernels, is_kept), near, threads))
}

/// Other calls at the sizes of layers.
pub fn real() -> Vec<Made> {
    let mut all: Vec<Made> = accumulators_of(TensorType::new(DType::F32, [3072, 769])).into();
    all.extend(accumulators_of(TensorType::new(DType::BF16, [3072, 768])));
    all.push(made("f32 filled with 0".into(), || filling(DType::F32, 9_000_001, 0.0)));
    for form in [(DType::BF16, false), (DType::F32, true)] {
        all.push(headed_chain(form, [8, 28, 28, 128], [128, 1, 3]));
    }
    all
}
