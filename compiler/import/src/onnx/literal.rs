//! Turns values of the model into values of the graph: literals and weights become nodes, once each.
//!
//! A known value stands in the graph with as few elements as make it, in the first of these forms that fits:
//!
//! 1. one number everywhere, or a constant of up to [`MOST_KNOWN`] elements;
//! 2. an index along a dim, if it goes in equal steps;
//! 3. the op that made it, if that is an easy one;
//! 4. a table ([`graphc_ir::table`]).
//!
//! Elementwise ops read it as it is kept. It is expanded where another op needs its whole shape.
//!
//! A table is never a tensor that a file of weights may exchange. The graph reads parameters, frozen or trained, and buffers of
//! floating-point numbers that PyTorch saves. The import computes with other buffers alone, of which shapes, indices and masks
//! are made. Another value of one of those is refused by name.

use std::sync::Arc;

use graphc_ir::ids::ValueId;
use graphc_ir::op::Op;
use graphc_ir::ops::{Cast, Constant, Expand, Full, Init, Iota, Unary, UnaryFunction, Variable};
use graphc_ir::scalar::Scalar;
use graphc_ir::table::Table;
use graphc_ir::types::{DType, TensorType};

use super::known::{KnownValue, MOST_KNOWN};
use super::lower::{Lowering, Val};
use super::node::{Res, fail_with};
use crate::weights::{WeightData, WeightTensor, encode_elements};

impl Lowering {
    /// The values of the graph for the operands of an op. Elementwise ops broadcast literals by themselves.
    pub(super) fn operand_ids(&mut self, op: &Op, operands: &[Val]) -> Res<Vec<ValueId>> {
        let broadcasts =
            op.operation().is_elementwise() && self.broadcasts_literals(op, operands)?;
        let ids = operands.iter().map(|value| match value {
            Val::Known(known) if broadcasts => self.push_compact(known),
            value => self.value_id(value),
        });
        ids.collect()
    }

    /// Whether the op gives the same shape where its literals are not expanded.
    fn broadcasts_literals(&self, op: &Op, operands: &[Val]) -> Res<bool> {
        let ty = |value: &Val| match value {
            Val::Known(known) => Ok(known.kept_ty()),
            value => self.ty(value),
        };
        let whole = operands.iter().map(|value| self.ty(value)).collect::<Res<Vec<_>>>()?;
        let kept = operands.iter().map(ty).collect::<Res<Vec<_>>>()?;
        let infer = |types: &[TensorType]| op.infer_types(&types.iter().collect::<Vec<_>>());
        Ok(infer(&whole)? == infer(&kept)?)
    }

    /// The value of the graph for a value of the model.
    pub(super) fn value_id(&mut self, value: &Val) -> Res<ValueId> {
        match value {
            Val::Tensor(id) => Ok(*id),
            Val::Known(known) => self.push_literal(known),
            Val::Weight(name) => self.push_variable(name),
            Val::Sequence(_) => fail_with("a sequence stands where a tensor is needed"),
        }
    }

    fn push_literal(&mut self, known: &KnownValue) -> Res<ValueId> {
        self.push_repeated(known, &known.ty.shape)
    }

    /// The kept elements of a known value, repeated to a shape.
    fn push_repeated(&mut self, known: &KnownValue, shape: &[usize]) -> Res<ValueId> {
        if known.is_wide() {
            return self.push_repeated(&known.in_width(false), shape);
        }
        if let Some(value) = known.as_splat() {
            let ty = TensorType::new(known.ty.dtype, shape);
            return self.push_once(Op::Full(Full { ty, value: Scalar(value) }));
        }
        let compact = self.push_compact(known)?;
        if known.kept_elements().shape == shape {
            return Ok(compact);
        }
        Ok(self.push(Op::Expand(Expand { shape: shape.into() }), vec![compact])?[0])
    }

    /// The kept elements of a known value.
    fn push_compact(&mut self, known: &KnownValue) -> Res<ValueId> {
        if known.is_wide() {
            return self.push_compact(&known.in_width(false));
        }
        let ty = known.kept_ty();
        if let Some(value) = known.as_splat() {
            return self.push_once(Op::Full(Full { ty, value: Scalar(value) }));
        }
        if known.kept_elements().data.len() <= MOST_KNOWN {
            let data = known.kept_elements().data.iter().copied().map(Scalar).collect();
            return self.push_once(Op::Constant(Constant { ty, data }));
        }
        if let Some((dim, start, step)) = known.as_line() {
            return self.push_line(ty, dim, start, step);
        }
        let Some(made) = known.making_op() else { return self.push_stored(known) };
        let operands = made.operands.iter().map(|(known, shape)| self.push_repeated(known, shape));
        let operands = operands.collect::<Res<Vec<_>>>()?;
        let key = format!("{:?} {operands:?}", made.op);
        if let Some(&id) = self.literals.get(&key) {
            return Ok(id);
        }
        let id = self.push(made.op.clone(), operands)?[0];
        self.literals.insert(key, id);
        Ok(id)
    }

    /// A source, once however often it is asked for.
    fn push_once(&mut self, op: Op) -> Res<ValueId> {
        let key = format!("{op:?}");
        if let Some(&id) = self.literals.get(&key) {
            return Ok(id);
        }
        let id = self.push(op, Vec::new())?[0];
        self.literals.insert(key, id);
        Ok(id)
    }

    /// Numbers in equal steps along a dim.
    fn push_line(&mut self, ty: TensorType, dim: usize, start: f64, step: f64) -> Res<ValueId> {
        let mut id = self.push_once(Op::Iota(Iota { ty, dim }))?;
        if step != 1.0 {
            let function = UnaryFunction::Scale(Scalar(step));
            id = self.push(Op::Unary(Unary { function }), vec![id])?[0];
        }
        if start != 0.0 {
            let function = UnaryFunction::Offset(Scalar(start));
            id = self.push(Op::Unary(Unary { function }), vec![id])?[0];
        }
        Ok(id)
    }

    /// A value that is too large for a literal, as a table, or as the initializer that has its elements. Halves are stored as
    /// what they are rounded from.
    fn push_stored(&mut self, known: &KnownValue) -> Res<ValueId> {
        let TensorType { dtype, shape } = known.kept_ty();
        let wide = if dtype.is_float() { DType::F32 } else { dtype };
        let bytes: Arc<[u8]> = encode_elements(wide, &known.kept_elements().data).into();
        let data = WeightData::Bytes(bytes);
        let same = |(_, tensor): &(&String, &WeightTensor)| {
            tensor.dtype == wide && tensor.shape == shape && tensor.data == data
        };
        let free = |(name, _): &(&String, &WeightTensor)| !self.is_kept(name);
        // Of a mask passes are to know which keys it hides: they know tables.
        let is_mask = dtype.is_float() && known.has_two_numbers();
        let mut stored = self.tensors.iter().filter(free).filter(|_| !is_mask);
        let stored = stored.find(same).map(|(name, _)| name.clone());
        let name = stored.unwrap_or_else(|| {
            let free = |n: &usize| !self.tensors.contains_key(&format!("literal.{n}"));
            format!("literal.{}", (0..).find(free).unwrap_or(0))
        });
        let tensor = WeightTensor { dtype: wide, shape, data };
        self.tensors.entry(name.clone()).or_insert(tensor);
        let id = self.push_variable(&name)?;
        if wide == dtype {
            return Ok(id);
        }
        Ok(self.push(Op::Cast(Cast { dtype }), vec![id])?[0])
    }

    fn push_variable(&mut self, name: &str) -> Res<ValueId> {
        if let Some(&id) = self.variables.get(name) {
            return Ok(id);
        }
        let Some(tensor) = self.tensors.get(name) else {
            return fail_with(format!("there is no tensor `{name}`"));
        };
        let ty = tensor.ty();
        // Numbers that are no weights, such as indices, masks and what exporters write by themselves, are literals.
        if (!ty.dtype.is_float() || ty.elements() == 1 && !self.trained.contains(name))
            && let Some(known) = self.find_foldable(&Val::Weight(name.into()))
            && known.kept_elements().data.len() <= MOST_KNOWN
        {
            return self.push_literal(&known);
        }
        let trainable = self.trained.contains(name);
        let init = match self.initializers.contains(name) {
            true => Init::Weights,
            false => Init::Table(Table::new(tensor.bytes(name)?)),
        };
        let variable = Variable { name: name.into(), ty, init, trainable };
        let id = self.push(Op::Variable(variable), Vec::new())?[0];
        self.name_value(&Val::Tensor(id), name);
        self.variables.insert(name.into(), id);
        Ok(id)
    }
}
