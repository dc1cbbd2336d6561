//! The state of an import, and the few operations that all lowerings are written with. An op on known values is computed
//! at once; anything else becomes a node of the graph.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use graphc_ir::graph::{Graph, Source};
use graphc_ir::ids::ValueId;
use graphc_ir::op::Op;
use graphc_ir::ops::{Cast, Input};
use graphc_ir::types::{DType, TensorType};
use rten_onnx::onnx::{DataType, NodeProto};

use super::known::{KnownValue, MOST_FOLDED, MOST_KNOWN, fold_op};
use super::model::{node_title, op_type};
use super::node::{LoweringProblem, NodeCall, Res, fail_with};
use super::onnx_source;
use super::wire::Origin;
use crate::ImportError;
use crate::unsupported::{UnsupportedOp, UnsupportedOps};
use crate::weights::WeightTensor;

/// The most elements of a value that is read during import, such as a shape.
const MOST_READ: usize = 1 << 16;

/// A value that has a name in the model.
#[derive(Clone, Debug)]
pub(super) enum Val {
    /// A known value.
    Known(KnownValue),
    /// A tensor of the file. It becomes a variable when an op takes it.
    Weight(String),
    /// A value of the graph.
    Tensor(ValueId),
    /// Several values.
    Sequence(Vec<Val>),
}

/// Lowers one node to its results, in order. If the model names a later result than there is, that is an error of the import.
pub(super) type Lower = fn(&mut Lowering, NodeCall<'_>) -> Res<Vec<Val>>;

/// The ops of a domain by their names, each with the function that lowers it.
type Table = fn(&str) -> &'static [(&'static str, Lower)];

/// The initializers of a model, and the roles of some.
pub(super) struct Initializers {
    pub tensors: BTreeMap<String, WeightTensor>,
    /// The names of those that are trained.
    pub trained: BTreeSet<String>,
    /// The names of those that no op may be computed with during import, because a file of weights may hold other numbers. Those that are trained are
    /// among them.
    pub kept: BTreeSet<String>,
}

/// The state of an import.
pub(super) struct Lowering {
    pub graph: Graph,
    pub base_dir: PathBuf,
    pub source: Source,
    pub values: BTreeMap<String, Val>,
    table: Table,
    opset: i64,
    /// The initializers, and other values with names that are too large for literals.
    pub(super) tensors: BTreeMap<String, WeightTensor>,
    /// The names of the initializers.
    pub(super) initializers: BTreeSet<String>,
    pub(super) trained: BTreeSet<String>,
    kept: BTreeSet<String>,
    /// The names of tensors whose numbers the import has computed with.
    read: RefCell<BTreeSet<String>>,
    pub(super) variables: BTreeMap<String, ValueId>,
    pub(super) literals: BTreeMap<String, ValueId>,
    /// The operands of each Concat along the last dim, by its result.
    pieces: BTreeMap<ValueId, Vec<Val>>,
    /// The operands of each sum of computed integers and known ones, by its result.
    shifted: BTreeMap<ValueId, (Val, KnownValue)>,
    names: BTreeSet<String>,
    /// The largest number of operands that the current node's lowering has asked for.
    asked: Cell<usize>,
    /// The names of computed values that are of DOUBLE.
    pub doubles: BTreeSet<String>,
    /// The functions of PyTorch that nodes stand for, by the node's first result.
    pub origins: BTreeMap<String, Origin>,
    /// The results of look-ups in tables, each with the row of the table that learns nothing.
    pub padded: BTreeMap<String, i64>,
    /// The names that are read. An op may lack a result whose name is not among them.
    pub wanted: BTreeSet<String>,
    /// The element types of names in the file.
    pub element_types: BTreeMap<String, DataType>,
    /// The types of floating-point values that the file gives. They are for the results of nodes that are refused.
    pub described: BTreeMap<String, TensorType>,
    /// Names of which nothing is known, because a node is refused.
    pub(super) unknown: BTreeSet<String>,
    /// For each quantized value, the same numbers as a floating-point value, through which gradients go.
    pub quantized: BTreeMap<ValueId, Val>,
    keys: u64,
}

impl Lowering {
    /// Returns the function of PyTorch that a node stands for, if the exporter says it and the ONNX op does not.
    pub(super) fn origin_of(&self, call: NodeCall<'_>) -> Option<Origin> {
        self.origins.get(call.proto.output.first()?).copied()
    }

    /// Begins the import of a model of this opset. `table` looks up its ops.
    pub(super) fn new(
        table: Table,
        opset: i64,
        base_dir: &Path,
        Initializers { tensors, trained, kept }: Initializers,
    ) -> Self {
        let weights = tensors.keys().map(|name| (name.clone(), Val::Weight(name.clone())));
        Self {
            table,
            // rten-onnx does not decode the graph's name.
            graph: Graph::new("model"),
            base_dir: base_dir.into(),
            opset,
            source: Source::Derived,
            values: weights.collect(),
            initializers: tensors.keys().cloned().collect(),
            tensors,
            kept: kept.union(&trained).cloned().collect(),
            trained,
            read: RefCell::default(),
            variables: BTreeMap::new(),
            literals: BTreeMap::new(),
            pieces: BTreeMap::new(),
            shifted: BTreeMap::new(),
            names: BTreeSet::new(),
            asked: Cell::new(0),
            origins: BTreeMap::new(),
            padded: BTreeMap::new(),
            doubles: BTreeSet::new(),
            wanted: BTreeSet::new(),
            element_types: BTreeMap::new(),
            described: BTreeMap::new(),
            unknown: BTreeSet::new(),
            quantized: BTreeMap::new(),
            keys: 0,
        }
    }

    pub(super) fn tensors(&self) -> &BTreeMap<String, WeightTensor> {
        &self.tensors
    }

    /// Lets a matrix that the exporter has made stand for the one that it has turned, so that both are one weight.
    pub(super) fn tie_weights(&mut self, copy: &str, source: &str) -> Result<(), ImportError> {
        let turned = self.transpose(&Val::Weight(source.into()), vec![1, 0]);
        let error = |LoweringProblem(reason)| ImportError::Tensor { name: copy.into(), reason };
        self.values.insert(copy.into(), turned.map_err(error)?);
        Ok(())
    }

    /// Returns the initializers, and the names of those whose numbers the import has computed with.
    pub(super) fn into_initializers(self) -> (BTreeMap<String, WeightTensor>, BTreeSet<String>) {
        let Self { mut tensors, initializers, read, .. } = self;
        tensors.retain(|name, _| initializers.contains(name));
        let mut read = read.into_inner();
        read.retain(|name| initializers.contains(name));
        (tensors, read)
    }

    /// Adds an input of the graph.
    pub(super) fn add_input(&mut self, input: Input) -> Result<(), ImportError> {
        let name = input.name.clone();
        self.source = onnx_source(&name, "input");
        let results = self.push(Op::Input(input), Vec::new());
        let ids = results.map_err(|LoweringProblem(reason)| ImportError::Tensor {
            name: name.clone(),
            reason,
        })?;
        self.name_value(&Val::Tensor(ids[0]), &name);
        self.values.insert(name, Val::Tensor(ids[0]));
        Ok(())
    }

    /// Lowers a node of the model.
    pub(super) fn lower_node(&mut self, proto: &NodeProto) -> Result<(), ImportError> {
        let (node, op_type) = (node_title(proto), op_type(proto));
        let domain = proto.domain.as_deref().unwrap_or("");
        self.source = onnx_source(&node, op_type);
        let table = (self.table)(domain);
        let entry = table.iter().find(|(name, _)| *name == op_type);
        let Some(lower) = entry.map(|(_, lower)| lower) else {
            let supported: Vec<&str> = table.iter().map(|(name, _)| *name).collect();
            let kind = UnsupportedOp::new(node, domain, op_type, &supported);
            return Err(ImportError::Unsupported { ops: UnsupportedOps(vec![kind]) });
        };
        let call = NodeCall { proto, opset: self.opset };
        let problem = |LoweringProblem(reason)| ImportError::Node {
            node: node.clone(),
            op_type: op_type.into(),
            reason,
        };
        call.check_attributes().map_err(problem)?;
        self.asked.set(0);
        let results = lower(self, call).map_err(problem)?;
        self.all_asked(call).map_err(problem)?;
        self.check_width(proto, &results).map_err(problem)?;
        let wanted = proto.output.iter().enumerate().filter(|(_, name)| !name.is_empty());
        for (index, name) in wanted {
            let Some(value) = results.get(index) else {
                if !self.wanted.contains(name) {
                    continue;
                }
                let reason = format!("its result {index}, `{name}`, is not supported");
                return Err(problem(LoweringProblem(reason)));
            };
            self.name_value(value, name);
            self.values.insert(name.clone(), value.clone());
        }
        Ok(())
    }

    /// Checks that an op has no operands behind those that its lowering has asked for.
    fn all_asked(&self, call: NodeCall<'_>) -> Res<()> {
        // A loop's and a branch's own nodes have been lowered meanwhile.
        let nests = call.has_attribute("body") || call.has_attribute("then_branch");
        let given = call.proto.input.iter().rposition(|name| !name.is_empty());
        match (given.map_or(0, |last| last + 1), self.asked.get()) {
            (given, taken) if given > taken && !nests => {
                fail_with(format!("it has {given} operands, and takes {taken}"))
            }
            _ => Ok(()),
        }
    }

    /// Lowers an output of the graph to its value.
    pub(super) fn lower_output(&mut self, name: &str) -> Result<ValueId, ImportError> {
        self.source = onnx_source(name, "output");
        let error = |LoweringProblem(reason)| ImportError::Tensor { name: name.into(), reason };
        let value = self.values.get(name).cloned();
        let value = value.ok_or_else(|| error(LoweringProblem("nobody makes it".into())))?;
        let id = self.value_id(&value).map_err(error)?;
        self.name_value(&Val::Tensor(id), name);
        Ok(id)
    }

    /// Gives a value the model's name for it, unless it has one.
    pub(super) fn name_value(&mut self, value: &Val, name: &str) {
        if let Val::Tensor(id) = value
            && self.graph.value(*id).name.is_none()
            && self.names.insert(name.into())
        {
            self.graph.values[id.index()].name = Some(name.into());
        }
    }

    /// Returns the operand at a position; `None` if it is left out.
    pub(super) fn optional_operand(&self, call: NodeCall<'_>, position: usize) -> Res<Option<Val>> {
        self.asked.set(self.asked.get().max(position + 1));
        match call.proto.input.get(position).filter(|name| !name.is_empty()) {
            None => Ok(None),
            Some(name) => self.find_value(name).map(Some),
        }
    }

    /// Returns the value of a name in the model.
    pub(super) fn find_value(&self, name: &str) -> Res<Val> {
        match self.values.get(name) {
            Some(value) => Ok(value.clone()),
            None => fail_with(format!("`{name}` is not known")),
        }
    }

    /// Returns the operand at a position.
    pub(super) fn operand(&self, call: NodeCall<'_>, position: usize) -> Res<Val> {
        match self.optional_operand(call, position)? {
            Some(value) => Ok(value),
            None => fail_with(format!("operand {position} is missing")),
        }
    }

    /// Returns all operands.
    pub(super) fn operands(&self, call: NodeCall<'_>) -> Res<Vec<Val>> {
        (0..call.proto.input.len()).map(|position| self.operand(call, position)).collect()
    }

    /// Returns the type of a value.
    pub(super) fn ty(&self, value: &Val) -> Res<TensorType> {
        match value {
            Val::Known(known) => Ok(known.ty.clone()),
            Val::Weight(name) => match self.tensors.get(name) {
                Some(tensor) => Ok(tensor.ty()),
                None => fail_with(format!("there is no tensor `{name}`")),
            },
            Val::Tensor(id) => Ok(self.graph.value(*id).ty.clone()),
            Val::Sequence(_) => fail_with("a sequence stands where a tensor is needed"),
        }
    }

    /// Returns the shape of a value.
    pub(super) fn shape(&self, value: &Val) -> Res<Vec<usize>> {
        Ok(self.ty(value)?.shape)
    }

    /// Returns a value that must be known, such as a shape; `what` is for the error.
    pub(super) fn require_known(&self, value: &Val, what: &str) -> Res<KnownValue> {
        if self.ty(value)?.elements() > MOST_READ {
            return fail_with(format!("{what} has too many elements"));
        }
        match value {
            Val::Known(known) => Ok(known.clone()),
            Val::Weight(name) => match self.tensors.get(name) {
                Some(tensor) => {
                    self.mark_read(name);
                    Ok(KnownValue::new(tensor.ty(), tensor.elements(name)?))
                }
                None => fail_with(format!("there is no tensor `{name}`")),
            },
            _ => fail_with(format!(
                "{what} must be known when the model is imported, but it is computed"
            )),
        }
    }

    /// Records that the import has computed with the numbers of a tensor, so that a file of weights cannot hold others.
    pub(super) fn mark_read(&self, name: &str) {
        self.read.borrow_mut().insert(name.to_owned());
    }

    /// Returns a list of integers that must be known.
    pub(super) fn known_integers(&self, value: &Val, what: &str) -> Res<Vec<i64>> {
        Ok(self.require_known(value, what)?.elements().into_iter().map(|x| x as i64).collect())
    }

    /// Returns one integer that must be known.
    pub(super) fn known_integer(&self, value: &Val, what: &str) -> Res<i64> {
        match self.known_integers(value, what)?.as_slice() {
            [one] => Ok(*one),
            many => fail_with(format!("{what} must be one number, not {}", many.len())),
        }
    }

    /// Returns the known value of an operand, for an op that is computed during import. There is none for a tensor that is large or that a file of
    /// weights may change.
    pub(super) fn find_foldable(&self, value: &Val) -> Option<KnownValue> {
        match value {
            Val::Known(known) => Some(known.clone()),
            Val::Weight(name) if !self.kept.contains(name) => {
                let tensor = self.tensors.get(name)?;
                // Large ones that are computed with keep their names; indices and masks have none that anybody knows.
                let most = if tensor.dtype.is_float() { MOST_KNOWN } else { MOST_FOLDED };
                let small = tensor.ty().elements() <= most;
                let elements = if small { tensor.elements(name).ok() } else { None };
                self.read.borrow_mut().extend(elements.as_ref().map(|_| name.clone()));
                Some(KnownValue::new(tensor.ty(), elements?))
            }
            _ => None,
        }
    }

    /// Whether a file of weights may have other numbers in the place of a tensor.
    pub(super) fn is_kept(&self, name: &str) -> bool {
        self.kept.contains(name)
    }

    /// Returns the number that a value is everywhere, if that is known.
    pub(super) fn known_splat(&self, value: &Val) -> Option<f64> {
        self.find_foldable(value)?.as_splat()
    }

    /// Applies an op with one result.
    pub(super) fn apply(&mut self, op: Op, operands: &[Val]) -> Res<Val> {
        match self.apply_all(op, operands)?.into_iter().next() {
            Some(value) => Ok(value),
            None => fail_with("an op without results"),
        }
    }

    /// Applies an op. It is computed during import if its operands are known and its results are not too large.
    pub(super) fn apply_all(&mut self, op: Op, operands: &[Val]) -> Res<Vec<Val>> {
        let known: Option<Vec<KnownValue>> =
            operands.iter().map(|value| self.find_foldable(value)).collect();
        if let Some(results) = known.map(|known| fold_op(&op, &known)).transpose()?.flatten() {
            results.iter().try_for_each(|known| check_size(&known.ty))?;
            return Ok(results.into_iter().map(Val::Known).collect());
        }
        let ids = self.operand_ids(&op, operands)?;
        Ok(self.push(op, ids)?.into_iter().map(Val::Tensor).collect())
    }

    /// Adds a node without operands.
    pub(super) fn push_source(&mut self, op: Op) -> Res<Val> {
        Ok(Val::Tensor(self.push(op, Vec::new())?[0]))
    }

    pub(super) fn push(&mut self, op: Op, operands: Vec<ValueId>) -> Res<Vec<ValueId>> {
        let id = self.graph.push(op, operands, self.source.clone())?;
        let results = self.graph.node(id).results.clone();
        results.iter().try_for_each(|&result| check_size(&self.graph.value(result).ty))?;
        Ok(results)
    }

    /// Adds a literal of the model. It is a known value if it has few different elements, and a table otherwise.
    pub(super) fn add_constant(&mut self, name: &str, tensor: WeightTensor) -> Res<Val> {
        let known = KnownValue::new(tensor.ty(), tensor.elements(name)?);
        if known.kept_elements().data.len() > MOST_KNOWN {
            self.tensors.insert(name.into(), tensor);
            return Ok(Val::Weight(name.into()));
        }
        Ok(Val::Known(known))
    }

    /// Records the tensors that a concatenation along the last dim has joined.
    pub(super) fn remember_pieces(&mut self, whole: &Val, pieces: Vec<Val>) {
        if let Val::Tensor(id) = whole {
            self.pieces.insert(*id, pieces);
        }
    }

    /// Returns the tensors that make up a concatenation along the last dim; `None` if the value is no such result.
    pub(super) fn find_pieces(&self, whole: &Val) -> Option<Vec<Val>> {
        match whole {
            Val::Tensor(id) => self.pieces.get(id).cloned(),
            _ => None,
        }
    }

    /// Records of a sum of integers that one of them is known.
    pub(super) fn remember_shift(&mut self, sum: &Val, a: &Val, b: &Val) {
        let Val::Tensor(id) = sum else { return };
        if self.graph.value(*id).ty.dtype.is_float() {
            return;
        }
        let known = |value: &Val, other: &Val| Some((value.clone(), self.find_foldable(other)?));
        if let Some(parts) = known(a, b).or_else(|| known(b, a)) {
            self.shifted.insert(*id, parts);
        }
    }

    /// Returns the computed and the known operand of a sum of integers; `None` if the value is no such result.
    pub(super) fn find_shift(&self, sum: &Val) -> Option<(Val, KnownValue)> {
        match sum {
            Val::Tensor(id) => self.shifted.get(id).cloned(),
            _ => None,
        }
    }

    /// Returns a number of shape `[]` with the element type of another value.
    pub(super) fn number_like(&self, like: &Val, value: f64) -> Res<Val> {
        let ty = TensorType::new(self.ty(like)?.dtype, []);
        Ok(Val::Known(KnownValue::splat(ty, value)))
    }

    /// Returns a list of integers, such as a shape.
    pub(super) fn known_list(values: &[usize]) -> Val {
        let values: Vec<i64> = values.iter().map(|&value| value as i64).collect();
        Val::Known(KnownValue::from_integers(&values))
    }

    /// Returns a key for random numbers, another one in each call.
    pub(super) fn next_key(&mut self) -> u64 {
        self.keys += 1;
        self.keys
    }

    /// Returns the operand, if a value is the transposition of its last two dims.
    pub(super) fn transposed_of(&self, value: &Val) -> Option<Val> {
        let Val::Tensor(id) = value else { return None };
        let producer = self.graph.producer(*id);
        let Op::Transpose(transpose) = &producer.op else { return None };
        let rank = transpose.permutation.len();
        let mut swapped: Vec<usize> = (0..rank).collect();
        if rank < 2 {
            return None;
        }
        swapped.swap(rank - 1, rank - 2);
        (transpose.permutation == swapped).then(|| Val::Tensor(producer.operands[0]))
    }

    /// Casts a value to another element type.
    pub(super) fn cast(&mut self, value: &Val, dtype: DType) -> Res<Val> {
        if self.ty(value)?.dtype == dtype {
            return Ok(value.clone());
        }
        self.apply(Op::Cast(Cast { dtype }), std::slice::from_ref(value))
    }
}

/// The most dims of a tensor. Each dim is a way to split a tensor, which the planner weighs.
const MOST_DIMS: usize = 32;

/// No tensor is so large that later sums and products of extents overflow.
fn check_size(ty: &TensorType) -> Res<()> {
    let elements = ty.shape.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent.max(1)));
    match elements.filter(|&elements| elements < 1 << 48) {
        Some(_) if ty.shape.len() > MOST_DIMS => fail_with(format!(
            "its result has {} dims, and {MOST_DIMS} are the most",
            ty.shape.len()
        )),
        Some(_) => Ok(()),
        None => fail_with(format!("its result {ty} has too many elements")),
    }
}
