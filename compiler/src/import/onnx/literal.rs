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

use super::known::{Known, MOST_KNOWN};
use super::lower::{Lowering, Val};
use super::node::{Res, fail};
use crate::import::weights::{WeightData, WeightTensor, encode};

impl Lowering {
    /// The values of the graph for the operands of an op. Elementwise ops broadcast literals by themselves.
    pub fn ids(&mut self, op: &Op, operands: &[Val]) -> Res<Vec<ValueId>> {
        let broadcasts = op.operation().is_elementwise() && self.broadcasts(op, operands)?;
        let ids = operands.iter().map(|value| match value {
            Val::Known(known) if broadcasts => self.compact(known),
            value => self.id(value),
        });
        ids.collect()
    }

    /// Whether the op gives the same shape where its literals are not expanded.
    fn broadcasts(&self, op: &Op, operands: &[Val]) -> Res<bool> {
        let ty = |value: &Val| match value {
            Val::Known(known) => Ok(known.kept_ty()),
            value => self.ty(value),
        };
        let whole = operands.iter().map(|value| self.ty(value)).collect::<Res<Vec<_>>>()?;
        let kept = operands.iter().map(ty).collect::<Res<Vec<_>>>()?;
        let infer = |types: &[TensorType]| op.infer(&types.iter().collect::<Vec<_>>());
        Ok(infer(&whole)? == infer(&kept)?)
    }

    /// The value of the graph for a value of the model.
    pub fn id(&mut self, value: &Val) -> Res<ValueId> {
        match value {
            Val::Tensor(id) => Ok(*id),
            Val::Known(known) => self.literal(known),
            Val::Weight(name) => self.variable(name),
            Val::Sequence(_) => fail("a sequence stands where a tensor is needed"),
        }
    }

    fn literal(&mut self, known: &Known) -> Res<ValueId> {
        self.repeated(known, &known.ty.shape)
    }

    /// The kept elements of a known value, repeated to a shape.
    fn repeated(&mut self, known: &Known, shape: &[usize]) -> Res<ValueId> {
        if known.is_wide() {
            return self.repeated(&known.in_width(false), shape);
        }
        if let Some(value) = known.as_splat() {
            let ty = TensorType::new(known.ty.dtype, shape);
            return self.once(Op::Full(Full { ty, value: Scalar(value) }));
        }
        let compact = self.compact(known)?;
        if known.kept().shape == shape {
            return Ok(compact);
        }
        Ok(self.push(Op::Expand(Expand { shape: shape.into() }), vec![compact])?[0])
    }

    /// The kept elements of a known value.
    fn compact(&mut self, known: &Known) -> Res<ValueId> {
        if known.is_wide() {
            return self.compact(&known.in_width(false));
        }
        let ty = known.kept_ty();
        if let Some(value) = known.as_splat() {
            return self.once(Op::Full(Full { ty, value: Scalar(value) }));
        }
        if known.kept().data.len() <= MOST_KNOWN {
            let data = known.kept().data.iter().copied().map(Scalar).collect();
            return self.once(Op::Constant(Constant { ty, data }));
        }
        if let Some((dim, start, step)) = known.line() {
            return self.line(ty, dim, start, step);
        }
        let Some(made) = known.made() else { return self.stored(known) };
        let operands = made.operands.iter().map(|(known, shape)| self.repeated(known, shape));
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
    fn once(&mut self, op: Op) -> Res<ValueId> {
        let key = format!("{op:?}");
        if let Some(&id) = self.literals.get(&key) {
            return Ok(id);
        }
        let id = self.push(op, Vec::new())?[0];
        self.literals.insert(key, id);
        Ok(id)
    }

    /// Numbers in equal steps along a dim.
    fn line(&mut self, ty: TensorType, dim: usize, start: f64, step: f64) -> Res<ValueId> {
        let mut id = self.once(Op::Iota(Iota { ty, dim }))?;
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
    fn stored(&mut self, known: &Known) -> Res<ValueId> {
        let TensorType { dtype, shape } = known.kept_ty();
        let wide = if dtype.is_float() { DType::F32 } else { dtype };
        let bytes: Arc<[u8]> = encode(wide, &known.kept().data).into();
        let data = WeightData::Bytes(bytes);
        let same = |(_, tensor): &(&String, &WeightTensor)| {
            tensor.dtype == wide && tensor.shape == shape && tensor.data == data
        };
        let free = |(name, _): &(&String, &WeightTensor)| !self.is_kept(name);
        let stored = self.tensors.iter().filter(free).find(same).map(|(name, _)| name.clone());
        let name = stored.unwrap_or_else(|| {
            let free = |n: &usize| !self.tensors.contains_key(&format!("literal.{n}"));
            format!("literal.{}", (0..).find(free).unwrap_or(0))
        });
        let tensor = WeightTensor { dtype: wide, shape, data };
        self.tensors.entry(name.clone()).or_insert(tensor);
        let id = self.variable(&name)?;
        if wide == dtype {
            return Ok(id);
        }
        Ok(self.push(Op::Cast(Cast { dtype }), vec![id])?[0])
    }

    fn variable(&mut self, name: &str) -> Res<ValueId> {
        if let Some(&id) = self.variables.get(name) {
            return Ok(id);
        }
        let Some(tensor) = self.tensors.get(name) else {
            return fail(format!("there is no tensor `{name}`"));
        };
        let ty = tensor.ty();
        // Numbers that are no weights, such as indices, masks and what exporters write by themselves, are literals.
        if (!ty.dtype.is_float() || ty.elements() == 1 && !self.trained.contains(name))
            && let Some(known) = self.foldable(&Val::Weight(name.into()))
            && known.kept().data.len() <= MOST_KNOWN
        {
            return self.literal(&known);
        }
        let trainable = self.trained.contains(name);
        let init = match self.initializers.contains(name) {
            true => Init::Weights,
            false => Init::Table(Table::new(tensor.bytes(name)?)),
        };
        let variable = Variable { name: name.into(), ty, init, trainable };
        let id = self.push(Op::Variable(variable), Vec::new())?[0];
        self.name(&Val::Tensor(id), name);
        self.variables.insert(name.into(), id);
        Ok(id)
    }
}
