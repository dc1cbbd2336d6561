//! The graph: nodes in topological order, each value produced once. The single form from the user's model to the
//! sharded graph; what a pass decides (layout, stage) is data beside it or in the fields named here.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{LayerId, NodeId, StageId, ValueId};
use crate::mesh::Placement;
use crate::op::{Op, OpError};
use crate::sbp::NdSbp;
use crate::types::{DType, TensorType};

/// A graph. Nodes stand in topological order: a node's operands are produced before it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// The name.
    pub name: String,
    /// All nodes, by [`NodeId`].
    pub nodes: Vec<Node>,
    /// All values, by [`ValueId`].
    pub values: Vec<Value>,
    /// The named results of the graph.
    pub outputs: Vec<Output>,
    /// The pipeline stages that the user declared, by [`StageId`], with the placement given to each.
    pub stages: Vec<Option<Placement>>,
}

/// One application of an op.
#[derive(Clone, Debug)]
pub struct Node {
    /// The op with its payload.
    pub op: Op,
    /// Operands.
    pub operands: Vec<ValueId>,
    /// Results, each a value of its own.
    pub results: Vec<ValueId>,
    /// The part of the graph that it belongs to, where the user or a pass gave one.
    pub part: Option<Part>,
    /// The placement, where the user gave one.
    pub placement: Option<Placement>,
    /// The element type in which it multiplies matrices, where the user gave one (see `GraphBuilder::autocast`).
    pub autocast: Option<DType>,
    /// The place at which the user wrote it; not part of equality.
    pub source: Source,
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        let Self { op, operands, results, part, placement, autocast, source: _ } = self;
        (op, operands, results) == (&other.op, &other.operands, &other.results)
            && (part, placement, autocast) == (&other.part, &other.placement, &other.autocast)
    }
}

/// A part of a graph. What passes make of a node or beside it is in its part, and what is in two parts they keep apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// A pipeline stage.
    Stage(StageId),
    /// A layer of a model whose layers are priced one by one.
    Layer(LayerId),
}

impl Node {
    /// The pipeline stage, where the user or a pass gave one.
    pub fn stage(&self) -> Option<StageId> {
        match self.part {
            Some(Part::Stage(stage)) => Some(stage),
            Some(Part::Layer(_)) | None => None,
        }
    }

    /// The layer, of a model whose layers are priced one by one.
    pub fn layer(&self) -> Option<LayerId> {
        match self.part {
            Some(Part::Layer(layer)) => Some(layer),
            Some(Part::Stage(_)) | None => None,
        }
    }

    /// Whether the ranks of another node, as far as is known, are this one's: layers that are priced have one stage.
    pub fn is_beside(&self, other: &Node) -> bool {
        self.stage() == other.stage() && self.placement == other.placement
    }

    /// Takes what the user said of another node, where it stands and in what precision: for a part of it, or what is made
    /// in its stead.
    pub(crate) fn annotate_like(&mut self, other: &Node) {
        self.part = other.part;
        self.placement.clone_from(&other.placement);
        self.autocast = other.autocast;
    }
}

/// A tensor of the graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// The user's name, unique in the graph.
    pub name: Option<String>,
    /// Element type and shape.
    pub ty: TensorType,
    /// The node that produces it.
    pub producer: NodeId,
    /// The number of the node's result that it is.
    pub index: usize,
    /// The layout that the user asks for.
    pub pin: Option<NdSbp>,
}

/// A named result of the graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// The name, unique among the outputs.
    pub name: String,
    /// The value.
    pub value: ValueId,
}

/// The place at which the user wrote a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// Made by a pass.
    #[default]
    Derived,
    /// Rust: file and line of the caller.
    Rust {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u32,
    },
    /// Text format: line and column, from 1.
    Text {
        /// The line.
        line: u32,
        /// The column.
        column: u32,
    },
    /// ONNX: name and type of the node.
    Onnx {
        /// Its name.
        name: String,
        /// Its type.
        op_type: String,
    },
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Derived => f.write_str("made by the compiler"),
            Self::Rust { file, line } => write!(f, "{file}:{line}"),
            Self::Text { line, column } => write!(f, "line {line}, column {column}"),
            Self::Onnx { name, op_type } => write!(f, "ONNX node `{name}` of type {op_type}"),
        }
    }
}

impl Graph {
    /// An empty graph.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// An empty graph of the same name with the same stages, and with room for as many nodes.
    #[must_use]
    pub fn clone_empty(&self) -> Self {
        Self {
            name: self.name.clone(),
            nodes: Vec::with_capacity(self.nodes.len()),
            values: Vec::with_capacity(self.values.len()),
            outputs: Vec::new(),
            stages: self.stages.clone(),
        }
    }

    /// Appends a node; result types are inferred.
    ///
    /// # Errors
    /// Returns an error if the op does not take such operands.
    pub fn push(
        &mut self,
        op: Op,
        operands: Vec<ValueId>,
        source: Source,
    ) -> Result<NodeId, OpError> {
        let types: Vec<&TensorType> = operands.iter().map(|&v| &self.value(v).ty).collect();
        let results = op.infer_types(&types)?;
        let id = NodeId::new(self.nodes.len());
        let first = self.values.len();
        let ids = (first..first + results.len()).map(ValueId::new).collect();
        self.values.extend(results.into_iter().enumerate().map(|(index, ty)| Value {
            name: None,
            ty,
            producer: id,
            index,
            pin: None,
        }));
        let (part, placement, autocast) = (None, None, None);
        self.nodes.push(Node { op, operands, results: ids, part, placement, autocast, source });
        Ok(id)
    }

    /// Appends a node where another one stands, with its source and what the user said of it: the results.
    ///
    /// # Errors
    /// Returns an error if the op does not take such operands.
    pub fn push_like(
        &mut self,
        op: Op,
        operands: Vec<ValueId>,
        like: &Node,
    ) -> Result<Vec<ValueId>, OpError> {
        let id = self.push(op, operands, like.source.clone())?;
        let node = &mut self.nodes[id.index()];
        node.annotate_like(like);
        Ok(node.results.clone())
    }

    /// A node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// A value.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    /// The node that produces a value.
    pub fn producer(&self, id: ValueId) -> &Node {
        self.node(self.value(id).producer)
    }

    /// Iterates over all nodes with their ids, in topological order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (NodeId, &Node)> {
        self.nodes.iter().enumerate().map(|(index, node)| (NodeId::new(index), node))
    }

    /// The operand types of a node.
    pub fn operand_types(&self, node: &Node) -> Vec<&TensorType> {
        node.operands.iter().map(|&v| &self.value(v).ty).collect()
    }

    /// Lists for each value the nodes that read it, once per operand position, in order.
    pub fn list_consumers(&self) -> Vec<Vec<NodeId>> {
        let mut consumers = vec![Vec::new(); self.values.len()];
        for (id, node) in self.iter() {
            for operand in &node.operands {
                consumers[operand.index()].push(id);
            }
        }
        consumers
    }

    /// The value of this name.
    pub fn find(&self, name: &str) -> Option<ValueId> {
        self.values.iter().position(|value| value.name.as_deref() == Some(name)).map(ValueId::new)
    }

    /// The name of a value as users see it: its own, that of the output which it is, or its id.
    pub fn display_name(&self, id: ValueId) -> String {
        let own = self.value(id).name.as_ref().or_else(|| self.output_name(id));
        own.cloned().unwrap_or_else(|| id.to_string())
    }

    /// The name of the output that a value is, where no other value has it.
    fn output_name(&self, id: ValueId) -> Option<&String> {
        let output = &self.outputs.iter().find(|output| output.value == id)?.name;
        let is_taken = self.values.iter().any(|value| value.name.as_ref() == Some(output));
        (!is_taken).then_some(output)
    }
}
