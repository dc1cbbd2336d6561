//! Floating-point numbers of 8 bits, in the two formats that cards multiply (Micikevicius et al., arXiv 2209.05433, table 1).
//!
//! [`E4M3`] has a sign, 4 bits of exponent and 3 of mantissa. It has no infinities, and one bit pattern of each sign that is no number (`float8_e4m3fn`
//! in PyTorch). [`E5M2`] has 5 bits of exponent and 2 of mantissa, with infinities and NaNs as IEEE 754 has them (`float8_e5m2`). It is coarser and
//! reaches further, as gradients need it.
//!
//! Products of such numbers are scaled: an operand is multiplied by a power of two ([`Float8Format::scale_for`]) before it is rounded, and the product divided
//! by it.

/// 4 bits of exponent, 3 of mantissa. The greatest number is 448.
pub const E4M3: Float8Format = Float8Format { mantissa: 3, bias: 7, infinity: 0x7f };

/// 5 bits of exponent, 2 of mantissa. The greatest number is 57344.
pub const E5M2: Float8Format = Float8Format { mantissa: 2, bias: 15, infinity: 0x7c };

/// The bits of what is no number.
const NAN: u8 = 0x7f;

/// The mantissa of the greatest number of either format, 1.75, as `f32` has it.
const GREATEST_MANTISSA: u32 = 0x60_0000;

/// A format of floating-point numbers of 8 bits: [`E4M3`] or [`E5M2`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Float8Format {
    /// The bits of the mantissa.
    mantissa: u32,
    /// The number that is added to exponents.
    bias: u32,
    /// The bits of infinity, or where there is none those of what is no number: all numbers have lesser ones.
    infinity: u8,
}

impl Float8Format {
    /// Returns the greatest number.
    ///
    /// ```
    /// use graphc_ir::float8::{E4M3, E5M2};
    ///
    /// assert_eq!([E4M3, E5M2].map(|format| format.greatest()), [448.0, 57344.0]);
    /// ```
    #[inline]
    pub const fn greatest(self) -> f32 {
        f32::from_bits((self.greatest_exponent() + 127) << 23 | GREATEST_MANTISSA)
    }

    /// The exponent of the greatest number: one bit more than half of them are positive in E4M3, whose last exponent has numbers too.
    #[inline]
    const fn greatest_exponent(self) -> u32 {
        ((self.infinity - 1) as u32 >> self.mantissa) - self.bias
    }

    /// Returns the bits of the number nearest to a value, of two equally near ones of that with an even mantissa. What is greater than the greatest
    /// number becomes that.
    ///
    /// ```
    /// use graphc_ir::float8::{E4M3, E5M2};
    ///
    /// assert_eq!([0.3, 1e9, -17.0].map(|x| E4M3.decode(E4M3.encode(x))), [0.3125, 448.0, -16.0]);
    /// assert_eq!([0.3, 1e9, -17.0].map(|x| E5M2.decode(E5M2.encode(x))), [0.3125, 57344.0, -16.0]);
    /// ```
    #[inline]
    pub fn encode(self, value: f32) -> u8 {
        let Self { mantissa, bias, .. } = self;
        let bits = value.to_bits();
        let sign = (bits >> 24) as u8 & 0x80;
        if value.is_nan() {
            return sign | NAN;
        }
        let size = value.abs().min(self.greatest());
        let dropped = 23 - mantissa;
        let code = if size < f32::from_bits((128 - bias) << 23) {
            // Below the least normal number steps are equal. Adding 2^23 steps leaves such steps to a sum of f32, which is rounded as wished.
            let steps = f32::from_bits((128 - bias + dropped) << 23);
            (size + steps).to_bits() - steps.to_bits()
        } else {
            let bits = size.to_bits();
            let rounded = bits + ((1 << (dropped - 1)) - 1) + ((bits >> dropped) & 1);
            (rounded >> dropped) - ((127 - bias) << mantissa)
        };
        sign | code as u8
    }

    /// Returns the number that bits stand for.
    #[inline]
    pub fn decode(self, bits: u8) -> f32 {
        let Self { mantissa, bias, infinity } = self;
        let code = u32::from(bits & 0x7f);
        let size = if bits & 0x7f > infinity || bits & 0x7f == NAN {
            f32::NAN
        } else if bits & 0x7f == infinity {
            f32::INFINITY
        } else if code >> mantissa == 0 {
            code as f32 * f32::from_bits((128 - bias - mantissa) << 23)
        } else {
            f32::from_bits((code << (23 - mantissa)) + ((127 - bias) << 23))
        };
        if bits & 0x80 == 0 { size } else { -size }
    }

    /// Returns the factor by which numbers of which the greatest has this size are multiplied before they are rounded: the greatest power of two that
    /// leaves them within the greatest number. Sizes below 1e-12 count as that, as in torchao's `float8_utils.py` (`EPS`).
    #[inline]
    pub fn scale_for(self, greatest: f32) -> f32 {
        if !greatest.is_finite() {
            return 1.0;
        }
        let size = greatest.max(1e-12);
        let exponent = size.to_bits() >> 23;
        let above = u32::from(size.to_bits() & 0x7f_ffff > GREATEST_MANTISSA);
        f32::from_bits((self.greatest_exponent() + 254 - exponent - above) << 23)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMATS: [Float8Format; 2] = [E4M3, E5M2];

    #[test]
    fn every_number_is_its_own_nearest() {
        for format in FORMATS {
            for bits in 0..=u8::MAX {
                let value = format.decode(bits);
                if value.is_finite() {
                    assert_eq!(format.encode(value), bits, "{value}");
                }
            }
            let nan = |value: f32| format.decode(format.encode(value)).is_nan();
            assert!(nan(f32::NAN) && nan(-f32::NAN));
        }
        let infinite = |format: Float8Format| {
            (0..=u8::MAX).filter(|&bits| format.decode(bits).is_infinite()).count()
        };
        assert_eq!(FORMATS.map(infinite), [0, 2]);
    }

    /// Values between two neighbours go to the nearer one, and halfway to the even one.
    #[test]
    fn values_are_rounded_to_the_nearest_number() {
        for format in FORMATS {
            let nearest = |value: f32| format.decode(format.encode(value));
            for bits in 0..format.infinity - 1 {
                let (low, high) = (format.decode(bits), format.decode(bits + 1));
                let middle = (low + high) / 2.0;
                let even = if bits % 2 == 0 { low } else { high };
                assert_eq!(nearest(middle), even, "between {low} and {high}");
                assert_eq!(nearest(middle.next_down()), low);
                assert_eq!(nearest(middle.next_up()), high);
                assert_eq!(nearest(-middle.next_up()), -high);
            }
            assert_eq!(nearest(f32::INFINITY), format.greatest());
            assert_eq!(nearest(f32::MIN), -format.greatest());
        }
    }

    /// The least number, the least normal one, 1 and the greatest, by table 1 of the paper.
    #[test]
    fn numbers_are_those_of_the_formats() {
        let powers = |exponents: [i32; 3]| exponents.map(|exponent| 2f32.powi(exponent));
        let of_e4m3 = [0x01, 0x08, 0x38].map(|bits| E4M3.decode(bits));
        assert_eq!((of_e4m3, E4M3.decode(0x7e)), (powers([-9, -6, 0]), 448.0));
        let of_e5m2 = [0x01, 0x04, 0x3c].map(|bits| E5M2.decode(bits));
        assert_eq!((of_e5m2, E5M2.decode(0x7b)), (powers([-16, -14, 0]), 57344.0));
    }

    #[test]
    fn a_scale_is_the_greatest_power_of_two_that_keeps_numbers_within_the_greatest() {
        for format in FORMATS {
            for size in
                [448.0f32, 448.1, 57344.0, 1.0, 1.75, 1.750_000_1, 3e-5, 1e30, f32::MAX, 0.02]
            {
                let scale = format.scale_for(size);
                assert_eq!(scale.to_bits() & 0x7f_ffff, 0, "a power of two");
                let greatest = format.greatest();
                assert!(
                    size * scale <= greatest && size * scale * 2.0 > greatest,
                    "{size}: {scale}"
                );
            }
            assert_eq!(format.scale_for(0.0), format.scale_for(1e-12));
            assert_eq!([f32::INFINITY, f32::NAN].map(|size| format.scale_for(size)), [1.0, 1.0]);
        }
    }
}
