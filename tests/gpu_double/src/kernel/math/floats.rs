//! f32 and f64: arithmetic with its roundings, and functions that hardware approximates (computed in f64 here and rounded).

use super::{Lane, Lanes, One, Three, Two, Type, one, three, two};

/// The bits that PTX gives where a result is no number.
const NAN: u32 = 0x7FFF_FFFF;

/// A direction of rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// To the nearest, ties to even.
    Nearest,
    /// To the nearest, ties away from zero.
    Away,
    /// Towards zero.
    Zero,
    /// Down.
    Down,
    /// Up.
    Up,
}

/// The modifiers of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// The rounding of the result.
    pub rounding: Rounding,
    /// Whether subnormal numbers are taken for 0.
    pub flush: bool,
    /// Whether the result is kept between 0 and 1.
    pub saturate: bool,
}

impl Manner {
    fn plain(self) -> bool {
        self.rounding == Rounding::Nearest && !self.flush && !self.saturate
    }

    fn enter(self, x: f32) -> f32 {
        if self.flush && x.is_subnormal() { 0f32.copysign(x) } else { x }
    }

    fn leave(self, x: f32) -> f32 {
        let x = self.enter(x);
        match self.saturate {
            true if x.is_nan() => 0.0,
            true => x.clamp(0.0, 1.0),
            false => canonical(x),
        }
    }
}

fn canonical(x: f32) -> f32 {
    if x.is_nan() { f32::from_bits(NAN) } else { x }
}

/// The f32 next to `sum + error` in a direction; `error` is what `sum` lacks.
pub fn rounded(sum: f64, error: f64, rounding: Rounding) -> f32 {
    let near = to_odd(sum, error) as f32;
    if near.is_nan() {
        return near;
    }
    let over = f64::from(near).partial_cmp(&sum).map(|o| o.then(0f64.total_cmp(&error)));
    let above = over == Some(std::cmp::Ordering::Greater);
    let below = over == Some(std::cmp::Ordering::Less);
    match rounding {
        Rounding::Nearest | Rounding::Away => near,
        Rounding::Down if above => near.next_down(),
        Rounding::Up if below => near.next_up(),
        Rounding::Zero if above && near > 0.0 => near.next_down(),
        Rounding::Zero if below && near < 0.0 => near.next_up(),
        _ => near,
    }
}

/// A sum whose last bit tells that something was lost, so that rounding it once more is right (Boldo and Melquiond 2008).
pub fn to_odd(sum: f64, error: f64) -> f64 {
    if error == 0.0 || !sum.is_finite() || !error.is_finite() || sum.to_bits() & 1 == 1 {
        return sum;
    }
    let away = (error > 0.0) == (sum > 0.0);
    f64::from_bits(if away { sum.to_bits() + 1 } else { sum.to_bits() - 1 })
}

/// A sum of f64 and what it lacks (Knuth).
pub fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let part = sum - a;
    let error = (a - (sum - part)) + (b - part);
    (sum, if sum.is_finite() { error } else { 0.0 })
}

/// Operations of two operands.
pub fn binary(name: &str, kind: Type, manner: Manner) -> Option<Two> {
    match kind {
        Type::F32 => binary32(name, manner),
        Type::F64 => binary64(name, manner),
        _ => None,
    }
}

fn binary32(name: &str, manner: Manner) -> Option<Two> {
    let rounding = manner.rounding;
    let exact = rounding == Rounding::Nearest;
    Some(match name {
        "add" if manner.plain() => two(|a: f32, b: f32| canonical(a + b)),
        "sub" if manner.plain() => two(|a: f32, b: f32| canonical(a - b)),
        "mul" if manner.plain() => two(|a: f32, b: f32| canonical(a * b)),
        "add" if exact => in32(manner, |a, b| a + b),
        "sub" if exact => in32(manner, |a, b| a - b),
        "mul" if exact => in32(manner, |a, b| a * b),
        "div" if exact => in32(manner, |a, b| a / b),
        "add" => in32(manner, move |a, b| directed_sum(a, b, rounding)),
        "sub" => in32(manner, move |a, b| directed_sum(a, -b, rounding)),
        "mul" => in32(manner, move |a, b| rounded(f64::from(a) * f64::from(b), 0.0, rounding)),
        "div" => in32(manner, move |a, b| directed_quotient(a, b, rounding)),
        "min" => in32(manner, smaller),
        "max" => in32(manner, |a, b| -smaller(-a, -b)),
        "min.nan" => {
            in32(manner, |a, b| if a.is_nan() || b.is_nan() { f32::NAN } else { smaller(a, b) })
        }
        "max.nan" => {
            in32(manner, |a, b| if a.is_nan() || b.is_nan() { f32::NAN } else { -smaller(-a, -b) })
        }
        "copysign" => two(|sign: f32, x: f32| x.copysign(sign)),
        _ => return None,
    })
}

fn in32(manner: Manner, f: impl Fn(f32, f32) -> f32 + Send + Sync + 'static) -> Two {
    two(move |a: f32, b: f32| manner.leave(f(manner.enter(a), manner.enter(b))))
}

/// The smaller number, the only number where one is none; -0 is less than 0.
fn smaller(a: f32, b: f32) -> f32 {
    match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ if a == b => {
            if a.is_sign_negative() {
                a
            } else {
                b
            }
        }
        _ if a < b => a,
        _ => b,
    }
}

fn directed_sum(a: f32, b: f32, rounding: Rounding) -> f32 {
    let (sum, error) = two_sum(f64::from(a), f64::from(b));
    rounded(sum, error, rounding)
}

fn directed_quotient(a: f32, b: f32, rounding: Rounding) -> f32 {
    let (a, b) = (f64::from(a), f64::from(b));
    let quotient = a / b;
    let rest = (-quotient).mul_add(b, a);
    let error =
        if quotient.is_finite() { rest * b.signum() * f64::MIN_POSITIVE.sqrt() } else { 0.0 };
    rounded(quotient, error, rounding)
}

fn binary64(name: &str, manner: Manner) -> Option<Two> {
    if manner.rounding != Rounding::Nearest {
        return None;
    }
    Some(match name {
        "add" => two(|a: f64, b: f64| a + b),
        "sub" => two(|a: f64, b: f64| a - b),
        "mul" => two(|a: f64, b: f64| a * b),
        "div" => two(|a: f64, b: f64| a / b),
        "min" => two(f64::min),
        "max" => two(f64::max),
        "copysign" => two(|sign: f64, x: f64| x.copysign(sign)),
        _ => return None,
    })
}

/// Products with a sum, rounded once.
pub fn fused(kind: Type, manner: Manner) -> Option<Three> {
    let rounding = manner.rounding;
    Some(match kind {
        Type::F32 if manner.plain() => fused_plainly(),
        Type::F32 => three(move |a: f32, b: f32, c: f32| {
            let (a, b, c) = (manner.enter(a), manner.enter(b), manner.enter(c));
            let (sum, error) = two_sum(f64::from(a) * f64::from(b), f64::from(c));
            let exact = rounding == Rounding::Nearest;
            manner.leave(if exact { a.mul_add(b, c) } else { rounded(sum, error, rounding) })
        }),
        Type::F64 if rounding == Rounding::Nearest => {
            three(|a: f64, b: f64, c: f64| a.mul_add(b, c))
        }
        _ => return None,
    })
}

/// Products of f32 with a sum, of which a processor that has such an instruction computes several at a time.
fn fused_plainly() -> Three {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: the processor has these instructions, as just asked.
        return Box::new(|a, b, c| unsafe { fused_at_once(a, b, c) });
    }
    three(|a: f32, b: f32, c: f32| canonical(a.mul_add(b, c)))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn fused_at_once(a: &Lanes, b: &Lanes, c: &Lanes) -> Lanes {
    let mut results = [0; 32];
    for lane in 0..32 {
        let [a, b, c] = [a[lane], b[lane], c[lane]].map(f32::of);
        results[lane] = canonical(a.mul_add(b, c)).bits();
    }
    results
}

/// Operations of one operand.
pub fn unary(name: &str, kind: Type, manner: Manner) -> Option<One> {
    match kind {
        Type::F32 => unary32(name, manner),
        Type::F64 => unary64(name, manner),
        _ => None,
    }
}

fn unary32(name: &str, manner: Manner) -> Option<One> {
    let rounding = manner.rounding;
    let f: fn(f64) -> f64 = match name {
        "neg" => return Some(one(move |x: f32| manner.enter(f32::of((-x).bits())))),
        "abs" => return Some(one(move |x: f32| manner.enter(x.abs()))),
        "rcp" => |x| 1.0 / x,
        "sqrt" => f64::sqrt,
        "rsqrt" => |x| 1.0 / x.sqrt(),
        "sin" => f64::sin,
        "cos" => f64::cos,
        "ex2" => f64::exp2,
        "lg2" => f64::log2,
        "tanh" => f64::tanh,
        _ => return None,
    };
    Some(one(move |x: f32| manner.leave(through(f, manner.enter(x), rounding))))
}

fn through(f: fn(f64) -> f64, x: f32, rounding: Rounding) -> f32 {
    let value = f(f64::from(x));
    match rounding {
        Rounding::Nearest | Rounding::Away => value as f32,
        _ => rounded(value, 0.0, rounding),
    }
}

fn unary64(name: &str, manner: Manner) -> Option<One> {
    if manner.rounding != Rounding::Nearest {
        return None;
    }
    Some(match name {
        "neg" => one(|x: f64| -x),
        "abs" => one(f64::abs),
        "rcp" => one(|x: f64| 1.0 / x),
        "sqrt" => one(f64::sqrt),
        "rsqrt" => one(|x: f64| 1.0 / x.sqrt()),
        _ => return None,
    })
}

/// `testp`: what kind of number a value is.
pub fn test(name: &str, kind: Type) -> Option<One> {
    let f: fn(f64, bool) -> bool = match name {
        "finite" => |x, _| x.is_finite(),
        "infinite" => |x, _| x.is_infinite(),
        "number" => |x, _| !x.is_nan(),
        "notanumber" => |x, _| x.is_nan(),
        "normal" => |x, subnormal| x.is_finite() && x != 0.0 && !subnormal,
        "subnormal" => |_, subnormal| subnormal,
        _ => return None,
    };
    Some(match kind {
        Type::F32 => one(move |x: f32| u32::from(f(f64::from(x), x.is_subnormal()))),
        Type::F64 => one(move |x: f64| u32::from(f(x, x.is_subnormal()))),
        _ => return None,
    })
}
