//! The inputs of a model: their types, the names of their extents, and the values that these are given.

use std::collections::BTreeMap;

use graphc_ir::ops::Input;
use graphc_ir::types::TensorType;
use rten_onnx::onnx::{DataType, GraphProto, ValueInfoProto};

use super::lower::Lowering;
use super::tensor;
use crate::{ImportError, Symbols};

/// The name that stands for the number of samples, whatever the model calls it.
const BATCH: &str = "batch";

/// Returns the number of samples that a model was exported for, if its inputs do not name it.
pub(super) fn fixed_batch<T>(graph: &GraphProto, tensors: &BTreeMap<String, T>) -> Option<usize> {
    let (name, info) = fed_inputs(graph, tensors).next()?;
    let first = read_extents(name, info).into_iter().next()?;
    usize::try_from(first.ok()?).ok()
}

/// The floating-point values whose type the file says, as far as its extents have values.
pub(super) fn collect_described_types(
    graph: &GraphProto,
    dims: &BTreeMap<String, usize>,
    symbols: &Symbols,
) -> BTreeMap<String, TensorType> {
    let ty = |name: &str, info: &ValueInfoProto| {
        let tensor = info.r#type.as_ref()?.tensor_type.as_ref()?;
        let dtype = tensor::stored_type(tensor.elem_type?)?.dtype;
        tensor.shape.as_ref()?;
        let bound = read_extents(name, info)
            .into_iter()
            .map(|e| bind_extent(&e, false, dims, symbols).ok());
        let ty = TensorType::new(dtype, bound.collect::<Option<Vec<_>>>()?);
        dtype.is_float().then_some(ty)
    };
    let named = graph.value_info.iter().filter_map(|info| {
        let name = info.name.as_deref()?;
        Some((name.to_owned(), ty(name, info)?))
    });
    named.collect()
}

/// Inputs without those that an old file lists although they are initializers.
pub(super) fn fed_inputs<'a, T>(
    graph: &'a GraphProto,
    tensors: &BTreeMap<String, T>,
) -> impl Iterator<Item = (&'a str, &'a ValueInfoProto)> {
    let inputs = graph.input.iter().map(|info| (info.name.as_deref().unwrap_or(""), info));
    inputs.filter(|(name, _)| !tensors.contains_key(*name))
}

/// The extents of an input: a number, or a name. A dim without either has the name of its place.
fn read_extents(name: &str, info: &ValueInfoProto) -> Vec<Result<i64, String>> {
    let tensor = info.r#type.as_ref().and_then(|ty| ty.tensor_type.as_ref());
    let shape = tensor.and_then(|tensor| tensor.shape.as_ref());
    let dims = shape.map_or(&[][..], |shape| &shape.dim);
    dims.iter()
        .enumerate()
        .map(|(index, dim)| match (&dim.dim_param, dim.dim_value) {
            (Some(symbol), _) if !symbol.is_empty() => Err(symbol.clone()),
            (_, Some(extent)) => Ok(extent),
            _ => Err(format!("{name}.{index}")),
        })
        .collect()
}

pub(super) fn collect_symbols<T>(graph: &GraphProto, tensors: &BTreeMap<String, T>) -> Symbols {
    let named = |(name, info): (&str, &ValueInfoProto)| {
        let dims = read_extents(name, info).into_iter().map(Result::err).collect();
        (name.to_owned(), dims)
    };
    Symbols::new(fed_inputs(graph, tensors).map(named).collect(), Vec::new())
}

pub(super) fn add_inputs(
    lowering: &mut Lowering,
    graph: &GraphProto,
    dims: &BTreeMap<String, usize>,
    symbols: &Symbols,
) -> Result<(), ImportError> {
    let fed: Vec<_> = fed_inputs(graph, lowering.tensors()).collect();
    check_values(&fed, dims, symbols)?;
    let mut types = Vec::new();
    for (position, (name, info)) in fed.into_iter().enumerate() {
        let tensor = info.r#type.as_ref().and_then(|ty| ty.tensor_type.as_ref());
        let stored =
            tensor.and_then(|tensor| tensor.elem_type).map(|ty| (ty, tensor::stored_type(ty)));
        let reason = match stored {
            Some((_, Some(_))) => String::new(),
            Some((data_type, None)) => format!("the element type {data_type} is not supported"),
            None => "it is no tensor".into(),
        };
        let Some((_, Some(stored))) = stored else {
            return Err(ImportError::Tensor { name: name.into(), reason });
        };
        if tensor.is_some_and(|tensor| tensor.shape.is_none()) {
            let reason = "the model does not say its shape".into();
            return Err(ImportError::Tensor { name: name.into(), reason });
        }
        let mut shape = Vec::new();
        for (dim, extent) in read_extents(name, info).into_iter().enumerate() {
            let first = position == 0 && dim == 0;
            let extent = bind_extent(&extent, first, dims, symbols)
                .map_err(|reason| ImportError::Dim { input: name.into(), dim, reason })?;
            shape.push(extent);
        }
        if tensor.and_then(|tensor| tensor.elem_type) == Some(DataType::DOUBLE) {
            lowering.doubles.insert(name.to_owned());
        }
        types.push((name.to_owned(), stored.dtype, shape));
    }
    let shapes: Vec<Vec<usize>> = types.iter().map(|(_, _, shape)| shape.clone()).collect();
    for ((name, dtype, shape), samples) in types.into_iter().zip(symbols.samples(&shapes)) {
        lowering.add_input(Input { name, ty: TensorType::new(dtype, shape), samples })?;
    }
    Ok(())
}

/// Refuses inputs several of whose symbolic extents have no value; where it is one, [`bind_extent`] says so.
fn check_values(
    fed: &[(&str, &ValueInfoProto)],
    dims: &BTreeMap<String, usize>,
    symbols: &Symbols,
) -> Result<(), ImportError> {
    let mut missing: Vec<(String, String, usize)> = Vec::new();
    for (position, (input, info)) in fed.iter().enumerate() {
        for (dim, extent) in read_extents(input, info).into_iter().enumerate() {
            let Err(name) = extent else { continue };
            let known = missing.iter().any(|(other, ..)| *other == name);
            let first = position == 0 && dim == 0;
            let extent = Err(name.clone());
            let has_value = dims.contains_key(&name)
                || dims.contains_key(BATCH) && is_batch(&extent, first, symbols);
            if !known && !has_value {
                missing.push((name, (*input).to_owned(), dim));
            }
        }
    }
    let batch = symbols.batch.clone();
    if missing.len() < 2 { Ok(()) } else { Err(ImportError::Dims { dims: missing, batch }) }
}

/// Whether an extent counts samples: it is the symbol of the batch, or, where there is none, the first of all.
fn is_batch(extent: &Result<i64, String>, first: bool, symbols: &Symbols) -> bool {
    match (extent, &symbols.batch) {
        (Err(name), Some(batch)) => name == batch,
        (_, None) => first,
        (Ok(_), Some(_)) => false,
    }
}

/// The value of an extent. What `batch` says counts for the symbol of the batch, and where there is none for the first extent.
fn bind_extent(
    extent: &Result<i64, String>,
    first: bool,
    dims: &BTreeMap<String, usize>,
    symbols: &Symbols,
) -> Result<usize, String> {
    let batch = dims.get(BATCH).filter(|_| is_batch(extent, first, symbols));
    let extent = match extent {
        Err(name) => *dims.get(name).or(batch).ok_or_else(|| {
            let option = if symbols.batch.as_ref() == Some(name) { "--batch or " } else { "" };
            format!("the extent `{name}` has no value: give it with {option}--dim {name}=VALUE")
        })?,
        Ok(extent) => usize::try_from(*extent).map_err(|_| format!("{extent} is no extent"))?,
    };
    match batch {
        Some(&batch) if extent != batch && !symbols.all.iter().any(|name| name == BATCH) => {
            Err(format!("the model has {extent}, and the batch is {batch}"))
        }
        _ if extent > 1 << 40 => Err(format!("{extent} is too large")),
        _ => Ok(extent),
    }
}
