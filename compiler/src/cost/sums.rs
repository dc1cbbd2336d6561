//! Frameworks whose products of gradients add to what the microbatches before have summed, instead of writing a gradient that is then added.

use std::collections::BTreeMap;

use graphc_ir::ids::RegisterId;
use graphc_ir::op::Op;
use graphc_plan::{Action, Cluster, Layout, Program};

use super::ActorWork;

/// Lets sums over microbatches take no seconds whose summands are products, where the framework adds them up in the products: nor do casts take any that
/// stand between.
pub(crate) fn add_sums_in_products(cluster: &Cluster, layouts: &[Layout], program: &mut Program) {
    if !cluster.framework.sums_in_products {
        return;
    }
    let made = Producers::of_program(program);
    let mut seconds: Vec<(usize, f64)> = Vec::new();
    for (index, actor) in program.actors.iter().enumerate() {
        let accumulates = matches!(actor.action, Action::Accumulate);
        let Some(&summand) = actor.inputs.first().filter(|_| accumulates) else { continue };
        if let Some(before) = made.find_product(program, layouts, cluster, summand) {
            seconds.extend(before);
            seconds.push((index, 0.0));
        }
    }
    for (index, seconds) in seconds {
        program.actors[index].seconds = seconds;
    }
}

/// The actor that makes each register, and how many read it.
struct Producers {
    made: BTreeMap<RegisterId, usize>,
    readers: BTreeMap<RegisterId, usize>,
}

impl Producers {
    fn of_program(program: &Program) -> Self {
        let (mut made, mut readers) = (BTreeMap::new(), BTreeMap::new());
        for (index, actor) in program.actors.iter().enumerate() {
            made.extend(actor.outputs.iter().map(|&output| (output, index)));
            for &input in &actor.inputs {
                *readers.entry(input).or_default() += 1;
            }
        }
        Self { made, readers }
    }

    /// Returns the new seconds of what stands between a product and the reader of a register, which is its only one; `None` if there is no product.
    fn find_product(
        &self,
        program: &Program,
        layouts: &[Layout],
        cluster: &Cluster,
        register: RegisterId,
    ) -> Option<Vec<(usize, f64)>> {
        if self.readers.get(&register) != Some(&1) {
            return None;
        }
        let index = *self.made.get(&register)?;
        let actor = &program.actors[index];
        match &actor.action {
            // graphc adds up no products of numbers of 8 bits, which have their sizes as operands, and none of experts.
            Action::Compute { op: Op::MatMul(_), operands } => {
                let adds = operands.len() == 2 || !cluster.framework.is_graphc();
                adds.then(Vec::new)
            }
            Action::Compute { op: Op::GroupedMatMulGrad(_), .. } => {
                (!cluster.framework.is_graphc()).then(Vec::new)
            }
            Action::Fused(fused) => {
                let head = fused.chain_head()?;
                let casts = fused.steps.iter().filter(|step| matches!(step.op, Op::Cast(_)));
                let casts_alone = casts.count() + 1 == fused.steps.len();
                let is_product = matches!(head.op, Op::MatMul(_)) && casts_alone;
                let own = ActorWork::from_actor(layouts, program, actor)?.head_seconds(cluster)?;
                is_product.then(|| vec![(index, own)])
            }
            Action::Compute { op: Op::Cast(_), .. } => {
                let before = self.find_product(program, layouts, cluster, actor.inputs[0])?;
                Some([before, vec![(index, 0.0)]].concat())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use graphc_ir::builder::GraphBuilder;
    use graphc_ir::graph::Graph;
    use graphc_ir::types::DType;
    use graphc_nn::{Linear, MixtureConfig, MixtureFeedForward, Module, Routing};
    use graphc_plan::{CompileOptions, Loss, Optimizer, Plan};

    use super::*;
    use crate::cluster::{find_framework, preset};
    use crate::compile::compile;
    use crate::cost::on_cluster;

    fn linear() -> Graph {
        let g = GraphBuilder::new("layers");
        let x = g.input("x", DType::F32, [64, 256]);
        let w = Linear::new(&g, "fc", 256, 256);
        g.output("y", &w.forward(&x));
        g.finish().expect("fits")
    }

    fn mixture() -> Graph {
        let g = GraphBuilder::new("experts");
        let x = g.input("x", DType::F32, [64, 32, 64]);
        let (width, hidden, experts, chosen, blocks) = (64, 128, 4, 2, 1);
        let (routing, capacity) = (Routing::Softmax, None);
        let sizes = MixtureConfig { width, hidden, experts, chosen, routing, blocks, capacity };
        g.output("y", &MixtureFeedForward::new(&g, "mixture", &sizes).forward(&x));
        g.finish().expect("fits")
    }

    fn plan(graph: Graph, framework: &str) -> Plan {
        let framework = find_framework(framework).expect("a profile");
        let cluster = Cluster { framework, ..preset("dgx-h100").expect("a preset") };
        let sgd = Optimizer::Sgd { lr: 0.1, momentum: 0.0, nesterov: false, weight_decay: 0.0 };
        let options = CompileOptions {
            mesh: vec![1],
            microbatches: 4,
            precision: Some(DType::BF16),
            loss: Some(Loss::Sum),
            optimizer: Some(sgd),
            ..CompileOptions::default()
        };
        compile(graph, &options, &cluster, None).expect("a plan").plan.into_plan()
    }

    /// Returns the number of sums of gradients that take seconds, and of those that take none.
    fn count_sums(plan: &Plan) -> [usize; 2] {
        let actors = plan.programs.iter().flat_map(|program| &program.actors);
        let sums = actors.filter(|actor| matches!(actor.action, Action::Accumulate));
        let (moved, free): (Vec<_>, Vec<_>) = sums.partition(|actor| actor.seconds > 0.0);
        [moved.len(), free.len()]
    }

    #[test]
    fn sums_of_products_take_no_seconds_where_products_add_them_up() {
        let eager = plan(linear(), "torch-eager");
        let [moved, none] = count_sums(&eager);
        assert!(moved >= 2 && none == 0, "{moved} and {none}");
        for framework in ["graphc", "megatron-core"] {
            // The gradient of the bias is no product.
            let plan = plan(linear(), framework);
            let [rest, free] = count_sums(&plan);
            assert!(free >= 1 && rest >= 1 && rest + free == moved, "{rest} and {free} of {moved}");
            // Another framework's plan is priced alike.
            assert_eq!(count_sums(&on_cluster(&eager, &plan.cluster)), [rest, free]);
            assert_eq!(count_sums(&on_cluster(&plan, &eager.cluster)), [moved, 0]);
        }
    }

    #[test]
    fn sums_of_products_of_experts_take_no_seconds_in_frameworks_that_add_them_up() {
        let [own, core] =
            ["graphc", "megatron-core"].map(|name| count_sums(&plan(mixture(), name)));
        // Those of the three matrices of the experts.
        assert_eq!([own[0] - core[0], core[1] - own[1]], [3, 3], "{own:?} and {core:?}");
    }
}
