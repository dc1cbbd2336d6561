//! Converts the elements of a field to those of an input.

use graphc_host::tensor::HostTensor;
use graphc_ir::types::DType;

use crate::augment::Normalize;
use crate::dataset::Field;

/// The conversion of elements to another type.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Conversion {
    /// Elements are copied.
    Copy,
    /// For each channel, the bytes into which each byte is converted; `size` of them.
    Table { channels: Vec<Vec<u8>>, size: usize },
    /// Integers are converted, and must fit.
    Integers { from: DType, to: DType },
    /// Floats are converted, and rounded once.
    Floats { from: DType, to: DType },
}

impl Conversion {
    /// Finds the conversion from a field to elements of a type. Bytes become floats in `[0, 1]`, which are then normalized, channel by channel if the
    /// field has channels.
    ///
    /// # Errors
    /// Returns the reason if there is no such conversion.
    pub(crate) fn from_field(
        field: &Field,
        to: DType,
        normalize: Option<&Normalize>,
    ) -> Result<Self, String> {
        let integer = |dtype: DType| matches!(dtype, DType::U8 | DType::I32 | DType::I64);
        match field.ty.dtype {
            DType::U8 if to.is_float() => build_table(field, to, normalize),
            from if from == to => Ok(Self::Copy),
            from if from.is_float() && to.is_float() => Ok(Self::Floats { from, to }),
            from if integer(from) && integer(to) => Ok(Self::Integers { from, to }),
            from => Err(format!("{} has elements of {from}, which do not become {to}", field.name)),
        }
    }

    /// Writes the converted elements. A field of several channels is given whole.
    ///
    /// # Errors
    /// Returns the reason if an integer does not fit.
    pub(crate) fn convert_into(&self, from: &[u8], into: &mut [u8]) -> Result<(), String> {
        match self {
            Self::Copy => into.copy_from_slice(from),
            Self::Table { channels, size } => {
                let plane = from.len() / channels.len();
                let planes = from.chunks_exact(plane.max(1));
                let targets = into.chunks_exact_mut((plane * size).max(1));
                for ((table, pixels), target) in channels.iter().zip(planes).zip(targets) {
                    match size {
                        4 => look_up::<4>(table, pixels, target),
                        _ => look_up::<2>(table, pixels, target),
                    }
                }
            }
            Self::Integers { from: dtype, to } => {
                let elements = from.chunks_exact(dtype.size());
                for (element, target) in elements.zip(into.chunks_exact_mut(to.size())) {
                    write_integer(read_integer(*dtype, element), *to, target)?;
                }
            }
            Self::Floats { from: dtype, to } => {
                let numbers = HostTensor::new(*dtype, [from.len() / dtype.size()], from.into());
                let numbers = numbers.map_err(|error| error.to_string())?.to_f64();
                into.copy_from_slice(&bytes_of(*to, &numbers)?);
            }
        }
        Ok(())
    }
}

fn look_up<const N: usize>(table: &[u8], pixels: &[u8], into: &mut [u8]) {
    let (table, into) = (table.as_chunks::<N>().0, into.as_chunks_mut::<N>().0);
    for (target, &pixel) in into.iter_mut().zip(pixels) {
        *target = table[usize::from(pixel)];
    }
}

fn build_table(
    field: &Field,
    to: DType,
    normalize: Option<&Normalize>,
) -> Result<Conversion, String> {
    let channels = if let [channels, _, _] = field.ty.shape[..] { channels.max(1) } else { 1 };
    if let Some(normalize) = normalize.filter(|normalize| !normalize.fits_channels(channels)) {
        return Err(format!(
            "{} has {channels} channels, which {normalize:?} does not fit",
            field.name
        ));
    }
    let of = |channel: usize| {
        let value = |byte: u8| {
            let value = f32::from(byte) / 255.0;
            f64::from(normalize.map_or(value, |normalize| normalize.apply(channel, value)))
        };
        bytes_of(to, &(0..=255).map(value).collect::<Vec<_>>())
    };
    let channels = (0..channels).map(of).collect::<Result<_, _>>()?;
    Ok(Conversion::Table { channels, size: to.size() })
}

fn bytes_of(dtype: DType, numbers: &[f64]) -> Result<Vec<u8>, String> {
    let tensor = HostTensor::from_f64(dtype, [numbers.len()], numbers);
    Ok(tensor.map_err(|error| error.to_string())?.bytes().to_vec())
}

/// Reads an element of an integer type.
fn read_integer(dtype: DType, element: &[u8]) -> i64 {
    let mut word = [0; 8];
    word[..element.len()].copy_from_slice(element);
    match dtype {
        DType::I64 => i64::from_ne_bytes(word),
        DType::I32 => i64::from(i32::from_ne_bytes([word[0], word[1], word[2], word[3]])),
        _ => i64::from(word[0]),
    }
}

/// Writes an integer as an element of another type.
///
/// # Errors
/// Returns the reason if it does not fit.
pub(crate) fn write_integer(number: i64, to: DType, into: &mut [u8]) -> Result<(), String> {
    let beyond = || format!("{number} does not fit {to}");
    match to {
        DType::I64 => into.copy_from_slice(&number.to_ne_bytes()),
        DType::I32 => {
            let number = i32::try_from(number).map_err(|_| beyond())?;
            into.copy_from_slice(&number.to_ne_bytes());
        }
        _ => into.copy_from_slice(&[u8::try_from(number).map_err(|_| beyond())?]),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use graphc_ir::types::TensorType;

    use super::*;
    use crate::dataset::FieldKind;

    fn field(dtype: DType, shape: &[usize]) -> Field {
        Field::new("x", TensorType::new(dtype, shape), FieldKind::Plain)
    }

    fn converted(
        field: &Field,
        to: DType,
        normalize: Option<&Normalize>,
        numbers: &[f64],
    ) -> Vec<f64> {
        let conversion = Conversion::from_field(field, to, normalize).expect("defined");
        let mut into = vec![0; numbers.len() * to.size()];
        let from = bytes_of(field.ty.dtype, numbers).expect("as many");
        conversion.convert_into(&from, &mut into).expect("they fit");
        HostTensor::new(to, [numbers.len()], into).expect("as many").to_f64()
    }

    #[test]
    fn bytes_become_what_torchvision_makes_of_them() {
        let image = field(DType::U8, &[2, 1, 2]);
        let plain = converted(&image, DType::F32, None, &[0., 255., 51., 102.]);
        assert_eq!(plain, [0.0, 1.0, f64::from(51.0_f32 / 255.0), f64::from(102.0_f32 / 255.0)]);
        let normalize = Normalize::new(&[0.5, 0.25], &[0.5, 0.125]);
        let normal = converted(&image, DType::F32, Some(&normalize), &[0., 255., 0., 255.]);
        assert_eq!(normal, [-1.0, 1.0, -2.0, 6.0]);
        let half = converted(&image, DType::BF16, Some(&normalize), &[0., 255., 0., 255.]);
        assert_eq!(half, normal);
        let flat = converted(&field(DType::U8, &[4]), DType::F32, None, &[0., 255., 0., 255.]);
        assert_eq!(flat, [0.0, 1.0, 0.0, 1.0]);
    }

    #[test]
    fn integers_keep_their_value_or_are_refused() {
        for from in [DType::U8, DType::I32, DType::I64] {
            for to in [DType::U8, DType::I32, DType::I64] {
                assert_eq!(converted(&field(from, &[2]), to, None, &[0., 99.]), [0., 99.]);
            }
        }
        let narrow =
            Conversion::from_field(&field(DType::I64, &[]), DType::I32, None).expect("defined");
        let error =
            narrow.convert_into(&(1_i64 << 40).to_ne_bytes(), &mut [0; 4]).expect_err("too large");
        assert!(error.contains("does not fit i32"), "{error}");
        assert!(write_integer(-100, DType::U8, &mut [0]).is_err());
    }

    #[test]
    fn other_types_are_refused() {
        assert_eq!(converted(&field(DType::F32, &[2]), DType::F16, None, &[0.5, 3.]), [0.5, 3.0]);
        Conversion::from_field(&field(DType::F32, &[]), DType::I64, None)
            .expect_err("it would be cut");
        Conversion::from_field(&field(DType::I64, &[]), DType::F32, None)
            .expect_err("classes, not numbers");
        let three = Normalize::new(&[0.5; 3], &[1.0; 3]);
        Conversion::from_field(&field(DType::U8, &[2, 1, 1]), DType::F32, Some(&three))
            .expect_err("2, not 3");
        let zero = Normalize::new(&[0.5], &[0.0]);
        Conversion::from_field(&field(DType::U8, &[2, 1, 1]), DType::F32, Some(&zero))
            .expect_err("by 0");
    }
}
