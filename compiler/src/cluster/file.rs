//! Reads cluster files: TOML whose every field is checked.

use std::collections::BTreeMap;

use graphc_ir::mesh::DeviceKind;
use graphc_ir::types::DType;
use graphc_plan::{
    AttentionShares, AxisLink, Cluster, ConvolutionShares, Device, Framework, Level,
};
use serde::Deserialize;

use super::frameworks::find_framework as profile;

/// An error in a cluster file.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// No TOML, an unknown field, a missing field or a value of another type.
    #[error("the cluster file cannot be read: {message}")]
    Syntax {
        /// The message of the TOML reader, with line and column.
        message: String,
    },
    /// A field whose value makes no sense.
    #[error("the cluster file's `{field}` is {found}: {advice}")]
    Field {
        /// The field, e.g. `level[1].latency`.
        field: String,
        /// The value found.
        found: String,
        /// Advice on what to write.
        advice: &'static str,
    },
}

graphc_ir::readable_debug!(ClusterError);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    device: FileDevice,
    #[serde(default)]
    level: Vec<FileLevel>,
    #[serde(default)]
    axis: Vec<FileAxis>,
    framework: Option<FileFramework>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileDevice {
    kind: DeviceKind,
    memory: FileBytes,
    flops: BTreeMap<String, f64>,
    #[serde(default)]
    matmul_efficiency: Vec<(f64, f64)>,
    #[serde(default)]
    matmul_efficiency_of: BTreeMap<String, Vec<(f64, f64)>>,
    matmul_unaligned: Option<f64>,
    attention: Option<AttentionShares>,
    convolution: Option<ConvolutionShares>,
    bandwidth: f64,
    bandwidth_share: Option<f64>,
    launch: f64,
    #[serde(default)]
    dispatch: f64,
    overlap: Option<bool>,
    shared_by: Option<usize>,
}

/// A profile by name. Other fields that are given replace those of the profile.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileFramework {
    name: String,
    dispatch: Option<f64>,
    elementwise_traffic: Option<f64>,
    attention: Option<f64>,
    overlap: Option<bool>,
    interference: Option<f64>,
    reduced_under_products: Option<f64>,
    shared_nodes: Option<f64>,
    sums_in_products: Option<bool>,
    local_scales: Option<bool>,
    buckets: Option<bool>,
    flat_rings: Option<bool>,
    expert_dispatch: Option<f64>,
    waits_for_counts: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileLevel {
    #[serde(default)]
    size: usize,
    latency: f64,
    bandwidth: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileAxis {
    latency: f64,
    seconds_per_byte: f64,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum FileBytes {
    Integer(i64),
    Number(f64),
    Text(String),
}

const POSITIVE: &str = "write a number above 0 that a machine may have (1e-30 to 1e30)";
const NOT_NEGATIVE: &str = "write a number that a machine may have (0 to 1e30)";

/// The largest number in a cluster file; its inverse is the smallest. Products and quotients of several such numbers stay finite.
const MOST: f64 = 1e30;

/// Reads a cluster from the text of a TOML file.
///
/// # Errors
/// Returns an error if the text is no TOML, if a field is missing or unknown, or if a value makes no sense. The error names the field and says what
/// to write.
pub fn parse_cluster(text: &str) -> Result<Cluster, ClusterError> {
    let file: File = toml::from_str(text)
        .map_err(|error| ClusterError::Syntax { message: error.to_string().trim_end().into() })?;
    let levels = read_levels(&file.level)?;
    let axes = read_axes(&file.axis)?;
    if levels.is_empty() && axes.is_empty() {
        let advice =
            "add a [[level]] with size, latency and bandwidth, or an [[axis]] per mesh axis";
        return Err(field_error("level", "missing", advice));
    }
    // Costs that are given by axis are taken as they are.
    let overlaps = file.device.kind == DeviceKind::Cuda && axes.is_empty();
    let overlap = file.device.overlap.unwrap_or(overlaps);
    let device = Device { overlap, ..read_device(file.device)? };
    let framework = file.framework.map_or_else(|| Ok(Framework::default()), read_framework)?;
    Ok(Cluster { name: file.name, device, levels, axes, framework })
}

/// Parses a number of bytes from a text such as `16GiB`, `80 GB`, `1.5MiB` or `4096`. `None` if it is no such text.
pub fn parse_bytes(text: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 9] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("KB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("B", 1),
    ];
    let text = text.trim();
    let (number, unit) = UNITS
        .iter()
        .find_map(|&(name, unit)| text.strip_suffix(name).map(|number| (number.trim(), unit)))
        .unwrap_or((text, 1));
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(unit);
    }
    let bytes = number.parse::<f64>().ok()? * unit as f64;
    (bytes.is_finite() && (0.0..9e18).contains(&bytes)).then_some(bytes as u64)
}

fn read_device(file: FileDevice) -> Result<Device, ClusterError> {
    if file.flops.is_empty() {
        let advice = "give the peak of at least one element type, e.g. { f32 = 19.5e12 }";
        return Err(field_error("device.flops", "empty", advice));
    }
    for (dtype, &peak) in &file.flops {
        let name = format!("device.flops.{dtype}");
        element_type(&name, dtype)?;
        check_positive(name, peak)?;
    }
    check_efficiency("device.matmul_efficiency", &file.matmul_efficiency)?;
    for (dtype, points) in &file.matmul_efficiency_of {
        let name = format!("device.matmul_efficiency_of.{dtype}");
        element_type(&name, dtype)?;
        check_efficiency(&name, points)?;
    }
    Ok(Device {
        attention: file.attention.map(check_attention).transpose()?,
        convolution: file.convolution.map(check_convolution).transpose()?,
        bandwidth_share: check_share(
            "device.bandwidth_share",
            file.bandwidth_share.unwrap_or(1.0),
        )?,
        matmul_unaligned: check_share(
            "device.matmul_unaligned",
            file.matmul_unaligned.unwrap_or(1.0),
        )?,
        kind: file.kind,
        memory: read_memory(&file.memory)?,
        bandwidth: check_positive("device.bandwidth", file.bandwidth)?,
        launch: not_negative("device.launch", file.launch)?,
        dispatch: not_negative("device.dispatch", file.dispatch)?,
        overlap: false,
        shared_by: check_sharing(file.shared_by)?,
        flops: file.flops,
        matmul_efficiency: file.matmul_efficiency,
        matmul_efficiency_of: file.matmul_efficiency_of,
    })
}

fn check_sharing(ranks: Option<usize>) -> Result<Option<usize>, ClusterError> {
    let advice = "write the number of ranks, 1 or more, that had the machine's cores between them, or leave it out";
    match ranks {
        Some(0) => Err(field_error("device.shared_by", "0", advice)),
        given => Ok(given),
    }
}

fn read_memory(bytes: &FileBytes) -> Result<u64, ClusterError> {
    let (found, bytes) = match bytes {
        FileBytes::Integer(number) => (number.to_string(), u64::try_from(*number).ok()),
        FileBytes::Number(number) => (number.show_value(), parse_bytes(&number.to_string())),
        FileBytes::Text(text) => (format!("\"{text}\""), parse_bytes(text)),
    };
    let advice = "write a number of bytes above 0, or a text such as \"80GiB\" or \"16GB\"";
    bytes.filter(|&bytes| bytes > 0).ok_or_else(|| field_error("device.memory", found, advice))
}

fn element_type(name: &str, dtype: &str) -> Result<(), ClusterError> {
    match dtype.parse::<DType>() {
        Ok(_) => Ok(()),
        Err(_) => {
            let advice = "use the element types f32, f16, bf16, i64, i32, u8 or bool";
            Err(field_error(name, "no element type", advice))
        }
    }
}

fn check_efficiency(of: &str, points: &[(f64, f64)]) -> Result<(), ClusterError> {
    for (index, &(flops, share)) in points.iter().enumerate() {
        let name = format!("{of}[{index}]");
        check_positive(&name, flops)?;
        self::check_share(&name, share)?;
        if index > 0 && points[index - 1].0 >= flops {
            return Err(field_error(name, flops, "order the points by ascending FLOPs"));
        }
    }
    Ok(())
}

fn check_attention(shares: AttentionShares) -> Result<AttentionShares, ClusterError> {
    check_share("device.attention.forward", shares.forward)?;
    check_share("device.attention.backward", shares.backward)?;
    not_negative("device.attention.half_width", shares.half_width)?;
    not_negative("device.attention.half_keys", shares.half_keys)?;
    Ok(shares)
}

fn check_convolution(shares: ConvolutionShares) -> Result<ConvolutionShares, ClusterError> {
    check_share("device.convolution.forward", shares.forward)?;
    check_share("device.convolution.backward", shares.backward)?;
    not_negative("device.convolution.half_columns", shares.half_columns)?;
    Ok(shares)
}

fn read_framework(file: FileFramework) -> Result<Framework, ClusterError> {
    const NAMES: &str = "write the name of a profile: graphc, torch-eager, torch-compile, internevo, megatron, megatron-core or megatron-core-2025";
    let Some(known) = profile(&file.name) else {
        return Err(field_error("framework.name", format!("\"{}\"", file.name), NAMES));
    };
    let hidden = file.reduced_under_products.unwrap_or(known.reduced_under_products);
    if !(0.0..=0.99).contains(&hidden) {
        let advice = "write a share from 0 to 0.99";
        return Err(field_error("framework.reduced_under_products", hidden, advice));
    }
    let name = |part: &str| format!("framework.{part}");
    let dispatch = file.dispatch.unwrap_or(known.dispatch);
    let of_expert = file.expert_dispatch.unwrap_or(known.expert_dispatch);
    let traffic = file.elementwise_traffic.unwrap_or(known.elementwise_traffic);
    let shared = file.shared_nodes.unwrap_or(known.shared_nodes);
    let interference = file.interference.unwrap_or(known.interference);
    if !(0.0..=1.0).contains(&interference) {
        return Err(field_error(
            "framework.interference",
            interference,
            "write a share from 0 to 1",
        ));
    }
    Ok(Framework {
        name: known.name,
        dispatch: not_negative(name("dispatch"), dispatch)?,
        elementwise_traffic: check_positive(name("elementwise_traffic"), traffic)?,
        attention: check_positive(name("attention"), file.attention.unwrap_or(known.attention))?,
        overlap: file.overlap.unwrap_or(known.overlap),
        interference,
        reduced_under_products: hidden,
        shared_nodes: check_share(name("shared_nodes"), shared)?,
        sums_in_products: file.sums_in_products.unwrap_or(known.sums_in_products),
        local_scales: file.local_scales.unwrap_or(known.local_scales),
        buckets: file.buckets.unwrap_or(known.buckets),
        flat_rings: file.flat_rings.unwrap_or(known.flat_rings),
        expert_dispatch: not_negative(name("expert_dispatch"), of_expert)?,
        waits_for_counts: file.waits_for_counts.unwrap_or(known.waits_for_counts),
    })
}

fn read_levels(levels: &[FileLevel]) -> Result<Vec<Level>, ClusterError> {
    let mut result = Vec::new();
    for (index, level) in levels.iter().enumerate() {
        let name = |part: &str| format!("level[{index}].{part}");
        if level.size == 0 && index + 1 < levels.len() {
            let advice =
                "give the number of ranks that it joins; only the outermost may be 0 (unbounded)";
            return Err(field_error(name("size"), "0", advice));
        }
        result.push(Level {
            size: level.size,
            latency: not_negative(name("latency"), level.latency)?,
            bandwidth: check_positive(name("bandwidth"), level.bandwidth)?,
        });
    }
    Ok(result)
}

fn read_axes(axes: &[FileAxis]) -> Result<Vec<AxisLink>, ClusterError> {
    let mut result = Vec::new();
    for (index, axis) in axes.iter().enumerate() {
        let name = |part: &str| format!("axis[{index}].{part}");
        result.push(AxisLink {
            latency: not_negative(name("latency"), axis.latency)?,
            seconds_per_byte: not_negative(name("seconds_per_byte"), axis.seconds_per_byte)?,
        });
    }
    Ok(result)
}

fn check_positive(name: impl Into<String>, value: f64) -> Result<f64, ClusterError> {
    if (1.0 / MOST..=MOST).contains(&value) {
        Ok(value)
    } else {
        Err(field_error(name, value, POSITIVE))
    }
}

fn check_share(name: impl Into<String>, value: f64) -> Result<f64, ClusterError> {
    if value > 0.0 && value <= 1.0 {
        return Ok(value);
    }
    Err(field_error(name, value, "the share of the peak is above 0 and at most 1"))
}

fn not_negative(name: impl Into<String>, value: f64) -> Result<f64, ClusterError> {
    if (0.0..=MOST).contains(&value) {
        Ok(value)
    } else {
        Err(field_error(name, value, NOT_NEGATIVE))
    }
}

fn field_error(
    name: impl Into<String>,
    found: impl ShownValue,
    advice: &'static str,
) -> ClusterError {
    ClusterError::Field { field: name.into(), found: found.show_value(), advice }
}

/// A value in the form in which a message shows it.
trait ShownValue {
    fn show_value(&self) -> String;
}

impl ShownValue for f64 {
    /// Writes the value as a person would, not with hundreds of zeros.
    fn show_value(&self) -> String {
        let plain = *self == 0.0 || !self.is_finite() || (1e-6..1e16).contains(&self.abs());
        if plain { self.to_string() } else { format!("{self:e}") }
    }
}

impl ShownValue for &str {
    fn show_value(&self) -> String {
        (*self).to_string()
    }
}

impl ShownValue for String {
    fn show_value(&self) -> String {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_BOXES: &str = r#"
        name = "two-boxes"
        [device]
        kind = "cuda"
        memory = "80GiB"
        flops = { f32 = 19.5e12, bf16 = 312e12 }
        matmul_efficiency = [[1e6, 0.05], [1e9, 0.6]]
        bandwidth = 2.0e12
        launch = 4e-6
        [[level]]
        size = 8
        latency = 3e-6
        bandwidth = 235e9
        [device.attention]
        forward = 0.8
        backward = 0.7
        half_width = 30
        half_keys = 150
        [device.convolution]
        forward = 0.75
        backward = 0.5
        half_columns = 90
        [framework]
        name = "megatron"
        dispatch = 2e-5
    "#;

    #[test]
    fn reads_what_the_manual_shows() {
        let cluster = parse_cluster(TWO_BOXES).expect("it is right");
        assert_eq!(cluster.device.memory, 80 << 30);
        assert_eq!(cluster.levels[0].size, 8);
        assert_eq!(cluster.device.matmul_efficiency[1], (1e9, 0.6));
        assert_eq!(cluster.device.attention.map(|shares| shares.half_keys), Some(150.0));
        let convolution = cluster.device.convolution.expect("it is there");
        assert_eq!((convolution.backward, convolution.half_columns), (0.5, 90.0));
        assert_eq!(cluster.dispatch_seconds(), 2e-5);
        assert!(!cluster.overlaps(), "as the profile says");
    }

    #[test]
    fn every_field_is_checked() {
        let cases = [
            ("\"80GiB\"", "\"lots\"", "`device.memory` is \"lots\""),
            ("\"80GiB\"", "-5", "`device.memory` is -5"),
            ("bandwidth = 2.0e12", "bandwidth = 0.0", "`device.bandwidth` is 0"),
            ("launch = 4e-6", "launch = nan", "`device.launch` is NaN"),
            ("launch = 4e-6", "launch = 1e300", "`device.launch` is 1e300"),
            ("f32 = 19.5e12", "f32 = 1e-320", "`device.flops.f32` is 1e-320"),
            ("f32 = 19.5e12", "f33 = 19.5e12", "`device.flops.f33`"),
            ("0.6]", "1.6]", "`device.matmul_efficiency[1]` is 1.6"),
            ("[1e9,", "[1e5,", "ascending"),
            ("latency = 3e-6", "latency = -1.0", "`level[0].latency` is -1"),
            ("latency = 3e-6", "latency = 3e-6\nlatncy = 1", "unknown field `latncy`"),
            ("size = 8", "size = 0\nlatency = 1.0\nbandwidth = 1.0\n[[level]]", "`level[0].size`"),
            ("\"cuda\"", "\"tpu\"", "unknown variant `tpu`"),
            ("forward = 0.8", "forward = 1.8", "`device.attention.forward` is 1.8"),
            ("half_width = 30", "half_width = -1", "`device.attention.half_width` is -1"),
            ("forward = 0.75", "forward = 0.0", "`device.convolution.forward` is 0"),
            ("half_columns = 90", "half_columns = -1", "`device.convolution.half_columns` is -1"),
            ("launch = 4e-6", "launch = 4e-6\nbandwidth_share = 0.0", "`device.bandwidth_share`"),
            ("launch = 4e-6", "launch = 4e-6\nshared_by = 0", "`device.shared_by` is 0"),
            ("launch = 4e-6", "launch = 4e-6\nmatmul_unaligned = 2", "`device.matmul_unaligned`"),
            (
                "launch = 4e-6",
                "launch = 4e-6\nmatmul_efficiency_of = { f32 = [[1e6, 2.0]] }",
                "`device.matmul_efficiency_of.f32[0]` is 2",
            ),
            (
                "launch = 4e-6",
                "launch = 4e-6\nmatmul_efficiency_of = { f33 = [] }",
                "`device.matmul_efficiency_of.f33` is no element type",
            ),
            ("\"megatron\"", "\"abacus\"", "`framework.name` is \"abacus\""),
            ("dispatch = 2e-5", "expert_dispatch = -1", "`framework.expert_dispatch` is -1"),
            ("dispatch = 2e-5", "interference = 1.5", "is 1.5: write a share"),
            ("dispatch = 2e-5", "reduced_under_products = 1.0", "is 1: write a share"),
            ("dispatch = 2e-5", "shared_nodes = 0.0", "`framework.shared_nodes` is 0"),
            ("launch = 4e-6", "", "missing field `launch`"),
        ];
        for (from, to, message) in cases {
            let error = parse_cluster(&TWO_BOXES.replace(from, to)).expect_err(to).to_string();
            assert!(error.contains(message), "{to}: {error}");
        }
    }

    #[test]
    fn bytes_have_units() {
        assert_eq!(parse_bytes("16GiB"), Some(16 << 30));
        assert_eq!(parse_bytes("1.5 KiB"), Some(1536));
        assert_eq!(parse_bytes("4096"), Some(4096));
        assert_eq!(parse_bytes("2e3B"), Some(2000));
        assert_eq!(parse_bytes("much"), None);
        assert_eq!(parse_bytes("-1GB"), None);
    }
}
