//! The machines that a plan is made for: devices, links, and what runs plans on them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::options::is_zero;
use crate::mesh::DeviceKind;
use crate::op::AttentionShape;

/// The machines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// The name.
    pub name: String,
    /// Every rank's device.
    pub device: Device,
    /// Links, innermost level first: inside a node, between nodes.
    #[serde(default, rename = "level")]
    pub levels: Vec<Level>,
    /// Constants of each mesh axis, instead of levels.
    #[serde(default, rename = "axis", skip_serializing_if = "Vec::is_empty")]
    pub axes: Vec<AxisLink>,
    /// What runs the plan on them.
    #[serde(default, skip_serializing_if = "Framework::is_graphc")]
    pub framework: Framework,
}

impl Cluster {
    /// Seconds that the host needs to issue a kernel or a collective: what the machines' file says or what the framework
    /// takes, whichever is more.
    pub fn dispatch_seconds(&self) -> f64 {
        self.device.dispatch.max(self.framework.dispatch)
    }

    /// Whether communication that nothing waits for at once runs beside kernels.
    pub fn overlaps(&self) -> bool {
        self.device.overlap && self.framework.overlap
    }

    /// A level as the framework's collectives find it.
    pub fn effective_level(&self, index: usize) -> Level {
        let mut level = self.levels[index].clone();
        if index == 0 {
            level.bandwidth /= 1.0 - self.framework.reduced_under_products;
        }
        level
    }

    /// The machines as each of so many ranks finds them. Where ranks have a machine's cores between them
    /// ([`Device::shared_by`]) and are more than its figures are of, they take turns: each has that much less of the
    /// cores, of the memory and of the link inside a machine. Nothing changes for fewer ranks, nor for ranks that have
    /// a device each.
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

/// A device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// Its kind.
    pub kind: DeviceKind,
    /// Bytes of memory. In a file a number or a string such as `"80GiB"`.
    pub memory: u64,
    /// Peak FLOPs per second of each element type.
    pub flops: BTreeMap<String, f64>,
    /// (FLOPs of one matmul, share of peak reached), ascending; interpolated in the logarithm of FLOPs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matmul_efficiency: Vec<(f64, f64)>,
    /// The same of single element types, by name, in place of that.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub matmul_efficiency_of: BTreeMap<String, Vec<(f64, f64)>>,
    /// The share of the rate of other products that those reach of which a row of an operand or of the result, in half precision, is
    /// no multiple of 16 bytes, as loads of tensor cores are: above 0 and at most 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub matmul_unaligned: f64,
    /// The shares of the peak that attention reaches; `None`: that of a matrix product of its FLOPs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention: Option<AttentionShares>,
    /// Bytes per second of device memory.
    pub bandwidth: f64,
    /// The share of it that kernels reach which only move memory, above 0 and at most 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub bandwidth_share: f64,
    /// Seconds per kernel.
    pub launch: f64,
    /// Seconds that the host needs to issue a kernel or a collective; it runs ahead of the device, which so takes at least
    /// this for each of many. 0 where the host only follows a plan; some 30 us of frameworks that run op by op.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dispatch: f64,
    /// Whether communication that nothing waits for at once runs beside kernels, on a stream of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overlap: bool,
    /// The number of ranks that have a machine's cores and memory between them at these figures; none where each rank has a device
    /// to itself. More ranks of a machine take turns, and a plan for them is priced so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_by: Option<usize>,
}

impl Device {
    /// Bytes per second of device memory that kernels reach.
    pub fn reached_bandwidth(&self) -> f64 {
        self.bandwidth * self.bandwidth_share
    }

    /// Leaves this share of the device: everything takes as much longer, and memory is as much less.
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
    /// Of the forward pass, of endlessly wide heads and many keys.
    pub forward: f64,
    /// Of the backward pass.
    pub backward: f64,
    /// Elements of a head at which half of that is reached.
    pub half_width: f64,
    /// Keys at which half of it is reached.
    pub half_keys: f64,
}

impl AttentionShares {
    /// The share that attention of this shape reaches.
    pub fn reached_share(&self, shape: &AttentionShape) -> f64 {
        let best = if shape.backward { self.backward } else { self.forward };
        let (width, keys) = (shape.width.max(1) as f64, shape.keys.max(1.0));
        best * width / (width + self.half_width) * keys / (keys + self.half_keys)
    }
}

fn one() -> f64 {
    1.0
}

fn is_one(value: &f64) -> bool {
    *value == 1.0
}

/// One level of links.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Level {
    /// Ranks (of the innermost level) or groups of the level below that it joins; the outermost may be unbounded: 0.
    #[serde(default)]
    pub size: usize,
    /// Seconds per communication step.
    pub latency: f64,
    /// Bytes per second, rank and direction.
    pub bandwidth: f64,
}

/// Constants of one mesh axis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AxisLink {
    /// Seconds per communication step.
    pub latency: f64,
    /// Seconds per byte.
    pub seconds_per_byte: f64,
}

/// What runs a plan, as far as it takes longer than the machines need. The default is graphc: nothing is lost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Framework {
    /// The name.
    pub name: String,
    /// Seconds that its host needs to issue a kernel or a collective.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dispatch: f64,
    /// How many times the bytes of graphc's fused chains its kernels move that multiply no matrices: 1 where chains of elementwise
    /// ops are fused, more where each op reads and writes memory.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub elementwise_traffic: f64,
    /// The share of what the device reaches in attention that its kernel reaches.
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
        }
    }
}

impl Framework {
    /// Whether it is graphc, which loses nothing.
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
