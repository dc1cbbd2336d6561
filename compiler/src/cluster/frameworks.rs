//! Profiles of frameworks by name: the losses of each, compared with the limits of the machines.
//!
//! Presets say what the hardware and the best published kernels allow, and graphc's plans are made for that. A
//! `Framework` says what another runtime loses on the same machines:
//!
//! - the host's time to issue a kernel or a collective, where the host is slower than the device;
//! - bytes that elementwise ops move because they are not fused;
//! - bytes that sums of gradients over microbatches move where products do not add to them;
//! - a slower attention kernel;
//! - whether communication overlaps with kernels at all;
//! - the share of communication beside kernels that the step pays for all the same, which the null device adds (both
//!   share the device's units and memory);
//! - the share of tensor parallelism's reductions that it hides under products;
//! - the bandwidth between nodes of groups that have several of a node's ranks, but not all;
//! - the host's time for each expert's product, and its waits for counts of tokens;
//! - a message for each gradient, and rings that take a step for each rank of all nodes.
//!
//! It exists because measured trainings are of frameworks. With it predictions can be held against them
//! (`examples/training_table`), and the losses of frameworks stay out of the prices by which graphc plans.

use graphc_plan::Framework;

use super::Fitted;

/// The names of all profiles.
pub const FRAMEWORKS: [&str; 7] = [
    "graphc",
    "torch-eager",
    "torch-compile",
    "internevo",
    "megatron",
    "megatron-core",
    "megatron-core-2025",
];

/// Returns the profile of this name, or `None` if there is none.
pub fn find_framework(name: &str) -> Option<Framework> {
    let graphc = Framework::default();
    match name {
        "graphc" => Some(graphc),
        // PyTorch without a compiler, its parameters sharded by FSDP. Fitted by `training_table --fit` to every second
        // row of MPT, but for dispatch: no row is bound by the host, so the fit says nothing of it, and it is that of
        // the other framework that runs from Python. The attention of the rows is as slow as FlashAttention before its
        // second version (Dao, arXiv 2307.08691).
        "torch-eager" => Some(Framework {
            name: name.into(),
            dispatch: Fitted::MegatronDispatch.value(),
            elementwise_traffic: Fitted::TorchEagerTraffic.value(),
            attention: Fitted::TorchEagerAttention.value(),
            interference: Fitted::TorchEagerInterference.value(),
            sums_in_products: false,
            ..graphc
        }),
        // PyTorch with a compiler, its parameters sharded by FSDP: chains of elementwise ops are fused, attention is FlashAttention-2
        // as it was published, and the host runs ahead. The share of communication that is paid for was chosen by hand, with rows of
        // foundation-model-stack/fms-fsdp in view: with it the six of them whose weights are shared among all ranks are within 9 %.
        "torch-compile" => Some(Framework {
            name: name.into(),
            interference: 0.34,
            sums_in_products: false,
            ..graphc
        }),
        // InternLM's InternEvo: kernels of PyTorch without a compiler. Gradients travel beside the backward pass, in a message each, and NCCL's
        // rings go through all ranks. Interference was chosen by hand, with the even rows of its published sweeps in view.
        "internevo" => Some(Framework {
            name: name.into(),
            interference: 0.3,
            buckets: false,
            flat_rings: true,
            ..find_framework("torch-eager")?
        }),
        // Kernels are issued from Python, one by one, and most chains are fused by hand: the host's time and what is
        // not fused are fitted by `training_table --fit` to every second row of Megatron-LM's tables. Gradients are
        // reduced behind the last backward pass. The gradient of a layer's input is reduced while that of its weight
        // is computed, so of the six all-reduces of a block (two forward, two again in recomputation, two backward)
        // four are waited for: reasoned, not fitted. Groups that have some ranks of each node but not all reach a
        // third of what the cards allow, which is fitted to every second row of the table of many nodes.
        "megatron" => Some(Framework {
            name: name.into(),
            dispatch: Fitted::MegatronDispatch.value(),
            elementwise_traffic: Fitted::MegatronTraffic.value(),
            overlap: false,
            reduced_under_products: 1.0 / 3.0,
            shared_nodes: Fitted::MegatronSharedNodes.value(),
            sums_in_products: false,
            ..graphc
        }),
        // The same since 2023: gradients are reduced and weights gathered beside kernels, products of tensor parallelism are taken
        // in parts while others are sent (`tp-comm-overlap`), chains are fused. Chosen by hand with four rows of the README of
        // NVIDIA/Megatron-LM in view, on H100: a third of the older host's time for a kernel, three quarters of tensor
        // parallelism's communication hidden, and nodes of which groups share the cards lose nothing, as each card has its own
        // adapter. Gradients of weights are added up by the products that make them, as it does by default (`gradient_accumulation_fusion`).
        // Attention is cuDNN's, which reaches one and a half times the rate of FlashAttention-2 on H100 (Shah et al., arXiv 2407.08608, figures 5 and 6:
        // 1.5 to 1.75 times for FlashAttention-3, with cuDNN beside it), and presets have that of FlashAttention-2. Ranks
        // of data parallelism scale tensors of 8 bits each for itself (Transformer Engine).
        "megatron-core" => Some(Framework {
            name: name.into(),
            dispatch: 1e-5,
            attention: 1.5,
            local_scales: true,
            reduced_under_products: 0.75,
            ..graphc
        }),
        // The same until the beginning of 2026, for models with experts: the host issues products and roundings of each expert for itself, from
        // Python, and waits for the counts of tokens. Chosen by hand with the even rows of NVIDIA-NeMo/Megatron-Bridge in view of which the host
        // has most to do, two of which took as long whatever the size of their microbatches.
        "megatron-core-2025" => Some(Framework {
            name: name.into(),
            expert_dispatch: 60e-6,
            waits_for_counts: true,
            ..find_framework("megatron-core")?
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_is_there_under_its_name() {
        for name in FRAMEWORKS {
            assert_eq!(find_framework(name).expect("listed").name, name);
        }
        assert!(find_framework("graphc").expect("listed").is_graphc());
        assert_eq!(find_framework("abacus"), None);
    }
}
