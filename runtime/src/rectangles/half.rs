//! The two half-precision types as bits, to and from `f32`; rounding to nearest, ties to even.

/// The value of a bfloat16.
pub(crate) fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The nearest bfloat16.
pub(crate) fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) as u16
}

/// The value of an IEEE 754 binary16.
pub(crate) fn from_f16(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let rest = u32::from(bits & 0x7FFF);
    let magnitude = match rest >> 10 {
        // Subnormal numbers are multiples of 2^-24.
        0 => (rest as f32 * (1.0 / 16_777_216.0)).to_bits(),
        31 => 0x7F80_0000 | (rest & 0x3FF) << 13,
        _ => (rest << 13) + ((127 - 15) << 23),
    };
    f32::from_bits(sign | magnitude)
}

/// The nearest IEEE 754 binary16.
pub(crate) fn to_f16(value: f32) -> u16 {
    let sign = (value.to_bits() >> 16 & 0x8000) as u16;
    let magnitude = value.to_bits() & 0x7FFF_FFFF;
    if value.is_nan() {
        return sign | 0x7E00;
    }
    if magnitude >= 0x4780_0000 {
        return sign | 0x7C00; // 2^16 and more
    }
    if magnitude < 0x3880_0000 {
        // Below 2^-14: adding 0.5 leaves multiples of 2^-24 in the low bits, rounded by the addition.
        let shifted = f32::from_bits(magnitude) + 0.5;
        return sign | (shifted.to_bits() - 0x3F00_0000) as u16;
    }
    let rounded = magnitude + 0xFFF + (magnitude >> 13 & 1);
    sign | ((rounded - (112 << 23)) >> 13) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_survives() {
        for bits in 0..=u16::MAX {
            for back in [to_f16(from_f16(bits)), to_bf16(from_bf16(bits))] {
                let nan = from_f16(bits).is_nan() || from_bf16(bits).is_nan();
                assert!(back == bits || nan, "{bits:#x} {back:#x}");
            }
        }
    }

    #[test]
    fn rounding_goes_to_the_nearest_even() {
        assert_eq!(to_f16(1.0 + 1.0 / 2048.0), 0x3C00);
        assert_eq!(to_f16(1.0 + 3.0 / 2048.0), 0x3C02);
        assert_eq!(to_f16(65_520.0), 0x7C00);
        assert_eq!(to_f16(65_519.0), 0x7BFF);
        assert_eq!(to_bf16(1.0 + 1.0 / 256.0), 0x3F80);
    }
}
