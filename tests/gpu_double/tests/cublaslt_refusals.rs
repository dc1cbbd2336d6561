//! Refusals of cuBLASLt, by status. Sizes of attributes, and what ends well on null, are as NVIDIA's library 13.4 has
//! them, which checks descriptors without a card.
#![allow(clippy::undocumented_unsafe_blocks)]

mod matmul;
mod programs;

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use gpu_double::cublaslt::exports::*;
use gpu_double::cublaslt::settings::*;
use matmul::{Described, set_layout, set_matmul, set_preference};
use programs::{room, stream, use_device};

const SUCCESS: i32 = 0;
const NOT_INITIALIZED: i32 = 1;
const ALLOC_FAILED: i32 = 3;
const INVALID_VALUE: i32 = 7;
const ARCH_MISMATCH: i32 = 8;
const EXECUTION_FAILED: i32 = 13;
const NOT_SUPPORTED: i32 = 15;

type Set = unsafe extern "C" fn(*mut c_void, i32, *const c_void, usize) -> i32;
type Get = unsafe extern "C" fn(*mut c_void, i32, *mut c_void, usize, *mut usize) -> i32;

/// Checks that each attribute takes exactly its size, gives it back, and says it where 0 bytes are asked for.
fn check_sizes(descriptor: *mut c_void, set: Set, get: Get, sizes: &[(i32, usize)]) {
    for attribute in -1..45 {
        let known = sizes.iter().find(|(number, _)| *number == attribute).map(|(_, size)| *size);
        let mut buffer = [1u8; 16];
        let mut written = 99;
        for size in [1, 2, 4, 8, 16] {
            let expected = if known == Some(size) { SUCCESS } else { INVALID_VALUE };
            let status = unsafe { set(descriptor, attribute, buffer.as_ptr().cast(), size) };
            assert_eq!(status, expected, "attribute {attribute} of {size} bytes");
            let place = buffer.as_mut_ptr().cast();
            let status = unsafe { get(descriptor, attribute, place, size, &mut written) };
            assert_eq!(status, expected, "attribute {attribute} of {size} bytes");
        }
        let status = unsafe { get(descriptor, attribute, null_mut(), 0, &mut written) };
        assert_eq!((status, written), known.map_or((INVALID_VALUE, 99), |size| (SUCCESS, size)));
    }
    assert_eq!(unsafe { set(descriptor, 0, null(), 4) }, INVALID_VALUE);
    assert_eq!(unsafe { set(null_mut(), 0, [0u8; 4].as_ptr().cast(), 4) }, INVALID_VALUE);
}

#[test]
fn attributes_of_products_have_their_sizes() {
    let four = [0, 1, 2, 3, 4, 5, 6, 7, 15, 22, 26, 31, 32, 33, 34, 35, 37];
    let eight = [8, 10, 11, 12, 13, 14, 17, 18, 19, 20, 21, 23, 24, 36, 39, 40];
    let mut sizes: Vec<(i32, usize)> = four.map(|attribute| (attribute, 4)).to_vec();
    sizes.extend(eight.map(|attribute| (attribute, 8)));
    sizes.push((25, 1));
    let mut descriptor = null_mut();
    assert_eq!(unsafe { cublasLtMatmulDescCreate(&mut descriptor, 68, 0) }, SUCCESS);
    let (set, get) = (cublasLtMatmulDescSetAttribute, cublasLtMatmulDescGetAttribute);
    check_sizes(descriptor, set, get, &sizes);
}

#[test]
fn attributes_of_layouts_and_preferences_have_their_sizes() {
    let mut layout = null_mut();
    assert_eq!(unsafe { cublasLtMatrixLayoutCreate(&mut layout, 0, 4, 4, 4) }, SUCCESS);
    let (set, get) = (cublasLtMatrixLayoutSetAttribute, cublasLtMatrixLayoutGetAttribute);
    let sizes = [(0, 4), (1, 4), (2, 8), (3, 8), (4, 8), (5, 4), (6, 8), (7, 8), (8, 4)];
    check_sizes(layout, set, get, &sizes);
    let mut preference = null_mut();
    assert_eq!(unsafe { cublasLtMatmulPreferenceCreate(&mut preference) }, SUCCESS);
    let (set, get) = (cublasLtMatmulPreferenceSetAttribute, cublasLtMatmulPreferenceGetAttribute);
    let sizes = [(0, 4), (1, 8), (3, 4), (5, 4), (6, 4), (7, 4), (8, 4), (9, 4), (12, 8)];
    check_sizes(preference, set, get, &sizes);
}

#[test]
fn descriptors_take_any_value_and_end_once() {
    let mut layout = null_mut();
    unsafe {
        assert_eq!(cublasLtMatrixLayoutCreate(&mut layout, 99, 0, 0, -1), SUCCESS);
        assert_eq!(cublasLtMatrixLayoutCreate(null_mut(), 0, 4, 4, 4), INVALID_VALUE);
        assert_eq!(cublasLtMatmulDescDestroy(layout), INVALID_VALUE);
        assert_eq!(cublasLtMatrixLayoutDestroy(layout), SUCCESS);
        assert_eq!(cublasLtMatrixLayoutDestroy(layout), INVALID_VALUE);
        assert_eq!(cublasLtMatrixLayoutDestroy(null_mut()), SUCCESS);
        let mut place = [0u64; 32];
        let room = place.as_mut_ptr().cast();
        assert_eq!(cublasLtMatmulDescInit_internal(room, 8, 68, 0), ALLOC_FAILED);
        assert_eq!(cublasLtMatmulDescInit_internal(room, 256, 68, 0), SUCCESS);
        assert_eq!(cublasLtMatrixLayoutInit_internal(room, 112, 0, 4, 4, 4), SUCCESS);
        assert_eq!(cublasLtMatmulPreferenceInit_internal(room, 96), SUCCESS);
    }
}

#[test]
fn handles_are_of_the_device_that_is_current() {
    let mut handle = null_mut();
    assert_eq!(unsafe { cublasLtCreate(&mut handle) }, NOT_INITIALIZED);
    use_device(0);
    let prepared = Described::new(4, 4, 4, 0).prepare(1.0, 0.0);
    let stream_of_0 = stream();
    use_device(1);
    assert_eq!(prepared.launch(stream_of_0), ARCH_MISMATCH);
    let stream_of_1 = stream();
    use_device(0);
    assert_eq!(prepared.launch(stream_of_1), EXECUTION_FAILED);
    assert_eq!(unsafe { cublasLtDestroy(prepared.handle) }, SUCCESS);
    assert_eq!(unsafe { cublasLtDestroy(prepared.handle) }, INVALID_VALUE);
    assert_eq!(unsafe { cublasLtDestroy(null_mut()) }, INVALID_VALUE);
    assert_eq!(prepared.launch(stream_of_0), NOT_INITIALIZED);
    assert_eq!(prepared.choose(0).err(), Some(NOT_INITIALIZED));
}

/// The status of the heuristic, and of the product itself, after a change; both are the same.
fn status(described: &Described, change: impl FnOnce(*mut c_void, [*mut c_void; 4])) -> i32 {
    use_device(0);
    let prepared = described.prepare(1.0, 0.0);
    change(prepared.descriptor, prepared.layouts);
    let status = prepared.choose(0).err().unwrap_or(SUCCESS);
    assert_eq!(prepared.launch(stream()), status);
    status
}

#[test]
fn layouts_must_fit_each_other() {
    let plain = Described::new(4, 6, 8, 0);
    assert_eq!(status(&plain, |_, _| ()), SUCCESS);
    assert_eq!(status(&plain, |d, _| set_matmul(d, 3, &1i32)), INVALID_VALUE);
    assert_eq!(status(&plain, |_, [_, b, ..]| set_layout(b, 2, &7u64)), INVALID_VALUE);
    assert_eq!(status(&plain, |_, [_, _, c, _]| set_layout(c, 3, &5u64)), INVALID_VALUE);
    assert_eq!(status(&plain, |_, [a, ..]| set_layout(a, 4, &3i64)), INVALID_VALUE);
    assert_eq!(status(&plain, |_, [a, ..]| set_layout(a, 4, &-4i64)), INVALID_VALUE);
    assert_eq!(status(&plain, |_, [a, ..]| set_layout(a, 5, &2i32)), INVALID_VALUE);
    assert_eq!(status(&plain, |_, [a, ..]| set_layout(a, 5, &0i32)), INVALID_VALUE);
    let empty = |_, layouts: [*mut c_void; 4]| {
        [0, 2, 3].iter().for_each(|matrix| set_layout(layouts[*matrix], 2, &0u64));
    };
    assert_eq!(status(&plain, empty), INVALID_VALUE);
    let overlapping = |_, layouts: [*mut c_void; 4]| {
        layouts.iter().for_each(|layout| set_layout(*layout, 5, &2i32));
        set_layout(layouts[3], 6, &23i64);
    };
    assert_eq!(status(&plain, overlapping), INVALID_VALUE);
    assert_eq!(status(&plain, |_, [a, ..]| set_layout(a, 1, &2i32)), NOT_SUPPORTED);
    assert_eq!(status(&plain, |_, [a, ..]| set_layout(a, 7, &64i64)), NOT_SUPPORTED);
}

#[test]
fn types_must_go_together() {
    let plain = Described::new(4, 4, 4, 0);
    assert_eq!(status(&plain, |_, [a, ..]| set_layout(a, 0, &14i32)), NOT_SUPPORTED);
    assert_eq!(status(&plain, |_, [.., d]| set_layout(d, 0, &14i32)), NOT_SUPPORTED);
    assert_eq!(status(&plain, |_, [a, ..]| set_layout(a, 0, &1i32)), NOT_SUPPORTED);
    assert_eq!(status(&plain, |d, _| set_matmul(d, 0, &64i32)), NOT_SUPPORTED);
    assert_eq!(status(&plain, |d, _| set_matmul(d, 1, &2i32)), NOT_SUPPORTED);
    let halves = Described::new(4, 4, 4, 14);
    assert_eq!(status(&halves, |d, _| set_matmul(d, 0, &77i32)), NOT_SUPPORTED);
    let mut mixed = Described::new(4, 4, 4, 2);
    mixed.result = 14;
    assert_eq!(status(&mixed, |_, _| ()), NOT_SUPPORTED);
}

#[test]
fn attributes_must_make_sense() {
    let plain = Described::new(4, 4, 4, 0);
    for (attribute, value, expected) in [
        (2, 3, NOT_SUPPORTED),
        (2, 9, INVALID_VALUE),
        (3, 3, INVALID_VALUE),
        (5, 1, NOT_SUPPORTED),
        (6, 0, NOT_SUPPORTED),
        (7, 3, INVALID_VALUE),
        (31, 1, NOT_SUPPORTED),
    ] {
        let found = status(&plain, |d, _| set_matmul(d, attribute, &value));
        assert_eq!(found, expected, "attribute {attribute} is {value}");
    }
    assert_eq!(status(&plain, |d, _| set_matmul(d, 17, &4096u64)), INVALID_VALUE);
    assert_eq!(status(&plain, |d, _| set_matmul(d, 25, &1i8)), NOT_SUPPORTED);
}

#[test]
fn epilogues_have_their_conditions() {
    let with = |epilogue| Described { epilogue, ..Described::new(24, 4, 8, 0) };
    // Masks have columns of whole 128 bits, kept values of whole 8.
    for (epilogue, good, bad) in [(130, 128, 64), (136, 128, 24), (160, 24, 28), (192, 32, 16)] {
        let ld = |ld: i64| {
            status(&with(epilogue), |d, _| {
                set_matmul(d, 12, &ld);
                set_matmul(d, 13, &(ld * 8));
            })
        };
        assert_eq!((ld(good), ld(bad), ld(0)), (SUCCESS, INVALID_VALUE, INVALID_VALUE));
    }
    assert_eq!(status(&with(4), |d, _| set_matmul(d, 26, &0i32)), SUCCESS);
    assert_eq!(status(&with(4), |d, _| set_matmul(d, 26, &14i32)), NOT_SUPPORTED);
    assert_eq!(status(&with(130), |d, _| set_matmul(d, 22, &0i32)), NOT_SUPPORTED);
    let rows = Described { rows_first: [true; 4], ..with(4) };
    assert_eq!(status(&rows, |_, _| ()), NOT_SUPPORTED);
    let batch = Described { batch: 2, epilogue: 256, ..Described::new(8, 8, 8, 0) };
    assert_eq!(status(&batch, |_, _| ()), SUCCESS);
    assert_eq!(status(&batch, |d, _| set_matmul(d, 10, &0i64)), INVALID_VALUE);
}

#[test]
fn pointers_are_there_and_aligned_as_was_told() {
    use_device(0);
    let described = Described { epilogue: 4, ..Described::new(4, 4, 4, 0) };
    let mut prepared = described.prepare(1.0, 1.0);
    let stream = stream();
    let chosen = prepared.choose(0).expect("an algorithm").algorithm;
    for operand in 0..4 {
        let address = std::mem::replace(&mut prepared.operands[operand], 0);
        assert_eq!(prepared.launch_by(&chosen, 0, 0, stream), INVALID_VALUE);
        prepared.operands[operand] = room(128) + 16;
        assert_eq!(prepared.launch_by(&chosen, 0, 0, stream), NOT_SUPPORTED);
        prepared.operands[operand] = address;
    }
    set_matmul(prepared.descriptor, 8, &(prepared.operands[4] + 4));
    assert_eq!(prepared.launch_by(&chosen, 0, 0, stream), NOT_SUPPORTED);
    set_matmul(prepared.descriptor, 8, &0u64);
    assert_eq!(prepared.launch(stream), INVALID_VALUE);
}

#[test]
fn a_smaller_alignment_is_enough_where_it_was_told() {
    use_device(0);
    let mut prepared = Described::new(4, 4, 4, 0).prepare(1.0, 0.0);
    let mut preference = null_mut();
    assert_eq!(unsafe { cublasLtMatmulPreferenceCreate(&mut preference) }, SUCCESS);
    set_preference(preference, 8, &16u32);
    let chosen = prepared.choose_by(preference).expect("an algorithm").algorithm;
    prepared.operands[3] = room(128) + 16;
    assert_eq!(prepared.launch_by(&chosen, 0, 0, stream()), SUCCESS);
    set_preference(preference, 8, &2u32);
    assert_eq!(prepared.choose_by(preference).err(), Some(NOT_SUPPORTED));
    set_preference(preference, 8, &48u32);
    assert_eq!(prepared.choose_by(preference).err(), Some(NOT_SUPPORTED));
}

#[test]
fn results_overlap_no_operand() {
    use_device(0);
    let mut prepared = Described::new(8, 8, 8, 0).prepare(1.0, 1.0);
    let stream = stream();
    let [a, b, c, d, ..] = prepared.operands;
    for (result, expected) in [
        (a, INVALID_VALUE),
        (b, INVALID_VALUE),
        (b.wrapping_add(128), INVALID_VALUE),
        (c + 128, INVALID_VALUE),
        (c, SUCCESS),
        (d, SUCCESS),
    ] {
        prepared.operands[3] = result;
        assert_eq!(prepared.launch(stream), expected);
    }
    prepared.operands[3] = c;
    set_layout(prepared.layouts[2], 4, &9i64);
    assert_eq!(prepared.launch(stream), INVALID_VALUE);
}

/// Aux buffers and vectors that are written share no byte with anything else, and those that are read none with the result.
#[test]
fn what_epilogues_touch_is_apart() {
    use_device(0);
    let stream = stream();
    for (epilogue, attribute) in [(4, 8), (164, 11), (192, 11), (208, 8), (256, 8), (512, 8)] {
        let described = Described { epilogue, ..Described::new(8, 8, 8, 0) };
        let prepared = described.prepare(1.0, 1.0);
        let [a, _, c, d, vector, aux] = prepared.operands;
        let own = if attribute == 8 { vector } else { aux };
        // A bias, and what a gradient is taken at, are only read.
        let reads = [4, 192].contains(&epilogue);
        let beside = if reads { SUCCESS } else { INVALID_VALUE };
        for (place, expected) in
            [(a, beside), (c, beside), (d, INVALID_VALUE), (d + 64, INVALID_VALUE), (own, SUCCESS)]
        {
            set_matmul(prepared.descriptor, attribute, &place);
            assert_eq!(prepared.launch(stream), expected, "epilogue {epilogue}");
        }
        set_matmul(prepared.descriptor, attribute, &(own + 2));
        assert_eq!(prepared.launch(stream), NOT_SUPPORTED, "epilogue {epilogue}");
    }
}

#[test]
fn an_algorithm_gets_its_workspace() {
    use_device(0);
    let prepared = Described::new(16, 16, 16, 0).prepare(1.0, 0.0);
    let stream = stream();
    let chosen = prepared.choose(1 << 20).expect("an algorithm");
    assert_eq!(chosen.workspace, 1024);
    let workspace = room(4096);
    let by = |address, bytes| prepared.launch_by(&chosen.algorithm, address, bytes, stream);
    assert_eq!(by(0, 0), INVALID_VALUE);
    assert_eq!(by(0, 4096), INVALID_VALUE);
    assert_eq!(by(workspace, 1023), INVALID_VALUE);
    assert_eq!(by(workspace + 16, 2048), INVALID_VALUE);
    assert_eq!(by(workspace, 1024), SUCCESS);
    assert_eq!(prepared.choose(512).expect("an algorithm").workspace, 512);
    assert_eq!(prepared.choose(100).expect("an algorithm").workspace, 0);
}

#[test]
fn an_algorithm_is_for_its_problem() {
    use_device(0);
    let prepared = Described::new(8, 8, 8, 0).prepare(1.0, 0.0);
    let chosen = prepared.choose(0).expect("an algorithm").algorithm;
    let other = Described::new(8, 8, 4, 0).prepare(1.0, 0.0);
    assert_eq!(other.launch_by(&chosen, 0, 0, stream()), NOT_SUPPORTED);
}
