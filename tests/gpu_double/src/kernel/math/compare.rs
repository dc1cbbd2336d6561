//! Comparisons: a bit for each lane.

use std::cmp::Ordering;

use super::halves::Narrow;
use super::integers::by_type;
use super::{Brain, Half, Lane, Lanes, Type};

/// A comparison of two registers.
pub type Compare = Box<dyn Fn(&Lanes, &Lanes) -> u32 + Send + Sync>;

/// The orders for which a comparison holds: less, equal, greater, and one side that is no number.
#[derive(Clone, Copy)]
struct Test {
    less: bool,
    equal: bool,
    greater: bool,
    unordered: bool,
}

impl Test {
    fn of(name: &str) -> Option<Test> {
        let (less, equal, greater, unordered) = match name {
            "eq" => (false, true, false, false),
            "ne" => (true, false, true, false),
            "lt" | "lo" => (true, false, false, false),
            "le" | "ls" => (true, true, false, false),
            "gt" | "hi" => (false, false, true, false),
            "ge" | "hs" => (false, true, true, false),
            "equ" => (false, true, false, true),
            "neu" => (true, false, true, true),
            "ltu" => (true, false, false, true),
            "leu" => (true, true, false, true),
            "gtu" => (false, false, true, true),
            "geu" => (false, true, true, true),
            "num" => (true, true, true, false),
            "nan" => (false, false, false, true),
            _ => return None,
        };
        Some(Test { less, equal, greater, unordered })
    }

    fn holds(self, order: Option<Ordering>) -> bool {
        match order {
            Some(Ordering::Less) => self.less,
            Some(Ordering::Equal) => self.equal,
            Some(Ordering::Greater) => self.greater,
            None => self.unordered,
        }
    }
}

/// The comparison of a name, e.g. `lt`, for values of a type.
pub fn compare(name: &str, kind: Type, flush: bool) -> Option<Compare> {
    let test = Test::of(name)?;
    match kind {
        Type::F32 if flush => Some(by(test, flushed)),
        Type::F32 => ordered::<f32>(test),
        Type::F64 => ordered::<f64>(test),
        Type::F16 => Some(by(test, |x| Half::of(x).wide())),
        Type::Bf16 => Some(by(test, |x| Brain::of(x).wide())),
        _ => by_type!(kind, ordered(test)),
    }
}

fn flushed(bits: u64) -> f32 {
    let x = f32::of(bits);
    if x.is_subnormal() { 0.0 } else { x }
}

fn ordered<T: Lane + PartialOrd>(test: Test) -> Option<Compare> {
    Some(by(test, T::of))
}

fn by<T: PartialOrd>(test: Test, value: impl Fn(u64) -> T + Send + Sync + 'static) -> Compare {
    Box::new(move |a, b| {
        (0..32).fold(0, |bits, lane| {
            let order = value(a[lane]).partial_cmp(&value(b[lane]));
            bits | u32::from(test.holds(order)) << lane
        })
    })
}
