//! The speed of the double's interpreter, in instructions of threads a second. Run with `cargo run --release -p
//! gpu-double --example interpreter_speed`.

use std::time::Instant;

use gpu_double::Argument::{self, I32, Pointer};
use gpu_double::{Card, Module, compile, nvrtc};

const SOURCE: &str = include_str!("../tests/kernels.cu");
const MATRICES: &str = include_str!("../tests/matrices.cu");

fn main() {
    if !nvrtc::is_installed() {
        println!("NVRTC is not installed");
        return;
    }
    let mut card = Card::new(0);
    let module = load(&mut card, SOURCE);
    let values: Vec<u8> = (0..1 << 20).flat_map(|i: i32| ((i % 97) as f32).to_le_bytes()).collect();
    let (x, y) = (card.upload(&values), card.upload(&values));
    let z = card.allocate(4 << 20);
    let one = [Pointer(x), Pointer(y), Pointer(z), I32(1 << 20)];
    measure(&mut card, &module, ("axpy", [4096, 1, 1], [256, 1, 1]), &one);
    let rows = [Pointer(x), Pointer(z), I32(1024)];
    measure(&mut card, &module, ("softmax", [256, 1, 1], [128, 1, 1]), &rows);
    let tiles = [Pointer(x), Pointer(y), Pointer(z), I32(128), I32(128), I32(128)];
    measure(&mut card, &module, ("product", [8, 8, 1], [16, 16, 1]), &tiles);
    let module = load(&mut card, MATRICES);
    let halves = [Pointer(x), Pointer(y), Pointer(z), I32(256), I32(256), I32(256)];
    measure(&mut card, &module, ("tensor_product", [4, 4, 1], [128, 1, 1]), &halves);
}

fn load(card: &mut Card, source: &str) -> Module {
    let begin = Instant::now();
    let ptx = compile(source, "sm_90", &[]).unwrap_or_else(|log| panic!("{log}"));
    let compiled = begin.elapsed();
    let module = card.load(&ptx).unwrap_or_else(|malformed| panic!("{malformed}"));
    let loaded = begin.elapsed() - compiled;
    println!("{} bytes of PTX compiled in {compiled:.1?}, decoded in {loaded:.1?}", ptx.0.len());
    module
}

fn measure(
    card: &mut Card,
    module: &Module,
    (name, grid, block): (&str, [u32; 3], [u32; 3]),
    arguments: &[Argument],
) {
    let begin = Instant::now();
    let stats = card.launch(module, name, (grid, block), 0, arguments);
    let stats = stats.unwrap_or_else(|refusal| panic!("{refusal}"));
    let (count, seconds) = (stats.instructions, begin.elapsed().as_secs_f64());
    let rate = count as f64 / seconds / 1e6;
    println!("{name:15} {count:>10} instructions of threads, {rate:.0} million a second");
}
