//! Agreements of the ranks of a group: what they must have alike, and what they find out together.

use graphc_ir::graph::{Graph, Node};
use graphc_ir::op::Op;
use graphc_ir::ops::Variable;
use graphc_runtime::dist::{Group, ReduceOp};
use graphc_runtime::job::Agreement;

use super::{DataParallelError, DataParallelOptions};

/// Compares what decides which steps all ranks make.
pub(super) fn agree_on_options(
    group: &Group,
    options: &DataParallelOptions,
) -> Result<(), DataParallelError> {
    let DataParallelOptions { training, bucket_bytes, session } = options;
    let rest = (
        (&training.clip_norm, &training.clip_value),
        (&training.groups, &training.keep_statistics, &training.ema),
    );
    let alike = Agreement::new()
        .and("the bytes of a bucket", bucket_bytes)
        .and("the first step", session.first_step)
        .and("the seed", session.seed)
        .and("the optimizer", format!("{:?}", training.optimizer))
        .and("the learning-rate schedule", &training.lr_schedule)
        .and_digest("clipping, parameter groups, kept statistics and averages", &rest);
    Ok(group.agree("data parallelism", &alike)?)
}

/// Variables of a graph, in its order.
pub(super) fn variables_of(graph: &Graph) -> Vec<Variable> {
    let of = |node: &Node| match &node.op {
        Op::Variable(variable) => Some(variable.clone()),
        _ => None,
    };
    graph.nodes.iter().filter_map(of).collect()
}

fn describe_variable(variable: &Variable) -> String {
    let kind = if variable.trainable { "parameter" } else { "buffer" };
    format!("{kind} `{}` ({})", variable.name, variable.ty)
}

/// The variables in rank 0's order, if all ranks have the same.
pub(super) fn agree_on_variables(
    group: &Group,
    mut own: Vec<Variable>,
) -> Result<Vec<Variable>, DataParallelError> {
    let lines: Vec<String> = own.iter().map(describe_variable).collect();
    let all = group.all_gather(lines.join("\n").as_bytes())?;
    let first = String::from_utf8_lossy(&all[0]).into_owned();
    let order: Vec<&str> = first.lines().collect();
    let lacks = |have: &[&str], wanted: &[&str]| {
        wanted.iter().find(|line| !have.contains(line)).map(|line| (*line).to_owned())
    };
    let mine: Vec<&str> = lines.iter().map(String::as_str).collect();
    let missing = lacks(&mine, &order).map(|line| format!("it lacks {line}"));
    let further = lacks(&order, &mine).map(|line| format!("it also has {line}"));
    if let Some(difference) = missing.or(further) {
        return Err(DataParallelError::Parameters { rank: group.rank(), difference });
    }
    own.sort_by_key(|variable| order.iter().position(|&line| line == describe_variable(variable)));
    Ok(own)
}

/// Returns the variables, which all ranks have in one order, of which something holds on any rank.
pub(super) fn on_any(
    group: &Group,
    variables: &[Variable],
    holds: impl Fn(&Variable) -> bool,
) -> Result<Vec<Variable>, DataParallelError> {
    let mut flags: Vec<u8> = variables.iter().map(|variable| u8::from(holds(variable))).collect();
    group.all_reduce(&mut flags, ReduceOp::Max)?;
    let found = variables.iter().zip(flags).filter(|(_, flag)| *flag > 0);
    Ok(found.map(|(variable, _)| variable.clone()).collect())
}

/// Parameters from the last to the first, as the backward pass comes to them, in buckets of so many bytes and one type.
pub(super) fn assign_buckets(parameters: &[Variable], bytes: usize) -> Vec<Vec<usize>> {
    let mut buckets: Vec<Vec<usize>> = Vec::new();
    let (mut filled, mut dtype) = (0, None);
    for (index, Variable { ty, .. }) in parameters.iter().enumerate().rev() {
        let fits = dtype == Some(ty.dtype) && filled + ty.bytes() <= bytes;
        match buckets.last_mut().filter(|_| fits) {
            Some(bucket) => bucket.push(index),
            None => {
                buckets.push(vec![index]);
                filled = 0;
            }
        }
        (filled, dtype) = (filled + ty.bytes(), Some(ty.dtype));
    }
    buckets
}
