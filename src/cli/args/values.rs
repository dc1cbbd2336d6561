//! Parses values of the command line.

use std::fmt;

use clap::ValueEnum;
use graphc_compiler::cluster::FRAMEWORKS;
use graphc_data::{DatasetError, Source};
use graphc_ir::mesh::MOST_RANKS;
use graphc_ir::types::DType;
use graphc_plan::{
    Float8Recipe, Framework, Pin, Recompute, Schedule, ScheduleError, Strategy, StrategyError,
};

use super::{Count, MOST_THREADS, Mesh};
use crate::cli::numbers::parse_positive;

pub(super) fn parse_mesh(text: &str) -> Result<Mesh, String> {
    let axes: Option<Vec<usize>> = text.split('x').map(|axis| axis.parse().ok()).collect();
    match axes {
        Some(axes) if !axes.contains(&0) => {
            let ranks = axes.iter().try_fold(1usize, |ranks, &axis| ranks.checked_mul(axis));
            match ranks.filter(|&ranks| ranks <= MOST_RANKS) {
                Some(_) => Ok(Mesh(axes)),
                None => Err(format!("a mesh has at most {MOST_RANKS} ranks")),
            }
        }
        _ => Err("write a mesh as 4 or 2x4".into()),
    }
}

pub(super) fn parse_count(text: &str) -> Result<Count, String> {
    match text {
        "auto" => Ok(Count::Auto),
        _ => parse_positive(text).map(Count::Of).map_err(|error| format!("{error}, or auto")),
    }
}

pub(super) fn parse_source(text: &str) -> Result<Source, String> {
    text.parse().map_err(|error: DatasetError| error.to_string())
}

/// Coefficients of Muon's iterations, as `A,B,C`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Coefficients(pub [f64; 3]);

impl fmt::Display for Coefficients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c] = self.0;
        write!(f, "{a},{b},{c}")
    }
}

pub(super) fn parse_coefficients(text: &str) -> Result<Coefficients, String> {
    let number = |text: &str| text.trim().parse().ok().filter(|number: &f64| number.is_finite());
    let numbers: Option<Vec<f64>> = text.split(',').map(number).collect();
    let three = numbers.and_then(|numbers| numbers.try_into().ok());
    three.map(Coefficients).ok_or_else(|| "write three numbers as A,B,C".into())
}

pub(super) fn parse_port(text: &str) -> Result<u16, String> {
    let number = text.parse().ok().filter(|&number| number > 0);
    number.ok_or_else(|| format!("write the number of a port, 1 to {}", u16::MAX))
}

pub(super) fn parse_threads(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=MOST_THREADS).contains(number));
    number.ok_or_else(|| format!("write a number from 1 to {MOST_THREADS}"))
}

pub(super) fn parse_seconds(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|&number: &f64| number > 0.0 && number < 1e9);
    number.ok_or_else(|| "write a number of seconds above 0".into())
}

pub(super) fn not_negative(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|&number: &f64| number.is_finite() && number >= 0.0);
    number.ok_or_else(|| "write a number of at least 0".into())
}

/// A number above 0.
pub(super) fn parse_above_zero(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|&number: &f64| number.is_finite() && number > 0.0);
    number.ok_or_else(|| "write a number above 0".into())
}

/// A share that may be all.
pub(super) fn parse_whole_share(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..=1.0).contains(number));
    number.ok_or_else(|| "write a number from 0 to 1".into())
}

pub(super) fn parse_share(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..1.0).contains(number));
    number.ok_or_else(|| "write a number of at least 0 and below 1".into())
}

pub(super) fn parse_pin(text: &str) -> Result<Pin, String> {
    let (pattern, sbp) = text.split_once('=').ok_or("write NAME=S(0),B")?;
    Ok(Pin { pattern: pattern.trim().into(), sbp: sbp.parse()? })
}

pub(super) fn parse_framework(text: &str) -> Result<Framework, String> {
    let known = graphc_compiler::cluster::find_framework(text);
    known.ok_or_else(|| format!("`{text}` is no framework: they are {}", FRAMEWORKS.join(", ")))
}

pub(super) fn parse_schedule(text: &str) -> Result<Schedule, String> {
    text.parse().map_err(|error: ScheduleError| error.to_string())
}

pub(super) fn parse_strategy(text: &str) -> Result<Strategy, String> {
    text.parse().map_err(|error: StrategyError| error.to_string())
}

/// The precision that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Precision {
    /// The element type of products.
    pub dtype: DType,
    /// The recipe, if that has 8 bits.
    pub float8_recipe: Float8Recipe,
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.dtype, self.float8_recipe) {
            (DType::F8E4M3, Float8Recipe::Rowwise) => f.write_str("fp8"),
            (DType::F8E4M3, Float8Recipe::Tensorwise) => f.write_str("fp8:tensorwise"),
            (dtype, _) => dtype.fmt(f),
        }
    }
}

pub(super) fn parse_precision(text: &str) -> Result<Precision, String> {
    let rowwise = |dtype| Precision { dtype, float8_recipe: Float8Recipe::Rowwise };
    match text {
        "f32" => Ok(rowwise(DType::F32)),
        "bf16" => Ok(rowwise(DType::BF16)),
        "f16" => Ok(rowwise(DType::F16)),
        "fp8" | "fp8:rowwise" => Ok(rowwise(DType::F8E4M3)),
        "fp8:tensorwise" => {
            Ok(Precision { dtype: DType::F8E4M3, float8_recipe: Float8Recipe::Tensorwise })
        }
        _ => {
            Err("precisions are f32, bf16, f16, fp8 (that is fp8:rowwise) and fp8:tensorwise"
                .into())
        }
    }
}

pub(super) fn parse_recompute(text: &str) -> Result<Recompute, String> {
    match text {
        "none" => Ok(Recompute::None),
        "selective" => Ok(Recompute::Selective),
        "full" => Ok(Recompute::Full),
        "auto" => Ok(Recompute::Auto),
        _ => Err("activations are recomputed as none, selective, full or auto say".into()),
    }
}

pub(super) fn parse_dim(text: &str) -> Result<(String, usize), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    let value = value.parse().map_err(|_| format!("`{value}` is no extent"))?;
    Ok((name.into(), value))
}

pub(super) fn parse_effort(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (1..=100).contains(number));
    number.ok_or_else(|| "write a number of percent from 1 to 100".into())
}

pub(super) fn parse_emit(text: &str) -> Result<String, String> {
    text.strip_prefix("after:").map(String::from).ok_or_else(|| "write after:PASS".into())
}

pub(super) fn parse_bytes(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale: f64 = match unit.trim() {
        "" | "B" => 1.0,
        "kB" | "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        "GiB" => 1024.0 * 1024.0 * 1024.0,
        "TB" => 1e12,
        "TiB" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return Err(format!("`{unit}` is no unit of bytes: write 16GiB, 512MiB or a number")),
    };
    let number: f64 = number.trim().parse().map_err(|_| format!("`{text}` is no size"))?;
    match (number * scale) as u64 {
        0 => Err(format!("`{text}` is no size: write 16GiB, 512MiB or a number of bytes")),
        bytes if number.is_finite() => Ok(bytes),
        _ => Err(format!("`{text}` is no size")),
    }
}

/// Returns the name by which the command line knows a value.
pub(crate) fn value_name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |named| named.get_name().to_owned())
}
