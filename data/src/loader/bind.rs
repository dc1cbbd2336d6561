//! Bindings, each of which is the field of a data set that feeds an input of a graph.

use std::collections::BTreeMap;
use std::ops::Range;

use graphc_host::data::HostFileError;
use graphc_host::tensor::HostTensor;
use graphc_ir::types::{Samples, TensorType};

use crate::augment::Normalize;
use crate::convert::{Conversion, write_integer};
use crate::dataset::{Dataset, Field, FieldKind, describe_dataset};
use crate::error::DatasetError;
use crate::tensors::shape_without_dim;

/// The label of padding. Losses and metrics ignore it.
pub const IGNORED: i64 = -100;

/// An input, and the field that feeds it.
#[derive(Clone, Debug)]
pub(super) struct Binding {
    pub(super) input: String,
    /// The type of the input, for a batch.
    pub(super) ty: TensorType,
    /// The index among the data set's fields.
    pub(super) field: usize,
    /// The dim that counts samples.
    pub(super) dim: usize,
    pub(super) conversion: Conversion,
    /// The bytes of a sample of padding, or `None` if labels have no value that is ignored.
    pub(super) nothing: Option<Vec<u8>>,
    /// The rows of a batch that are read.
    pub(super) rows: Vec<Range<usize>>,
}

impl Binding {
    /// Counts the rows of a batch that are read.
    pub(super) fn count_rows(&self) -> usize {
        self.rows.iter().map(Range::len).sum()
    }

    /// Returns the number of samples of a batch.
    pub(super) fn batch_size(&self) -> usize {
        self.ty.shape[self.dim]
    }
}

/// The dims of inputs that count samples. For inputs that are not listed it is the first.
pub(super) type Dims = BTreeMap<String, Samples>;

/// Returns the dim that counts the samples of an input, if any does.
fn dim_of(input: &str, ty: &TensorType, dims: &Dims) -> Option<usize> {
    dims.get(input).copied().unwrap_or_default().dim(ty.shape.len())
}

/// Reads the feeds of inputs that have no dim of samples. Each is the tensor of the set that has the input's name, whole.
///
/// # Errors
/// Returns an error if the set has no such tensor.
pub(super) fn read_fixed_feeds(
    set: &dyn Dataset,
    inputs: &BTreeMap<String, TensorType>,
    dims: &Dims,
) -> Result<BTreeMap<String, HostTensor>, DatasetError> {
    let mut found = BTreeMap::new();
    for (input, ty) in inputs.iter().filter(|(input, ty)| dim_of(input, ty, dims).is_none()) {
        let reason = match set.read_whole(input)? {
            Some(tensor) if tensor.ty() == *ty => {
                found.insert(input.clone(), tensor);
                continue;
            }
            Some(tensor) => {
                let (expected, found) = (ty.clone(), tensor.ty());
                return Err(HostFileError::Whole { name: input.clone(), expected, found }.into());
            }
            None => "no dim of it counts samples, and there is no whole tensor of its name",
        };
        let (input, ty, set) = (input.clone(), ty.clone(), describe_dataset(set));
        return Err(DatasetError::Input { input, ty, set, reason: reason.into() });
    }
    Ok(found)
}

/// Binds each input that has samples to the field of its name, or else to the only field left that fits its shape and type.
///
/// # Errors
/// Returns an error if an input has no such field.
pub(super) fn bind_inputs(
    set: &dyn Dataset,
    inputs: &BTreeMap<String, TensorType>,
    dims: &Dims,
    normalize: Option<&Normalize>,
) -> Result<Vec<Binding>, DatasetError> {
    let named = |input: &str| set.fields().iter().position(|field| field.name == input);
    let taken: Vec<usize> = inputs.keys().filter_map(|input| named(input)).collect();
    let mut bound: Vec<Binding> = Vec::new();
    for (input, ty) in inputs {
        let Some(dim) = dim_of(input, ty, dims) else { continue };
        let fail = |reason: String| {
            let (input, ty, set) = (input.clone(), ty.clone(), describe_dataset(set));
            DatasetError::Input { input, ty, set, reason }
        };
        let field = match named(input) {
            Some(field) => field,
            None => only_fit(set.fields(), &taken, (ty, dim), normalize).map_err(fail)?,
        };
        if let Some(other) = bound.iter().find(|other| other.field == field) {
            let name = &set.fields()[field].name;
            return Err(fail(format!("`{name}` would feed `{}` too: name one so", other.input)));
        }
        let conversion =
            find_conversion(&set.fields()[field], (ty, dim), normalize).map_err(fail)?;
        let nothing = padding_sample(&set.fields()[field], ty);
        let rows = std::iter::once(0..ty.shape[dim]).collect();
        let (input, ty) = (input.clone(), ty.clone());
        bound.push(Binding { input, ty, field, dim, conversion, nothing, rows });
    }
    Ok(bound)
}

/// Returns the only field that fits, among those that no input has the name of. Labels are taken only if no other field fits.
fn only_fit(
    fields: &[Field],
    taken: &[usize],
    ty: (&TensorType, usize),
    normalize: Option<&Normalize>,
) -> Result<usize, String> {
    let free = || fields.iter().enumerate().filter(|(index, _)| !taken.contains(index));
    let fits: Vec<(usize, &Field)> =
        free().filter(|(_, field)| find_conversion(field, ty, normalize).is_ok()).collect();
    let data: Vec<_> = fits.iter().filter(|(_, field)| field.kind != FieldKind::Labels).collect();
    match (&data[..], &fits[..], free().next()) {
        ([(index, _)], _, _) | ([], [(index, _)], _) => Ok(*index),
        ([], [], Some((_, field))) => {
            Err(find_conversion(field, ty, normalize).err().unwrap_or_default())
        }
        ([], [], None) => Err("there is no field of that name".into()),
        _ => Err("several fields fit: give the input the name of one".into()),
    }
}

/// Finds the conversion of a field's elements to those of an input, if the field fits the input.
fn find_conversion(
    field: &Field,
    (ty, dim): (&TensorType, usize),
    normalize: Option<&Normalize>,
) -> Result<Conversion, String> {
    let (name, wanted) = (&field.name, &shape_without_dim(&ty.shape, dim)[..]);
    let wide = |shape: &[usize]| -> Vec<usize> {
        shape.iter().copied().filter(|&extent| extent != 1).collect()
    };
    // A perceptron takes an image as one row.
    let flat = matches!(wanted, [elements] if *elements == field.ty.elements());
    if !flat && wide(wanted) != wide(&field.ty.shape) {
        return Err(format!("a sample of {name} is {}, and one of the input {wanted:?}", field.ty));
    }
    Conversion::from_field(field, ty.dtype, normalize)
}

/// Returns a sample of padding: zeros, or labels that are ignored. `None` if the type of labels has no such value.
fn padding_sample(field: &Field, ty: &TensorType) -> Option<Vec<u8>> {
    let size = ty.dtype.size();
    let mut bytes = vec![0; field.ty.elements() * size];
    if field.kind == FieldKind::Labels && !ty.dtype.is_float() {
        bytes.chunks_exact_mut(size).try_for_each(|e| write_integer(IGNORED, ty.dtype, e)).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use graphc_ir::types::DType;

    use super::*;

    struct Set(Vec<Field>);

    impl Dataset for Set {
        fn name(&self) -> &str {
            "a set"
        }

        fn samples(&self) -> usize {
            8
        }

        fn fields(&self) -> &[Field] {
            &self.0
        }

        fn read(&self, _: usize, _: usize, _: &mut [u8]) -> Result<(), DatasetError> {
            Ok(())
        }
    }

    fn images() -> Set {
        let image = TensorType::new(DType::U8, [3, 8, 8]);
        let label = TensorType::new(DType::I64, []);
        Set(vec![
            Field::new("images", image, FieldKind::Image),
            Field::new("labels", label, FieldKind::Labels),
        ])
    }

    /// Returns the field of each input, in the order of their names.
    fn bound(set: &Set, inputs: &[(&str, DType, &[usize])]) -> Result<Vec<String>, String> {
        let inputs = inputs
            .iter()
            .map(|&(name, dtype, shape)| (name.to_owned(), TensorType::new(dtype, shape)));
        let inputs = inputs.collect();
        let text = |error: DatasetError| error.to_string();
        read_fixed_feeds(set, &inputs, &Dims::new()).map_err(text)?;
        let bound = bind_inputs(set, &inputs, &Dims::new(), None).map_err(text)?;
        Ok(bound.iter().map(|binding| set.0[binding.field].name.clone()).collect())
    }

    #[test]
    fn inputs_of_any_name_find_the_field_that_fits() {
        let image: &[usize] = &[4, 3, 8, 8];
        let fits = |inputs: &[(&str, DType, &[usize])]| bound(&images(), inputs).expect("it fits");
        let both = ["images", "labels"];
        assert_eq!(fits(&[("images", DType::F32, image), ("labels", DType::I64, &[4])]), both);
        assert_eq!(fits(&[("a", DType::BF16, image), ("labels", DType::I64, &[4])]), both);
        assert_eq!(fits(&[("a", DType::F32, image), ("b", DType::I32, &[4])]), both);
        assert_eq!(fits(&[("flat", DType::F32, &[4, 192])]), ["images"]);
        assert_eq!(fits(&[("raw", DType::U8, image)]), ["images"]);
    }

    #[test]
    fn text_feeds_tokens_where_both_fields_fit() {
        let set = Set(crate::text::window_fields(16).into());
        let ids: (&str, DType, &[usize]) = ("ids", DType::I64, &[2, 16]);
        assert_eq!(bound(&set, &[ids]), Ok(vec!["tokens".to_owned()]));
        assert_eq!(bound(&set, &[ids, ("labels", DType::I64, &[2, 16])]).map(|b| b.len()), Ok(2));
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let fails = |inputs: &[(&str, DType, &[usize])]| bound(&images(), inputs).expect_err("no");
        let last = fails(&[("x", DType::F32, &[4, 8, 8, 3])]);
        assert!(last.contains("u8[3, 8, 8], and one of the input [8, 8, 3]"), "{last}");
        assert!(
            last.contains("a set with 8 samples of images u8[3, 8, 8], labels i64[]"),
            "{last}"
        );
        assert!(fails(&[("labels", DType::F32, &[4])]).contains("do not become f32"));
        let twice = fails(&[("x", DType::U8, &[4, 192]), ("y", DType::F32, &[4, 192])]);
        assert!(twice.contains("would feed `x` too"), "{twice}");
        assert!(fails(&[("x", DType::F32, &[])]).contains("no dim of it counts samples"));
        let taken = fails(&[
            ("images", DType::U8, &[4, 192]),
            ("labels", DType::I64, &[4]),
            ("mask", DType::F32, &[4]),
        ]);
        assert!(taken.contains("no field of that name"), "{taken}");
    }
}
