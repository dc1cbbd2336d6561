//! Elementary functions of `f32` without branches, so that loops over them vectorize; fused multiply-adds, which give
//! the same bits on every processor that has them. Sources:
//! Cephes (Moshier) for exp, log and tanh; Juffa's polynomials for erf.

/// e^x, within 2 ulp; 0 and infinity where it under- and overflows.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let low = if x < -104.0 { -104.0 } else { x };
    let (value, n) = exp_parts(if low > 89.0 { 89.0 } else { low });
    // 2^n in two factors, because n runs from -150 to 128 and an exponent does not.
    let half = n >> 1;
    value * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

/// e^x of x up to 88, as differences to a greatest value are: the same bits as [`exp`], but for subnormal
/// results, of which most are 0.
#[inline(always)]
pub(crate) fn exp_below(x: f32) -> f32 {
    let (value, n) = exp_parts(if x < -104.0 { -104.0 } else { x });
    value * power_of_two(if n < -127 { -127 } else { n })
}

/// Splits e^x in a factor and a power of two, whose exponent is the second number; x is at least -104 and at most 89.
#[inline(always)]
fn exp_parts(x: f32) -> (f32, i32) {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(2.121_944_4e-4, n.mul_add(-0.693_359_4, x));
    let mut p: f32 = 1.987_569_1e-4;
    p = p.mul_add(r, 1.398_199_9e-3);
    p = p.mul_add(r, 8.333_452e-3);
    p = p.mul_add(r, 4.166_579_6e-2);
    p = p.mul_add(r, 1.666_666_5e-1);
    p = p.mul_add(r, 0.5);
    let value = p.mul_add(r * r, r) + 1.0;
    (value, (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32))
}

#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) << 23) as u32)
}

/// The natural logarithm; -inf at 0, NaN below.
#[inline(always)]
pub(crate) fn log(x: f32) -> f32 {
    let tiny = x < f32::MIN_POSITIVE;
    let scaled = if tiny { x * 8_388_608.0 } else { x };
    let bits = scaled.to_bits();
    let exponent = ((bits >> 23) & 0xFF) as i32 - 126 - if tiny { 23 } else { 0 };
    let mantissa = f32::from_bits((bits & 0x007F_FFFF) | 0x3F00_0000); // in [0.5, 1)
    let small = mantissa < std::f32::consts::FRAC_1_SQRT_2;
    let e = exponent as f32 - if small { 1.0 } else { 0.0 };
    let m = if small { mantissa + mantissa } else { mantissa } - 1.0;
    let z = m * m;
    let mut p: f32 = 7.037_683_6e-2;
    p = p.mul_add(m, -1.151_461e-1);
    p = p.mul_add(m, 1.167_699_9e-1);
    p = p.mul_add(m, -1.242_014_1e-1);
    p = p.mul_add(m, 1.424_932_3e-1);
    p = p.mul_add(m, -1.666_805_8e-1);
    p = p.mul_add(m, 2.000_071_5e-1);
    p = p.mul_add(m, -2.499_999_4e-1);
    p = p.mul_add(m, 3.333_333e-1);
    let y = e.mul_add(-2.121_944_4e-4, p * m * z) - 0.5 * z;
    let value = e.mul_add(0.693_359_4, m + y);
    let value = if x == f32::INFINITY { x } else { value };
    let value = if x == 0.0 { f32::NEG_INFINITY } else { value };
    if x >= 0.0 { value } else { f32::NAN }
}

/// The hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let a = x.abs();
    let z = x * x;
    let mut p: f32 = -5.704_988_7e-3;
    p = p.mul_add(z, 2.063_909e-2);
    p = p.mul_add(z, -5.373_971_6e-2);
    p = p.mul_add(z, 1.333_144_2e-1);
    p = p.mul_add(z, -3.333_328e-1);
    let near = (p * z).mul_add(x, x);
    let far = (1.0 - 2.0 / (exp(a + a) + 1.0)).copysign(x);
    if a < 0.625 { near } else { far }
}

/// 1 / (1 + exp(-x)).
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// The error function, within 2e-7: near 0 an odd polynomial, elsewhere 1 - exp of a polynomial.
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    let t = x.abs();
    let s = x * x;
    let mut far = t.mul_add(-1.728_534_7e-5, 3.831_971_3e-4);
    far = far.mul_add(s, t.mul_add(-3.883_964_4e-3, 2.425_462_2e-2));
    far = far.mul_add(t, -1.067_778_8e-1);
    far = far.mul_add(t, -6.348_467e-1);
    far = far.mul_add(t, -1.287_175_1e-1);
    // Beyond 4 the nearest f32 is 1, and the polynomial must not turn back.
    let far = if t > 4.0 { 1.0 } else { 1.0 - exp_below(far.mul_add(t, -t)) };
    let mut near: f32 = -5.967_617e-4;
    near = near.mul_add(s, 4.991_194_2e-3);
    near = near.mul_add(s, -2.676_813_5e-2);
    near = near.mul_add(s, 1.128_199_3e-1);
    near = near.mul_add(s, -3.761_253_4e-1);
    near = near.mul_add(s, 1.283_791_7e-1);
    let near = near.mul_add(x, x);
    if t > 0.927_734_4 { far.copysign(x) } else { near }
}

/// x Phi(x).
#[inline(always)]
pub(crate) fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2))
}

/// The tanh approximation of [`gelu`].
#[inline(always)]
pub(crate) fn gelu_tanh(x: f32) -> f32 {
    let inner = 0.797_884_6 * (x + 0.044_715 * x * x * x);
    0.5 * x * (1.0 + tanh(inner))
}

/// x sigmoid(x).
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> impl Iterator<Item = f32> {
        (0..400_000).map(|i| (i as f32 - 200_000.0) * 5.3e-4)
    }

    fn ulps(found: f32, exact: f64) -> f64 {
        let nearest = exact as f32;
        if nearest == found || nearest.is_infinite() {
            return f64::from(u8::from(nearest != found));
        }
        let ulp = f64::from(f32::from_bits(nearest.abs().to_bits() + 1)) - f64::from(nearest.abs());
        (f64::from(found) - exact).abs() / ulp
    }

    /// The series of erf, exact enough in f64 up to 4.
    fn erf_exact(x: f64) -> f64 {
        let (mut term, mut sum) = (x, x);
        for n in 1..200 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    }

    #[test]
    fn exp_and_log_are_within_two_ulp() {
        let worst = samples().map(|x| ulps(exp(x), f64::from(x).exp())).fold(0.0, f64::max);
        assert!(worst < 2.0, "exp {worst}");
        let positive = samples().map(exp).filter(|x| *x > 0.0 && x.is_finite());
        let worst = positive.map(|x| ulps(log(x), f64::from(x).ln())).fold(0.0, f64::max);
        assert!(worst < 2.0, "log {worst}");
    }

    #[test]
    fn exp_of_differences_is_the_same() {
        for x in samples().filter(|&x| x <= 88.0) {
            let (found, expected) = (exp_below(x), exp(x));
            let is_tiny = expected < f32::MIN_POSITIVE && (0.0..=expected).contains(&found);
            assert!(found.to_bits() == expected.to_bits() || is_tiny, "{x}: {found}, {expected}");
        }
        assert_eq!(exp_below(-f32::INFINITY), 0.0);
        assert!(exp_below(f32::NAN).is_nan());
    }

    #[test]
    fn bounded_functions_are_near_in_absolute_terms() {
        for x in samples() {
            let exact = f64::from(x);
            assert!((f64::from(tanh(x)) - exact.tanh()).abs() < 1.5e-7, "tanh {x} {}", tanh(x));
            assert!(
                (f64::from(sigmoid(x)) - 1.0 / (1.0 + (-exact).exp())).abs() < 1.5e-7,
                "sigmoid {x}"
            );
            if x.abs() < 4.0 {
                assert!((f64::from(erf(x)) - erf_exact(exact)).abs() <= 2e-7, "erf {x} {}", erf(x));
            }
        }
    }

    #[test]
    fn limits_come_out() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        assert_eq!([exp(inf), exp(-inf), exp(0.0), exp(1e30)], [inf, 0.0, 1.0, inf]);
        assert_eq!([log(inf), log(0.0), log(1.0)], [inf, -inf, 0.0]);
        assert_eq!([tanh(inf), tanh(-inf), erf(inf), erf(-inf)], [1.0, -1.0, 1.0, -1.0]);
        assert_eq!([sigmoid(inf), sigmoid(-inf)], [1.0, 0.0]);
        assert_eq!([gelu, gelu_tanh, silu].map(|f| f(inf)), [inf; 3]);
        assert_eq!([gelu, gelu_tanh, silu].map(|f| f(-1e30)), [0.0; 3]);
        for f in [exp, log, tanh, sigmoid, erf, gelu, gelu_tanh, silu] {
            assert!(f(nan).is_nan());
        }
        assert!(log(-1.0).is_nan() && log(-inf).is_nan());
    }
}
