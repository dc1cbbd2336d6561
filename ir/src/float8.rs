//! The 8-bit floating-point number E4M3: a sign, 4 bits of exponent, 3 of mantissa.
//!
//! It has no infinities, and one bit pattern of each sign that is no number, so its greatest number is [`GREATEST`] (Micikevicius et al.,
//! arXiv 2209.05433, table 1; `float8_e4m3fn` in PyTorch). Products of such numbers are scaled: an operand is multiplied by a power of two
//! ([`scale_for`]) before it is rounded, and the product divided by it.

/// The greatest number, 1.75 x 2^8.
pub const GREATEST: f32 = 448.0;

/// The bits of what is no number.
const NAN: u8 = 0x7f;

/// Returns the bits of the number nearest to a value, of two equally near ones of that with an even mantissa. What is greater than the greatest
/// number becomes that.
///
/// ```
/// use graphc_ir::float8::{decode, encode};
///
/// assert_eq!([0.3, 1e9, -17.0].map(|x| decode(encode(x))), [0.3125, 448.0, -16.0]);
/// ```
pub fn encode(value: f32) -> u8 {
    let bits = value.to_bits();
    let sign = (bits >> 24) as u8 & 0x80;
    if value.is_nan() {
        return sign | NAN;
    }
    let size = value.abs().min(GREATEST);
    // The least normal number is 2^-6; below it steps are 2^-9.
    let code = if size < 1.0 / 64.0 {
        // Adding 2^14 leaves steps of 2^-9 to a sum of f32, which is rounded as wished.
        (size + 16384.0).to_bits() - 16384f32.to_bits()
    } else {
        let bits = size.to_bits();
        let rounded = bits + 0x7_ffff + ((bits >> 20) & 1);
        (rounded >> 20) - ((127 - 7) << 3)
    };
    sign | code as u8
}

/// Returns the number that bits stand for.
pub fn decode(bits: u8) -> f32 {
    let size = match (bits >> 3 & 0xf, bits & 7) {
        (15, 7) => f32::NAN,
        (0, mantissa) => f32::from(mantissa) / 512.0,
        (exponent, mantissa) => {
            f32::from_bits((u32::from(exponent) + 127 - 7) << 23 | u32::from(mantissa) << 20)
        }
    };
    if bits & 0x80 == 0 { size } else { -size }
}

/// Returns the factor by which numbers of which the greatest has this size are multiplied before they are rounded: the greatest power of two that
/// leaves them within [`GREATEST`]. Sizes below 1e-12 count as that, as in torchao's `float8_utils.py` (`EPS`).
pub fn scale_for(greatest: f32) -> f32 {
    if !greatest.is_finite() {
        return 1.0;
    }
    let size = greatest.max(1e-12);
    let exponent = ((size.to_bits() >> 23) as i32) - 127;
    let mantissa = size.to_bits() & 0x7f_ffff;
    let above = i32::from(mantissa > GREATEST.to_bits() & 0x7f_ffff);
    f32::from_bits(((8 - exponent - above + 127) as u32) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_its_own_nearest() {
        for bits in 0..=u8::MAX {
            let value = decode(bits);
            if !value.is_nan() {
                assert_eq!(encode(value), bits, "{value}");
            }
        }
        assert!(decode(encode(f32::NAN)).is_nan() && decode(encode(-f32::NAN)).is_nan());
    }

    /// Values between two neighbours go to the nearer one, and halfway to the even one.
    #[test]
    fn values_are_rounded_to_the_nearest_number() {
        for bits in 0..0x7e {
            let (low, high) = (decode(bits), decode(bits + 1));
            let middle = (low + high) / 2.0;
            let even = if bits % 2 == 0 { low } else { high };
            assert_eq!(decode(encode(middle)), even, "between {low} and {high}");
            assert_eq!(decode(encode(middle.next_down())), low);
            assert_eq!(decode(encode(middle.next_up())), high);
            assert_eq!(decode(encode(-middle.next_up())), -high);
        }
        assert_eq!(decode(encode(f32::INFINITY)), GREATEST);
        assert_eq!(decode(encode(f32::MIN)), -GREATEST);
    }

    #[test]
    fn a_scale_is_the_greatest_power_of_two_that_keeps_numbers_within_the_greatest() {
        for size in [448.0f32, 448.1, 1.0, 1.75, 1.750_000_1, 3e-5, 1e30, 0.02] {
            let scale = scale_for(size);
            assert_eq!(scale.to_bits() & 0x7f_ffff, 0, "a power of two");
            assert!(size * scale <= GREATEST && size * scale * 2.0 > GREATEST, "{size}: {scale}");
        }
        assert_eq!(scale_for(0.0), scale_for(1e-12));
        assert_eq!([f32::INFINITY, f32::NAN].map(scale_for), [1.0, 1.0]);
    }
}
