//! No kernel of CUDA devices keeps registers in memory, on any generation of cards, as NVIDIA's assembler says it: the kernels of all
//! examples of all ops and element types by `GRAPHC_DOUBLE_ALL=1 cargo test -p graphc-kernels --test cuda resources::`, otherwise the
//! longest source of each kernel. What the assembler said of those is in `resources.txt`, which `UPDATE_EXPECT=1` writes anew.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::cases;
use crate::common::{other_ways, shard};
use crate::on_card::prepare;
use gpu_double::nvrtc::{self, Record};
use graphc_kernels::cuda::{Call, Kernel, Launch, join_alike};

const ARCHITECTURES: [&str; 4] = ["sm_80", "sm_90a", "sm_100", "sm_120"];
const OPTIONS: [&str; 4] = ["--fmad=false", "--std=c++17", "-default-device", "-minimal"];

/// Returns all kernels by their sources, and the op of each.
fn kernels() -> BTreeMap<String, (&'static str, Kernel)> {
    let mut all = BTreeMap::new();
    for cases::Example { case, .. } in cases::all() {
        let operands: Vec<_> = case.operands.iter().map(|operand| shard(&operand.0)).collect();
        let call = prepare(&case).expect("a call");
        let mut calls = other_ways(&call);
        calls.extend(join_alike(&case.op, &[operands.clone(), operands]));
        calls.push(call);
        for Call { launches, .. } in calls {
            let kernels = launches.into_iter().filter_map(|launch| match launch {
                Launch::Kernel(kernel) => Some(kernel),
                _ => None,
            });
            all.extend(kernels.map(|kernel| (kernel.source.clone(), (case.op.name(), kernel))));
        }
    }
    all
}

fn all_are_tried() -> bool {
    std::env::var_os("GRAPHC_DOUBLE_ALL").is_some()
}

/// Returns the file with the answers of the assembler. It is of the kernels that are tried always.
fn record_file() -> PathBuf {
    if all_are_tried() {
        return Path::new(env!("CARGO_TARGET_TMPDIR")).join("resources_of_all.txt");
    }
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda/resources.txt")
}

/// Returns the kernels that are tried: of each kernel of an op the longest source, or all.
fn tried() -> Vec<(&'static str, Kernel)> {
    let all = kernels();
    if all_are_tried() {
        return all.into_values().collect();
    }
    let mut longest: BTreeMap<(&str, String), Kernel> = BTreeMap::new();
    for (op, kernel) in all.into_values() {
        let known = longest.entry((op, kernel.entry.clone())).or_insert_with(|| kernel.clone());
        if kernel.source.len() > known.source.len() {
            *known = kernel;
        }
    }
    longest.into_iter().map(|((op, _), kernel)| (op, kernel)).collect()
}

/// Returns what is wrong with a kernel on an architecture; `None` if nothing is.
fn trouble(record: &Record, kernel: &Kernel, architecture: &str) -> Option<String> {
    let all = match record.resources(&kernel.source, architecture, &OPTIONS) {
        Ok(all) => all,
        Err(log) => return Some(format!("{log}\n{}", kernel.source)),
    };
    let spills: usize = all.iter().map(|needs| needs.spills).sum();
    (all.is_empty() || spills > 0).then(|| {
        let defined = |line: &&str| line.starts_with("#define ");
        let macros: Vec<&str> = kernel.source.lines().filter(defined).collect();
        format!("{spills} bytes of registers in memory: {}", macros.join("; "))
    })
}

#[test]
fn no_kernel_spills() {
    if !nvrtc::is_installed() {
        return println!("skipped: NVRTC is not installed");
    }
    let record = Record::open(record_file());
    let kernels = tried();
    assert!(kernels.len() > 60, "{} kernels", kernels.len());
    let work = kernels.iter().flat_map(|one| ARCHITECTURES.map(|architecture| (one, architecture)));
    let (work, wrong) = (Mutex::new(work), Mutex::new(Vec::new()));
    let try_some = || {
        while let Some(((op, kernel), architecture)) = { work.lock().expect("no panic").next() } {
            if let Some(trouble) = trouble(&record, kernel, architecture) {
                let text = format!("{op}, {} for {architecture}: {trouble}", kernel.entry);
                wrong.lock().expect("no panic").push(text);
            }
        }
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        (0..threads).for_each(|_| drop(scope.spawn(try_some)));
    });
    record.finish().expect("the record is written");
    let wrong = wrong.into_inner().expect("no panic");
    assert!(wrong.is_empty(), "{} of {} kernels: {wrong:#?}", wrong.len(), kernels.len());
}
