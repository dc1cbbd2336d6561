//! Where the time of a step goes, by what the workers have measured.

use std::collections::BTreeMap;

use graphc::ir::op::Op;
use graphc::ir::plan::{Action, Actor, Plan};
use graphc::runtime::Statistics;

/// Milliseconds of a step by actor and by kind of actor, means over the ranks.
pub struct Profile {
    /// Op or collective, its actors, and their milliseconds; the longest first.
    pub kinds: Vec<(String, usize, f64)>,
    /// An actor's name, its kind, the shape of what it gives, and its milliseconds; the longest first.
    pub actors: Vec<(String, String, String, f64)>,
}

impl Profile {
    /// What was measured between two looks, `steps` steps apart.
    pub fn new(plan: &Plan, before: &Statistics, after: &Statistics, steps: u64) -> Self {
        let mut actors = Vec::new();
        let mut kinds: BTreeMap<String, (usize, f64)> = BTreeMap::new();
        let ranks = plan.ranks.len() as f64;
        for (rank, entry) in plan.ranks.iter().enumerate() {
            let program = &plan.programs[entry.program.index()];
            let times = after.ranks[rank].actors.iter().zip(&before.ranks[rank].actors);
            for (actor, (now, then)) in program.actors.iter().zip(times) {
                let time = (now.time - then.time).as_secs_f64() * 1e3 / steps as f64;
                let kind = kind(actor);
                let sum = kinds.entry(kind.clone()).or_default();
                *sum = (sum.0 + 1, sum.1 + time / ranks);
                let shape = actor.outputs.first().or(actor.updates.first());
                let shape = shape.map(|r| format!("{:?}", program.registers[r.index()].shape));
                actors.push((actor.name.clone(), kind, shape.unwrap_or_default(), time));
            }
        }
        let mut kinds: Vec<_> = kinds.into_iter().map(|(kind, (n, ms))| (kind, n, ms)).collect();
        kinds.sort_by(|a, b| b.2.total_cmp(&a.2));
        actors.sort_by(|a, b| b.3.total_cmp(&a.3));
        Self { kinds, actors }
    }

    /// The sum of each kind and the slowest actors, as a table.
    pub fn table(&self, slowest: usize) -> String {
        let total: f64 = self.kinds.iter().map(|(_, _, ms)| ms).sum();
        let share = |ms: f64| 100.0 * ms / total;
        let kinds = self.kinds.iter().map(|(kind, count, ms)| {
            format!("{ms:>10.3} ms {:>5.1} %  {count:>4} x {kind}\n", share(*ms))
        });
        let actors = self.actors.iter().take(slowest).map(|(name, kind, shape, ms)| {
            format!("{ms:>10.3} ms {:>5.1} %  {kind} {shape}  {name}\n", share(*ms))
        });
        kinds.chain(["\n".to_string()]).chain(actors).collect()
    }
}

fn kind(actor: &Actor) -> String {
    match &actor.action {
        Action::Compute { op, .. } => function(op),
        Action::Fused(chain) => {
            let names: Vec<_> = chain.steps.iter().map(|step| function(&step.op)).collect();
            format!("chain of {}", names.join(" "))
        }
        Action::Collective { kind, .. } => format!("{kind:?}"),
        Action::Local { kind } => format!("local {kind:?}"),
        Action::Send { .. } => "send".to_string(),
        Action::Receive { .. } => "receive".to_string(),
        other => format!("{other:?}").chars().take_while(|c| c.is_alphanumeric()).collect(),
    }
}

/// The op, or what an op of a whole family computes.
fn function(op: &Op) -> String {
    let function: &dyn std::fmt::Debug = match op {
        Op::Unary(unary) => &unary.function,
        Op::Binary(binary) => &binary.function,
        Op::Reduce(reduce) => return format!("{} {:?}", op.name(), reduce.function).to_lowercase(),
        _ => return op.name().to_string(),
    };
    format!("{function:?}").to_lowercase()
}
