//! Numbers of 64 bits (DOUBLE), which are f32 in the graph.
//!
//! Known values are computed with 64 bits on import, and rounded once where they stand in the graph. Values computed of data may
//! be moved and compared in DOUBLE, which loses nothing. Anything else is refused.

use graphc_ir::types::DType;
use rten_onnx::onnx::{DataType, NodeProto};

use super::lower::{Lowering, Val};
use super::model::op_type;
use super::node::{NodeCall, Res, fail_with};

/// Ops whose results are numbers that they are given, or these without their sign: 32 bits give the same.
const MOVES: [&str; 35] = [
    "Abs",
    "CastLike",
    "Compress",
    "Concat",
    "ConcatFromSequence",
    "DepthToSpace",
    "Expand",
    "Flatten",
    "Gather",
    "GatherElements",
    "GatherND",
    "Identity",
    "If",
    "Loop",
    "Max",
    "Min",
    "Neg",
    "Relu",
    "Reshape",
    "Scan",
    "SequenceAt",
    "SequenceConstruct",
    "SequenceErase",
    "SequenceInsert",
    "Slice",
    "SpaceToDepth",
    "Split",
    "SplitToSequence",
    "Squeeze",
    "Tile",
    "Transpose",
    "Trilu",
    "Unsqueeze",
    "Where",
    "Cast",
];

/// Ops that compare numbers, or say something of them.
const COMPARES: [&str; 11] = [
    "ArgMax",
    "ArgMin",
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "IsInf",
    "IsNaN",
    "Less",
    "LessOrEqual",
    "Shape",
    "Size",
];

impl Lowering {
    /// Checks that 32 bits are enough for a node, and remembers which of its results are of DOUBLE.
    pub(super) fn check_width(&mut self, proto: &NodeProto, results: &[Val]) -> Res<()> {
        let is_data = |name: &&String| {
            let computed = !matches!(self.values.get(*name), None | Some(Val::Known(_)));
            computed && self.doubles.contains(*name)
        };
        let reads = proto.input.iter().any(|name| is_data(&name));
        let op = op_type(proto);
        let computes = results.iter().any(|result| !matches!(result, Val::Known(_)));
        let compares = COMPARES.contains(&op);
        if reads && computes && compares && !self.are_exact(proto) {
            return fail_with(
                "it compares with a number of DOUBLE for which 32 bits are not enough",
            );
        }
        if reads && computes && !compares && !MOVES.contains(&op) {
            return fail_with(
                "it computes in DOUBLE, with numbers of 64 bits, and graphc has 32: export the model in float32 \
                 (model.float()), or cast to it before this node",
            );
        }
        let wide = match op {
            "Cast" => is_double(proto),
            "CastLike" => proto.input.get(1).is_some_and(|like| self.is_double(like)),
            _ => reads && !compares,
        };
        if wide {
            self.doubles.extend(proto.output.iter().filter(|name| !name.is_empty()).cloned());
        }
        Ok(())
    }

    /// Whether a name stands for a value of DOUBLE.
    pub(super) fn is_double(&self, name: &str) -> bool {
        match self.values.get(name) {
            Some(Val::Known(known)) => known.is_wide(),
            _ => self.doubles.contains(name),
        }
    }

    /// Whether 32 bits are enough for all that a node reads that is known.
    fn are_exact(&self, proto: &NodeProto) -> bool {
        proto.input.iter().all(|name| match self.values.get(name) {
            Some(Val::Known(known)) => known.is_exact(),
            _ => true,
        })
    }

    /// A value in another element type, which is `wide` where it is DOUBLE.
    pub(super) fn cast_in_width(&mut self, x: &Val, dtype: DType, wide: bool) -> Res<Val> {
        let known = self.find_foldable(x);
        match known.filter(|known| wide || (known.is_wide() && dtype == DType::F32)) {
            Some(known) => Ok(Val::Known(known.in_width(wide))),
            None => self.cast(x, dtype),
        }
    }
}

/// Whether a cast is one to DOUBLE.
fn is_double(proto: &NodeProto) -> bool {
    let to = NodeCall { proto, opset: 0 }.int("to", 0);
    to.is_ok_and(|to| to == i64::from(DataType::DOUBLE.0))
}
