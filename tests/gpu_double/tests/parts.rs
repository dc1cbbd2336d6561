//! Parts of the double that need no card: settings, sectors of requests, the assembler's account, and what is kept of the compiler's texts.

use std::path::Path;

use gpu_double::Traffic;
use gpu_double::cublaslt::offer::Products;
use gpu_double::nvrtc::kept::{Making, take_or_make};
use gpu_double::nvrtc::{self, Record, Resources, resources};
use gpu_double::settings::{bytes, capability};

#[test]
fn sizes_and_capabilities_are_read() {
    assert_eq!(bytes("512"), Some(512));
    assert_eq!(bytes("3 MiB"), Some(3 << 20));
    assert_eq!(bytes("2GB"), None);
    assert_eq!(capability("8.0"), Some((8, 0)));
}

#[test]
fn products_are_named() {
    assert_eq!(Products::named("epilogues"), Some(Products::Epilogues));
    assert_eq!(Products::named("some"), None);
}

fn count(at: impl Fn(u64) -> u64, size: usize) -> (u64, u64) {
    let mut traffic = Traffic::default();
    traffic.count((0..32).map(at), size);
    (traffic.sectors, traffic.least)
}

#[test]
fn requests_take_each_sector_once() {
    assert_eq!(count(|lane| 4 * lane, 4), (4, 4));
    assert_eq!(count(|lane| 4 * lane + 16, 4), (5, 4));
    assert_eq!(count(|lane| 16 * (31 - lane), 16), (16, 16));
    assert_eq!(count(|lane| 128 * lane, 4), (32, 4));
    assert_eq!(count(|_| 64, 4), (1, 1));
    assert_eq!(count(|lane| 2 * (lane / 2), 2), (1, 1));
}

#[test]
fn the_account_of_the_assembler_is_read() {
    let log = "ptxas info    : 0 bytes gmem\n\
        ptxas info    : Compiling entry function 'join' for 'sm_80'\n\
        ptxas info    : Function properties for join\n\
        ptxas         .     0 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\n\
        ptxas info    : Used 32 registers, used 1 barriers, 1024 bytes smem, 368 bytes cmem[0]\n";
    let expected = Resources { entry: "join".into(), registers: 32, shared: 1024, spills: 12 };
    assert_eq!(nvrtc::parse_resources(log), [expected]);
}

fn kept_in(folder: &Path, source: &str, made: Result<&str, ()>) -> Result<String, ()> {
    let making = Making::new(source, &["-G".to_owned()], "ptx");
    take_or_make(Some(folder), &making, || made.map(str::to_owned))
}

#[test]
fn what_was_made_of_the_same_is_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    assert_eq!(kept_in(folder.path(), "a", Err(())), Err(()));
    assert_eq!(kept_in(folder.path(), "a", Ok("of a")), Ok("of a".to_owned()));
    assert_eq!(kept_in(folder.path(), "a", Err(())), Ok("of a".to_owned()));
    assert_eq!(kept_in(folder.path(), "b", Err(())), Err(()));
}

#[test]
fn a_file_that_is_damaged_or_of_another_source_is_made_again() {
    let folder = tempfile::tempdir().expect("a folder");
    assert_eq!(kept_in(folder.path(), "a", Ok("of a")), Ok("of a".to_owned()));
    let file = Making::new("b", &["-G".to_owned()], "ptx").file_in(folder.path());
    let other = Making::new("a", &["-G".to_owned()], "ptx").file_in(folder.path());
    std::fs::copy(&other, file).expect("a copy");
    assert_eq!(kept_in(folder.path(), "b", Ok("of b")), Ok("of b".to_owned()));
    std::fs::write(other, "[").expect("it is written");
    assert_eq!(kept_in(folder.path(), "a", Ok("again")), Ok("again".to_owned()));
}

/// Sources whose kernels differ in their name.
fn sources() -> Vec<String> {
    let source = |number| {
        format!("extern \"C\" __global__ void k{number}(int *at) {{ *at += {number}; }}\n")
    };
    (0..64).map(source).collect()
}

#[test]
fn a_record_answers_as_the_assembler_and_is_held_to_it() {
    if !nvrtc::is_installed() {
        return println!("skipped: NVRTC is not installed");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("record.txt");
    let sources = sources();
    let answers = || -> Vec<Result<Vec<Resources>, String>> {
        let record = Record::open(&path);
        sources.iter().map(|source| record.resources(source, "sm_90", &["-minimal"])).collect()
    };
    let expected = resources(&sources[3], "sm_90", &["-minimal"]).expect("it is assembled");
    let record = Record::open(&path);
    for source in &sources {
        record.resources(source, "sm_90", &["-minimal"]).expect("it is assembled");
    }
    record.write().expect("a record");
    let text = std::fs::read_to_string(&path).expect("a record");
    assert_eq!(text.lines().count(), 65);
    assert_eq!(answers()[3].as_ref(), Ok(&expected));
    // What a record says wrongly is believed, but not of one kernel in sixteen.
    std::fs::write(&path, text.replace(" 0\n", " 8\n")).expect("a record");
    let wrong = answers();
    let refused = wrong.iter().filter(|answer| answer.is_err()).count();
    assert!((1..32).contains(&refused), "{refused} of 64");
    let believed = wrong.iter().flatten().flatten().filter(|needs| needs.spills == 8).count();
    assert_eq!(believed, 64 - refused);
    // The words of another compiler count for nothing.
    let other = text.replacen("compiler ", "compiler f", 1).replace(" 0\n", " 8\n");
    std::fs::write(&path, other).expect("a record");
    assert_eq!(answers()[3].as_ref(), Ok(&expected));
}
