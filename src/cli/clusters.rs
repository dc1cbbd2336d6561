//! `graphc clusters`: machines known by name.

use std::fmt::Write;

use anyhow::Result;
use graphc::prelude::*;
use graphc_compiler::cluster::PRESETS;
use graphc_ir::plan::{Cluster, Level};
use serde_json::{Value, json};

use super::args::{ClustersArgs, Format};
use super::output::print_escaped;

/// Runs the command.
pub(super) fn run_clusters(args: &ClustersArgs) -> Result<()> {
    let clusters: Vec<Cluster> = PRESETS.iter().filter_map(|name| preset(name)).collect();
    print_escaped(&match args.format {
        Format::Text => render_text(&clusters),
        Format::Json => {
            format!("{:#}\n", Value::Array(clusters.iter().map(|of| json!(of)).collect()))
        }
    })
}

fn render_text(clusters: &[Cluster]) -> String {
    let mut text = String::new();
    for cluster in clusters {
        let device = &cluster.device;
        let (gib, rate) = (device.memory as f64 / f64::from(1 << 30), device.bandwidth / 1e9);
        let peaks: Vec<String> =
            device.flops.iter().map(|(dtype, peak)| format!("{dtype} {}", peak / 1e12)).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{:<14} {gib:.0} GiB at {rate:.0} GB/s, {} TFLOP/s, {}",
            cluster.name,
            peaks.join(", "),
            describe_links(&cluster.levels)
        );
    }
    text
}

/// Describes which ranks are joined by which links.
fn describe_links(levels: &[Level]) -> String {
    let link = |level: &Level| {
        let rate = level.bandwidth / 1e9;
        match level.size {
            0 => format!("{rate:.1} GB/s between any"),
            size => format!("{rate:.1} GB/s between {size}"),
        }
    };
    levels.iter().map(link).collect::<Vec<_>>().join(", ")
}
