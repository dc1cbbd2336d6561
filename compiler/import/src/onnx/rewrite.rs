//! Writes a model's file with other weights: initializers are exchanged within its bytes, and all else stays as it was written.
//!
//! The decoder of rten-onnx drops parts that it does not need, such as names of graphs and metadata, so its result cannot be written back. Instead
//! the fields of the model and of its graph are copied, except for the initializers that are exchanged.

use std::collections::{BTreeMap, BTreeSet};

use graphc_ir::types::{DType, TensorType};
use rten_onnx::onnx::DataType;

use super::fields::{
    CONTENT, GRAPH, INITIALIZER, INPUT, NODE, OP_TYPE, OUTPUT, RAW_DATA, TensorHead, put_field,
};
use super::wire::{self, Metadata, OnnxField, decode_fields};
use super::{merged, tensor};
use crate::ImportError;
use crate::file::LONGEST_MODEL;
use crate::weights::Weights;

/// A model whose weights were exchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewritten {
    /// The file's content.
    pub bytes: Vec<u8>,
    /// The tensors whose elements still lie in other files, beside the model that was read.
    pub external: Vec<String>,
}

/// Writes the same model with these weights in the place of its initializers of the same names. They are stored in the model's own element types and
/// inside the file, even if they were outside of it. Initializers without a weight here stay as they are. A file may hold equal weights once and give
/// the others their names by Identity nodes; each of these becomes an initializer.
///
/// # Errors
/// Returns an error if the bytes are no ONNX model, a weight has no initializer or a type other than that, its bytes cannot be read, or the model
/// would be larger than the 2 GiB that protobuf allows.
pub fn onnx_with_weights(model: &[u8], weights: &Weights) -> Result<Rewritten, ImportError> {
    let mut metadata = wire::check_encoding(model)?;
    let own = merged::with_own_weights(model, &mut metadata);
    let model = own.as_deref().unwrap_or(model);
    let (seen, external) = (BTreeSet::new(), Vec::new());
    let mut rewriter = WeightRewriter { weights, metadata: &metadata, seen, external };
    let mut bytes = Vec::with_capacity(model.len());
    for field in decode_fields(model) {
        match field.number {
            GRAPH => put_field(&mut bytes, GRAPH, &rewriter.rewrite_graph(field.content)?),
            _ => bytes.extend_from_slice(field.whole),
        }
    }
    let names = weights.tensors.keys();
    let unknown: Vec<String> = names
        .filter(|name| !rewriter.seen.contains(name.as_str()))
        .map(|name| format!("`{name}`"))
        .collect();
    if !unknown.is_empty() {
        let (count, first) = (unknown.len(), unknown[..unknown.len().min(5)].join(", "));
        let reason = format!("it has no initializer for {count} of the weights: {first}");
        return Err(ImportError::Structure { reason });
    }
    if bytes.len() as u64 >= LONGEST_MODEL {
        let reason = "with all weights inside, it is larger than the 2 GiB that protobuf allows: \
                      export a .safetensors file"
            .into();
        return Err(ImportError::Structure { reason });
    }
    Ok(Rewritten { bytes, external: rewriter.external })
}

struct WeightRewriter<'a> {
    weights: &'a Weights,
    metadata: &'a Metadata,
    seen: BTreeSet<String>,
    external: Vec<String>,
}

impl WeightRewriter<'_> {
    fn rewrite_graph(&mut self, graph: &[u8]) -> Result<Vec<u8>, ImportError> {
        let initializers = decode_fields(graph).filter(|field| field.number == INITIALIZER);
        let heads = initializers.map(|field| TensorHead::from_tensor(field.content));
        let heads: BTreeMap<String, TensorHead> =
            heads.map(|head| (head.name.clone(), head)).collect();
        let mut bytes = Vec::with_capacity(graph.len());
        for field in decode_fields(graph) {
            let tensor = match field.number {
                NODE => self.rewrite_copy(&field, &heads)?,
                _ => self.rewrite_initializer(&field)?,
            };
            match tensor {
                Some(tensor) => put_field(&mut bytes, INITIALIZER, &tensor),
                None => bytes.extend_from_slice(field.whole),
            }
        }
        Ok(bytes)
    }

    /// Returns the initializer that takes the place of a node, if the node gives another initializer the name of a weight.
    fn rewrite_copy(
        &mut self,
        node: &OnnxField<'_>,
        heads: &BTreeMap<String, TensorHead>,
    ) -> Result<Option<Vec<u8>>, ImportError> {
        let text = |number: u64| {
            let field = decode_fields(node.content).find(|field| field.number == number);
            field.map(|field| String::from_utf8_lossy(field.content).into_owned())
        };
        let (source, name) = (text(INPUT), text(OUTPUT).unwrap_or_default());
        let source = source.and_then(|source| heads.get(&source));
        let is_weight = self.weights.tensors.contains_key(&name) && !heads.contains_key(&name);
        let is_copy = is_weight && text(OP_TYPE).as_deref() == Some("Identity");
        let Some(source) = source.filter(|_| is_copy) else { return Ok(None) };
        let head = TensorHead { name, dims: source.dims.clone(), ..*source };
        let mut bytes = head.write();
        put_field(&mut bytes, RAW_DATA, &self.weight_content(&head)?);
        merged::put_marks(&mut bytes, &head.name, self.metadata);
        self.seen.insert(head.name);
        Ok(Some(bytes))
    }

    /// Returns the initializer that takes the place of a field of a graph; `None` if the field stays.
    fn rewrite_initializer(
        &mut self,
        field: &OnnxField<'_>,
    ) -> Result<Option<Vec<u8>>, ImportError> {
        if field.number != INITIALIZER {
            return Ok(None);
        }
        let head = TensorHead::from_tensor(field.content);
        if !self.weights.tensors.contains_key(&head.name) {
            if head.external {
                self.external.push(head.name);
            }
            return Ok(None);
        }
        let content = self.weight_content(&head)?;
        let kept = decode_fields(field.content).filter(|field| !CONTENT.contains(&field.number));
        let mut bytes: Vec<u8> = kept.flat_map(|field| field.whole.to_vec()).collect();
        put_field(&mut bytes, RAW_DATA, &content);
        self.seen.insert(head.name);
        Ok(Some(bytes))
    }

    /// Returns the elements of a weight as the initializer stores them.
    fn weight_content(&self, head: &TensorHead) -> Result<Vec<u8>, ImportError> {
        let name = &head.name;
        let error = |reason: String| ImportError::Tensor { name: name.clone(), reason };
        let shape = tensor::check_shape(&head.dims).map_err(error)?;
        let stored = tensor::stored_type(head.data_type);
        let expected = stored.map(|stored| TensorType::new(stored.dtype, shape));
        let found = self.weights.tensors[name].ty();
        if expected.as_ref() != Some(&found) {
            let expected =
                expected.map_or("of a type that graphc has not".into(), |ty| ty.to_string());
            return Err(error(format!("the weight is {found}, and the model's is {expected}")));
        }
        let bytes = self.weights.bytes(name).map_err(|failure| error(failure.to_string()))?;
        match (head.data_type, found.dtype) {
            (DataType::DOUBLE, DType::F32) => Ok(widen_floats(&bytes)),
            _ if stored.is_some_and(tensor::StoredType::is_exact) => Ok(bytes.to_vec()),
            (other, _) => Err(error(format!("a weight of {found} is not stored as {other}"))),
        }
    }
}

fn widen_floats(bytes: &[u8]) -> Vec<u8> {
    let wide = |chunk: &[u8; 4]| f64::from(f32::from_le_bytes(*chunk)).to_le_bytes();
    bytes.as_chunks::<4>().0.iter().flat_map(wide).collect()
}

#[cfg(test)]
mod tests {
    use rten_onnx::onnx::{DataLocation, GraphProto, ModelProto, TensorProto};

    use super::*;
    use crate::weights::{WeightData, WeightTensor};

    fn initializer(name: &str, data_type: DataType, raw: &[u8]) -> TensorProto {
        TensorProto {
            name: Some(name.into()),
            dims: vec![2, 150],
            data_type: Some(data_type),
            raw_data: Some(raw.to_vec().into()),
            ..TensorProto::default()
        }
    }

    fn model() -> Vec<u8> {
        let mut external = initializer("external", DataType::FLOAT, &[]);
        external.raw_data = None;
        external.data_location = Some(DataLocation::EXTERNAL);
        let float = |name| initializer(name, DataType::FLOAT, &[0; 1200]);
        let double = initializer("double", DataType::DOUBLE, &[0; 2400]);
        let initializer = vec![float("kept"), float("single"), double, external];
        let graph = Some(GraphProto { initializer, ..GraphProto::default() });
        let model = ModelProto { ir_version: Some(10), graph, ..ModelProto::default() };
        model.write_buf().expect("fits")
    }

    fn weights(names: &[&str], shape: [usize; 2]) -> Weights {
        let ones: Vec<u8> = (0..shape[0] * shape[1]).flat_map(|_| 1.5f32.to_le_bytes()).collect();
        let tensor = |name: &&str| {
            let data = WeightData::Bytes(ones.clone().into());
            (name.to_string(), WeightTensor { dtype: DType::F32, shape: shape.to_vec(), data })
        };
        let tensors = names.iter().map(tensor).collect::<BTreeMap<_, _>>();
        Weights { tensors, ..Weights::default() }
    }

    #[test]
    fn weights_take_the_place_of_initializers_and_nothing_else_changes() {
        let changed = onnx_with_weights(&model(), &weights(&["single", "double"], [2, 150]));
        let changed = changed.expect("rewrites");
        assert_eq!(changed.external, ["external"]);
        let graph = ModelProto::parse_buf(&changed.bytes).expect("a model").graph.expect("a graph");
        let raw = |at: usize| graph.initializer[at].raw_data.clone().expect("bytes").into_inner();
        assert_eq!(raw(0), [0; 1200]);
        assert_eq!(raw(1), [1.5f32.to_le_bytes(); 300].concat());
        assert_eq!(raw(2), [1.5f64.to_le_bytes(); 300].concat());
        assert_eq!(graph.initializer[1].dims, [2, 150]);
        let nothing = onnx_with_weights(&model(), &Weights::default()).expect("rewrites");
        assert_eq!(nothing.bytes, model());
    }

    #[test]
    fn what_lay_in_another_file_is_inside_afterwards() {
        let changed = onnx_with_weights(&model(), &weights(&["external"], [2, 150]));
        let changed = changed.expect("rewrites");
        assert!(changed.external.is_empty());
        let graph = ModelProto::parse_buf(&changed.bytes).expect("a model").graph.expect("a graph");
        assert_eq!(graph.initializer[3].data_location, None);
    }

    #[test]
    fn weights_that_do_not_fit_are_refused() {
        let reason = |weights: &Weights| onnx_with_weights(&model(), weights).expect_err("refused");
        let unknown = reason(&weights(&["single", "other"], [2, 150])).to_string();
        assert!(unknown.ends_with("no initializer for 1 of the weights: `other`"), "{unknown}");
        let shape = reason(&weights(&["single"], [150, 2])).to_string();
        assert!(
            shape.contains("`single`: the weight is f32[150, 2], and the model's is f32[2, 150]"),
            "{shape}"
        );
    }
}
