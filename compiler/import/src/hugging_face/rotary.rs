//! Positions by rotation, with the frequencies that a configuration says.

use std::f64::consts::TAU;

use graphc_ir::builder::Tensor;
use graphc_ir::types::DType;

use super::super::ImportError;
use super::config::HuggingFaceConfig;

/// The rotation of pairs of a head's elements by their position.
#[derive(Clone, Debug)]
pub(super) struct Rotation {
    base: f64,
    scaling: Scaling,
}

/// The scaling of a rotation's frequencies.
#[derive(Clone, Debug)]
enum Scaling {
    None,
    /// Divides all frequencies.
    Linear {
        factor: f64,
    },
    /// Divides low frequencies and blends those in between, as LLaMA 3.1 does.
    Llama3 {
        factor: f64,
        low: f64,
        high: f64,
        length: f64,
    },
}

impl Rotation {
    /// # Errors
    /// Returns an error if the configuration asks for a rotation that is not supported.
    pub(super) fn from_config(config: &HuggingFaceConfig) -> Result<Self, ImportError> {
        let base = config.number_or("rope_theta", 10_000.0)?;
        let says = config.object("rope_parameters")?.or(config.object("rope_scaling")?);
        let Some(says) = says else { return Ok(Self { base, scaling: Scaling::None }) };
        let base = says.number_or("rope_theta", base)?;
        if says.number_or("partial_rotary_factor", 1.0)? != 1.0 {
            return Err(config
                .config_error("only whole heads are turned: `partial_rotary_factor` is 1".into()));
        }
        let older = says.text_or("type", "default")?;
        let factor = says.number_or("factor", 1.0)?;
        let scaling = match says.text_or("rope_type", &older)?.as_str() {
            "default" => Scaling::None,
            "linear" => Scaling::Linear { factor },
            "llama3" => Scaling::Llama3 {
                factor,
                low: says.number_or("low_freq_factor", 1.0)?,
                high: says.number_or("high_freq_factor", 4.0)?,
                length: says.number_or("original_max_position_embeddings", 8192.0)?,
            },
            other => {
                let reason = format!(
                    "positions of the kind `{other}` are not known: default, linear and llama3 are"
                );
                return Err(config.config_error(reason));
            }
        };
        Ok(Self { base, scaling })
    }

    /// Turns the pairs of a tensor `[batch, time, heads, width]`.
    pub(super) fn turn(&self, x: &Tensor) -> Tensor {
        match self.scaling {
            Scaling::None => x.rotary(self.base, false),
            Scaling::Linear { .. } | Scaling::Llama3 { .. } => self.turn_by(x),
        }
    }

    /// Turns by frequencies that no op has: x cos + turned x sin.
    fn turn_by(&self, x: &Tensor) -> Tensor {
        let (g, shape, dtype) = (x.builder(), x.shape(), x.ty().dtype);
        let [_, time, _, width] = shape[..] else { return x.clone() };
        let half = width / 2;
        let frequencies: Vec<f64> = (0..half).map(|pair| self.frequency(pair, width)).collect();
        let frequencies = g.constant(DType::F32, [1, 1, half], &frequencies);
        let angles = g.iota(DType::F32, [time, 1, 1], 0).mul(&frequencies);
        let [cos, sin] = [angles.cos(), angles.sin()].map(|part| part.cast(dtype));
        let parts = x.split(3, &[half, half]);
        let [a, b] = &parts[..] else { return x.clone() };
        let first = a.mul(&cos).sub(&b.mul(&sin));
        let second = b.mul(&cos).add(&a.mul(&sin));
        g.concat(&[first, second], 3)
    }

    /// Returns the radians by which a pair turns from one position to the next.
    fn frequency(&self, pair: usize, width: usize) -> f64 {
        let own = self.base.powf(-2.0 * pair as f64 / width as f64);
        match self.scaling {
            Scaling::None => own,
            Scaling::Linear { factor } => own / factor,
            Scaling::Llama3 { factor, low, high, length } => {
                let turns = length * own / TAU;
                if turns < low {
                    return own / factor;
                }
                if turns > high {
                    return own;
                }
                let share = (turns - low) / (high - low);
                (1.0 - share) * own / factor + share * own
            }
        }
    }
}
