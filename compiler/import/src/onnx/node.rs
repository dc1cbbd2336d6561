//! A node of the model as its lowering sees it: attributes by name, with defaults, of the right kind.

use graphc_ir::op::OpError;
use rten_onnx::onnx::{AttributeProto, AttributeType, GraphProto, NodeProto, TensorProto};

use super::attributes;

/// A node.
#[derive(Clone, Copy)]
pub(super) struct NodeCall<'a> {
    pub proto: &'a NodeProto,
    /// The version of the standard operators.
    pub opset: i64,
}

/// Why a node cannot be lowered; the node is named by who catches it.
#[derive(Debug)]
pub(super) struct LoweringProblem(pub String);

pub(super) type Res<T> = Result<T, LoweringProblem>;

impl From<String> for LoweringProblem {
    fn from(reason: String) -> Self {
        Self(reason)
    }
}

impl From<OpError> for LoweringProblem {
    fn from(error: OpError) -> Self {
        Self(error.to_string())
    }
}

impl From<crate::weights::WeightsError> for LoweringProblem {
    fn from(error: crate::weights::WeightsError) -> Self {
        Self(error.to_string())
    }
}

/// A problem.
pub(super) fn fail_with<T>(reason: impl Into<String>) -> Res<T> {
    Err(LoweringProblem(reason.into()))
}

impl<'a> NodeCall<'a> {
    fn find_attribute(&self, name: &str) -> Option<&'a AttributeProto> {
        self.proto.attribute.iter().find(|attribute| attribute.name.as_deref() == Some(name))
    }

    /// Checks that the op has all attributes that are given.
    pub(super) fn check_attributes(&self) -> Res<()> {
        let domain = self.proto.domain.as_deref().unwrap_or("");
        let op_type = self.proto.op_type.as_deref().unwrap_or("");
        let Some(known) = attributes::list_attributes(domain, op_type) else { return Ok(()) };
        let mut given = self.proto.attribute.iter().filter_map(|given| given.name.as_deref());
        match given.find(|name| !known.contains(name)) {
            None => Ok(()),
            Some(name) if known.is_empty() => {
                fail_with(format!("the attribute `{name}` is unknown: the op has none"))
            }
            Some(name) => {
                let known = known.join("`, `");
                fail_with(format!("the attribute `{name}` is unknown: the op has `{known}`"))
            }
        }
    }

    /// Whether it is given.
    pub(super) fn has_attribute(&self, name: &str) -> bool {
        self.find_attribute(name).is_some()
    }

    fn typed_attribute(
        &self,
        name: &str,
        kind: AttributeType,
        what: &str,
    ) -> Res<Option<&'a AttributeProto>> {
        match self.find_attribute(name) {
            Some(attribute) if attribute.r#type.is_some_and(|found| found != kind) => {
                fail_with(format!("the attribute `{name}` is not {what}"))
            }
            found => Ok(found),
        }
    }

    /// An integer.
    pub(super) fn int(&self, name: &str, default: i64) -> Res<i64> {
        Ok(self.optional_int(name)?.unwrap_or(default))
    }

    pub(super) fn optional_int(&self, name: &str) -> Res<Option<i64>> {
        let attribute = self.typed_attribute(name, AttributeType::INT, "an integer")?;
        // protobuf leaves out what is 0.
        Ok(attribute.map(|attribute| attribute.i.unwrap_or(0)))
    }

    /// A number.
    pub(super) fn float(&self, name: &str, default: f32) -> Res<f64> {
        let attribute = self.typed_attribute(name, AttributeType::FLOAT, "a number")?;
        Ok(f64::from(attribute.map_or(default, |attribute| attribute.f.unwrap_or(0.0))))
    }

    /// A list of integers.
    pub(super) fn ints(&self, name: &str) -> Res<Option<&'a [i64]>> {
        let attribute = self.typed_attribute(name, AttributeType::INTS, "a list of integers")?;
        Ok(attribute.map(|attribute| attribute.ints.as_slice()))
    }

    /// A list of numbers.
    pub(super) fn floats(&self, name: &str) -> Res<Option<&'a [f32]>> {
        let attribute = self.typed_attribute(name, AttributeType::FLOATS, "a list of numbers")?;
        Ok(attribute.map(|attribute| attribute.floats.as_slice()))
    }

    /// A text.
    pub(super) fn text(&self, name: &str, default: &'static str) -> Res<&'a str> {
        let attribute = self.typed_attribute(name, AttributeType::STRING, "a text")?;
        Ok(attribute.and_then(|attribute| attribute.s.as_deref()).unwrap_or(default))
    }

    /// A list of texts; empty where it is not given.
    pub(super) fn texts(&self, name: &str) -> Res<&'a [String]> {
        let attribute = self.typed_attribute(name, AttributeType::STRINGS, "a list of texts")?;
        Ok(attribute.map_or(&[], |attribute| attribute.strings.as_slice()))
    }

    /// A graph.
    pub(super) fn graph(&self, name: &str) -> Res<&'a GraphProto> {
        let attribute = self.typed_attribute(name, AttributeType::GRAPH, "a graph")?;
        match attribute.and_then(|attribute| attribute.g.as_ref()) {
            Some(graph) => Ok(graph),
            None => fail_with(format!("the attribute `{name}` is missing")),
        }
    }

    /// A tensor.
    pub(super) fn tensor(&self, name: &str) -> Res<Option<&'a TensorProto>> {
        let attribute = self.typed_attribute(name, AttributeType::TENSOR, "a tensor")?;
        Ok(attribute.and_then(|attribute| attribute.t.as_ref()))
    }
}

/// The dim that an axis names; negative ones count from the last.
pub(super) fn resolve_axis(axis: i64, rank: usize) -> Res<usize> {
    let from_start = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
    match usize::try_from(from_start) {
        Ok(dim) if dim < rank => Ok(dim),
        _ => fail_with(format!("there is no axis {axis} in a tensor of rank {rank}")),
    }
}

/// The dims that axes name, ascending, each once.
pub(super) fn resolve_axes(axes: &[i64], rank: usize) -> Res<Vec<usize>> {
    let mut dims = axes.iter().map(|&a| resolve_axis(a, rank)).collect::<Res<Vec<_>>>()?;
    dims.sort_unstable();
    dims.dedup();
    Ok(dims)
}
