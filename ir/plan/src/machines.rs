//! The machines that a plan is made for: devices, links, and what runs plans on them.

use std::collections::BTreeMap;

use graphc_ir::mesh::DeviceKind;
use graphc_ir::op::{AttentionShape, ConvolutionShape};
use serde::{Deserialize, Serialize};

use super::options::is_zero;

/// The machines that a plan is made for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// The name of the machines.
    pub name: String,
    /// The device of every rank.
    pub device: Device,
    /// The levels of links, innermost level first: inside a node, between nodes.
    #[serde(default, rename = "level")]
    pub levels: Vec<Level>,
    /// The constants of the links of each mesh axis, in place of those of levels.
    #[serde(default, rename = "axis", skip_serializing_if = "Vec::is_empty")]
    pub axes: Vec<AxisLink>,
    /// The framework that runs the plan on the machines.
    #[serde(default, skip_serializing_if = "Framework::is_graphc")]
    pub framework: Framework,
}

impl Cluster {
    /// Returns the seconds that the host needs to start a kernel or a collective: what the machines' file says or what the framework takes, whichever
    /// is more.
    pub fn dispatch_seconds(&self) -> f64 {
        self.device.dispatch.max(self.framework.dispatch)
    }

    /// Returns whether the host takes no time for any kernel, and waits for none.
    pub fn host_keeps_up(&self) -> bool {
        let Framework { expert_dispatch, waits_for_counts, .. } = self.framework;
        self.dispatch_seconds() == 0.0 && expert_dispatch == 0.0 && !waits_for_counts
    }

    /// Returns whether communication that nothing waits for at once runs beside kernels.
    pub fn overlaps(&self) -> bool {
        self.device.overlap && self.framework.overlap
    }

    /// Returns a level of links as the framework's collectives find it.
    pub fn effective_level(&self, index: usize) -> Level {
        let mut level = self.levels[index].clone();
        if index == 0 {
            level.bandwidth /= 1.0 - self.framework.reduced_under_products;
        }
        level
    }

    /// Returns the machines as each of so many ranks finds them. Where ranks have a machine's cores between them ([`Device::shared_by`]) and are more
    /// than its figures are of, they take turns: each has that much less of the cores, of the memory and of the link inside a machine. Nothing
    /// changes for fewer ranks, nor for ranks that have a device each.
    pub fn divide_among(&self, world_size: usize) -> Self {
        let mut divided = self.clone();
        let on_a_machine = match self.levels.first() {
            Some(level) if level.size > 0 => world_size.min(level.size),
            _ => world_size,
        };
        let fewer = |ranks: &usize| (1..on_a_machine).contains(ranks);
        let Some(ranks) = self.device.shared_by.filter(fewer) else {
            return divided;
        };
        let share = ranks as f64 / on_a_machine as f64;
        divided.device.take_share(share);
        divided.device.shared_by = Some(on_a_machine);
        if let Some(level) = divided.levels.first_mut() {
            level.latency /= share;
            level.bandwidth *= share;
        }
        divided
    }
}

/// The device of a rank: its memory, and the speeds that kernels reach.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// The kind of the device.
    pub kind: DeviceKind,
    /// The bytes of memory. In a file a number or a string such as `"80GiB"`.
    pub memory: u64,
    /// The peak FLOPs per second of each element type.
    pub flops: BTreeMap<String, f64>,
    /// The efficiency of matrix products, as (FLOPs of one product, share of the peak reached), ascending; interpolated in the logarithm of FLOPs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matmul_efficiency: Vec<(f64, f64)>,
    /// The efficiency of matrix products of single element types, by name, in place of `matmul_efficiency`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub matmul_efficiency_of: BTreeMap<String, Vec<(f64, f64)>>,
    /// The share of the rate of other products that a product reaches of which a row of an operand or of the result, in half precision, is no
    /// multiple of 16 bytes, as loads of tensor cores are: above 0 and at most 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub matmul_unaligned: f64,
    /// The shares of the peak that attention reaches; `None`: that of a matrix product of its FLOPs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention: Option<AttentionShares>,
    /// The shares of the rate of matrix products that convolutions by windows of several elements reach; `None`: all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub convolution: Option<ConvolutionShares>,
    /// The bandwidth of device memory, in bytes per second.
    pub bandwidth: f64,
    /// The share of `bandwidth` that kernels reach which only move memory, above 0 and at most 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub bandwidth_share: f64,
    /// The seconds that a kernel takes beside its work.
    pub launch: f64,
    /// The seconds that the host needs to start a kernel or a collective; it runs ahead of the device, which so takes at least this for each of many.
    /// 0 where the host only follows a plan; some 30 us of frameworks that run op by op.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dispatch: f64,
    /// Whether communication that nothing waits for at once runs beside kernels, on a stream of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overlap: bool,
    /// The number of ranks that have a machine's cores and memory between them at these figures; `None` where each rank has a device to itself. More
    /// ranks of a machine take turns, and a plan for them is priced so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_by: Option<usize>,
}

impl Device {
    /// Returns the bytes per second of device memory that kernels reach.
    pub fn reached_bandwidth(&self) -> f64 {
        self.bandwidth * self.bandwidth_share
    }

    /// Reduces the device to this share: everything takes as much longer, and memory is as much less.
    fn take_share(&mut self, share: f64) {
        self.flops.values_mut().for_each(|peak| *peak *= share);
        self.bandwidth *= share;
        self.launch /= share;
        self.dispatch /= share;
        self.memory = ((self.memory as f64 * share) as u64).max(1);
    }
}

/// The shares of a device's peak that attention without a matrix of scores reaches. Of heads of width `w` whose queries see `n` keys
/// in the mean it reaches, of the share of its direction,
///
/// `w / (w + half_width)` times `n / (n + half_keys)`:
///
/// narrow heads leave the units for products idle while exponentials are computed, and few keys are few blocks to share.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionShares {
    /// The share of the forward pass, of endlessly wide heads and many keys.
    pub forward: f64,
    /// The share of the backward pass, of endlessly wide heads and many keys.
    pub backward: f64,
    /// The number of elements of a head at which half of that share is reached.
    pub half_width: f64,
    /// The number of keys at which half of that share is reached.
    pub half_keys: f64,
}

impl AttentionShares {
    /// Returns the share of the peak that attention of this shape reaches.
    pub fn reached_share(&self, shape: &AttentionShape) -> f64 {
        let best = if shape.backward { self.backward } else { self.forward };
        let (width, keys) = (shape.width.max(1) as f64, shape.keys.max(1.0));
        best * width / (width + self.half_width) * keys / (keys + self.half_keys)
    }
}

/// The shares of the rate of a matrix product of as many FLOPs that a convolution by windows of several elements reaches. It reaches, of the share of
/// its direction,
///
/// `n / (n + half_columns)`
///
/// if each element of a window is multiplied for `n` channels: what windows meet is gathered in memory first, which takes as long for few
/// channels as for many.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConvolutionShares {
    /// The share that the convolution itself reaches with endlessly many channels.
    pub forward: f64,
    /// The share that its two gradients reach with endlessly many channels.
    pub backward: f64,
    /// The number of channels at which half of that share is reached.
    pub half_columns: f64,
}

impl ConvolutionShares {
    /// Returns the share that a convolution of this shape reaches.
    pub fn reached_share(&self, shape: &ConvolutionShape) -> f64 {
        let best = if shape.backward { self.backward } else { self.forward };
        let columns = shape.columns.max(1) as f64;
        best * columns / (columns + self.half_columns)
    }
}

fn one() -> f64 {
    1.0
}

fn is_one(value: &f64) -> bool {
    *value == 1.0
}

/// A level of links, e.g. those inside a node, or those between nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Level {
    /// The number of ranks (of the innermost level) or of groups of the level below that it joins; the outermost may be unbounded: 0.
    #[serde(default)]
    pub size: usize,
    /// The seconds that a step of communication takes beside its bytes.
    pub latency: f64,
    /// The bytes per second, for each rank and direction.
    pub bandwidth: f64,
}

/// The constants of the links of one mesh axis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AxisLink {
    /// The seconds that a step of communication takes beside its bytes.
    pub latency: f64,
    /// The seconds per byte.
    pub seconds_per_byte: f64,
}

/// A framework that runs plans, as far as it takes longer than the machines need. The default is graphc: nothing is lost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Framework {
    /// The name of the framework.
    pub name: String,
    /// The seconds that its host needs to start a kernel or a collective.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dispatch: f64,
    /// The bytes that its kernels move which multiply no matrices, as a multiple of those of graphc's fused chains: 1 where chains of elementwise ops
    /// are fused, more where each op reads and writes memory.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub elementwise_traffic: f64,
    /// The rate of its attention kernel as a share of what the device reaches; above 1 for a kernel that is faster than that.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub attention: f64,
    /// Whether communication that nothing waits for at once runs beside kernels, if the device can.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub overlap: bool,
    /// The share of communication beside kernels that the step pays for all the same: kernels and collectives share a device's
    /// units and memory.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub interference: f64,
    /// The share of what tensor parallelism reduces inside nodes that it reduces while products run: below 1.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reduced_under_products: f64,
    /// The share of the bandwidth between nodes that collectives of a group reach which has several of a node's ranks, but not
    /// all: its ring enters a node by the card of one rank and leaves it by that of another, and the rings of the node's other
    /// groups meet it there.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub shared_nodes: f64,
    /// Whether products that are gradients of weights add to what the microbatches before have summed, so that nothing is moved for sums over
    /// microbatches.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub sums_in_products: bool,
    /// Whether each rank scales its part of a tensor of 8 bits by the greatest element of that part, so that no scale is reduced over ranks: what
    /// all-reduces a single number takes no seconds.
    #[serde(default, skip_serializing_if = "is_no")]
    pub local_scales: bool,
    /// Whether gradients of several weights travel in one message.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub buckets: bool,
    /// Whether rings of several nodes go through all ranks one after another, so that each rank adds a step's latency, as NCCL's do. Otherwise ranks of a
    /// node share the tensor first, and as many rings as a node has ranks join the nodes at once.
    #[serde(default, skip_serializing_if = "is_no")]
    pub flat_rings: bool,
    /// The seconds that its host needs besides for each expert of a product of experts: 0 where one kernel takes all of them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub expert_dispatch: f64,
    /// Whether its host waits until tokens stand at the places of their experts, as it must know how many each expert has.
    #[serde(default, skip_serializing_if = "is_no")]
    pub waits_for_counts: bool,
}

impl Default for Framework {
    fn default() -> Self {
        Self {
            name: "graphc".into(),
            dispatch: 0.0,
            elementwise_traffic: 1.0,
            attention: 1.0,
            overlap: true,
            interference: 0.0,
            reduced_under_products: 0.0,
            shared_nodes: 1.0,
            sums_in_products: true,
            local_scales: false,
            buckets: true,
            flat_rings: false,
            expert_dispatch: 0.0,
            waits_for_counts: false,
        }
    }
}

impl Framework {
    /// Returns whether it is graphc, which loses nothing.
    pub fn is_graphc(&self) -> bool {
        *self == Self::default()
    }
}

fn yes() -> bool {
    true
}

fn is_yes(value: &bool) -> bool {
    *value
}

fn is_no(value: &bool) -> bool {
    !*value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_reaches_less_of_narrow_heads_and_few_keys() {
        let shares =
            AttentionShares { forward: 0.8, backward: 0.6, half_width: 32.0, half_keys: 128.0 };
        let of =
            |width, keys, backward| shares.reached_share(&AttentionShape { width, keys, backward });
        assert!((of(32, 128.0, false) - 0.8 / 4.0).abs() < 1e-12);
        assert!((of(32, 128.0, true) - 0.6 / 4.0).abs() < 1e-12);
        assert!(of(64, 128.0, false) > of(32, 128.0, false));
        assert!(of(64, 1024.0, false) > of(64, 128.0, false));
        assert!(of(1 << 20, 1e12, false) <= 0.8);
    }

    #[test]
    fn convolutions_of_few_channels_reach_less() {
        let shares = ConvolutionShares { forward: 0.8, backward: 0.4, half_columns: 64.0 };
        let of = |columns, backward| shares.reached_share(&ConvolutionShape { columns, backward });
        assert!((of(64, false) - 0.4).abs() < 1e-12 && (of(64, true) - 0.2).abs() < 1e-12);
        assert!(of(512, false) > of(128, false) && of(1 << 30, false) <= 0.8);
    }

    #[test]
    fn a_file_without_framework_is_graphcs_and_no_file_names_it() {
        let device =
            r#"{"kind":"cuda","memory":1,"flops":{},"bandwidth":2.0,"launch":0.0,"overlap":true}"#;
        let text = format!(r#"{{"name":"old","device":{device}}}"#);
        let cluster: Cluster = serde_json::from_str(&text).expect("an old cluster");
        assert!(cluster.framework.is_graphc() && cluster.overlaps());
        assert_eq!((cluster.dispatch_seconds(), cluster.device.reached_bandwidth()), (0.0, 2.0));
        let written = serde_json::to_string(&cluster).expect("it is plain");
        for word in ["framework", "attention", "bandwidth_share"] {
            assert!(!written.contains(word), "{word} in {written}");
        }
    }

    /// A processor of 2 ranks that were measured at once.
    fn shared_processor() -> Cluster {
        let device = r#"{"kind":"cpu","memory":1000,"flops":{"f32":8.0},"bandwidth":4.0,"launch":1.0,"shared_by":2}"#;
        let level = r#"{"size":0,"latency":1.0,"bandwidth":2.0}"#;
        let text = format!(r#"{{"name":"here","device":{device},"level":[{level}]}}"#);
        serde_json::from_str(&text).expect("a cluster")
    }

    #[test]
    fn more_ranks_than_were_measured_take_turns() {
        let measured = shared_processor();
        for fewer in [1, 2] {
            assert_eq!(measured.divide_among(fewer), measured);
        }
        let divided = measured.divide_among(8);
        let (device, level) = (&divided.device, &divided.levels[0]);
        assert_eq!((device.flops["f32"], device.bandwidth, device.launch), (2.0, 1.0, 4.0));
        assert_eq!((device.memory, device.shared_by), (250, Some(8)));
        assert_eq!((level.latency, level.bandwidth), (4.0, 0.5));
        assert_eq!(divided.divide_among(8), divided, "it has been divided");
    }

    #[test]
    fn ranks_of_other_machines_take_no_turns() {
        let mut machines = shared_processor();
        machines.levels[0].size = 2;
        machines.levels.push(Level { size: 0, latency: 5.0, bandwidth: 1.0 });
        assert_eq!(machines.divide_among(8), machines);
        machines.device.shared_by = None;
        machines.levels[0].size = 8;
        assert_eq!(machines.divide_among(8), machines, "each has a device to itself");
    }
}
