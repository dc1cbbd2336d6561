//! `graphc clusters`: machines known by name, and those of files.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use graphc::prelude::*;
use graphc_compiler::cluster::{PRESETS, parse_cluster};
use graphc_plan::{Cluster, Framework, Level};
use serde_json::{Value, json};

use super::args::{ClustersArgs, DeviceName, Format, SharedArgs};
use super::data_files::read_text;
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

/// The cluster that is planned for, by what its ranks compute on. Where none is named it has this machine's prices, but
/// what a plan does for one kind of device alone is done for that one.
pub(super) fn shared_cluster(args: &SharedArgs, device: Option<DeviceName>) -> Result<Cluster> {
    let mut cluster = read_cluster(args.cluster.as_deref().unwrap_or("cpu"))?;
    if let (None, Some(device)) = (&args.cluster, device) {
        cluster.device.kind = device.into();
    }
    Ok(run_by(cluster, args.framework.as_ref()))
}

/// The cluster with another framework on it, if one is given.
pub(super) fn run_by(cluster: Cluster, framework: Option<&Framework>) -> Cluster {
    match framework {
        Some(framework) => Cluster { framework: framework.clone(), ..cluster },
        None => cluster,
    }
}

/// Bytes of the longest cluster file.
const LONGEST_CLUSTER: u64 = 1 << 24;

/// The cluster of a preset's name or a TOML file.
pub(super) fn read_cluster(name: &str) -> Result<Cluster> {
    if let Some(cluster) = preset(name) {
        return Ok(cluster);
    }
    if !Path::new(name).exists() {
        let names = PRESETS.join(", ");
        bail!("`{name}` is neither a cluster file nor a preset; presets are {names}");
    }
    let text = read_text(Path::new(name), LONGEST_CLUSTER, "")?;
    parse_cluster(&text).with_context(|| format!("in cluster file {name}"))
}
