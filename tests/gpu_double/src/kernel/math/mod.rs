//! Arithmetic of all 32 lanes of a warp: functions on registers, made when a kernel is decoded. Registers hold 64 bits;
//! what an operation's type does not cover means nothing.

pub mod compare;
pub mod convert;
pub mod floats;
pub mod halves;
pub mod integers;
pub mod types;

pub use types::{Brain, Half, Lane, Type};

/// A register of all lanes.
pub type Lanes = [u64; 32];

/// Operations by the number of their operands.
pub type One = Box<dyn Fn(&Lanes) -> Lanes + Send + Sync>;
/// A function of two registers: see [`One`].
pub type Two = Box<dyn Fn(&Lanes, &Lanes) -> Lanes + Send + Sync>;
/// A function of three registers: see [`One`].
pub type Three = Box<dyn Fn(&Lanes, &Lanes, &Lanes) -> Lanes + Send + Sync>;

/// An operation on each lane.
pub fn one<A: Lane, R: Lane>(f: impl Fn(A) -> R + Send + Sync + 'static) -> One {
    Box::new(move |a| std::array::from_fn(|lane| f(A::of(a[lane])).bits()))
}

/// Makes a function of two registers: see [`one`].
pub fn two<A: Lane, B: Lane, R: Lane>(f: impl Fn(A, B) -> R + Send + Sync + 'static) -> Two {
    Box::new(move |a, b| std::array::from_fn(|lane| f(A::of(a[lane]), B::of(b[lane])).bits()))
}

/// Makes a function of three registers: see [`one`].
pub fn three<A: Lane, B: Lane, C: Lane, R: Lane>(
    f: impl Fn(A, B, C) -> R + Send + Sync + 'static,
) -> Three {
    Box::new(move |a, b, c| {
        std::array::from_fn(|lane| f(A::of(a[lane]), B::of(b[lane]), C::of(c[lane])).bits())
    })
}
