//! Types of PTX, and how lanes hold their values.

use half::{bf16, f16};

/// A type as instructions name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Type {
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    B8,
    B16,
    B32,
    B64,
    B128,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    Tf32,
    F32,
    F64,
    Pred,
}

impl Type {
    /// The type of a modifier.
    pub fn of(word: &str) -> Option<Type> {
        Some(match word {
            "u8" => Type::U8,
            "u16" | "u16x2" => Type::U16,
            "u32" => Type::U32,
            "u64" => Type::U64,
            "s8" => Type::S8,
            "s16" | "s16x2" => Type::S16,
            "s32" => Type::S32,
            "s64" => Type::S64,
            "b8" => Type::B8,
            "b16" => Type::B16,
            "b32" => Type::B32,
            "b64" => Type::B64,
            "b128" => Type::B128,
            "f16" => Type::F16,
            "f16x2" => Type::F16x2,
            "bf16" => Type::Bf16,
            "bf16x2" => Type::Bf16x2,
            "tf32" => Type::Tf32,
            "f32" => Type::F32,
            "f64" => Type::F64,
            "pred" => Type::Pred,
            _ => return None,
        })
    }

    /// Size in memory.
    pub fn bytes(self) -> usize {
        match self {
            Type::U8 | Type::S8 | Type::B8 | Type::Pred => 1,
            Type::U16 | Type::S16 | Type::B16 | Type::F16 | Type::Bf16 => 2,
            Type::U64 | Type::S64 | Type::B64 | Type::F64 => 8,
            Type::B128 => 16,
            _ => 4,
        }
    }

    /// Whether it is an integer with a sign.
    pub fn signed(self) -> bool {
        matches!(self, Type::S8 | Type::S16 | Type::S32 | Type::S64)
    }

    /// Whether it is an integer, or bits.
    pub fn integer(self) -> bool {
        use Type::*;
        matches!(self, U8 | U16 | U32 | U64 | S8 | S16 | S32 | S64 | B8 | B16 | B32 | B64)
    }
}

/// A value in a lane of a register.
pub trait Lane: Copy + 'static {
    /// Reads the value from the lane, whose other bits mean nothing.
    fn of(bits: u64) -> Self;
    /// Returns the bits for the lane.
    fn bits(self) -> u64;
}

/// An f16.
pub type Half = f16;
/// A bf16.
pub type Brain = bf16;

macro_rules! integer_lanes {
    ($($type:ty),*) => { $(impl Lane for $type {
        fn of(bits: u64) -> Self {
            bits as $type
        }
        fn bits(self) -> u64 {
            self as u64
        }
    })* };
}

integer_lanes!(u8, u16, u32, u64, i8, i16, i32, i64);

impl Lane for f32 {
    fn of(bits: u64) -> f32 {
        f32::from_bits(bits as u32)
    }

    fn bits(self) -> u64 {
        u64::from(self.to_bits())
    }
}

impl Lane for f64 {
    fn of(bits: u64) -> f64 {
        f64::from_bits(bits)
    }

    fn bits(self) -> u64 {
        self.to_bits()
    }
}

impl Lane for f16 {
    fn of(bits: u64) -> f16 {
        f16::from_bits(bits as u16)
    }

    fn bits(self) -> u64 {
        u64::from(self.to_bits())
    }
}

impl Lane for bf16 {
    fn of(bits: u64) -> bf16 {
        bf16::from_bits(bits as u16)
    }

    fn bits(self) -> u64 {
        u64::from(self.to_bits())
    }
}

/// Two values of 16 bits in one of 32.
impl<T: Lane> Lane for [T; 2] {
    fn of(bits: u64) -> [T; 2] {
        [T::of(bits & 0xFFFF), T::of(bits >> 16 & 0xFFFF)]
    }

    fn bits(self) -> u64 {
        (self[0].bits() & 0xFFFF) | (self[1].bits() & 0xFFFF) << 16
    }
}
