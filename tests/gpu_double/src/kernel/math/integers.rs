//! Integers: arithmetic, bits and bytes.

use super::{Lane, One, Three, Two, Type, one, three, two};

/// Integers of one type.
pub trait Integer: Lane + Ord {
    /// Number of bits.
    const BITS: u32;
    /// The value.
    fn wide(self) -> i128;
    /// The lowest bits.
    fn narrow(value: i128) -> Self;
    /// The nearest value that there is.
    fn nearest(value: i128) -> Self;
    /// Adds without overflow.
    fn plus(self, other: Self) -> Self;
    /// Subtracts without overflow.
    fn minus(self, other: Self) -> Self;
    /// The lower half of the product.
    fn times(self, other: Self) -> Self;
}

macro_rules! integers {
    ($($type:ty),*) => { $(impl Integer for $type {
        const BITS: u32 = <$type>::BITS;
        fn wide(self) -> i128 {
            self as i128
        }
        fn narrow(value: i128) -> Self {
            value as $type
        }
        fn nearest(value: i128) -> Self {
            value.clamp(<$type>::MIN as i128, <$type>::MAX as i128) as $type
        }
        fn plus(self, other: Self) -> Self {
            self.wrapping_add(other)
        }
        fn minus(self, other: Self) -> Self {
            self.wrapping_sub(other)
        }
        fn times(self, other: Self) -> Self {
            self.wrapping_mul(other)
        }
    })* };
}

integers!(u8, u16, u32, u64, i8, i16, i32, i64);

/// Chooses the function of a type.
macro_rules! by_type {
    ($type:expr, $function:ident ( $($argument:expr),* )) => {
        match $type {
            Type::U8 | Type::B8 => $function::<u8>($($argument),*),
            Type::U16 | Type::B16 => $function::<u16>($($argument),*),
            Type::U32 | Type::B32 => $function::<u32>($($argument),*),
            Type::U64 | Type::B64 => $function::<u64>($($argument),*),
            Type::S8 => $function::<i8>($($argument),*),
            Type::S16 => $function::<i16>($($argument),*),
            Type::S32 => $function::<i32>($($argument),*),
            Type::S64 => $function::<i64>($($argument),*),
            _ => None,
        }
    };
}
pub(crate) use by_type;

/// Operations of one operand.
pub fn unary(name: &str, kind: Type) -> Option<One> {
    by_type!(kind, unary_of(name))
}

fn unary_of<T: Integer>(name: &str) -> Option<One> {
    let bits = |x: T| x.bits() & mask(T::BITS);
    Some(match name {
        "neg" => one(|x: T| T::narrow(-x.wide())),
        "abs" => one(|x: T| T::narrow(x.wide().abs())),
        "not" | "cnot" if name == "not" => one(|x: T| T::of(!x.bits())),
        "cnot" => one(|x: T| T::narrow(i128::from(x.wide() == 0))),
        "popc" => one(move |x: T| bits(x).count_ones()),
        "clz" => one(move |x: T| (bits(x) << (64 - T::BITS)).leading_zeros().min(T::BITS)),
        "brev" => one(move |x: T| bits(x).reverse_bits() >> (64 - T::BITS)),
        "bfind" => one(move |x: T| significant(x).checked_ilog2().unwrap_or(u32::MAX)),
        "bfind.shiftamt" => one(move |x: T| {
            significant(x).checked_ilog2().map_or(u32::MAX, |place| T::BITS - 1 - place)
        }),
        _ => return None,
    })
}

/// The bits of which `bfind` looks for the highest: of negative numbers those that are not set.
fn significant<T: Integer>(x: T) -> u64 {
    let bits = if x.wide() < 0 { !x.bits() } else { x.bits() };
    bits & mask(T::BITS)
}

/// Returns a mask of the lowest bits.
pub fn mask(bits: u32) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

/// Operations of two operands.
pub fn binary(name: &str, kind: Type) -> Option<Two> {
    by_type!(kind, binary_of(name))
}

fn binary_of<T: Integer>(name: &str) -> Option<Two> {
    Some(match name {
        "add" => two(T::plus),
        "sub" => two(T::minus),
        "mul.lo" => two(T::times),
        "add.sat" => two(|a: T, b: T| T::nearest(a.wide() + b.wide())),
        "sub.sat" => two(|a: T, b: T| T::nearest(a.wide() - b.wide())),
        "mul.hi" => two(|a: T, b: T| T::narrow((a.wide() * b.wide()) >> T::BITS)),
        "mul.wide" => two(|a: T, b: T| (a.wide() * b.wide()) as u64),
        "mul24.lo" => two(|a: T, b: T| T::narrow(low24(a) * low24(b))),
        "div" => two(divide::<T>),
        "rem" => two(remainder::<T>),
        "min" => two(|a: T, b: T| a.min(b)),
        "max" => two(|a: T, b: T| a.max(b)),
        "and" => two(|a: T, b: T| T::of(a.bits() & b.bits())),
        "or" => two(|a: T, b: T| T::of(a.bits() | b.bits())),
        "xor" => two(|a: T, b: T| T::of(a.bits() ^ b.bits())),
        "shl" => two(|a: T, by: u32| T::of(a.bits().checked_shl(by).unwrap_or(0))),
        "shr" => two(|a: T, by: u32| T::narrow(a.wide() >> by.min(T::BITS))),
        _ => return None,
    })
}

fn low24<T: Integer>(x: T) -> i128 {
    let shift = 128 - 24;
    if T::narrow(-1).wide() < 0 { x.wide() << shift >> shift } else { x.wide() & 0xFF_FFFF }
}

/// Divides as the hardware does: all bits are set where the divisor is 0.
fn divide<T: Integer>(a: T, b: T) -> T {
    T::narrow(a.wide().checked_div(b.wide()).unwrap_or(-1))
}

fn remainder<T: Integer>(a: T, b: T) -> T {
    T::narrow(a.wide().checked_rem(b.wide()).unwrap_or(a.wide()))
}

/// Operations of three operands.
pub fn ternary(name: &str, kind: Type) -> Option<Three> {
    by_type!(kind, ternary_of(name))
}

fn ternary_of<T: Integer>(name: &str) -> Option<Three> {
    Some(match name {
        "mad.lo" => three(|a: T, b: T, c: T| a.times(b).plus(c)),
        "mad.hi" => {
            three(|a: T, b: T, c: T| T::narrow(((a.wide() * b.wide()) >> T::BITS) + c.wide()))
        }
        "mad.hi.sat" => {
            three(|a: T, b: T, c: T| T::nearest(((a.wide() * b.wide()) >> T::BITS) + c.wide()))
        }
        "mad.wide" => {
            three(|a: T, b: T, c: u64| (a.wide().wrapping_mul(b.wide()) as u64).wrapping_add(c))
        }
        "mad24.lo" => three(|a: T, b: T, c: T| T::narrow(low24(a) * low24(b) + c.wide())),
        "sad" => three(|a: T, b: T, c: T| T::narrow((a.wide() - b.wide()).abs() + c.wide())),
        "bfe" => three(extract::<T>),
        _ => return None,
    })
}

/// `length` bits from `place` on; of signed numbers with the sign of the last.
fn extract<T: Integer>(x: T, place: u32, length: u32) -> T {
    let (place, length) = (place & 0xFF, length & 0xFF);
    let signed = T::narrow(-1).wide() < 0;
    let value = x.wide() >> place.min(127);
    if length == 0 {
        return T::narrow(0);
    }
    let shift = 128 - length.min(T::BITS);
    let unsigned = ((value as u128) << shift >> shift) as i128;
    T::narrow(if signed { value << shift >> shift } else { unsigned })
}

/// Puts `length` bits of `x` into `into` from `place` on, for 32 or 64 bits.
pub fn insert(bits: u32) -> impl Fn(u64, u64, u32, u32) -> u64 {
    move |x, into, place, length| {
        let (place, length) = (place & 0xFF, length & 0xFF);
        let field = mask(length.min(64)).checked_shl(place).unwrap_or(0) & mask(bits);
        (into & !field) | (x.checked_shl(place).unwrap_or(0) & field)
    }
}

/// `lop3`: any function of three bits, by its table.
pub fn logic(table: u32) -> Three {
    three(move |a: u32, b: u32, c: u32| {
        let terms = (0..8).filter(|row| table >> row & 1 == 1).map(|row| {
            let pick = |x: u32, bit: u32| if row >> bit & 1 == 1 { x } else { !x };
            pick(a, 2) & pick(b, 1) & pick(c, 0)
        });
        terms.fold(0, |sum, term| sum | term)
    })
}

/// `shf`: 32 bits out of 64 that two registers hold.
pub fn funnel(left: bool, clamp: bool) -> Three {
    three(move |low: u32, high: u32, by: u32| {
        let by = if clamp { by.min(32) } else { by & 31 };
        let both = u64::from(high) << 32 | u64::from(low);
        if left { (both << by >> 32) as u32 } else { (both >> by) as u32 }
    })
}

/// `prmt`: four bytes out of eight, each chosen by four bits.
pub fn permute(mode: &str) -> Option<Three> {
    let select: fn(u32, u32) -> u32 = match mode {
        "" => |selector, place| selector >> (4 * place) & 0xF,
        "f4e" => |selector, place| (selector + place) & 7,
        "b4e" => |selector, place| selector.wrapping_sub(place) & 7,
        "rc8" => |selector, _| selector & 3,
        "ecl" => |selector, place| place.max(selector & 3),
        "ecr" => |selector, place| place.min(selector & 3),
        "rc16" => |selector, place| (selector & 1) * 2 + (place & 1),
        _ => return None,
    };
    Some(three(move |a: u32, b: u32, selector: u32| {
        let both = u64::from(b) << 32 | u64::from(a);
        (0..4).fold(0, |word, place| word | permuted(both, select(selector, place)) << (8 * place))
    }))
}

/// Returns one byte, or its sign eight times.
fn permuted(both: u64, select: u32) -> u32 {
    let byte = (both >> (8 * (select & 7))) as u8;
    let sign = if byte >> 7 == 1 { 0xFF } else { 0 };
    u32::from(if select & 8 != 0 { sign } else { byte })
}
