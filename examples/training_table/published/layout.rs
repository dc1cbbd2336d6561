//! Lays a published training out as its framework does, as far as graphc can express it.

use anyhow::{Result, bail, ensure};
use graphc::prelude::*;
use graphc_plan::{Accumulation, Float8Recipe, Recompute};

use nn::{MixtureConfig, Routing};

use super::axes::Axes;
use super::experts::Experts;
use super::model::{Family, Mixture, Model, Shards};
use super::row::Published;
use crate::mixture_block::{BlockConfig, Keys};

/// A training in graphc's words.
#[derive(Clone, Debug)]
pub struct Said {
    /// The model.
    pub model: Model,
    /// The options of the training without pins.
    pub options: CompileOptions,
    /// The profile of what runs it.
    pub profile: &'static str,
    /// The features of the row that are left out here.
    pub left_out: Vec<&'static str>,
}

/// The release of Megatron-Bridge since which the rows of experts are no longer bound by the host, year, month and patch. It was found with the rows in view:
/// of 26.02.01 and 26.04 some are, of 26.04.01 none is. Rows that state no release are older.
const EXPERTS_IN_GRAPHS: [u32; 3] = [26, 4, 1];

/// The generation of a framework.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runs {
    /// PyTorch's fully sharded data parallelism, with or without a compiler.
    Torch { compiled: bool },
    /// Megatron-LM as of 2021, also under DeepSpeed: without sequence parallelism, scores of attention in memory, gradients
    /// reduced behind the last backward pass.
    Megatron,
    /// Megatron-LM since 2023: sequence parallelism, fused attention, a distributed optimizer, gradients in f32.
    MegatronCore,
    /// InternEvo: fused attention, ZeRO-1, tensor parallelism without sequence parallelism.
    Evo,
    /// Nanotron: fused attention, ZeRO-1, tensor parallelism with sequence parallelism, gradients in f32.
    Nanotron,
    /// OneFlow's LiBai: as Megatron-LM of 2021 lays it out.
    LiBai,
}

impl Runs {
    fn of(row: &Published) -> Result<Self> {
        let old_card =
            ["A100", "V100", "GPU not stated"].iter().any(|card| row.gpu.starts_with(card));
        let name = row.framework.to_lowercase();
        Ok(match name.as_str() {
            "torchtitan" => {
                // A row that is `the same` as the one above it, which is compiled, does not say so again.
                let compiled =
                    ["compile", "the same"].iter().any(|word| row.comment.contains(word));
                Self::Torch { compiled }
            }
            "torch-compile" => Self::Torch { compiled: true },
            name if name.contains("deepspeed") => Self::Megatron,
            name if name.contains("megatron") && old_card => Self::Megatron,
            name if name.contains("megatron") || name.contains("nemo-") => Self::MegatronCore,
            name if name.contains("torch") || name.contains("fsdp") => {
                Self::Torch { compiled: false }
            }
            name if name.contains("internevo") => Self::Evo,
            name if name.contains("nanotron") => Self::Nanotron,
            name if name.contains("libai") => Self::LiBai,
            other => bail!("no profile is of the framework {other}"),
        })
    }

    /// The profile of `graphc_compiler::cluster::framework`.
    fn profile(self, row: &Published) -> &'static str {
        match self {
            Self::MegatronCore if row.release() < Some(EXPERTS_IN_GRAPHS) => "megatron-core-2025",
            Self::Torch { compiled: true } => "torch-compile",
            Self::Torch { compiled: false } | Self::Nanotron => "torch-eager",
            Self::Evo => "internevo",
            Self::MegatronCore => "megatron-core",
            Self::Megatron | Self::LiBai => "megatron",
        }
    }

    fn flash(self) -> bool {
        match self {
            Self::Torch { .. } | Self::MegatronCore | Self::Evo | Self::Nanotron => true,
            Self::Megatron | Self::LiBai => false,
        }
    }

    fn splits_sequences(self) -> bool {
        match self {
            Self::Torch { .. } | Self::MegatronCore | Self::Nanotron => true,
            Self::Megatron | Self::LiBai | Self::Evo => false,
        }
    }
}

/// The state that ranks with the same blocks share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharding {
    Nothing,
    States,
    Weights,
}

/// The row in graphc's words: one way for each number of microbatches or virtual stages that it leaves open.
///
/// # Errors
/// Returns an error, with the reason, if graphc cannot express the row.
pub fn say(row: &Published) -> Result<Vec<Said>> {
    let experts = Experts::of_row(row)?;
    let runs = Runs::of(row)?;
    let mut left_out = Vec::new();
    let mut note = |is: bool, what: &'static str| is.then(|| left_out.push(what));
    let four_bits = row.precision.contains("fp4");
    let eight_bits = row.precision.contains("fp8");
    note(four_bits, "4 bits instead of 8");
    // A tensor has one scale, and blocks of 32 have none of their own (MXFP8).
    note(eight_bits && row.precision.contains("mx"), "scales of blocks");
    note(row.states_other_data(), "ranks that hold the same blocks as the source counts them");
    if let Some(experts) = &experts {
        note(experts.further, "further tokens");
    }
    note(row.recompute.contains(','), "what is computed again");
    note(row.micro_batch.is_none(), "micro batch");
    note(row.virtual_stages.is_none() && row.stages > 1, "virtual stages");
    let mut said = Vec::new();
    for micro in open(row.micro_batch, &[1, 2, 4]) {
        for chunks in open(row.virtual_stages, &chunks(row)) {
            if let Some(one) = one(row, runs, experts.as_ref(), [micro, chunks], &left_out)? {
                said.push(one);
            }
        }
    }
    ensure!(
        !said.is_empty(),
        "{} sequences are no microbatches on {} ranks, or {} blocks no equal parts",
        row.global_batch,
        row.data,
        row.layers
    );
    Ok(said)
}

fn open(stated: Option<usize>, choices: &[usize]) -> Vec<usize> {
    stated.map_or_else(|| choices.to_vec(), |stated| vec![stated])
}

/// Numbers of virtual stages that cut the blocks of a stage equally: one, a few, and one for each block.
fn chunks(row: &Published) -> Vec<usize> {
    let each = row.layers / row.stages.max(1);
    let divides = |chunks: &usize| row.stages > 1 && each.is_multiple_of(*chunks);
    let mut all: Vec<usize> = [2, 4, each].into_iter().filter(divides).collect();
    all.push(1);
    all
}

/// The row with so many sequences in a microbatch and so many virtual stages, where that is possible.
fn one(
    row: &Published,
    runs: Runs,
    experts: Option<&Experts>,
    [micro, chunks]: [usize; 2],
    left_out: &[&'static str],
) -> Result<Option<Said>> {
    let together = micro * row.data;
    if !row.global_batch.is_multiple_of(together) || row.stages * chunks > row.layers + 2 {
        return Ok(None);
    }
    let microbatches = row.global_batch / together;
    if chunks > 1 && !microbatches.is_multiple_of(row.stages) {
        return Ok(None);
    }
    let (sharding, inner) = sharding(&row.sharding, row.data)?;
    let axes = Axes::of_row(row, inner)?;
    let strategy = strategy(runs, sharding, row.tensor > 1);
    let shards = shards(&axes, sharding, inner, row, runs);
    let mut model = model(row, runs, chunks, shards)?;
    if let Some(experts) = experts {
        model.mixture = Some(mixture(row, experts, &axes, &model)?);
    }
    let pins = axes.pin_sequences();
    model.tokens = pins.first().map(|pin| pin.sbp.clone());
    let options = CompileOptions {
        keep_attention: !model.flash,
        // TorchTitan's six rows, of 2024, are as slow as if sequences lay in one piece on each rank: 10 % off with it, and 23 % too fast without.
        keep_order: matches!(runs, Runs::Torch { .. }),
        mesh: axes.mesh(),
        pins,
        stages: row.stages,
        microbatches,
        schedule: match chunks {
            1 => Schedule::OneForwardOneBackward,
            chunks => Schedule::Interleaved { chunks },
        },
        loss: Some(Loss::CrossEntropy),
        optimizer: Some(Optimizer::AdamW(AdamOptions::adamw(1e-4))),
        strategy,
        recompute: recompute(row, runs),
        precision: (row.precision.contains("fp8") || row.precision.contains("fp4"))
            .then_some(DType::F8E4M3),
        // All of them state one scale for each tensor, or are of a time when there was no other.
        float8_recipe: Float8Recipe::Tensorwise,
        accumulation: match runs {
            _ if row.comment.contains("f32 gradient accumulation") => Accumulation::F32,
            Runs::Megatron | Runs::LiBai | Runs::Evo => Accumulation::Half,
            Runs::Torch { .. } | Runs::MegatronCore | Runs::Nanotron => Accumulation::F32,
        },
        ..CompileOptions::default()
    };
    Ok(Some(Said { model, options, profile: runs.profile(row), left_out: left_out.to_vec() }))
}

fn strategy(runs: Runs, sharding: Sharding, tensor: bool) -> Strategy {
    match (tensor, sharding) {
        (true, _) if runs.splits_sequences() => Strategy::MegatronSp,
        (true, _) => Strategy::Megatron,
        (false, Sharding::Nothing) => Strategy::Data,
        (false, Sharding::States) => Strategy::Zero1,
        (false, Sharding::Weights) => Strategy::Zero3,
    }
}

/// Returns what ranks share, and the number of ranks that share it: `zero1 within 8 ranks` share among eight, `hsdp` among those of a node.
fn sharding(text: &str, data: usize) -> Result<(Sharding, usize)> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let within = words.iter().find_map(|word| word.parse::<usize>().ok()).unwrap_or(data).min(data);
    let (sharding, inner) = match words.first().copied().unwrap_or_default() {
        "" | "ddp" | "zero0" | "none" => (Sharding::Nothing, data),
        "zero1" => (Sharding::States, within),
        "fsdp" | "fsdp2" | "zero3" | "zero2" => (Sharding::Weights, within),
        "hsdp" => (Sharding::Weights, within.min(8)),
        other => bail!("no strategy is of the sharding `{other}`"),
    };
    ensure!(data.is_multiple_of(inner), "{inner} ranks do not divide {data}");
    Ok((sharding, inner))
}

/// Returns the layout of states and weights, where the strategy alone does not give it. Where nothing else splits weights, Megatron-LM
/// gathers them from the states' shards for the first microbatch of the next step, beside its kernels: as if they lay in shards.
fn shards(axes: &Axes, sharding: Sharding, inner: usize, row: &Published, runs: Runs) -> Shards {
    let tensor = row.tensor > 1;
    let gathers = runs == Runs::MegatronCore && sharding == Sharding::States && !tensor;
    let follows = !tensor && inner == row.data && !gathers && !axes.has_experts();
    let split = axes.shared();
    if sharding == Sharding::Nothing || split.is_empty() || follows {
        return Shards::OfStrategy;
    }
    let weights = gathers || sharding == Sharding::Weights;
    Shards::Over { axes: axes.count(), split, tensor, weights }
}

fn model(row: &Published, runs: Runs, chunks: usize, shards: Shards) -> Result<Model> {
    let half = if row.precision == "fp16" { DType::F16 } else { DType::BF16 };
    ensure!(row.hidden.is_multiple_of(row.heads), "{} heads in {}", row.heads, row.hidden);
    ensure!(row.heads.is_multiple_of(row.shared), "{} shared heads", row.shared);
    let torch = matches!(runs, Runs::Torch { .. });
    let parts = row.stages * chunks;
    let uneven = !row.layers.is_multiple_of(parts);
    let mut model = Model {
        family: Family::Gpt,
        layers: row.layers,
        hidden: row.hidden,
        heads: [row.heads, row.shared],
        wide: row.wide,
        // Ranks of tensor parallelism pad it to a multiple of 128 each.
        vocabulary: row.vocabulary.next_multiple_of(128 * row.tensor),
        batch: row.global_batch,
        sequence: row.sequence,
        half,
        mixed: torch,
        flash: runs.flash() || row.shared != row.heads,
        wide_logits: torch,
        parts,
        ends_count: uneven && (row.layers + 2).is_multiple_of(parts),
        shards,
        mixture: None,
        tokens: None,
    };
    model.family = family(row, &model);
    Ok(model)
}

/// The experts of a row, and where they lie. A block has places for as many tokens as it gets where all experts are chosen alike, as in most of the
/// rows; none is sent that nobody has.
fn mixture(row: &Published, experts: &Experts, axes: &Axes, model: &Model) -> Result<Mixture> {
    let &Published { hidden, heads, shared, wide, .. } = row;
    let name = row.model.to_lowercase();
    let keys = match experts.latent {
        false => Keys::Grouped {
            heads: shared,
            width: experts.head.unwrap_or(hidden / heads),
            normal: name.contains("qwen3"),
        },
        true => {
            let known = ["deepseek-v3", "deepseek-r1", "kimi-k2"];
            let is_known = known.iter().any(|known| name.starts_with(known));
            ensure!(is_known, "the sizes of latent vectors of {} are not known", row.model);
            Keys::DEEPSEEK_V3
        }
    };
    let sizes = MixtureConfig {
        width: hidden,
        hidden: wide,
        experts: experts.experts,
        chosen: experts.chosen,
        routing: if experts.latent { Routing::Sigmoid { scale: 2.5 } } else { Routing::Softmax },
        blocks: row.experts,
        capacity: Some(1.0),
    };
    let (split, weights) = match &model.shards {
        Shards::Over { split, weights, .. } => (&split[..], *weights),
        Shards::OfStrategy => (&[][..], false),
    };
    Ok(Mixture {
        block: BlockConfig {
            dense: experts.dense,
            heads,
            keys,
            window: experts.window,
            experts: sizes,
            shared: experts.shared * wide,
            base: 1e6,
        },
        weights: axes.lay_experts(if weights { split } else { &[] }),
        states: axes.lay_experts(split),
    })
}

/// The family by the model's name; of names that say nothing that whose parameters are closest.
fn family(row: &Published, model: &Model) -> Family {
    let known = [
        ("bert", Family::Bert),
        ("gpt", Family::Gpt),
        ("bloom", Family::Gpt),
        ("opt", Family::Gpt),
        ("nemotron", Family::Nemotron),
        ("llama", Family::Llama),
    ];
    let name = row.model.to_lowercase();
    if let Some((_, family)) = known.iter().find(|(part, _)| name.contains(part)) {
        return *family;
    }
    let Some(billions) = row.parameters else { return Family::Llama };
    let apart = |family: Family| {
        let parameters = Model { family, ..model.clone() }.parameters() as f64;
        (parameters / (1e9 * billions)).ln().abs()
    };
    if apart(Family::Gpt) < apart(Family::Llama) { Family::Gpt } else { Family::Llama }
}

/// Returns what a row computes again. If the row does not state it, it is what the framework does by default.
fn recompute(row: &Published, runs: Runs) -> Recompute {
    match row.recompute.as_str() {
        "full" => Recompute::Full,
        "none" => Recompute::None,
        "" => match runs {
            Runs::Megatron | Runs::LiBai => Recompute::Full,
            Runs::Torch { .. } | Runs::MegatronCore | Runs::Evo | Runs::Nanotron => Recompute::None,
        },
        _ => Recompute::Selective,
    }
}
