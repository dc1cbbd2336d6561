//! The functions of C by which products are computed: handles, the heuristic, the product itself.

use std::ffi::c_void;

use super::descriptors::{Layout, MatmulDescriptor, Preference, find};
use super::heuristic::{Algorithm, Choice, Pointers, choose, choose_for};
use super::offer::Offer;
use super::problem::Problem;
use super::product::{Product, Scalars, Workspace};
use super::types::{Refusal, Status, Vector, invalid, unsupported};
use crate::account;
use crate::work;

/// The object that `cublasLtHandle_t` points to; it outlives its destruction, so that a use after it is told.
#[derive(Debug)]
pub struct Handle {
    alive: bool,
    device: i32,
}

/// A handle for the device that is current.
///
/// # Safety
/// `handle` is null or a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtCreate(handle: *mut *mut Handle) -> i32 {
    if handle.is_null() {
        return Status::InvalidValue as i32;
    }
    let Some(device) = work::current_device() else {
        return refused("cublasLtCreate", no_device());
    };
    // SAFETY: not null, so a place.
    unsafe { *handle = Box::leak(Box::new(Handle { alive: true, device })) };
    Status::Success as i32
}

/// Ends a handle.
///
/// # Safety
/// `handle` is null or came from `cublasLtCreate`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtDestroy(handle: *mut Handle) -> i32 {
    // SAFETY: the caller's promise; handles are never freed.
    match unsafe { handle.as_mut() } {
        Some(handle) if handle.alive => {
            handle.alive = false;
            Status::Success as i32
        }
        _ => Status::InvalidValue as i32,
    }
}

/// Algorithms for a product, the best first.
///
/// # Safety
/// Pointers are null or point to what their types say; `results` has room for `requested`.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn cublasLtMatmulAlgoGetHeuristic(
    handle: *mut Handle,
    descriptor: *mut c_void,
    a: *mut c_void,
    b: *mut c_void,
    c: *mut c_void,
    d: *mut c_void,
    preference: *mut c_void,
    requested: i32,
    results: *mut Choice,
    returned: *mut i32,
) -> i32 {
    if returned.is_null() || results.is_null() || requested < 1 {
        return refused(HEURISTIC, invalid("no room for a result"));
    }
    // SAFETY: not null, so a place.
    unsafe { *returned = 0 };
    // SAFETY: the caller's promise.
    let choices = unsafe {
        described(handle, descriptor, [a, b, c, d]).and_then(|(descriptor, problem)| {
            let choices = choose(&problem, descriptor, preferred(preference)?)?;
            Ok((choices, Offer::get().unsupported.has(&problem, 0)))
        })
    };
    let (choices, unsupported) = match choices {
        Ok(choices) => choices,
        Err(refusal) => return refused(HEURISTIC, refusal),
    };
    if choices.is_empty() || unsupported {
        // As a test asks for it: nothing is wrong.
        return Status::NotSupported as i32;
    }
    let count = choices.len().min(requested as usize);
    for (place, choice) in choices.into_iter().take(count).enumerate() {
        // SAFETY: the array has room for what was requested.
        unsafe { results.add(place).write(choice) };
    }
    // SAFETY: not null, so a place.
    unsafe { *returned = count as i32 };
    Status::Success as i32
}

/// Returns a capability of an algorithm. Of all that may be asked there is only one: whether it writes the result beside a summand, 0 or 1.
///
/// # Safety
/// Pointers are null or point to what their types say, `buffer` to that many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulAlgoCapGetAttribute(
    algorithm: *const Algorithm,
    attribute: i32,
    buffer: *mut i32,
    bytes: usize,
    written: *mut usize,
) -> i32 {
    const OUT_OF_PLACE: i32 = 4;
    // SAFETY: the caller's promise.
    let (algorithm, buffer, written) =
        unsafe { (algorithm.as_ref(), buffer.as_mut(), written.as_mut()) };
    match (algorithm, buffer) {
        (Some(algorithm), Some(buffer)) if attribute == OUT_OF_PLACE && bytes == 4 => {
            *buffer = i32::from(algorithm.number() >= Offer::get().in_place);
            if let Some(written) = written {
                *written = 4;
            }
            Status::Success as i32
        }
        _ => Status::InvalidValue as i32,
    }
}

const HEURISTIC: &str = "cublasLtMatmulAlgoGetHeuristic";

/// Puts D = epilogue(alpha op(A) op(B) + beta C) on a stream.
///
/// # Safety
/// Pointers to the host's memory are null or point to what their types say.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn cublasLtMatmul(
    handle: *mut Handle,
    descriptor: *mut c_void,
    alpha: *const f32,
    a: *const c_void,
    a_layout: *mut c_void,
    b: *const c_void,
    b_layout: *mut c_void,
    beta: *const f32,
    c: *const c_void,
    c_layout: *mut c_void,
    d: *mut c_void,
    d_layout: *mut c_void,
    algorithm: *const Algorithm,
    workspace: *mut c_void,
    workspace_bytes: usize,
    stream: *mut c_void,
) -> i32 {
    if account::is_empty() {
        return work::nothing(stream);
    }
    // SAFETY: the caller's promise.
    let product = unsafe {
        described(handle, descriptor, [a_layout, b_layout, c_layout, d_layout]).and_then(
            |(descriptor, problem)| {
                if alpha.is_null() || beta.is_null() {
                    return Err(invalid("alpha or beta is null"));
                }
                let scalars = Scalars::of(problem.pointer_mode, alpha, beta);
                let (bias, aux) = (descriptor.bias_pointer, descriptor.aux_pointer);
                let operands = [a as u64, b as u64, c as u64, d as u64, bias, aux];
                let pointers = Pointers { operands, workspace: workspace as u64, workspace_bytes };
                product(problem, &pointers, scalars, algorithm.as_ref())
            },
        )
    };
    if let Ok(product) = &product
        && Offer::get().failing.has(&product.problem, product.algorithm)
    {
        // As a test asks for it: nothing is wrong.
        return Status::NotSupported as i32;
    }
    // SAFETY: the caller's promise; a handle was checked where there is a product.
    match product.and_then(|product| unsafe { launch(&*handle, product, stream) }) {
        Ok(()) => Status::Success as i32,
        Err(refusal) => refused("cublasLtMatmul", refusal),
    }
}

/// The product at its pointers by an algorithm, or by one that fits them.
fn product(
    problem: Problem,
    pointers: &Pointers,
    scalars: Scalars,
    algorithm: Option<&Algorithm>,
) -> Result<Product, Refusal> {
    check_pointers(&problem, pointers, scalars)?;
    check_overlaps(&problem, pointers)?;
    let algorithm = algorithm.copied().unwrap_or_else(|| choose_for(&problem, pointers));
    let used = algorithm.check(&problem, pointers)?;
    let workspace =
        Workspace { address: pointers.workspace, used, given: pointers.workspace_bytes };
    let algorithm = algorithm.number();
    let [_, _, c, d, ..] = pointers.operands;
    if c != d && reads_c(scalars) && algorithm < Offer::get().in_place {
        return Err(unsupported("an algorithm that writes D over C alone"));
    }
    Ok(Product { problem, operands: pointers.operands, scalars, workspace, algorithm })
}

fn reads_c(scalars: Scalars) -> bool {
    !matches!(scalars, Scalars::Values(_, 0.0))
}

fn check_pointers(problem: &Problem, pointers: &Pointers, scalars: Scalars) -> Result<(), Refusal> {
    let [a, b, c, d, vector, aux] = pointers.operands;
    let missing = [
        (a == 0, "A"),
        (b == 0, "B"),
        (c == 0 && reads_c(scalars), "C"),
        (d == 0, "D"),
        (vector == 0 && problem.epilogue.vector != Vector::None, "the bias"),
        (aux == 0 && problem.epilogue.aux, "the aux buffer"),
    ];
    match missing.iter().find(|(missing, _)| *missing) {
        Some((_, name)) => Err(invalid(format!("{name} is null"))),
        None => check_elements(problem, pointers),
    }
}

/// Pointers lie at multiples of their elements.
fn check_elements(problem: &Problem, pointers: &Pointers) -> Result<(), Refusal> {
    let [a, b, c, d] = [problem.a, problem.b, problem.c, problem.d].map(|matrix| matrix.element);
    for (address, element) in pointers.operands.iter().zip([a, b, c, d, d, d]) {
        if !address.is_multiple_of(element.bytes() as u64) {
            return Err(unsupported(format!("{element:?} at {address:#x}")));
        }
    }
    Ok(())
}

/// Checks that the memory that is written shares no byte with anything else that the product touches. D may be C, if it is laid out alike.
fn check_overlaps(problem: &Problem, pointers: &Pointers) -> Result<(), Refusal> {
    let [_, _, c, d, ..] = pointers.operands;
    if c == d && problem.c != problem.d {
        return Err(invalid("D is C, but their layouts differ"));
    }
    let parts = parts(problem, pointers);
    for (at, one) in parts.iter().enumerate() {
        for other in &parts[at + 1..] {
            let is_c = c == d && (one.name, other.name) == ("C", "D");
            let meet = one.bytes.start < other.bytes.end && other.bytes.start < one.bytes.end;
            if (one.written || other.written) && meet && !is_c {
                return Err(invalid(format!("{} overlaps {}", other.name, one.name)));
            }
        }
    }
    Ok(())
}

/// Memory that a product touches.
struct Part {
    name: &'static str,
    bytes: std::ops::Range<u64>,
    written: bool,
}

fn parts(problem: &Problem, pointers: &Pointers) -> Vec<Part> {
    let Problem { epilogue, batch, vector_stride, aux_stride, .. } = *problem;
    let size = problem.d.element.bytes();
    let vector = ((batch - 1) * vector_stride + problem.vector_length()) * size;
    let aux_step = if epilogue.masks() { aux_stride / 8 } else { aux_stride * size };
    let aux = if epilogue.aux { (batch - 1) * aux_step + problem.aux_bytes() } else { 0 };
    let of_matrices = [&problem.a, &problem.b, &problem.c, &problem.d].map(|m| m.bytes());
    let sums = !matches!(epilogue.vector, Vector::None | Vector::Bias);
    let names = ["A", "B", "C", "D", "the bias", "the aux buffer"];
    let written = [false, false, false, true, sums, epilogue.aux && !epilogue.reads_aux()];
    let bytes = of_matrices.into_iter().chain([vector, aux]);
    let all = names.into_iter().zip(pointers.operands).zip(bytes).zip(written);
    let part = |(((name, address), bytes), written): (((&'static str, u64), usize), bool)| Part {
        name,
        bytes: address..address + bytes as u64,
        written,
    };
    all.map(part).filter(|part| part.bytes.start != 0 && !part.bytes.is_empty()).collect()
}

fn launch(handle: &Handle, product: Product, stream: *mut c_void) -> Result<(), Refusal> {
    let failed = |reason: String| Refusal { status: Status::ExecutionFailed, reason };
    let device = work::device_of(stream);
    if device != handle.device {
        let owner = handle.device;
        return Err(failed(format!("the stream is of device {device}, the handle of {owner}")));
    }
    match work::submit(stream, Box::new(product)) {
        0 => Ok(()),
        error => Err(failed(format!("the stream refuses work: CUresult {error}"))),
    }
}

/// The descriptor and its problem, after a look at the handle.
///
/// # Safety
/// Pointers are null or point to what their names say.
unsafe fn described<'a>(
    handle: *mut Handle,
    descriptor: *mut c_void,
    layouts: [*mut c_void; 4],
) -> Result<(&'a MatmulDescriptor, Problem), Refusal> {
    // SAFETY: the caller's promise.
    let handle = unsafe { handle.as_ref() }.filter(|handle| handle.alive);
    let handle = handle.ok_or_else(|| Refusal {
        status: Status::NotInitialized,
        reason: "no handle, or one that was destroyed".into(),
    })?;
    match work::current_device() {
        None => return Err(no_device()),
        Some(device) if device != handle.device => {
            let reason = format!("device {device} is current, the handle is of {}", handle.device);
            return Err(Refusal { status: Status::ArchMismatch, reason });
        }
        Some(_) => {}
    }
    // SAFETY: the caller's promise.
    let descriptor = unsafe { find::<MatmulDescriptor>(descriptor) };
    let descriptor = descriptor.ok_or_else(|| invalid("no descriptor of a product"))?;
    // SAFETY: the caller's promise.
    let [a, b, c, d] = layouts.map(|layout| unsafe { find::<Layout>(layout) });
    let missing = || invalid("no layout, or one that was destroyed");
    let layouts: [&Layout; 4] = [
        a.ok_or_else(missing)?,
        b.ok_or_else(missing)?,
        c.ok_or_else(missing)?,
        d.ok_or_else(missing)?,
    ];
    Ok((descriptor, Problem::of(descriptor, layouts)?))
}

/// # Safety
/// `preference` is null or points to a preference.
unsafe fn preferred<'a>(preference: *mut c_void) -> Result<&'a Preference, Refusal> {
    // SAFETY: the caller's promise.
    unsafe { find::<Preference>(preference) }
        .map(|preference| &*preference)
        .ok_or_else(|| invalid("no preference, or one that was destroyed"))
}

fn no_device() -> Refusal {
    Refusal { status: Status::NotInitialized, reason: "no device is current".into() }
}

/// Says on standard error why a call is refused, and gives its status.
fn refused(call: &str, refusal: Refusal) -> i32 {
    eprintln!("gpu double: {call}: {:?}: {}", refusal.status, refusal.reason);
    refusal.status as i32
}
