//! Holds the constants that are fitted to tables of measured trainings.
//!
//! They are in `fitted.toml`, which `training_table --fit --write` writes (`examples/training_table/fit.rs`). Presets and profiles of frameworks take
//! them from there.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use graphc_plan::Cluster;
use serde::{Deserialize, Serialize};

use super::ClusterError;

/// A constant that is fitted, in the order of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fitted {
    /// The share of published attention that PyTorch's kernel reaches.
    TorchEagerAttention,
    /// The traffic of PyTorch's elementwise ops, as a multiple of that of fused chains.
    TorchEagerTraffic,
    /// The share of communication beside PyTorch's kernels that still lengthens the step.
    TorchEagerInterference,
    /// The seconds that Megatron-LM's host takes to issue a kernel.
    MegatronDispatch,
    /// The traffic of Megatron-LM's elementwise ops, as a multiple of that of fused chains.
    MegatronTraffic,
    /// The share of the bandwidth between nodes for Megatron-LM's groups of several, but not all, ranks of a node.
    MegatronSharedNodes,
    /// The share of the peak that products of 1e8 FLOPs reach on A100.
    #[serde(rename = "a100-products-1e8")]
    A100Products1e8,
    /// The share for products of 3e9 FLOPs.
    #[serde(rename = "a100-products-3e9")]
    A100Products3e9,
    /// The share for products of 3e10 FLOPs.
    #[serde(rename = "a100-products-3e10")]
    A100Products3e10,
    /// The share for products of 3e11 FLOPs.
    #[serde(rename = "a100-products-3e11")]
    A100Products3e11,
    /// The share for products of 3e12 FLOPs.
    #[serde(rename = "a100-products-3e12")]
    A100Products3e12,
    /// The share for products of 3e13 FLOPs.
    #[serde(rename = "a100-products-3e13")]
    A100Products3e13,
    /// The share of the memory's bandwidth that A100 and H100 reach.
    BandwidthShare,
    /// The bandwidth within a node of A100.
    A100WithinNodes,
    /// The bandwidth of `a100-40gb` between nodes.
    A100_40gbBetweenNodes,
    /// The bandwidth of `dgx-a100-4hdr` between nodes.
    #[serde(rename = "a100-4hdr-between-nodes")]
    A100_4hdrBetweenNodes,
    /// The share of the peak that the largest products reach on H100; those of smaller ones change with it.
    H100Products,
    /// The bandwidth of H100 between nodes.
    H100BetweenNodes,
}

/// The contents of `fitted.toml`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FittedConstants {
    /// The day on which it was written.
    pub written: String,
    /// The tables. Their rows of even index, counted from 0, were fitted to.
    pub table: Vec<FittedTable>,
    /// The constants.
    pub constant: BTreeMap<Fitted, FittedConstant>,
}

/// A table of measured trainings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FittedTable {
    /// The file's name.
    pub file: String,
    /// The machines, unless the rows name them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The number of its rows with a measurement.
    pub rows: usize,
}

/// A constant in `fitted.toml`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FittedConstant {
    /// The value that presets and profiles have.
    pub value: f64,
    /// The value at which the search begins.
    pub begin: f64,
    /// The value that the search found, or `None` if the constant is held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<f64>,
    /// The number of significant digits to which that value is rounded.
    pub digits: usize,
    /// The reason why `value` is not the value that was found, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<String>,
    /// The reason why no value is searched for, if none is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<String>,
}

impl FittedConstant {
    /// Returns the value that was found, rounded, or `None` if none was searched for.
    pub fn rounded_value(&self) -> Option<f64> {
        format!("{:.*e}", self.digits.saturating_sub(1), self.found?).parse().ok()
    }
}

/// The checked-in text.
const TEXT: &str = include_str!("fitted.toml");

static CONSTANTS: LazyLock<FittedConstants> = LazyLock::new(|| {
    parse_fitted(TEXT).expect("a test reads the text, which is part of the program")
});

/// Returns the constants that presets and profiles have.
pub fn fitted_constants() -> &'static FittedConstants {
    &CONSTANTS
}

/// Parses the text of a `fitted.toml`.
///
/// # Errors
/// Returns an error if the text is no TOML, or if a field is missing or unknown.
pub fn parse_fitted(text: &str) -> Result<FittedConstants, ClusterError> {
    toml::from_str(text).map_err(|error| ClusterError::Syntax { message: error.to_string() })
}

/// Writes the text of a `fitted.toml`.
pub fn write_fitted(constants: &FittedConstants) -> String {
    let body = toml::to_string(constants).expect("plain values and tables of them");
    format!("{HEADER}\n{body}")
}

const HEADER: &str = "\
# What presets and profiles of frameworks have from tables of measured trainings. Not to be edited but for `begin`, `digits`, `kept` and `held`:
#     cargo run --release --example training_table -- DIR --fit --write compiler/src/cluster/fitted.toml
# writes it, from the rows of even index, counted from 0, of the tables below in the folder DIR. The other rows are not looked at.
# In seconds, bytes per second and shares. `value` is what graphc has: what the search `found`, from `begin` on, rounded to so many
# significant `digits`. Where there is `kept`, the value stays as it is for the reason given there, whatever is found. Where there is `held`, it
# is not searched for either.
";

impl Fitted {
    /// Returns the value that presets and profiles have.
    pub fn value(self) -> f64 {
        CONSTANTS.constant.get(&self).expect("a test finds every constant in the file").value
    }

    /// Returns the value in a cluster with its framework, or `None` if the constant is one of other machines or of another framework.
    pub fn value_in_cluster(self, cluster: &Cluster) -> Option<f64> {
        self.find_fields(&mut cluster.clone()).last().map(|place| **place)
    }

    /// Multiplies the constant's values in a cluster. Shares stay at most 1.
    pub fn scale(self, cluster: &mut Cluster, factor: f64) {
        let most = if self.cluster_field().is_share() { 1.0 } else { f64::INFINITY };
        for place in self.find_fields(cluster) {
            *place = (*place * factor).min(most);
        }
    }

    /// Returns the framework or the machines that the constant describes.
    fn owner(self) -> ConstantOwner {
        match self {
            Self::TorchEagerAttention | Self::TorchEagerTraffic | Self::TorchEagerInterference => {
                ConstantOwner::Framework("torch-eager")
            }
            Self::MegatronDispatch | Self::MegatronTraffic | Self::MegatronSharedNodes => {
                ConstantOwner::Framework("megatron")
            }
            Self::A100Products1e8
            | Self::A100Products3e9
            | Self::A100Products3e10
            | Self::A100Products3e11
            | Self::A100Products3e12
            | Self::A100Products3e13
            | Self::A100WithinNodes => ConstantOwner::Machines(&[A100]),
            Self::BandwidthShare => ConstantOwner::Machines(&[A100, HOPPER, BLACKWELL, MI300]),
            Self::A100_40gbBetweenNodes => ConstantOwner::Machines(&[&["a100-40gb"]]),
            Self::A100_4hdrBetweenNodes => ConstantOwner::Machines(&[&["dgx-a100-4hdr"]]),
            Self::H100Products => ConstantOwner::Machines(&[HOPPER, BLACKWELL]),
            // What others have is assumed to be so much, or twice that.
            Self::H100BetweenNodes => ConstantOwner::Machines(&[HOPPER]),
        }
    }

    fn cluster_field(self) -> ClusterField {
        match self {
            Self::TorchEagerAttention => ClusterField::Attention,
            Self::TorchEagerTraffic | Self::MegatronTraffic => ClusterField::Traffic,
            Self::TorchEagerInterference => ClusterField::Interference,
            Self::MegatronDispatch => ClusterField::Dispatch,
            Self::MegatronSharedNodes => ClusterField::SharedNodes,
            Self::A100Products1e8 => ClusterField::Product(0),
            Self::A100Products3e9 => ClusterField::Product(1),
            Self::A100Products3e10 => ClusterField::Product(2),
            Self::A100Products3e11 => ClusterField::Product(3),
            Self::A100Products3e12 => ClusterField::Product(4),
            Self::A100Products3e13 => ClusterField::Product(5),
            Self::BandwidthShare => ClusterField::BandwidthShare,
            Self::A100WithinNodes => ClusterField::WithinNodes,
            Self::A100_40gbBetweenNodes | Self::A100_4hdrBetweenNodes | Self::H100BetweenNodes => {
                ClusterField::BetweenNodes
            }
            Self::H100Products => ClusterField::Products,
        }
    }

    /// Finds the fields of a cluster that have the constant. The last of them has its value.
    fn find_fields(self, cluster: &mut Cluster) -> Vec<&mut f64> {
        if !self.owner().matches_cluster(cluster) {
            return Vec::new();
        }
        let Cluster { device, levels, framework, .. } = cluster;
        let products = device.matmul_efficiency.iter_mut().map(|point| &mut point.1);
        match self.cluster_field() {
            ClusterField::Attention => vec![&mut framework.attention],
            ClusterField::Traffic => vec![&mut framework.elementwise_traffic],
            ClusterField::Interference => vec![&mut framework.interference],
            ClusterField::Dispatch => vec![&mut framework.dispatch],
            ClusterField::SharedNodes => vec![&mut framework.shared_nodes],
            ClusterField::Product(index) => products.skip(index).take(1).collect(),
            ClusterField::Products => products.collect(),
            ClusterField::BandwidthShare => vec![&mut device.bandwidth_share],
            ClusterField::WithinNodes => {
                levels.first_mut().map(|level| &mut level.bandwidth).into_iter().collect()
            }
            ClusterField::BetweenNodes => {
                levels.last_mut().map(|level| &mut level.bandwidth).into_iter().collect()
            }
        }
    }
}

/// The names of the presets of machines with chips of one design.
type Family = &'static [&'static str];

const A100: Family = &["a100-40gb", "dgx-a100", "dgx-a100-4hdr"];
const HOPPER: Family = &["dgx-h100", "h100-96gb", "h200"];
const BLACKWELL: Family = &["b200", "b300", "gb200-nvl72", "gb300-nvl72"];
const MI300: Family = &["mi300x", "mi325x"];

/// The framework or the machines that a constant describes: a framework on any machines, or machines with any framework.
enum ConstantOwner {
    Framework(&'static str),
    Machines(&'static [Family]),
}

impl ConstantOwner {
    fn matches_cluster(&self, cluster: &Cluster) -> bool {
        match self {
            Self::Framework(name) => cluster.framework.name == *name,
            Self::Machines(families) => {
                families.iter().any(|family| family.contains(&cluster.name.as_str()))
            }
        }
    }
}

/// The field of a cluster that a constant describes.
enum ClusterField {
    Attention,
    Traffic,
    Interference,
    Dispatch,
    SharedNodes,
    /// One point of the table of products.
    Product(usize),
    /// All points of that table, which change together.
    Products,
    BandwidthShare,
    WithinNodes,
    BetweenNodes,
}

impl ClusterField {
    /// Whether it is a share of a limit, so at most 1.
    fn is_share(&self) -> bool {
        match self {
            Self::Attention
            | Self::Interference
            | Self::SharedNodes
            | Self::Product(_)
            | Self::Products
            | Self::BandwidthShare => true,
            Self::Traffic | Self::Dispatch | Self::WithinNodes | Self::BetweenNodes => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{FRAMEWORKS, PRESETS, find_framework, preset};

    #[test]
    fn presets_and_profiles_have_what_the_file_says() {
        let mut seen = BTreeMap::new();
        for name in PRESETS {
            for profile in FRAMEWORKS {
                let mut cluster = preset(name).expect("listed");
                cluster.framework = find_framework(profile).expect("listed");
                for &constant in CONSTANTS.constant.keys() {
                    if let Some(value) = constant.value_in_cluster(&cluster) {
                        assert_eq!(value, constant.value(), "{constant:?} of {profile} on {name}");
                        *seen.entry(constant).or_insert(0) += 1;
                    }
                }
            }
        }
        assert_eq!(seen.len(), CONSTANTS.constant.len(), "each is somebody's");
    }

    /// Constants of machines would pass by a preset of theirs that no family has.
    #[test]
    fn every_preset_is_of_one_family_or_shares_no_constant() {
        const ALONE: [&str; 2] = ["cpu", "p3.16xlarge"];
        for name in PRESETS {
            let families = [A100, HOPPER, BLACKWELL, MI300];
            let count = families.iter().filter(|family| family.contains(&name)).count();
            assert_eq!(count, usize::from(!ALONE.contains(&name)), "{name}");
        }
    }

    #[test]
    fn values_are_what_was_found_and_rounded_or_say_why_not() {
        for (name, constant) in &CONSTANTS.constant {
            let said = |why: &String| why.split_whitespace().count() >= 4;
            match (&constant.kept, &constant.held) {
                (None, None) => {
                    assert_eq!(Some(constant.value), constant.rounded_value(), "{name:?}")
                }
                (Some(why), None) => assert!(said(why) && constant.found.is_some(), "{name:?}"),
                (None, Some(why)) => assert!(said(why) && constant.found.is_none(), "{name:?}"),
                (Some(_), Some(_)) => panic!("{name:?} is held, so nothing else was found"),
            }
        }
    }

    #[test]
    fn rounding_is_to_significant_digits() {
        let rounded = |found, digits| {
            let found = Some(found);
            FittedConstant { value: 1.0, begin: 1.0, found, digits, kept: None, held: None }
                .rounded_value()
        };
        assert_eq!(rounded(32.44e-6, 3), Some(32.4e-6));
        assert_eq!(rounded(4.5721e9, 2), Some(4.6e9));
        assert_eq!(rounded(0.735_65, 4), Some(0.7357));
    }

    #[test]
    fn what_is_missing_or_unknown_is_an_error() {
        let error = |text: &str| parse_fitted(text).expect_err("it is wrong").to_string();
        assert!(error("table = []").contains("missing field `written`"));
        let known = TEXT.replace("[constant.h100-products]", "[constant.h101-products]");
        assert!(error(&known).contains("h101-products"));
    }

    #[test]
    fn the_file_is_as_it_is_written() {
        assert_eq!(write_fitted(&CONSTANTS), TEXT);
    }

    #[test]
    fn shares_are_scaled_up_to_all() {
        let mut cluster = preset("dgx-h100").expect("a preset");
        let before = cluster.clone();
        Fitted::H100BetweenNodes.scale(&mut cluster, 2.0);
        assert_eq!(cluster.levels[1].bandwidth, 2.0 * before.levels[1].bandwidth);
        Fitted::H100Products.scale(&mut cluster, 1.5);
        let shares: Vec<f64> =
            cluster.device.matmul_efficiency.iter().map(|point| point.1).collect();
        assert_eq!(shares.last(), Some(&0.99));
        Fitted::H100Products.scale(&mut cluster, 1.5);
        assert_eq!(Fitted::H100Products.value_in_cluster(&cluster), Some(1.0));
        Fitted::A100WithinNodes.scale(&mut cluster, 2.0);
        assert_eq!(cluster.levels[0], before.levels[0], "of other machines");
    }
}
