//! The machines of a published training: a preset by the card's name, its links between nodes as fast as the source says.

use anyhow::{Context, Result, bail};
use graphc::prelude::*;
use graphc_plan::{Cluster, Framework};

use super::row::Published;

/// The beginnings of cards' names, the preset of each, and the Gbit/s between nodes that the preset has for each card.
const CARDS: [(&str, &str, f64); 13] = [
    ("A100-80GB", "dgx-a100", 200.0),
    ("A100-40GB", "a100-40gb", 200.0),
    ("H100-96GB", "h100-96gb", 400.0),
    ("H100", "dgx-h100", 400.0),
    ("H200", "h200", 400.0),
    ("B200", "b200", 400.0),
    ("B300", "b300", 800.0),
    ("GB200", "gb200-nvl72", 400.0),
    ("GB300", "gb300-nvl72", 800.0),
    ("MI300X", "mi300x", 400.0),
    ("MI325X", "mi325x", 400.0),
    ("V100", "p3.16xlarge", 25.0),
    ("GPU not stated (V100-32GB", "p3.16xlarge", 25.0),
];

/// The share of the usual rate that products of a card with a lower power limit reach, by a part of the card's name. It was
/// chosen by hand with rows of torchtitan in view, on H100 of 500 instead of 700 W.
const LIMITED: [(&str, f64); 1] = [("500W", 0.75)];

/// The cards of a rack that NVLink joins.
const RACK: usize = 72;

/// The cards of a rack that a training on several racks takes. It is assumed, as rows are on 128, 256 and more cards, and groups of ranks that cross
/// racks would take many times what was measured.
const OF_RACK: usize = 64;

/// A part of the source of BLOOM's rows.
const BLOOM: &str = "bigscience";

/// The seconds by which a kernel of BLOOM's trainings takes longer as the host waits for it before it starts the next one (`CUDA_LAUNCH_BLOCKING=1` in
/// their scripts). Fitted to every eighth of their rows, with the share of [`BLOOM_ODD_ROWS`].
const BLOOM_WAIT: f64 = 75e-6;

/// The rate of products of halves whose rows are no multiples of 16 bytes on A100, as a share of that of others: as fitted to the same rows.
const BLOOM_ODD_ROWS: f64 = 0.05;

/// The bandwidth between cards of a node of Jean Zay: 4 links of NVLink 3 join them (BLOOM's model card), of which four fifths are taken, as NCCL
/// reaches of H100's.
const BLOOM_NVLINK: f64 = 0.8 * 4.0 * 25e9;

/// The machines of a row, with what runs on them.
///
/// # Errors
/// Returns an error if no preset has its card.
pub fn machines(row: &Published, framework: Framework) -> Result<Cluster> {
    let Some(&(_, name, usual)) = CARDS.iter().find(|(card, ..)| row.gpu.starts_with(card)) else {
        bail!("no preset is of the card {}", row.gpu);
    };
    let preset = preset(name).with_context(|| format!("no preset `{name}`"))?;
    let mut cluster = Cluster { framework, ..preset };
    if let Some(rack) = cluster.levels.first_mut().filter(|rack| rack.size == RACK) {
        rack.size = if row.gpus > RACK { OF_RACK } else { RACK };
    }
    if let (Some(fabric), Some(between)) = (row.fabric, cluster.levels.last_mut()) {
        between.bandwidth *= fabric / usual;
    }
    for (_, share) in LIMITED.iter().filter(|(limit, _)| row.gpu.contains(limit)) {
        cluster.device.matmul_efficiency.iter_mut().for_each(|point| point.1 *= share);
    }
    if row.source.contains(BLOOM) {
        as_jean_zay(&mut cluster);
    }
    Ok(cluster)
}

/// The machines of BLOOM's trainings, and how they ran there. A host that waits for each kernel lets none run beside a collective.
fn as_jean_zay(cluster: &mut Cluster) {
    cluster.framework.reduced_under_products = 0.0;
    cluster.levels[0].bandwidth = BLOOM_NVLINK;
    cluster.device.launch += BLOOM_WAIT;
    cluster.device.matmul_unaligned = BLOOM_ODD_ROWS;
}
