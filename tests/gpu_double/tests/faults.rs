//! Faults of each kind, planted in kernels: with `WITHOUT` each must be found, without it none.

mod support;

use gpu_double::Argument::Pointer;
use gpu_double::{Card, Ptx, Refusal, compile, nvrtc};
use support::bytes;

const SOURCE: &str = include_str!("faults.cu");

/// Kernels, and what the report of the fault says.
const FAULTS: [(&str, &str); 11] = [
    ("missing_barrier", "of shared memory"),
    ("reused_tile", "a barrier is missing"),
    ("divided_barrier", "different barriers"),
    ("missing_lanes", "does not go on"),
    ("shared_outside", "of shared memory, which has 256"),
    ("unwritten_shared", "read of byte 20 of shared memory, which nothing has written"),
    ("sum_of_blocks", "of the same launch"),
    ("same_place", "write different values to the same address"),
    ("misaligned", "is misaligned"),
    ("missing_fence", "of the same launch"),
    ("a_trap", "trap"),
];

fn ptx(options: &[&str]) -> Ptx {
    compile(SOURCE, "sm_90", options).unwrap_or_else(|log| panic!("{log}"))
}

fn launch(name: &str, ptx: &Ptx, seed: u64) -> Result<(), Refusal> {
    let mut card = Card::new(seed);
    let module = card.load(ptx).unwrap_or_else(|malformed| panic!("{malformed}"));
    let values: Vec<f32> = (0..64).map(|i| i as f32).collect();
    let (x, y) = (card.upload(&bytes(&values)), card.upload(&bytes(&[0.0; 64])));
    let shape = ([4, 1, 1], [64, 1, 1]);
    let shape =
        if name.contains("block") || name == "missing_fence" { shape } else { ([1; 3], shape.1) };
    card.launch(&module, name, shape, 0, &[Pointer(x), Pointer(y)]).map(|_| ())
}

#[test]
fn every_planted_fault_is_found_and_nothing_else() {
    if !nvrtc::is_installed() {
        return println!("skipped: NVRTC is not installed");
    }
    let (right, wrong) = (ptx(&[]), ptx(&["--define-macro=WITHOUT"]));
    for (name, words) in FAULTS {
        for seed in 0..3 {
            launch(name, &right, seed)
                .unwrap_or_else(|refusal| panic!("{name}, {seed}: {refusal}"));
            let fault = launch(name, &wrong, seed);
            let Err(fault) = fault else { panic!("{name}, {seed}: is not found") };
            let text = fault.to_string();
            assert!(text.contains(words), "{name}, {seed}: {text}");
            assert!(text.contains(&format!("kernel {name}, block [")), "{name}, {seed}: {text}");
        }
    }
}

#[test]
fn arguments_and_sizes_are_checked_before_a_launch() {
    if !nvrtc::is_installed() {
        return println!("skipped: NVRTC is not installed");
    }
    let mut card = Card::new(0);
    let module = card.load(&compile(SOURCE, "sm_90", &[]).unwrap()).unwrap();
    let mut refused = |name, block, arguments: &[_]| {
        let result = card.launch(&module, name, ([1, 1, 1], block), 0, arguments);
        result.unwrap_err().to_string()
    };
    let text = refused("nothing", [1, 1, 1], &[]);
    assert_eq!(text, "the module has no kernel `nothing`");
    let text = refused("a_trap", [1, 1, 1], &[Pointer(0)]);
    assert_eq!(text, "kernel `a_trap` takes arguments of [8, 8] bytes, but gets [8]");
    let text = refused("a_trap", [2048, 1, 1], &[Pointer(0), Pointer(0)]);
    assert!(text.contains("a block of [2048, 1, 1] threads, where 1024 may be"), "{text}");
    let text = refused("a_trap", [1, 1, 1], &[Pointer(0), Pointer(0)]);
    assert!(text.contains("outside of all allocations"), "{text}");
}

#[test]
fn unknown_instructions_are_named_with_their_lines() {
    let ptx = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k()\n{\n\
               .reg .b32 %r<2>;\n\twgmma.fence.sync.aligned;\n\tret;\n}\n";
    let refused = Card::new(0).load(&gpu_double::Ptx(String::from(ptx))).err().unwrap();
    let text = refused.to_string();
    assert!(text.starts_with("PTX line 7: wgmma.fence.sync.aligned: "), "{text}");
    assert!(text.contains("not known"), "{text}");
}
