//! Blocks multiplied by AMX: eight registers of 16 rows of 64 bytes each, and an instruction that adds the product of two tiles
//! of `bf16` to one of `f32`.
//!
//! Rust has no stable functions for AMX, but its assembler knows the instructions. Linux is asked once whether the process may
//! use the registers.

use std::arch::asm;
use std::marker::PhantomData;
use std::sync::LazyLock;

use super::cut::THIRDS;
use super::pairs::{self, Sums};
use super::tiles::TILE;

/// Loads two tiles of the first factor, so many bytes further.
macro_rules! load_of_a {
    ($bytes:literal) => {
        concat!(
            "tileloadd tmm4, [{a} + {stride}*1 + ",
            $bytes,
            "]\n",
            "tileloadd tmm5, [{other_a} + {stride}*1 + ",
            $bytes,
            "]",
        )
    };
}

/// Loads two tiles of the second factor, so many bytes further.
macro_rules! load_of_b {
    ($bytes:literal) => {
        concat!(
            "tileloadd tmm6, [{b} + {stride}*1 + ",
            $bytes,
            "]\n",
            "tileloadd tmm7, [{other_b} + {stride}*1 + ",
            $bytes,
            "]",
        )
    };
}

/// Adds the products of two tiles of each factor to the four tiles of sums.
macro_rules! add_products {
    () => {
        "tdpbf16ps tmm0, tmm4, tmm6
        tdpbf16ps tmm1, tmm4, tmm7
        tdpbf16ps tmm2, tmm5, tmm6
        tdpbf16ps tmm3, tmm5, tmm7"
    };
}

/// The configuration that `ldtilecfg` reads: palette 1 has registers of up to 16 rows and 64 bytes a row.
#[repr(C, align(64))]
struct TileShapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes: [u16; 16],
    rows: [u8; 16],
}

/// Eight whole registers.
static WHOLE: TileShapes = TileShapes {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// Whether the processor has AMX for `bf16` and the system lets this process use it, which is asked once.
pub(super) fn is_available() -> bool {
    static AVAILABLE: LazyLock<bool> = LazyLock::new(|| {
        has_amx()
            && pairs::are_multiplied()
            && enabled_registers() & 0x60000 == 0x60000
            && request_amx()
    });
    *AVAILABLE
}

/// Whether the processor has AMX for `bf16`: bits 22 and 24 of leaf 7 are AMX-BF16 and AMX-TILE. Such processors (Sapphire
/// Rapids and its successors) begin a product of pairs of 512 bits in every other cycle only, but two of `f32` in each:
/// where the system keeps them from AMX, pairs are half as fast as what is widened.
pub(super) fn has_amx() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    static EXIST: LazyLock<bool> = LazyLock::new(|| {
        #[allow(unused_unsafe, reason = "safe from Rust 1.91 on")]
        // SAFETY: every processor of 64 bits has CPUID; leaf 7 is only asked where it exists.
        let features = unsafe { if __cpuid(0).eax >= 7 { __cpuid_count(7, 0).edx } else { 0 } };
        features >> 22 & 0b101 == 0b101
    });
    *EXIST
}

/// The registers that the system keeps for each thread; 17 and 18 are AMX's.
fn enabled_registers() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: a processor with AVX-512, as the caller has seen, has XGETBV, and the system allows it.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack));
    }
    u64::from(high) << 32 | u64::from(low)
}

/// Asks Linux for the use of the registers, which are large and therefore not given to every process.
#[cfg(target_os = "linux")]
fn request_amx() -> bool {
    const ARCH_PRCTL: u64 = 158;
    const REQUEST_PERMISSION: u64 = 0x1023;
    const TILE_DATA: u64 = 18;
    let result: u64;
    // SAFETY: the call takes two numbers and changes nothing but what this process may use; the kernel overwrites rcx
    // and r11.
    unsafe {
        asm!(
            "syscall",
            inout("rax") ARCH_PRCTL => result,
            in("rdi") REQUEST_PERMISSION,
            in("rsi") TILE_DATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn request_amx() -> bool {
    false
}

/// The registers of this thread, while they are configured.
pub(super) struct TileRegisters {
    /// Marks that the registers are this thread's own.
    of_thread: PhantomData<*const ()>,
}

impl TileRegisters {
    /// Configures the registers; the processor must have them, see [`is_available`].
    pub(super) fn new() -> Self {
        assert!(is_available(), "a processor that multiplies matrices");
        // SAFETY: the instruction reads the 64 bytes; nothing else uses the registers, as the compiler does not know them.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &WHOLE, options(nostack)) };
        Self { of_thread: PhantomData }
    }

    /// Adds the product of one or two rows of tiles of each factor to the sums, or replaces them by it. Where there is one
    /// row of tiles it is multiplied twice, which costs nothing but time.
    pub(super) fn multiply(
        &self,
        a: &[f32],
        b: &[f32],
        steps: usize,
        (sums, add): (&mut Sums, bool),
    ) {
        let panel = steps * TILE;
        assert!(steps > 0 && a.len().min(b.len()) >= panel, "tiles");
        let [other_a, other_b] = [a, b].map(|all| &all[all.len() - panel..]);
        // SAFETY: each factor has `steps` tiles of 1 KiB from both addresses on, as just checked; sums are 32 rows of 128
        // bytes, of which a register is 16 rows of 64 bytes; the registers are configured as long as `self` exists.
        unsafe {
            asm!(
                "test {add:e}, {add:e}",
                "jz 2f",
                "tileloadd tmm0, [{sums} + {stride}*2]",
                "tileloadd tmm1, [{sums} + {stride}*2 + 64]",
                "tileloadd tmm2, [{lower} + {stride}*2]",
                "tileloadd tmm3, [{lower} + {stride}*2 + 64]",
                "jmp 3f",
                "2:",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "3:",
                "tileloadd tmm4, [{a} + {stride}*1]",
                "tileloadd tmm6, [{b} + {stride}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{other_b} + {stride}*1]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{other_a} + {stride}*1]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a}, 1024",
                "add {other_a}, 1024",
                "add {b}, 1024",
                "add {other_b}, 1024",
                "dec {steps}",
                "jnz 3b",
                "tilestored [{sums} + {stride}*2], tmm0",
                "tilestored [{sums} + {stride}*2 + 64], tmm1",
                "tilestored [{lower} + {stride}*2], tmm2",
                "tilestored [{lower} + {stride}*2 + 64], tmm3",
                add = in(reg) u32::from(add),
                sums = in(reg) sums.as_mut_ptr(),
                lower = in(reg) sums.as_mut_ptr().add(16 * 32),
                stride = in(reg) 64usize,
                a = inout(reg) a.as_ptr() => _,
                other_a = inout(reg) other_a.as_ptr() => _,
                b = inout(reg) b.as_ptr() => _,
                other_b = inout(reg) other_b.as_ptr() => _,
                steps = inout(reg) steps => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

impl TileRegisters {
    /// Writes the product of one or two rows of tiles of each factor, of which each is cut in three parts: the six products of parts
    /// that reach into the bits of an `f32` (Henry, Tang, Heinecke: "Leveraging the bfloat16 Artificial Intelligence Datatype For
    /// Higher-Precision Computations", 2019, section II). The greatest are summed last, so that what the sums round is as little as if
    /// there were no others.
    pub(super) fn multiply_thirds(&self, a: &[f32], b: &[f32], steps: usize, sums: &mut Sums) {
        let panel = steps * THIRDS * TILE;
        assert!(steps > 0 && a.len().min(b.len()) >= panel, "tiles");
        let [other_a, other_b] = [a, b].map(|all| &all[all.len() - panel..]);
        // SAFETY: each factor has `steps` times three tiles of 1 KiB from both addresses on, as just checked; both loops read as
        // many. Sums are as in `multiply`.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                load_of_a!("0"),
                load_of_b!("2048"),
                add_products!(),
                load_of_b!("1024"),
                add_products!(),
                load_of_a!("1024"),
                add_products!(),
                load_of_b!("0"),
                add_products!(),
                load_of_a!("2048"),
                add_products!(),
                "add {a}, 3072",
                "add {other_a}, 3072",
                "add {b}, 3072",
                "add {other_b}, 3072",
                "dec {steps}",
                "jnz 2b",
                "sub {a}, {bytes}",
                "sub {other_a}, {bytes}",
                "sub {b}, {bytes}",
                "sub {other_b}, {bytes}",
                "3:",
                load_of_a!("0"),
                load_of_b!("0"),
                add_products!(),
                "add {a}, 3072",
                "add {other_a}, 3072",
                "add {b}, 3072",
                "add {other_b}, 3072",
                "sub {bytes}, 3072",
                "jnz 3b",
                "tilestored [{sums} + {stride}*2], tmm0",
                "tilestored [{sums} + {stride}*2 + 64], tmm1",
                "tilestored [{lower} + {stride}*2], tmm2",
                "tilestored [{lower} + {stride}*2 + 64], tmm3",
                sums = in(reg) sums.as_mut_ptr(),
                lower = in(reg) sums.as_mut_ptr().add(16 * 32),
                stride = in(reg) 64usize,
                a = inout(reg) a.as_ptr() => _,
                other_a = inout(reg) other_a.as_ptr() => _,
                b = inout(reg) b.as_ptr() => _,
                other_b = inout(reg) other_b.as_ptr() => _,
                steps = inout(reg) steps => _,
                bytes = inout(reg) panel * size_of::<f32>() => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

impl Drop for TileRegisters {
    fn drop(&mut self) {
        // SAFETY: the instruction gives the registers back, which nothing uses any more.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
